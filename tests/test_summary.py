# SPDX-License-Identifier: Apache-2.0
"""The counts of ./run test: nothing that failed or was skipped may get lost."""
import json
import pathlib
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS))
import summary  # noqa: E402

CMOCKA_OUT = """[==========] Running 3 test(s).
[ RUN      ] first
[       OK ] first
[ RUN      ] second
skipped: no huge pages
here
[  SKIPPED ] second
[ RUN      ] third
"""
CMOCKA_ERR = """[  ERROR   ] --- 1 != 2
[  FAILED  ] third
[==========] 3 test(s) run.
[  PASSED  ] 1 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] second
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] third

 1 FAILED TEST(S)
"""
PYTEST = """..s.                                                            [100%]
=========================== short test summary info ============================
SKIPPED [2] test_x.py:3: no numpy
SKIPPED [1] test_x.py:9: no torch
2 failed, 76 passed, 3 skipped, 1 warning in 12.34s
"""


def entry(result, stdout="", stderr=""):
    return {"name": "a", "result": result, "stdout": stdout, "stderr": stderr}


@pytest.mark.parametrize("given, tally, whys", [
    (entry("OK"), (1, 0, 0), []),
    (entry("EXPECTEDFAIL", CMOCKA_OUT, CMOCKA_ERR), (1, 0, 0), []),
    (entry("FAIL"), (0, 1, 0), []),
    (entry("TIMEOUT"), (0, 1, 0), []),
    (entry("UNEXPECTEDPASS"), (0, 1, 0), []),
    (entry("SKIP", "looked\nno Go here\n\n"), (0, 0, 1), ["no Go here"]),
    (entry("SKIP"), (0, 0, 1), ["no reason given"]),
    (entry("FAIL", CMOCKA_OUT, CMOCKA_ERR), (1, 1, 1), ["second: skipped: no huge pages here"]),
    (entry("OK", PYTEST.replace("2 failed, ", "")), (76, 0, 3),
     ["test_x.py:3: no numpy (2 cases)", "test_x.py:9: no torch"]),
    (entry("FAIL", PYTEST), (76, 2, 3),
     ["test_x.py:3: no numpy (2 cases)", "test_x.py:9: no torch"]),
    (entry("FAIL", "5 passed in 0.10s\n"), (5, 1, 0), []),  # the sanitizer spoke afterwards
    (entry("OK", "= 4 passed, 2 skipped in 0.10s =\n"), (4, 0, 2), ["2 cases, no reason given"]),
    (entry("OK", "", "Ran 5 tests in 0.001s\n\nOK\n"), (5, 0, 0), []),
    (entry("FAIL", "", "Ran 5 tests in 0.001s\n\nFAILED (failures=1, errors=1, skipped=1)\n"),
     (2, 2, 1), ["1 cases, no reason given"]),
])
def test_judge(given, tally, whys):
    assert summary.judge(given) == (tally, whys)


def run(*arguments):
    return subprocess.run([sys.executable, str(TESTS / "summary.py"), *arguments], text=True,
                          capture_output=True, check=False)


def write(path, *entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), "utf-8")
    return path


def test_last_line_and_exit_status(tmp_path):
    good = write(tmp_path / "good", entry("OK", PYTEST.replace("2 failed, ", "")), entry("OK"))
    bad = write(tmp_path / "bad", entry("TIMEOUT"))
    result = run(f"plain={good}")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "77 passed, 0 failed, 3 skipped"
    assert "no torch" in result.stdout
    result = run(f"plain={good}", f"asan={bad}")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "77 passed, 1 failed, 3 skipped"
    assert "asan: a: TIMEOUT" in result.stdout


def test_a_log_that_is_missing_or_torn_is_a_failure(tmp_path):
    torn = tmp_path / "torn"
    torn.write_text('{"name": ', "utf-8")
    result = run(f"asan={tmp_path}/none", f"tsan={torn}")
    assert result.returncode == 1
    assert result.stdout.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"

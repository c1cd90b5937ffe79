# SPDX-License-Identifier: Apache-2.0
"""Runs the tool as a shell would, and judges how it ended."""
import json
import os
import subprocess

RINGSIDE = os.environ["RINGSIDE_CLI"]
OK, FAILED, USAGE, UNREACHABLE, TICKET, TIMEOUT = range(6)


def environment(path=None, locale="C.UTF-8"):
    """What the tool gets from a shell; `path` is that of the socket, which it gets by its name there or not at all."""
    kept = {name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")}
    named = {} if path is None else {"RINGSIDE_SOCKET": str(path)}
    return {"PATH": os.environ["PATH"], "LC_ALL": locale, **named, **kept}


def ringside(*arguments, path=None, locale="C.UTF-8", text=True, **popen):
    return subprocess.run([RINGSIDE, *map(str, arguments)], env=environment(path, locale), text=text,
                          encoding="utf-8" if text else None, capture_output=True, timeout=60, check=False, **popen)


def refused(result, status, *words):
    """That it ended with `status`, said why with all `words` in one line, and printed nothing."""
    assert result.returncode == status, result
    assert not result.stdout
    first = result.stderr.splitlines()[0]
    for word in words:
        assert str(word) in first, first
    return first


def lines(result):
    assert result.returncode == OK and result.stderr == "", result
    return [json.loads(line) for line in result.stdout.splitlines()]

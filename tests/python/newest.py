# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the Python package in a virtual environment: the newest CPython at hand, NumPy and ml_dtypes from PyPI.

With RINGSIDE_TEST_TORCH=1 torch as well (about 6 GB), else where it is in the environment already. Exits with 77, and
says why, when PyPI is out of reach.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
PACKAGES = ["numpy", "ml_dtypes", "pytest", "setuptools"]  # the last one is for meson, which asks distutils
TESTS = ["test_send_receive.py", "test_dtypes.py", "test_dlpack.py", "test_lifetime.py", "test_waiting.py", "test_stages.py",
         "test_tickets.py", "test_tree.py", "test_pickle.py", "test_pickle_many.py", "test_restart.py", "test_tickets_around.py",
         "test_asyncio.py", "test_calls.py", "test_calls_end.py", "test_calls_many.py", "test_call_edges.py", "test_faults.py",
         "test_soak.py"]
OLDEST, NEWEST = (3, 9), (3, 13)


def interpreters() -> list[str]:
    """CPythons on PATH and of pyenv, newest version first."""
    found: dict[str, tuple[int, ...]] = {}
    names = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], NEWEST[1] + 1)]
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv")) / "versions"
    for path in [*filter(None, names), *map(str, pyenv.glob("3.*/bin/python3")), "/usr/bin/python3"]:
        script = ("import os, sys, sysconfig, venv, ensurepip\n"
                  "assert sys.implementation.name == 'cpython'\n"
                  "assert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h'))\n"
                  "print(sys.version_info[0], sys.version_info[1], sys.version_info[2])\n")
        done = subprocess.run([path, "-c", script], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[path] = tuple(map(int, done.stdout.split()))
    fit = {path: version for path, version in found.items() if OLDEST <= version[:2] <= NEWEST}
    return sorted(fit, key=lambda path: fit[path], reverse=True)


def skip(reason: str) -> int:
    print(f"SKIPPED: the package is NOT tested with the newest Python and NumPy: {reason}")
    return SKIPPED


def install(directory: pathlib.Path, python: str) -> str | None:
    """An environment with the packages; None, or what pip says."""
    if not (directory / "bin" / "python3").exists():
        subprocess.run([python, "-m", "venv", str(directory)], check=True)
    packages = PACKAGES + (["torch"] if os.environ.get("RINGSIDE_TEST_TORCH") == "1" else [])
    done = subprocess.run([str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
                           "--timeout", "20", *packages], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr.strip().splitlines()[-1] if done.stderr else "pip failed"


def run(*command: str) -> str:
    """Its output; shown when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


def build(root: pathlib.Path, directory: pathlib.Path, environment: pathlib.Path) -> pathlib.Path:
    """The package for that Python; where it is."""
    machine = directory / "python.ini"
    directory.mkdir(parents=True, exist_ok=True)
    machine.write_text(f"[binaries]\npython = '{environment}/bin/python3'\n")
    output = directory / "build"
    if not (output / "build.ninja").exists():
        run("meson", "setup", "--native-file", str(machine), "-Dtests=false", "-Dpython=enabled", str(output), str(root))
    listed = run("ninja", "-C", str(output), "-t", "targets", "all")
    run("ninja", "-C", str(output), *re.findall(r"^(client/python/ringside/[^/\n:]+): (?!phony)", listed, re.MULTILINE))
    return output / "client" / "python"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path, help="of the source tree")
    parser.add_argument("directory", type=pathlib.Path, help="to work in; kept for the next time")
    arguments = parser.parse_args()
    pythons = interpreters()
    if not pythons:
        return skip(f"no CPython 3.{OLDEST[1]}..3.{NEWEST[1]} with headers and venv (Debian: python3-dev, python3-venv)")
    version = subprocess.run([pythons[0], "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    directory = arguments.directory.resolve() / version
    environment = directory / "venv"
    reason = install(environment, pythons[0])
    if reason:
        return skip(f"PyPI gave no {', '.join(PACKAGES)} for Python {version}: {reason}")
    package = build(arguments.root.resolve(), directory, environment)
    python = str(environment / "bin" / "python3")
    shown = "import sys, numpy; print('CPython', sys.version.split()[0], 'NumPy', numpy.__version__)"
    subprocess.run([python, "-c", shown], check=True)
    tests = arguments.root.resolve() / "tests" / "python"
    return subprocess.run([python, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(str(tests / name) for name in TESTS)],
                          env={**os.environ, "PYTHONPATH": str(package)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The types of the package: strict in itself, right for a user's program, and as the compiled part really is."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
import ringside

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = pathlib.Path(ringside.__file__).resolve().parent


def tool(module, command):
    """How to call a tool of mypy: with this Python, or as a program that brings its own."""
    if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", module]
    if shutil.which(command):
        return [command]
    return pytest.skip(f"{command} is not installed: the types are NOT tested")


def check(*arguments):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, cwd=HERE,
                          env={**os.environ, "MYPYPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_mypy_strict():
    mypy = tool("mypy", "mypy")
    output = check(*mypy, "--config-file", "mypy.ini", "-p", "ringside")
    assert "Success" in output
    output = check(*mypy, "--config-file", "mypy.ini", "typed_user.py")
    assert "Success" in output


def test_stub_is_what_is_there():
    check(*tool("mypy.stubtest", "stubtest"), "ringside", "--mypy-config-file", "mypy.ini", "--allowlist", "stubtest.allow",
          "--ignore-unused-allowlist", "--concise")


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").is_file() and (PACKAGE / "_core.pyi").is_file()


def test_every_public_method_has_a_docstring():
    for kind in (ringside.Connection, ringside.Slot, ringside.Message, ringside.Ticket, ringside.Stage):
        for name in dir(kind):
            if not name.startswith("_") and name not in dir(int):
                assert getattr(kind, name).__doc__, f"{kind.__name__}.{name}"

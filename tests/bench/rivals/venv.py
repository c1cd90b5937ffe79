# SPDX-License-Identifier: Apache-2.0
"""A virtual environment with pinned packages of the rivals; what cannot be installed has a reason."""

import json
import pathlib
import shutil
import subprocess
import sys

PINNED = {"numpy": "2.4.6", "pyzmq": "27.3.0", "grpcio": "1.85.3", "iceoryx2": "0.10.0", "ray": "2.60.0",
          "torch": "2.15.0"}
OLDER = {"numpy": "2.0.2"}  # for a CPython that the pinned one has left behind
HEAVY = ("ray", "torch")
NEEDS_BYTES = {"ray": 1 << 30, "torch": 9 << 30}  # on the disk while it is installed


def works(python):
    """An environment whose base was taken away does not."""
    try:
        return subprocess.run([python, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        return False


def installed(python):
    """Name to version of what the environment has."""
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json", "--disable-pip-version-check"],
                            stdout=subprocess.PIPE, check=False)
    return {item["name"].lower(): item["version"] for item in json.loads(listed.stdout or "[]")}


def install(python, name, version):
    """None, or why not: pip's own last error."""
    free = shutil.disk_usage(python).free
    if free < NEEDS_BYTES.get(name, 0):
        return f"needs {NEEDS_BYTES[name] >> 30} GiB on the disk, {free >> 30} are free"
    print(f"bench: installing {name} {version} ...", file=sys.stderr, flush=True)
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--quiet", "--only-binary",
               ":all:", "--retries", "1", "--progress-bar", "off", f"{name}=={version}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode == 0:
        return None
    if "Retrying (" in done.stdout:
        return "PyPI is out of reach"
    lines = [line for line in done.stdout.splitlines() if line.strip()] or ["it said nothing"]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return "pip: " + errors[-1].replace("ERROR: ", "")


def prepare(directory, light):
    """Make or complete the environment. Returns its Python, or None, and name to reason of what it lacks."""
    directory = pathlib.Path(directory)
    names = [name for name in PINNED if not (light and name in HEAVY)]
    lacking = {name: "left out by --rivals=light" for name in PINNED if name not in names}
    python = str(directory / "bin/python")
    if not works(python):
        made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(directory)], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode != 0:
            why = f"python -m venv: {(made.stdout.strip().splitlines() or ['failed'])[-1]}"
            return None, {name: why for name in PINNED}
    there = installed(python)
    missing = [name for name in names if name not in there
               or there[name] not in (PINNED[name], OLDER.get(name))]
    if missing:
        size = "about 7 GB, most of it what torch brings with it" if "torch" in missing else \
            "about 0.5 GB" if "ray" in missing else "about 0.2 GB"
        print(f"bench: {directory}: installing {', '.join(missing)} from PyPI, {size}", file=sys.stderr, flush=True)
    for name in missing:
        why = install(python, name, PINNED[name])
        if why and name in OLDER:
            why = install(python, name, OLDER[name])
        if why:
            lacking[name] = why
    return python if "numpy" not in lacking else None, lacking

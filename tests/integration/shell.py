# SPDX-License-Identifier: Apache-2.0
"""Runs the tool as a shell would, and makes .npy files for it."""
import json
import os
import struct
import subprocess

import numpy

RINGSIDE = os.environ["RINGSIDE_CLI"]
OK, FAILED, USAGE, UNREACHABLE, TICKET, TIMEOUT = range(6)


def environment(path):
    kept = {name: os.environ[name] for name in os.environ if name.endswith("SAN_OPTIONS")}
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "RINGSIDE_SOCKET": str(path), **kept}


def ringside(*arguments, path="", text=True, **popen):
    return subprocess.run([RINGSIDE, *map(str, arguments)], env=environment(path), text=text,
                          capture_output=True, timeout=60, check=False, **popen)


def refused(result, status, *words):
    """That it ended with `status`, said why with all `words` in one line, and printed nothing."""
    assert result.returncode == status, result
    assert not result.stdout
    first = result.stderr.splitlines()[0]
    for word in words:
        assert str(word) in first, first


def lines(result):
    assert result.returncode == OK and result.stderr == "", result
    return [json.loads(line) for line in result.stdout.splitlines()]


def save(path, array):
    numpy.save(path, array)
    return path


def npy(header, elements=b"", version=1):
    """An .npy file with the header as it is given."""
    width = "<H" if version == 1 else "<I"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, len(header)) + header + elements


def head(descr="'<f4'", fortran="False", shape="(2, 3)"):
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()

# SPDX-License-Identifier: Apache-2.0
"""`ringside call`: requests and replies as .npy files, streams, errors, and calls that end early."""
import json
import os
import signal
import subprocess

import numpy
import pytest

from cli import FAILED, OK, RINGSIDE, TIMEOUT, UNREACHABLE, USAGE, environment, lines, refused, ringside
from daemon import wait_for
from npy_files import save

CALLEE = os.environ["RINGSIDE_CALLEE"]


@pytest.fixture
def sidecar(start):
    return start(stage="latent")


@pytest.fixture
def callee(sidecar):
    """A worker of the stage itself that serves; say() gives the next line of what it saw."""
    with subprocess.Popen([CALLEE, str(sidecar.socket)], stdout=subprocess.PIPE, text=True) as process:
        process.say = lambda: process.stdout.readline().rstrip("\n")
        assert process.say() == "serves"
        yield process
        process.kill()


def free_slots(sidecar):
    with sidecar.client() as client:
        return sum(entry.free for entry in client.status().classes)


@pytest.mark.parametrize("arguments, word", [
    (["call"], "ROUTE.METHOD"),
    (["call", "self"], "ROUTE.METHOD"),
    (["call", ".x"], "ROUTE.METHOD"),
    (["call", "self."], "ROUTE.METHOD"),
    (["call", "self.x", *["x.npy"] * 65], "65 files"),
    (["call", "self.x", "-o", ""], "-o is empty"),
    (["call", "self.x", "-o", "-", "--json"], "--json"),
    (["call", "self.x", "-o", "-", "--stream"], "directory"),
    (["call", "self.x", "--meta", "{'k': 1}"], "is not JSON"),
])
def test_usage(arguments, word, tmp_path):
    refused(ringside(*arguments, path=tmp_path / "nobody"), USAGE, word)


def test_nobody_there(tmp_path):
    refused(ringside("call", "self.x", path=tmp_path / "s.sock"), UNREACHABLE, "s.sock", "sidecar running")


def test_one_reply(sidecar, callee, tmp_path):
    array = numpy.arange(6, dtype="<f4").reshape(2, 3)
    request, out = save(tmp_path / "in.npy", array), tmp_path / "out.npy"
    result = ringside("call", "self.Echo", request, "--meta", '{"k": "ü"}', "-o", out, path=sidecar.socket)
    assert (result.returncode, result.stdout, result.stderr) == (OK, 'float32[2,3]  {"k":"ü"}\n', "")
    assert (numpy.load(out) == array).all()
    [got] = lines(ringside("call", "self.Echo", request, "--meta", "[1]", "-o", out, "-j", path=sidecar.socket))
    assert got["metadata"] == [1] and got["output"] == str(out) == got["tensors"][0]["file"]
    assert ringside("call", "self.Echo", request, path=sidecar.socket).stdout == "float32[2,3]\n"
    [got] = lines(ringside("call", "self.Echo", "-j", path=sidecar.socket))  # without a file
    assert [tensor["shape"] for tensor in got["tensors"]] == [[0]] and "output" not in got
    result = ringside("call", "self.Echo", request, "-o", "-", path=sidecar.socket, text=False)
    assert result.stdout == request.read_bytes()
    assert wait_for(lambda: free_slots(sidecar) == 8)


def test_many_tensors(sidecar, callee, tmp_path):
    files = [save(tmp_path / f"{i}.npy", numpy.full(i + 1, i)) for i in range(3)]
    refused(ringside("call", "self.Echo", *files, "-o", tmp_path / "x.npy", path=sidecar.socket), USAGE, "3 tensors",
            "--tensor")
    assert not (tmp_path / "x.npy").exists()
    assert ringside("call", "self.Echo", *files, "-n2", "-o", tmp_path / "x.npy", path=sidecar.socket).returncode == OK
    assert numpy.load(tmp_path / "x.npy").tolist() == [1, 1]
    (tmp_path / "all").mkdir()
    [got] = lines(ringside("call", "self.Echo", *files, "-o", tmp_path / "all", "-j", path=sidecar.socket))
    for i, tensor in enumerate(got["tensors"]):
        assert numpy.load(tmp_path / "all" / tensor["file"]).tolist() == [i] * (i + 1)
    assert wait_for(lambda: free_slots(sidecar) == 8)


def test_stream(sidecar, callee, tmp_path):
    request = save(tmp_path / "in.npy", numpy.arange(4))
    got = lines(ringside("call", "self.Thrice", request, "--stream", "-o", tmp_path / "out", "-j", path=sidecar.socket))
    assert len(got) == 3 and len({each["text"] for each in got}) == 3
    for each in got:
        assert numpy.load(tmp_path / "out" / each["tensors"][0]["file"]).tolist() == [0, 1, 2, 3]
        assert each["directory"] == str(tmp_path / "out")
        assert json.loads((tmp_path / "out" / f"{each['text']}.json").read_text())["ticket"] == each["ticket"]
    result = ringside("call", "self.Thrice", request, "--stream", path=sidecar.socket)
    assert result.stdout == "int64[4]\n" * 3
    assert ringside("call", "self.Echo", request, "--stream", path=sidecar.socket).stdout == "int64[4]\n"
    refused(ringside("call", "self.Thrice", request, path=sidecar.socket), FAILED, "many replies", "--stream")
    assert wait_for(lambda: free_slots(sidecar) == 8)


def test_what_the_callee_answers(sidecar, callee):
    refused(ringside("call", "self.Refuse", path=sidecar.socket), FAILED, "self.Refuse: NO_ROUTE: not to Rome")
    refused(ringside("call", "self.Break", path=sidecar.socket), FAILED, "INVALID", '"Break"', "SHAPE")
    refused(ringside("call", "self.Nope", path=sidecar.socket), FAILED, "UNIMPLEMENTED", '"Nope"', "Echo, Thrice, Refuse")
    refused(ringside("call", "nowhere.Echo", path=sidecar.socket), FAILED, "NO_ROUTE", "nowhere")
    refused(ringside("call", "self." + "m" * 64, path=sidecar.socket), FAILED, "INVALID", "1..63")
    assert wait_for(lambda: free_slots(sidecar) == 8)


def test_calls_that_end_early(sidecar, callee):
    refused(ringside("call", "self.Hang", "-t", "0.3", path=sidecar.socket), TIMEOUT, "TIMEOUT", "time of the call")
    verb, milliseconds, _ = callee.say().split()
    assert verb == "holds" and int(milliseconds) <= 300
    assert callee.say() == "cancelled"
    with subprocess.Popen([RINGSIDE, "call", "self.Hang", "-t", "60"], env=environment(sidecar.socket)) as process:
        assert callee.say().startswith("holds")
        process.send_signal(signal.SIGINT)
        assert callee.say() == "cancelled"
    refused(ringside("call", "self.Vanish", "-t", "30", path=sidecar.socket), FAILED, "UNAVAILABLE", "died")
    refused(ringside("call", "self.Echo", "-t", "0.1", path=sidecar.socket), TIMEOUT, "TIMEOUT")  # nobody serves
    assert callee.wait(20) == 7
    assert wait_for(lambda: free_slots(sidecar) == 8)

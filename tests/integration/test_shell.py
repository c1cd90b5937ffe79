# SPDX-License-Identifier: Apache-2.0
"""The tool as a worker: .npy files in and out, by route and by ticket, and every way in which that fails."""
import json
import os
import resource
import signal
import subprocess

import numpy
import pytest

import control_pb2 as pb
from cli import FAILED, OK, RINGSIDE, TICKET, TIMEOUT, UNREACHABLE, USAGE, environment, lines, refused, ringside
from daemon import wait_for
from npy_files import head, npy, save

COMMANDS = ["send", "recv", "call", "share", "read", "free", "tap", "routes", "top"]
FOREIGN = "rst1-000100002000000ab-5f3a9c11-772c"


@pytest.fixture
def sidecar(start):
    return start(stage="latent")


def free_slots(sidecar):
    with sidecar.client() as client:
        return sum(entry.free for entry in client.status().classes)


# ---- The command line ----

@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_a_manual_page(command):
    for arguments in ([command, "--help"], ["help", command]):
        result = ringside(*arguments)
        assert result.returncode == OK and result.stderr == ""
        headings = [line for line in result.stdout.splitlines() if line and line[0] != " "]
        assert headings == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS",
                            "ENVIRONMENT", "EXAMPLES"]
        assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert f"\n    {command} " in ringside("--help").stdout


@pytest.mark.parametrize("arguments, word", [
    (["send", "self"], "ROUTE FILE..."),
    (["send", "self", *["x.npy"] * 65], "--each"),
    (["send", "self", "-", "--meta", "{'k': 1}"], "is not JSON"),
    (["send", "self", "-", "--meta", ""], "is not JSON"),
    (["send", "self", "-", "--ttl", "soon"], "'soon'"),
    (["share", "-", "--readers", "256"], "256"),
    (["share", "-", "--readers", "2", "--kept"], "--kept"),
    (["recv"], "-o DIR"),
    (["recv", "-o", ""], "-o DIR"),
    (["read", FOREIGN], "-o FILE"),
    (["read", FOREIGN, "-o", "-", "--json"], "--json"),
    (["read", "x", "-o", "f"], "is not a ticket"),
    (["free", "0"], "is not a ticket"),
    (["tap", "self", "--rate", "1001"], "1001"),
    (["top", "--interval", "0"], "--interval"),
])
def test_usage(arguments, word, tmp_path):
    refused(ringside(*arguments, path=tmp_path / "nobody"), USAGE, word)


@pytest.mark.parametrize("arguments", [
    ["send", "self", "-"], ["share", "-"], ["recv", "-o", "in"], ["read", FOREIGN, "-o", "f"],
    ["free", FOREIGN], ["tap", "self"], ["routes"]])
def test_nobody_there(arguments, tmp_path):
    result = ringside(*arguments, path=tmp_path / "s.sock", stdin=subprocess.DEVNULL, cwd=tmp_path)
    refused(result, UNREACHABLE, "s.sock", "sidecar running")
    assert list(tmp_path.iterdir()) == []


# ---- send and recv ----

ARRAYS = [numpy.arange(12).reshape(3, 4).astype(dtype) for dtype in
          ("?", "u1", "<u2", "<u4", "<u8", "i1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16", "V1")]
ARRAYS += [numpy.array(2.5), numpy.zeros((0, 3), "f4"), numpy.zeros((3, 0)),
           numpy.arange(2.0).reshape((1, 1, 2, 1, 1, 1, 1, 1)), numpy.array([7, 8, 9])]


def test_arrays_arrive_as_they_were(sidecar, tmp_path):
    files = [save(tmp_path / f"{i}.npy", array) for i, array in enumerate(ARRAYS)]
    [sent] = lines(ringside("send", "self", *files, "--meta", '{"k": [1, "ü"]}', "-j", path=sidecar.socket))
    assert sent["tensors"] == len(ARRAYS) and sent["bytes"] == sum(a.nbytes for a in ARRAYS)
    [got] = lines(ringside("recv", "-o", tmp_path / "in", "-j", path=sidecar.socket))
    assert got["text"] == sent["text"] and got["ticket"] == sent["ticket"]
    assert got["metadata"] == {"k": [1, "ü"]} and got["metadata_kind"] == "json"
    for array, tensor in zip(ARRAYS, got["tensors"], strict=True):
        back = numpy.load(tmp_path / "in" / tensor["file"], allow_pickle=False)
        assert back.dtype == array.dtype and back.shape == array.shape == tuple(tensor["shape"])
        assert back.tobytes() == array.tobytes() and tensor["bytes"] == array.nbytes
    document = json.loads((tmp_path / "in" / f"{sent['text']}.json").read_text())
    assert got == {**document, "directory": str(tmp_path / "in")}
    assert len(os.listdir(tmp_path / "in")) == len(ARRAYS) + 1
    assert wait_for(lambda: free_slots(sidecar) == 8)


def test_each_file_is_a_message(sidecar, tmp_path):
    files = [save(tmp_path / f"{i}.npy", numpy.full(i + 1, i)) for i in range(3)]
    tickets = ringside("send", "--each", "self", *files, path=sidecar.socket).stdout.splitlines()
    assert len(set(tickets)) == 3
    result = ringside("recv", "-n", 3, "-o", tmp_path / "in", path=sidecar.socket)
    assert result.returncode == OK
    assert [line.split("  ")[0] for line in result.stdout.splitlines()] == \
        [f"{tmp_path}/in/{ticket}.json" for ticket in tickets]
    assert "int64[2]" in result.stdout
    for i, ticket in enumerate(tickets):
        assert numpy.load(tmp_path / f"in/{ticket}.0.npy").tolist() == [i] * (i + 1)


def test_what_fails_ends_each(sidecar, tmp_path):
    good = save(tmp_path / "good.npy", numpy.ones(2))
    result = ringside("send", "--each", "self", good, tmp_path / "missing.npy", good, path=sidecar.socket)
    assert result.returncode == FAILED and len(result.stdout.splitlines()) == 1
    assert "missing.npy" in result.stderr and "No such file" in result.stderr


def test_standard_input(sidecar, tmp_path):
    array = numpy.arange(5000, dtype="f4")  # more than a pipe holds at once
    data = npy(head(shape="(5000,)"), array.tobytes())
    assert ringside("send", "self", "-", path=sidecar.socket, input=data, text=False).returncode == OK
    for broken, word in ((data[:-1], b"cut short"), (data + b"x", b"only one array")):
        result = ringside("send", "self", "-", path=sidecar.socket, input=broken, text=False)
        assert result.returncode == FAILED and b"standard input" in result.stderr and word in result.stderr
    refused(ringside("send", "self", "-", "-", path=sidecar.socket, input=data.decode("latin1")), USAGE, "only one")
    lines(ringside("recv", "-o", tmp_path, "-j", path=sidecar.socket))
    [file] = tmp_path.glob("*.npy")
    assert (numpy.load(file) == array).all()


def test_a_slow_pipe_holds_no_slot(sidecar):
    with subprocess.Popen([RINGSIDE, "send", "self", "-"], env=environment(sidecar.socket),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(npy(head(), bytes(10)))
        process.stdin.flush()
        with sidecar.client() as client:
            wait_for(lambda: client.status().clients)
            assert not client.slots()
        process.communicate(bytes(14), timeout=60)
    assert process.returncode == OK


@pytest.mark.parametrize("data", [
    npy(head(), bytes(24)),
    npy(head(), bytes(24), version=2),
    npy(head(), bytes(24), version=3),
    npy(head(shape="(2L, 3L)"), bytes(24)),
    npy(head(shape="(2,3)"), bytes(24)),
    npy(b'{"shape":(2,3),"fortran_order":False,"descr":"<f4"}', bytes(24)),
    npy(head(fortran="True", shape="(1, 6)"), bytes(24)),
    npy(head(fortran="True", shape="(6,)"), bytes(24)),
    npy(head("'>u1'"), bytes(6)),
])
def test_headers_that_are_read(data, sidecar, tmp_path):
    (tmp_path / "a.npy").write_bytes(data)
    result = ringside("send", "self", tmp_path / "a.npy", path=sidecar.socket)
    assert result.returncode == OK, result


@pytest.mark.parametrize("data, word", [
    (b"", "empty"),
    (b"\x93NUM", "does not begin"),
    (b"PK\x03\x04" + bytes(30), ".npz"),
    (b"\x80\x04K\x01.", "does not begin"),
    (b"\x93NUMPY\x04\x00" + bytes(30), "version 4.0"),
    (b"\x93NUMPY\x01\x00\xff", "ends within"),
    (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(30), "4294967295"),
    (npy(head())[:-5], "ends within"),
    (npy(head()), "has 0: cut short"),
    (npy(head(), bytes(23)), "has 23: cut short"),
    (npy(head(), bytes(25)), "has 25; only one array"),
    (npy(head(fortran="True"), bytes(24)), "Fortran"),
    (npy(head(fortran="1"), bytes(24)), "True or False"),
    (npy(head(shape="(1,) * 9")), "','"),
    (npy(head(shape="(" + "1," * 9 + ")"), bytes(4)), "dimensions"),
    (npy(head(shape="(3)"), bytes(12)), "',' in the shape"),
    (npy(head(shape="(-3,)"), bytes(12)), "extent"),
    (npy(head(shape="(9223372036854775808,)")), "2^63"),
    (npy(head(shape="(9223372036854775807, 9223372036854775807)")), "more elements"),
    (npy(head(shape="(4611686018427387904, 0, 4)")), "more elements"),
    (npy(head(shape="(2, 3"), bytes(24)), "damaged"),
    (npy(head(shape="")), "'('"),
    (npy(b"{'descr': '<f4', 'shape': (2,)}", bytes(8)), "lacks 'fortran_order'"),
    (npy(b"{'descr': '<f4', 'descr': '<f4'}", bytes(8)), "twice"),
    (npy(b"{'descr': '<f4', 'order': 'C'}", bytes(8)), "'order'"),
    (npy(b"__import__('os').system('true')"), "'{'"),
    (npy(head() + b"x", bytes(24)), "the end"),
    (npy(b"{'descr': '<f4"), "a string"),
    (npy(b"{'descr': '" + b"<" * 100 + b"'}"), "makes no sense"),
    (npy(bytes(100)), "'{'"),
    (npy(head("[('a', '<f4')]"), bytes(24)), "structured"),
    (npy(head("'|O'"), bytes(24)), "pickle"),
    (npy(head("'>f4'"), bytes(24)), "big-endian"),
    (npy(head("'<U4'"), bytes(96)), "text"),
    (npy(head("'|S4'"), bytes(24)), "uint8"),
    (npy(head("'<M8[ns]'"), bytes(48)), "int64"),
    (npy(head("'<f16'"), bytes(96)), "'<f16'"),
    (npy(head("'|V2'"), bytes(12)), "--dtype"),
    (npy(head("'float32'"), bytes(24)), "'float32'"),
    (npy(head("''"), bytes(24)), "dtype ''"),
    (npy(head("'\x1b[2J'"), bytes(24)), "\\x1b[2J"),
])
def test_files_that_are_refused(data, word, sidecar, tmp_path):
    (tmp_path / "a.npy").write_bytes(data)
    for arguments in (["send", "self"], ["share"]):
        refused(ringside(*arguments, tmp_path / "a.npy", path=sidecar.socket), FAILED, "a.npy: ", word)
    assert free_slots(sidecar) == 8


def test_a_directory_is_no_file(sidecar, tmp_path):
    refused(ringside("send", "self", tmp_path, path=sidecar.socket), FAILED, "Is a directory")


def test_kinds_without_a_numpy_name(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.arange(4, dtype="u2"))
    assert ringside("send", "self", array, "--dtype", "bfloat16", path=sidecar.socket).returncode == OK
    [got] = lines(ringside("recv", "-o", tmp_path / "in", "-j", path=sidecar.socket))
    [tensor] = got["tensors"]
    assert tensor["dtype"] == "bfloat16"
    back = tmp_path / "in" / tensor["file"]
    assert numpy.load(back).dtype == "V2" and numpy.load(back).view("u2").tolist() == [0, 1, 2, 3]
    text = ringside("send", "self", back, "--dtype", "torch.bfloat16", path=sidecar.socket).stdout.strip()
    assert "bfloat16[4]" in ringside("describe", text, path=sidecar.socket).stdout
    for name, word in (("float32", "2 bytes"), ("float8_e5m2", "2 bytes"), ("brain", "'brain'")):
        refused(ringside("send", "self", array, "--dtype", name, path=sidecar.socket), FAILED, word)


def test_sends_that_are_refused(start, tmp_path):
    sidecar = start(routes={"error": {"to": [f"unix:{tmp_path}/x"]}, "away": {"to": [f"unix:{tmp_path}/x"]}})
    small = save(tmp_path / "small.npy", numpy.ones(2))
    big = save(tmp_path / "big.npy", numpy.ones(10000))
    refused(ringside("send", "nowhere", small, path=sidecar.socket), FAILED, "NO_ROUTE", '"nowhere"')
    refused(ringside("send", "self", big, path=sidecar.socket), FAILED, "TOO_BIG")
    refused(ringside("send", "away", small, "-t", "0.1", path=sidecar.socket), TIMEOUT, "TIMEOUT")
    for _ in range(4):
        assert ringside("send", "self", small, path=sidecar.socket).returncode == OK
    refused(ringside("send", "self", small, path=sidecar.socket), FAILED, "FULL")
    assert free_slots(sidecar) == 4
    with sidecar.client() as worker:
        worker.attach()
        for _ in range(4):
            worker.loan()
        refused(ringside("send", "self", small, "-t", "0.1", path=sidecar.socket), TIMEOUT, "loan: TIMEOUT")


def test_what_is_too_old_does_not_come(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones(2))
    ringside("send", "self", array, "--ttl", "0.000001", path=sidecar.socket)
    refused(ringside("recv", "-o", tmp_path / "in", "-t", "0.1", path=sidecar.socket), TIMEOUT, "0 of 1")


def test_recv_waits_until_something_comes(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones(2))
    with subprocess.Popen([RINGSIDE, "recv", "-n2", "-o", tmp_path / "in"], stdout=subprocess.PIPE, text=True,
                          env=environment(sidecar.socket)) as process:
        with sidecar.client() as client:
            wait_for(lambda: client.status().clients)
        ringside("send", "--each", "self", array, array, path=sidecar.socket)
        assert len(process.communicate(timeout=60)[0].splitlines()) == 2
    assert process.returncode == OK


def test_fewer_than_wanted(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones(2))
    ringside("send", "self", array, path=sidecar.socket)
    result = ringside("recv", "-n", 3, "-t", "0.1", "-o", tmp_path / "in", path=sidecar.socket)
    assert result.returncode == TIMEOUT and "1 of 3" in result.stderr
    assert len(result.stdout.splitlines()) == 1 and len(os.listdir(tmp_path / "in")) == 2


def limit_file_size():
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def test_a_full_disk_costs_no_message(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.arange(1000))
    folder = tmp_path / "in"
    ringside("send", "self", array, path=sidecar.socket)
    # Python ignores SIGXFSZ, and so does its child: writing too much is an error.
    refused(ringside("recv", "-o", folder, path=sidecar.socket, preexec_fn=limit_file_size,
                     restore_signals=False), FAILED, "cannot write", "File too large")
    assert os.listdir(folder) == []
    [got] = lines(ringside("recv", "-o", folder, "-j", path=sidecar.socket))
    assert got["attempts"] == 1
    assert numpy.load(folder / got["tensors"][0]["file"]).tolist() == list(range(1000))


def test_killed_while_it_writes(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.arange(1000))
    folder = tmp_path / "in"
    ringside("send", "self", array, path=sidecar.socket)
    result = ringside("recv", "-o", folder, path=sidecar.socket, preexec_fn=limit_file_size)
    assert result.returncode == -signal.SIGXFSZ
    assert all(name.startswith(".") for name in os.listdir(folder))
    [got] = lines(ringside("recv", "-o", folder, "-j", path=sidecar.socket))
    assert got["attempts"] == 1
    assert sorted(os.listdir(folder)) == sorted([got["tensors"][0]["file"], got["text"] + ".json"])


def test_metadata_that_are_not_json(sidecar, tmp_path):
    with sidecar.client() as worker:
        worker.attach()
        for kind, metadata in ((pb.OPAQUE, b"\0\xff"), (pb.JSON, b"{broken"), (pb.JSON, b'"\\u001b[2J"'),
                               (pb.OPAQUE, b"[1]")):
            lease = worker.loan(metadata_bytes=16).lease
            worker.send(lease, metadata=metadata, metadata_kind=kind)
        got = lines(ringside("recv", "-n2", "-o", tmp_path, "-j", path=sidecar.socket))
        assert [message["metadata_hex"] for message in got] == ["00ff", b"{broken".hex()]
        text = ringside("recv", "-o", tmp_path, path=sidecar.socket).stdout
        assert "\x1b" not in text and "[2J" in text
        assert "3 bytes" in ringside("recv", "-o", tmp_path, path=sidecar.socket).stdout


# ---- share, read, free ----

def test_a_shared_message_outlives_who_shared_it(sidecar, start, tmp_path):
    array = save(tmp_path / "a.npy", numpy.arange(10))
    ticket = ringside("share", array, "--readers", 2, "--meta", "[1]", path=sidecar.socket).stdout.strip()
    with sidecar.client() as client:
        wait_for(lambda: not client.status().clients)  # the sidecar knows that it is gone
    assert "2 left" in ringside("describe", ticket, path=sidecar.socket).stdout
    result = ringside("read", ticket, "-o", tmp_path / "1.npy", "-j", path=sidecar.socket)
    document = json.loads(result.stdout)
    assert document["text"] == ticket and document["metadata"] == [1]
    assert (tmp_path / "1.npy").read_bytes() == array.read_bytes()
    sidecar.kill()
    start(stage="latent")  # adopts the ring
    result = ringside("read", ticket, "-o", "-", path=sidecar.socket, text=False)
    assert result.stdout == array.read_bytes()
    for command in (["read", ticket, "-o", tmp_path / "3.npy"], ["free", ticket], ["describe", ticket]):
        refused(ringside(*command, path=sidecar.socket), TICKET, "STALE_TICKET")
    assert not (tmp_path / "3.npy").exists()


def test_a_reading_that_fails_does_not_count(sidecar, tmp_path):
    files = [save(tmp_path / f"{i}.npy", numpy.arange(1000) + i) for i in range(2)]
    ticket = ringside("share", *files, path=sidecar.socket).stdout.strip()
    out = tmp_path / "out.npy"
    refused(ringside("read", ticket, "-o", out, path=sidecar.socket), USAGE, "2 tensors", "--tensor")
    refused(ringside("read", ticket, "-o", out, "--tensor", 3, path=sidecar.socket), USAGE, "3", "2")
    refused(ringside("read", ticket, "-n1", "-o", tmp_path / "no/out.npy", path=sidecar.socket), FAILED, "no")
    refused(ringside("read", ticket, "-n1", "-o", out, path=sidecar.socket, preexec_fn=limit_file_size,
                     restore_signals=False), FAILED, "File too large")
    assert not out.exists() and not list(tmp_path.glob(".*")) and not (tmp_path / "no").exists()
    with open("/dev/full", "wb") as full:
        result = subprocess.run([RINGSIDE, "read", ticket, "-n1", "-o", "-"], env=environment(sidecar.socket),
                                stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert result.returncode == FAILED and b"No space" in result.stderr
    with sidecar.client() as client:
        wait_for(lambda: not client.status().clients)
    assert ringside("read", ticket, "-n2", "-o", out, path=sidecar.socket).returncode == OK
    assert numpy.load(out)[0] == 1
    refused(ringside("read", ticket, "-n2", "-o", out, path=sidecar.socket), TICKET, "STALE_TICKET")


def test_a_kept_message_is_read_until_it_is_freed(sidecar, tmp_path):
    files = [save(tmp_path / f"{i}.npy", numpy.arange(3) + i) for i in range(2)]
    shared = json.loads(ringside("share", *files, "--kept", "-j", path=sidecar.socket).stdout)
    assert shared["kept"] is True and shared["tensors"] == 2 and shared["bytes"] == 48
    (tmp_path / "in").mkdir()
    for name in (shared["text"], shared["ticket"], str(int(shared["ticket"], 16))):
        assert ringside("read", name, "-o", tmp_path / "in", path=sidecar.socket).returncode == OK
    assert len(os.listdir(tmp_path / "in")) == 3
    assert json.loads(ringside("free", shared["text"], "-j", path=sidecar.socket).stdout)["freed"] is True
    refused(ringside("free", shared["ticket"], path=sidecar.socket), TICKET, "STALE_TICKET")
    assert free_slots(sidecar) == 8


def test_tickets_that_name_nothing(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones(2))
    ticket = ringside("share", array, "--ttl", "0.000001", path=sidecar.socket).stdout.strip()
    result = ringside("read", ticket, "-o", tmp_path / "out.npy", path=sidecar.socket)
    refused(result, TICKET, "_TICKET")  # expired, or taken away by the sidecar meanwhile
    assert "EXPIRED" in result.stderr or "STALE" in result.stderr
    for command in (["read", FOREIGN, "-o", tmp_path / "out.npy"], ["free", FOREIGN]):
        refused(ringside(*command, path=sidecar.socket), TICKET, "FOREIGN_TICKET")

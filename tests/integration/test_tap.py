# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a route from beside it: its name, where it leads, and what passes, held up by nobody."""
import json
import signal
import struct
import subprocess

import numpy
import pytest

import control_pb2 as pb
from cli import FAILED, OK, RINGSIDE, UNREACHABLE, environment, lines, refused, ringside
from daemon import wait_for
from npy_files import save


@pytest.fixture
def sidecar(start):
    return start(stage="latent")


def test_routes(start, tmp_path):
    sidecar = start(stage="latent", routes={"away": {"to": [f"unix:{tmp_path}/x"], "ttl_ms": 50, "attempts": 7}})
    table = ringside("routes", path=sidecar.socket).stdout.splitlines()
    assert table[0].split()[:2] == ["ROUTE", "TO"]
    rows = {row.split()[0]: row.split()[1:] for row in table[1:]}
    assert rows["self"][:2] == ["latent", "error"] and rows["away"] == ["?", "(away)", "block", "50ms", "7"]
    routes = json.loads(ringside("routes", "-j", path=sidecar.socket).stdout)["routes"]
    [away] = [route for route in routes if route["name"] == "away"]
    assert away == {"name": "away", "to": [{"stage": None, "connected": False}], "when_full": "block",
                    "ttl_ns": 50000000, "attempts": 7}


class Tap:
    def __init__(self, sidecar, *arguments):
        self.process = subprocess.Popen([RINGSIDE, "tap", *arguments, "-j"], env=environment(sidecar.socket),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with sidecar.client() as client:
            wait_for(lambda: any(c.name == "ringside tap" for c in client.status().clients))
            # Looks only once it has mapped the ring.
            wait_for(lambda: sidecar.config["stage"] + ".body" in self.maps() or self.process.poll() is not None)

    def maps(self):
        with open(f"/proc/{self.process.pid}/maps", encoding="utf-8") as file:
            return file.read()

    def line(self):
        return json.loads(self.process.stdout.readline())

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        return [json.loads(line) for line in out.splitlines()], err


def test_a_tap_takes_nothing(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones((2, 3), "f4"))
    tap = Tap(sidecar, "self", "--rate", "100")
    ring = [line for line in tap.maps().splitlines() if str(sidecar.ring) in line]
    assert len(ring) >= 2 and all(" r--s " in line for line in ring), ring
    text = ringside("send", "self", array, "--meta", '{"n": 1}', path=sidecar.socket).stdout.strip()
    seen = tap.line()
    assert (seen["text"], seen["route"], seen["state"]) == (text, "self", "queued")
    assert seen["metadata"] == {"n": 1} and seen["attempts"] == 0
    assert seen["tensors"] == [{"dtype": "float32", "shape": [2, 3], "bytes": 24}]
    with sidecar.client() as client:
        [slot] = client.slots()
        assert [holder.state for holder in slot.holders] == ["queued"]
        [worker] = client.status().clients
        assert (worker.name, worker.loans, worker.leases) == ("ringside tap", 0, 0)
    [got] = lines(ringside("recv", "-j", "-o", tmp_path / "in", path=sidecar.socket))
    assert got["attempts"] == 0
    more, summary = tap.end()
    assert more == [] and tap.process.returncode == OK and summary.startswith("1 shown in ")


def test_a_stopped_tap_holds_up_nobody_and_says_what_it_missed(start, tmp_path):
    sidecar = start(stage="latent", ring={"classes": [{"slot_bytes": "64Ki", "slots": 1}]},
                    routes={"other": {"to": [f"unix:{tmp_path}/latent.sock"]}})
    array = save(tmp_path / "a.npy", numpy.ones(3))
    tap = Tap(sidecar, "self", "--rate", "100")
    ringside("send", "self", array, "--meta", "0", path=sidecar.socket)
    assert tap.line()["metadata"] == 0
    tap.process.send_signal(signal.SIGSTOP)
    assert ringside("recv", "-o", tmp_path / "in", path=sidecar.socket).returncode == OK
    for number in range(1, 6):
        assert ringside("send", "self", array, "--meta", number, path=sidecar.socket).returncode == OK
        assert ringside("recv", "-o", tmp_path / "in", path=sidecar.socket).returncode == OK
    tap.process.send_signal(signal.SIGCONT)
    last = tap.line()  # the slot's last message, although it is over
    assert (last["metadata"], last["state"]) == (5, "done")
    _, summary = tap.end(signal.SIGTERM)
    assert tap.process.returncode == OK
    assert "2 shown" in summary and "; 4 slots were used in between" in summary


def test_a_tap_counts_and_ends(sidecar, tmp_path):
    array = save(tmp_path / "a.npy", numpy.ones(3))
    ringside("send", "--each", "self", *[array] * 3, path=sidecar.socket)
    result = ringside("tap", "self", "-n", "2", path=sidecar.socket)
    assert result.returncode == OK and len(result.stdout.splitlines()) == 2
    assert all("queued" in line and "float64[3]" in line for line in result.stdout.splitlines())
    refused(ringside("tap", "nowhere", path=sidecar.socket), FAILED, '"nowhere"', "it has self")
    tap = Tap(sidecar, "self")
    sidecar.kill()
    _, err = tap.process.communicate(timeout=60)
    assert tap.process.returncode == UNREACHABLE and "closed the connection" in err


def slot_words(sidecar, ticket):
    """Where the record of the ticket's slot is in the control file, and its state word."""
    with open(sidecar.ring / "latent.control", "rb") as file:
        file.seek(144)
        [slots_offset] = struct.unpack("<Q", file.read(8))
        offset = slots_offset + 256 * (ticket >> 28 & 0xfffff)
        file.seek(offset)
        return offset, struct.unpack("<Q", file.read(8))[0]


def test_a_tap_does_not_show_what_was_never_sent(sidecar):
    tap = Tap(sidecar, "self", "--rate", "100")
    tap.process.send_signal(signal.SIGSTOP)
    with sidecar.client() as worker:
        attached = worker.attach()
        used = worker.send(worker.loan().lease).ticket  # leaves a header that makes sense
        worker.release(worker.receive().lease)
        leases = {lease.ticket >> 28: lease for lease in (worker.loan().lease for _ in range(8))}
        abandoned = leases.pop(used >> 28)
        share, sent = list(leases.values())[:2]
        worker.call("Share", pb.ShareRequest(lease=share, kept=True), pb.ShareResponse)
        worker.call("Abandon", pb.LeaseRequest(lease=abandoned))
        # As of a worker that died between queueing it and the seal.
        offset, state = slot_words(sidecar, abandoned.ticket)
        assert state >> 8 & 0xff == 0 and state >> 32 & 0xfffffff == abandoned.ticket & 0xfffffff
        with open(sidecar.ring / "latent.control", "r+b") as file:
            file.seek(offset + 16)
            file.write(struct.pack("<Q", state >> 32 << 32 | attached.routes[0].destinations[0] << 8 | 1))
        worker.send(sent, sequence=9)
        tap.process.send_signal(signal.SIGCONT)
        assert int(tap.line()["sequence"], 16) == 9
    shown, summary = tap.end()
    assert shown == [] and summary.startswith("1 shown")

# SPDX-License-Identifier: Apache-2.0
"""The command line tool with a real sidecar."""
import json
import subprocess

from cli import FAILED, OK, RINGSIDE, TICKET, TIMEOUT, refused, ringside
from daemon import wait_for
from fake_sidecar import control


def test_a_message_from_loan_to_release(start):
    sidecar = start(stage="latent")
    with sidecar.client() as worker:
        worker.attach("the worker")
        loan = worker.loan(shape=(2, 3), dtype=control.FLOAT32).lease

        def listed(*options):
            return json.loads(ringside("ls", "-j", *options, path=sidecar.socket).stdout)["slots"]

        [slot] = listed("--held")
        assert slot["state"] == "loaned" and slot["holders"][0]["client"] == "the worker"
        table = ringside("ls", path=sidecar.socket).stdout
        assert "loaned" in table and "the worker" in table

        ticket = worker.send(loan).ticket
        assert listed("--held") == []
        [slot] = listed()
        assert slot["ticket"] == f"0x{ticket:016x}" and slot["holders"][0]["state"] == "queued"
        status = json.loads(ringside("status", "-j", path=sidecar.socket).stdout)
        assert status["stage"] == "latent" and status["inbox_depth"] == 1
        assert sum(entry["sealed"] for entry in status["classes"]) == 1

        message = worker.receive()
        for name in (slot["text"], str(ticket), hex(ticket)):
            text = ringside("describe", name, path=sidecar.socket).stdout
            for part in (slot["text"], "held", "the worker", "float32[2,3]", "sealed"):
                assert part in text, text
        text = ringside("status", path=sidecar.socket).stdout
        assert "the worker" in text and "attached" in text and "sent 1" in text

        worker.release(message.lease)
        assert listed() == []
        refused(ringside("describe", slot["text"], path=sidecar.socket), TICKET, "STALE_TICKET")
        other = ticket ^ 1 << 48 or ticket ^ 1 << 49
        refused(ringside("describe", str(other), path=sidecar.socket), TICKET, "FOREIGN_TICKET")


def test_a_kept_ticket_has_no_lease(start):
    sidecar = start()
    with sidecar.client() as worker:
        worker.attach()
        lease = worker.loan().lease
        shared = worker.call("Share", control.ShareRequest(lease=lease, kept=True),
                             control.ShareResponse)
        document = json.loads(ringside("describe", "-j", shared.text, path=sidecar.socket).stdout)
        assert document["text"] == shared.text
        assert [holder["state"] for holder in document["holders"]] == ["kept"]
        [slot] = json.loads(ringside("ls", "-j", path=sidecar.socket).stdout)["slots"]
        assert slot == {**document, "age_ns": slot["age_ns"], "holders": slot["holders"]}


def test_real_ping(start):
    result = ringside("ping", "-c3", "-i0", path=start(stage="latent").socket)
    assert result.returncode == OK
    assert result.stdout.startswith("1: latent, serving, ")


def test_drain_of_an_idle_sidecar(start):
    sidecar = start()
    assert ringside("drain", path=sidecar.socket).stdout == "drained\n"
    status = json.loads(ringside("status", "-j", path=sidecar.socket).stdout)
    assert status["state"] == "draining"
    refused(ringside("bench", path=sidecar.socket), FAILED, "DRAINING")


def test_drain_waits_for_what_is_held(start):
    sidecar = start()
    with sidecar.client() as worker:
        worker.attach()
        worker.send(worker.loan().lease)
        message = worker.receive()
        refused(ringside("drain", "--within", "0.1", path=sidecar.socket), TIMEOUT, "TIMEOUT")
        with subprocess.Popen([RINGSIDE, "drain", "-w60", "-s", sidecar.socket], text=True,
                              stdout=subprocess.PIPE) as drain:
            worker.release(message.lease)
            assert drain.communicate(timeout=60)[0] == "drained\n"
        assert drain.returncode == OK


def test_bench(start):
    sidecar = start()
    result = ringside("bench", "--seconds", "0.1", "--json", path=sidecar.socket)
    assert result.returncode == OK, result
    figures = json.loads(result.stdout)
    for name in ("control", "attach", "loan_abandon", "hand_off"):
        assert 0 < figures[name]["min_ns"] <= figures[name]["p50_ns"] <= figures[name]["max_ns"]
    with sidecar.client() as client:
        def idle():
            status = client.status()
            return not status.clients and status.inbox_depth == 0 and client.slots() == []
        wait_for(idle)
    table = ringside("bench", "--seconds", "0.1", path=sidecar.socket).stdout
    assert "hand-off" in table and "not measured" not in table


def test_bench_leaves_workers_alone(start):
    sidecar = start()
    with sidecar.client() as worker:
        worker.attach("busy worker")
        result = ringside("bench", "--seconds", "0.05", path=sidecar.socket)
        assert result.returncode == OK
        assert "not measured: a worker of the stage is there (busy worker)" in result.stdout
        worker.send(worker.loan().lease)
        assert worker.status().totals.sent == 1


def test_bench_leaves_a_full_inbox_alone(start):
    sidecar = start()
    with sidecar.client() as worker:
        worker.attach()
        worker.send(worker.loan().lease)
        result = ringside("bench", "--seconds", "0.05", "--json", path=sidecar.socket)
        assert "holds 1" in json.loads(result.stdout)["hand_off_skipped"]
        assert worker.receive().sequence == 0


def test_bench_needs_a_route_back(start, place):
    sidecar = start(routes={"self": {"to": [f"unix:{place}/nobody.sock"]}})
    result = ringside("bench", "--seconds", "0.05", path=sidecar.socket)
    assert result.returncode == OK
    assert "no route of this stage leads back" in result.stdout


def test_bench_of_a_ring_without_a_free_slot(start):
    sidecar = start()
    with sidecar.client() as worker:
        worker.attach()
        for _ in range(8):
            worker.loan()
        refused(ringside("bench", path=sidecar.socket), TIMEOUT, "loan and abandon")

# SPDX-License-Identifier: Apache-2.0
"""The command line tool: exit statuses, tables, JSON, and sidecars that misbehave."""
import json
import socket
import subprocess
import threading
import time

import pytest

from cli import FAILED, OK, RINGSIDE, TICKET, TIMEOUT, UNREACHABLE, USAGE, refused, ringside
from fake_sidecar import FakeSidecar, HangUp, Refusal, control

COMMANDS = ["status", "ls", "describe", "ping", "bench", "drain"]
TEXT = "rst1-000100002000000ab-5f3a9c11-772c"  # slot 2 of sidecar 1, with the right checksum
NUMBER = 0x00010000200000AB


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s.sock"


def a_slot(**fields):
    values = {"slot": 2, "ticket": NUMBER, "text": TEXT, "state": "sealed", "age_ns": 1500000000,
              "slot_bytes": 262144, **fields}
    slot = control.Slot(**values)
    slot.tensors.add(dtype=control.FLOAT32, shape=[8, 80, 30], bytes=76800)
    return slot


def a_status(**fields):
    return control.StatusResponse(**{
        "stage": "features", "state": "serving", "version": "9.9", "pid": 42, "sidecar_id": 7,
        "pages": "4Ki: no huge pages are configured", "inbox_limit": 1024, "inbox_cells": 4096,
        "incarnation": bytes(range(16)), **fields})


# ---- The command line ----

@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_a_manual_page(command):
    for arguments in ([command, "--help"], ["help", command], ["--help", command]):
        result = ringside(*arguments)
        assert result.returncode == OK and result.stderr == ""
        headings = [line for line in result.stdout.splitlines() if line and line[0] != " "]
        assert headings == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS",
                            "ENVIRONMENT", "EXAMPLES"]
        assert all(len(line) <= 80 for line in result.stdout.splitlines())
        assert f"ringside {command}" in result.stdout


def test_help_of_the_tool_names_every_command():
    result = ringside("--help")
    assert result.returncode == OK
    for command in COMMANDS:
        assert f"\n    {command} " in result.stdout


def test_version():
    assert ringside("--version").stdout.startswith("ringside ")


@pytest.mark.parametrize("arguments, word", [
    ([], "command"),
    (["frobnicate"], "'frobnicate'"),
    (["--frobnicate"], "--frobnicate"),
    (["status", "--frobnicate"], "--frobnicate"),
    (["status", "more"], "'more'"),
    (["describe"], "TICKET"),
    (["describe", "1", "2"], "'2'"),
    (["ping", "--count", "0"], "'0'"),
    (["ping", "--count", "-1"], "'-1'"),
    (["ping", "--count", "1e3"], "'1e3'"),
    (["ping", "--count", "18446744073709551617"], "'18446744073709551617'"),
    (["ping", "--interval", "nan"], "'nan'"),
    (["ping", "--interval", ""], "''"),
    (["ping", "--interval", "-0.5"], "'-0.5'"),
    (["status", "--timeout", "0"], "--timeout"),
    (["status", "--timeout"], "timeout"),
])
def test_usage(arguments, word, path):
    refused(ringside(*arguments, path=path), USAGE, word)


def test_usage_points_to_the_help():
    assert "Try 'ringside ping --help'" in ringside("ping", "--frobnicate").stderr


@pytest.mark.parametrize("ticket", [
    "", "x", "0", "0x", "0x1g", "-5", "1.0", "18446744073709551616", "281474976710655",
    TEXT[:-1], TEXT + "0", TEXT.upper(), TEXT.replace("ab", "ac"), "rst1-", "\x1b[2J",
])
def test_what_is_no_ticket_is_told_before_anybody_is_asked(ticket, path):
    refused(ringside("describe", "--", ticket, path=path), USAGE, "is not a ticket")


def test_a_full_disk_is_not_success():
    with open("/dev/full", "w", encoding="utf-8") as full:
        result = subprocess.run([RINGSIDE, "--help"], stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=60, check=False)
    assert result.returncode == FAILED and "standard output" in result.stderr


# ---- The socket ----

def test_no_socket_given():
    refused(ringside("status"), USAGE, "--socket", "RINGSIDE_SOCKET")
    refused(ringside("status", path=""), USAGE, "empty")


@pytest.mark.parametrize("command", [["status"], ["ls"], ["describe", TEXT], ["ping"], ["drain"],
                                     ["bench"]])
def test_nobody_there(command, path):
    refused(ringside(*command, path=path), UNREACHABLE, path, "sidecar running")


def test_dead_socket_file(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.close()
    refused(ringside("status", path=path), UNREACHABLE, path, "refused")


def test_socket_path_too_long():
    refused(ringside("status", "-s", "/" + "x" * 200), USAGE, "201 bytes", 107)


def test_socket_is_a_plain_file(path):
    path.write_text("")
    refused(ringside("status", path=path), UNREACHABLE, path)


def test_option_wins_over_environment(path, tmp_path):
    with FakeSidecar(path, {"Status": lambda _: a_status()}):
        result = ringside("status", "--socket", path, path=tmp_path / "other")
        assert result.returncode == OK
        assert ringside("--socket", path, "status").returncode == OK


def test_waits_for_a_sidecar_that_comes(path):
    sidecar = []

    def come():
        time.sleep(0.3)
        sidecar.append(FakeSidecar(path, {"Status": lambda _: a_status()}))

    thread = threading.Thread(target=come)
    thread.start()
    result = ringside("status", "--connect-timeout", "30", path=path)
    thread.join()
    with sidecar[0]:
        assert result.returncode == OK


def test_no_answer(path):
    stop = threading.Event()

    def never(_):
        stop.wait(60)
        raise HangUp

    with FakeSidecar(path, {"Status": never}):
        refused(ringside("status", "--timeout", "0.2", path=path), TIMEOUT, "TIMEOUT", "time")
        stop.set()


def test_hangs_up(path):
    def hang_up(_):
        raise HangUp

    with FakeSidecar(path, {"Status": hang_up}):
        refused(ringside("status", path=path), UNREACHABLE, "closed")


@pytest.mark.parametrize("code, message, status", [
    (5, "STALE_TICKET: slot 2 went on", TICKET),
    (9, "FOREIGN_TICKET: of sidecar 9", TICKET),
    (10, "EXPIRED_TICKET: over", TICKET),
    (3, "MALFORMED_TICKET: no", USAGE),
    (4, "TIMEOUT: waited", TIMEOUT),
    (14, "DRAINING: soon gone", FAILED),
    (7, "DENIED: you are not allowed", FAILED),
    (13, "INTERNAL: \x1b[31mred\x1b[0m\nsecond line", FAILED),
    (99, "", FAILED),
])
def test_status_of_a_refusal(code, message, status, path):
    def refuse(_):
        raise Refusal(code, message)

    with FakeSidecar(path, {"Describe": refuse}):
        result = ringside("describe", TEXT, path=path)
    line = refused(result, status)
    assert "\x1b" not in result.stderr and len(result.stderr.splitlines()) == 1
    if ":" in message:
        assert message.split(":")[0] in line


# ---- What they print ----

def test_status_fits_80_columns_whatever_the_names(path):
    status = a_status(pages="2Mi because " + "very long reasons " * 8)
    status.classes.add(slot_bytes=262144, slots=256, free=200, loaned=5, sealed=51)
    for i in range(40):
        status.clients.add(number=i + 1, name="\x1b[2J" + "n" * 300, state="attached", leases=i,
                           oldest_lease_ns=i * 10**12, home="y" * 90, pid=4194304,
                           counters=control.Counters(sent=10**9, released=2 * 10**9))
    status.peers.add(address="unix:/" + "p" * 100, stage="z" * 60, state="connecting",
                     direction="downstream", last_error="no \nroute" * 20)
    status.totals.sent = 17
    status.totals.sent_bytes = 3 << 30
    with FakeSidecar(path, {"Status": lambda _: status}):
        result = ringside("status", path=path)
        assert result.returncode == OK and result.stderr == ""
        assert ringside("status", path=path, locale="C").stdout.isascii()
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(c < " " for line in lines for c in line)
    text = result.stdout
    for part in ("features, serving", "000102030405060708090a0b0c0d0e0f", "256Ki", "\\x1b[2J",
                 "sent 17", "sent-bytes 3Gi", "at most 1024", "connecting", "10h50m"):
        assert part in text, text


def test_status_without_anything(path):
    with FakeSidecar(path, {"Status": lambda _: control.StatusResponse()}):
        result = ringside("status", path=path)
    assert result.returncode == OK
    assert "no clients" in result.stdout and "nothing yet" in result.stdout


def test_status_json_holds_everything(path):
    status = a_status(uptime_ns=5)
    status.clients.add(number=3, name="ä\x1b\u202e", oldest_lease_ns=2**63)
    with FakeSidecar(path, {"Status": lambda _: status}):
        result = ringside("status", "--json", path=path)
    assert result.stdout.isascii()
    document = json.loads(result.stdout)
    assert document["stage"] == "features" and document["uptime_ns"] == 5
    assert document["incarnation"] == bytes(range(16)).hex()
    assert document["clients"][0]["name"] == "ä\x1b\u202e"
    assert document["clients"][0]["oldest_lease_ns"] == str(2**63)
    assert set(document) == {field.name for field in control.StatusResponse.DESCRIPTOR.fields
                             if field.name != "totals"}


def test_ls_pages_through_all(path):
    def pages(request):
        last = request.first_slot >= 4
        slots = [a_slot(slot=request.first_slot + i, ticket=NUMBER + i) for i in range(2)]
        return control.ListResponse(slots=slots, next_slot=0 if last else request.first_slot + 2)

    with FakeSidecar(path, {"List": pages}) as sidecar:
        document = json.loads(ringside("ls", "--json", path=path).stdout)
        table = ringside("ls", "--held", path=path).stdout.splitlines()
    assert [slot["slot"] for slot in document["slots"]] == [0, 1, 2, 3, 4, 5]
    assert document["slots"][0]["ticket"] == f"0x{NUMBER:016x}"
    assert document["slots"][0]["tensors"][0] == {"dtype": "float32", "shape": [8, 80, 30],
                                                  "offset": 0, "bytes": 76800}
    assert len(table) == 7
    assert [request.held_only for _, request in sidecar.requests] == [False] * 3 + [True] * 3


def test_ls_ends_when_pages_go_in_circles(path):
    with FakeSidecar(path, {"List": lambda request: control.ListResponse(next_slot=3)}):
        refused(ringside("ls", path=path), FAILED, "never end")


def test_ls_shows_every_holder(path):
    slot = a_slot()
    slot.tensors.add(dtype=control.INT64, shape=[], bytes=8)
    slot.holders.add(client="\x07worker" + "w" * 80, state="held", destination="latent",
                     age_ns=2 * 10**9)
    slot.holders.add(client_number=12, state="reading", age_ns=3 * 10**6, delivery=-1)
    slot.holders.add(state="queued", destination="vocoder", age_ns=10)
    loan = a_slot(slot=3, state="loaned", ticket=NUMBER + 1)
    with FakeSidecar(path, {"List": lambda _: control.ListResponse(slots=[slot, loan])}):
        lines = ringside("ls", path=path).stdout.splitlines()
    assert len(lines) == 5 and max(map(len, lines)) <= 80
    assert lines[1].startswith(f"0x{NUMBER:016x}  held     \\aworker")
    assert lines[1].split()[3:5] == ["2s", "75Ki"] and "2: float32[" in lines[1]
    assert lines[2].split() == ["reading", "client", "12", "3ms"]
    assert lines[3].split() == ["queued", "for", "vocoder", "10ns"]
    assert "loaned" in lines[4] and "1.5s" in lines[4]


def test_ls_of_an_idle_ring_prints_nothing(path):
    with FakeSidecar(path, {"List": lambda _: control.ListResponse()}):
        assert ringside("ls", path=path).stdout == ""
        assert json.loads(ringside("ls", "--json", path=path).stdout) == {"slots": []}


def test_describe(path):
    slot = a_slot(ttl_ns=10**10, metadata_bytes=17, readers_left=2)
    slot.tensors.add(dtype=control.BFLOAT16, shape=[0, 3], offset=76800)
    slot.holders.add(client="w", client_number=5, state="held", destination="latent", attempts=2,
                     delivery=1)
    with FakeSidecar(path, {"Describe": lambda _: control.DescribeResponse(slot=slot)}) as sidecar:
        text = ringside("describe", TEXT, path=path).stdout
        for number in (hex(NUMBER), str(NUMBER)):
            document = json.loads(ringside("describe", "-j", number, path=path).stdout)
            assert document["text"] == TEXT
    for part in (TEXT, f"0x{NUMBER:016x}", "sealed, 1.5s old", "left: 8.5s", "metadata 17",
                 "float32[8,80,30]", "bfloat16[0,3]", "latent", "2 left"):
        assert part in text, text
    asked = [request for _, request in sidecar.requests]
    assert asked[0].text == TEXT
    assert asked[1].ticket == asked[2].ticket == NUMBER


def test_describe_of_an_empty_answer(path):
    with FakeSidecar(path, {"Describe": lambda _: control.DescribeResponse()}):
        refused(ringside("describe", TEXT, path=path), FAILED, "lacks the slot")


def test_ping(path):
    with FakeSidecar(path, {"Status": lambda _: a_status()}) as sidecar:
        lines = ringside("ping", "-c", "3", "-i", "0", path=path).stdout.splitlines()
        quiet = ringside("ping", "-qc1", path=path).stdout.splitlines()
        document = json.loads(ringside("ping", "-c2", "-i0", "--json", path=path).stdout)
    assert [line.split(",")[0] for line in lines[:3]] == [f"{i}: features" for i in (1, 2, 3)]
    assert lines[3].startswith("3 asked, 3 answered; min ")
    assert len(quiet) == 1
    assert document["asked"] == document["answered"] == 2
    assert 0 < document["min_ns"] <= document["p50_ns"] <= document["max_ns"]
    assert len(sidecar.requests) == 6


def test_ping_counts_what_was_not_answered(path):
    answers = iter([True, False, True])

    def sometimes(_):
        if not next(answers):
            raise Refusal(13, "INTERNAL: not now")
        return a_status()

    with FakeSidecar(path, {"Status": sometimes}):
        result = ringside("ping", "-c3", "-i0", "-q", path=path)
    assert result.returncode == FAILED
    assert result.stdout.startswith("3 asked, 2 answered")


def test_ping_stops_when_the_connection_is_over(path):
    def hang_up(_):
        raise HangUp

    with FakeSidecar(path, {"Status": hang_up}):
        result = ringside("ping", "-i0", path=path)
    assert result.returncode == UNREACHABLE
    assert result.stdout == "1 asked, 0 answered\n"


def test_drain(path):
    with FakeSidecar(path, {"Drain": lambda _: control.Empty()}) as sidecar:
        assert ringside("drain", path=path).stdout == "drained\n"
        document = json.loads(ringside("drain", "--within", "1.5", "-j", path=path).stdout)
    assert document == {"drained": True}
    assert [request.timeout_ns for _, request in sidecar.requests] == [0, 1500000000]

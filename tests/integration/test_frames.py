# SPDX-License-Identifier: Apache-2.0
"""Connections that send what they should not: frames too long, half, nonsense, too many, or with descriptors."""
import os
import socket
import time

import pytest

import control_pb2 as pb
import ttrpc_client
from messages import refused
from ttrpc_client import HEADER, Refused


def raw(daemon):
    client = daemon.client(timeout=20)
    return client, client.socket


def test_length_over_the_cap_is_told_and_ends(start):
    daemon = start()
    for length in (65537, 2 ** 31, 2 ** 32 - 1):
        client, sock = raw(daemon)
        sock.sendall(HEADER.pack(length, 1, 1, 0))
        with refused("LIMIT"):
            client.end(1, pb.Empty)
        with pytest.raises(ConnectionError):
            client.fill()
        client.close()


def test_length_up_to_the_cap_is_read(start):
    daemon = start()
    for length in (0, 1, 65536):
        client, sock = raw(daemon)
        sock.sendall(HEADER.pack(length, 1, 1, 0) + bytes(length))
        with refused("INVALID"):
            client.end(1, pb.Empty)
        client.stream = 1
        assert client.status().stage == "stage"
        client.close()


def test_nonsense_ends_nothing_but_itself(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        loan = client.loan()
        for seed in range(50):
            noise = bytes((seed * 31 + i * i * 7) & 0xFF for i in range(200))
            with daemon.client() as other:
                other.socket.sendall(noise)
            with daemon.client() as other:
                call = other.begin("Loan", noise)
                with pytest.raises(Refused):
                    other.end(call, pb.LoanResponse)
                other.attach()
                call = other.begin("Loan", noise)
                with pytest.raises(Refused):
                    other.end(call, pb.LoanResponse)
        client.send(loan.lease)
        for method, service in (("Nothing", "ringside.v1.Control"), ("Loan", "other.Service")):
            with refused("UNIMPLEMENTED"):
                client.end(client.begin(method, service=service), pb.Empty)


def test_stream_ids_cannot_be_reused(start):
    daemon = start()
    with daemon.client() as client:
        client.status()
        client.stream = -1
        with pytest.raises((Refused, ConnectionError)):
            client.status()


def test_half_frame_has_a_deadline(start):
    daemon = start()
    client, sock = raw(daemon)
    begin = time.monotonic()
    sock.sendall(HEADER.pack(100, 1, 1, 0) + b"x")
    with pytest.raises(ConnectionError):
        client.fill()
    assert time.monotonic() - begin > 4
    client.close()


def test_idle_crowd_does_not_keep_others_out(start):
    daemon = start(clients={"max": 4})
    crowd = [daemon.client() for _ in range(60)]
    with daemon.client() as client:
        client.attach()
        assert client.status().stage == "stage"
        with pytest.raises(ConnectionError):
            crowd[0].fill()
        crowd[-1].attach()
    for one in crowd:
        one.close()


def test_pipelined_calls_beyond_the_limit_are_refused_not_queued(start):
    daemon = start()
    with daemon.client() as client:
        client.attach()
        calls = [client.begin("Receive", timeout=0.5) for _ in range(40)]
        names = []
        for call in calls:
            with pytest.raises(Refused) as error:
                client.end(call, pb.ReceiveResponse)
            names.append(error.value.name)
        assert names.count("LIMIT") == 8 and names.count("TIMEOUT") == 32


def test_descriptors_nobody_asked_for_are_closed(start):
    daemon = start()
    with daemon.client() as client:
        count = lambda: len(os.listdir(f"/proc/{daemon.process.pid}/fd"))
        client.status()
        before = count()
        payload = ttrpc_client.field(1, b"ringside.v1.Control") + ttrpc_client.field(2, b"Status")
        for i in range(40):
            frame = HEADER.pack(len(payload), client.stream + 2, 1, 0) + payload
            client.stream += 2
            socket.send_fds(client.socket, [frame], [0, 1, 2])
            client.end(client.stream, pb.StatusResponse)
        assert count() == before

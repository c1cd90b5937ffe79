# SPDX-License-Identifier: Apache-2.0
"""Linked stages, and a downstream that answers as it is told, for the tests of peering."""
import fcntl
import os
import pathlib
import shutil
import socket
import struct
import tempfile
import threading

import pytest

from peer_tools import Connection, Stage, peer, until


@pytest.fixture
def directory():
    path = pathlib.Path(tempfile.mkdtemp(prefix="ringside-peers-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def stages(directory):
    running = []

    def start(name, routes=(), **settings):
        stage = Stage(directory, name, routes, **settings)
        running.append(stage)
        return stage

    yield start
    for stage in running:
        stage.kill()


def layout_of(stage):
    """Version and hash as the superblock has them."""
    with open(stage.files / f"{stage.name}.control", "rb") as file:
        head = file.read(24)
    return struct.unpack_from("<I", head, 8)[0], struct.unpack_from("<Q", head, 16)[0]


def hidden_layout_of(stage):
    """Of a stage whose files have no name here."""
    with open(f"/proc/{stage.process.pid}/root/dev/shm/ringside/{stage.name}.control", "rb") as file:
        head = file.read(24)
    return struct.unpack_from("<I", head, 8)[0], struct.unpack_from("<Q", head, 16)[0]


def pair(stages):
    a = stages("a", {"next": "b"})
    b = stages("b")
    until(lambda: a.connected_to("b") and "a" in b.peers("upstream"), "a and b are linked", a.log)
    return a, b


def clients(stage):
    return {client.name: client for client in stage.status().clients}


def free_slots(stage):
    return stage.status().classes[0].free


def locked(path, byte):
    """Whether any process has an OFD lock on that byte."""
    with open(path, "r+b") as file:
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        answer = fcntl.fcntl(file, 36, request)  # F_OFD_GETLK
        return struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK


def hello_of(stage, **changes):
    version, layout_hash = layout_of(stage)
    fields = dict(stage="stranger", sidecar_id=77, incarnation=os.urandom(16), layout_version=version,
                  layout_hash=layout_hash)
    return peer.HelloRequest(**{**fields, **changes})


class FakeDownstream:
    """Answers one Hello after another with what `answer` makes of the request."""

    def __init__(self, path, answer):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.answer = answer
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                link = Connection(self.listener.accept()[0])
            except OSError:
                return
            link.serves["Hello"] = lambda data: self.answer(peer.HelloRequest.FromString(data))
            link.serves["Ping"] = lambda data: (peer.PingResponse(), ())
            try:
                while True:
                    link.frame()
            except (OSError, ConnectionError):
                link.close()

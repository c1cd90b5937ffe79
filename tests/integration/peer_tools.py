# SPDX-License-Identifier: Apache-2.0
"""Real sidecars of several stages, and a ttrpc client that passes descriptors, for the tests of peering."""
import array
import importlib
import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROXY = os.environ.get("RINGSIDE_PROXY", str(ROOT / "build" / "proxy" / "ringside-proxy"))
HEADER = struct.Struct(">IIBB")  # bytes, stream, type, flags
REQUEST, RESPONSE = 1, 2


def _messages():
    names = ("control", "peer", "ttrpc_wire")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"-I{ROOT}/proto", f"--python_out={folder}",
                        *(f"{name}.proto" for name in names)], check=True)
        sys.path.insert(0, folder)
        try:
            return [importlib.import_module(f"{name}_pb2") for name in names]
        finally:
            sys.path.remove(folder)


control, peer, wire = _messages()
CONTROL, PEER = "ringside.v1.Control", "ringside.peer.v1.Peer"


class Failed(Exception):
    """A call that was answered with a status; `name` is the symbolic name of the error."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.name = code, message.split(":")[0]


class Connection:
    """One connection, either end: calls, and answers to calls of the other side."""

    def __init__(self, where):
        self.serves, self.stream, self.fds = {}, 1, []
        if isinstance(where, socket.socket):
            self.socket, self.stream = where, 2
        else:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(str(where))

    def close(self):
        for fd in self.fds:
            os.close(fd)
        self.fds = []
        self.socket.close()

    def _read(self, size):
        data = b""
        while len(data) < size:
            part, ancillary, _, _ = self.socket.recvmsg(size - len(data), socket.CMSG_SPACE(64))
            for level, kind, payload in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    passed = array.array("i")
                    passed.frombytes(payload[: len(payload) // 4 * 4])
                    self.fds += passed
            if not part:
                raise ConnectionError("closed by the sidecar")
            data += part
        return data

    def _send(self, stream, kind, message, fds=()):
        data = message.SerializeToString()
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        data = HEADER.pack(len(data), stream, kind, 0) + data
        sent = self.socket.sendmsg([data], ancillary)
        self.socket.sendall(data[sent:])

    def take_fds(self):
        fds, self.fds = self.fds, []
        return fds

    def frame(self):
        """One frame of the other side: serves a request, or returns (stream, response)."""
        size, stream, kind, _ = HEADER.unpack(self._read(HEADER.size))
        payload = self._read(size) if size else b""
        if kind == RESPONSE:
            return stream, wire.Response.FromString(payload)
        request = wire.Request.FromString(payload)
        answer, fds = self.serves[request.method](request.payload)
        self._send(stream, RESPONSE, wire.Response(payload=answer.SerializeToString()), fds)
        return None

    def call(self, service, method, request, answer, timeout=10, fds=()):
        stream, self.stream = self.stream, self.stream + 2
        self.socket.settimeout(timeout + 5)
        self._send(stream, REQUEST, wire.Request(service=service, method=method, timeout_nano=int(timeout * 1e9),
                                                 payload=request.SerializeToString()), fds)
        while (got := self.frame()) is None or got[0] != stream:
            pass
        if got[1].status.code:
            raise Failed(got[1].status.code, got[1].status.message)
        return answer.FromString(got[1].payload)


class Worker(Connection):
    """A worker that lets its sidecar take every step."""

    def __init__(self, stage, name="worker", token=b"", descriptors=False, layout=None):
        super().__init__(stage.socket)
        request = control.AttachRequest(name=name, session_token=token, want_descriptors=descriptors)
        if layout:
            request.layout_version, request.layout_hash = layout
        self.attached = self("Attach", request)

    def __call__(self, method, request=None, **more):
        names = {"Release": "Lease", "Nack": "Lease", "Abandon": "Lease"}
        request = request or getattr(control, names.get(method, method) + "Request")()
        answer = getattr(control, f"{method}Response", control.Empty)
        return self.call(CONTROL, method, request, answer, **more)

    def send(self, route, data):
        tensor = control.Tensor(dtype=control.UINT8, shape=[len(data)])
        loan = self("Loan", control.LoanRequest(tensors=[tensor]))
        with open(loan.body_path, "r+b") as body:
            body.seek(loan.slot_offset + loan.tensors[0].offset)
            body.write(data)
        return self("Send", control.SendRequest(lease=loan.lease, route=route))

    def receive(self, timeout=10):
        message = self("Receive", timeout=timeout).message
        with open(message.body_path, "rb") as body:
            body.seek(message.slot_offset + message.tensors[0].offset)
            return message, body.read(message.tensors[0].bytes)

    def release(self, message):
        self("Release", control.LeaseRequest(lease=message.lease))

    def status(self):
        return self("Status")


class Stage:
    """A sidecar's process; `routes` maps a name to the stages that it leads to."""

    def __init__(self, directory, name, routes=(), prefix=(), shm=None, **settings):
        self.name, self.prefix = name, list(prefix)
        self.socket = directory / f"{name}.sock"
        self.files = shm or directory / "shm"
        config = {
            "stage": name, "socket": {"path": str(self.socket)},
            "ring": {"control_dir": str(self.files), "body_dir": str(self.files), "pages": "4Ki", "lock": "off",
                     "classes": [{"slot_bytes": "64Ki", "slots": 16}]},
            "inbox": {"cells": 64, "depth": 32},
            "clients": {"max": 16},
            "routes": {route: {"to": [f"unix:{directory}/{to}.sock"], "attempts": 3} for route, to in dict(routes).items()},
        }
        for key, value in settings.items():
            config[key] = {**config[key], **value} if isinstance(config.get(key), dict) else value
        self.config = directory / f"{name}.json"
        self.config.write_text(json.dumps(config))
        self.log = directory / f"{name}.log"
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.prefix, PROXY, str(self.config)], stderr=log, stdout=log,
                                            stdin=subprocess.DEVNULL)
        until(lambda: self.answers() or self.process.poll() is not None, "the sidecar starts", self.log)
        assert self.process.poll() is None, self.log.read_text()
        return self

    def answers(self):
        try:
            self.status()
            return True
        except (OSError, ConnectionError):
            return False

    def status(self):
        connection = Connection(self.socket)
        try:
            return connection.call(CONTROL, "Status", control.StatusRequest(), control.StatusResponse)
        finally:
            connection.close()

    def peers(self, direction):
        return {peer.stage: peer for peer in self.status().peers if peer.direction == direction}

    def connected_to(self, *names):
        rows = self.peers("downstream")
        return all(name in rows and rows[name].state == "connected" for name in names)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def kill(self):
        self.stop(signal.SIGKILL)


def until(condition, what, log=None, seconds=20):
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"never true: {what}\n{log.read_text() if log else ''}")
        time.sleep(0.02)

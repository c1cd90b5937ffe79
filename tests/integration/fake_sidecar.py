# SPDX-License-Identifier: Apache-2.0
"""A sidecar that says whatever a test wants: for what a real one never says."""
import importlib
import pathlib
import socket
import struct
import subprocess
import sys
import tempfile
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = struct.Struct(">IIBB")  # bytes, stream, type, flags
REQUEST, RESPONSE = 1, 2


def _messages():
    """The modules of control.proto and ttrpc_wire.proto."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["protoc", f"-I{ROOT}/proto", f"--python_out={folder}", "control.proto",
             "ttrpc_wire.proto"], check=True)
        sys.path.insert(0, folder)
        try:
            return [importlib.import_module(name) for name in ("control_pb2", "ttrpc_wire_pb2")]
        finally:
            sys.path.remove(folder)


control, wire = _messages()


class Refusal(Exception):
    """Raised by a handler: the call ends with this gRPC status."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.message = code, message


class HangUp(Exception):
    """Raised by a handler: the connection is closed instead of an answer."""


class FakeSidecar:
    """Serves `handlers`, method name to function of the request's message, until closed."""

    def __init__(self, path, handlers):
        self.path, self.handlers, self.requests = str(path), handlers, []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._connections = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection, thread in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # gone already
            thread.join(10)
        self._thread.join(10)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._connections.append((connection, thread))

    def _serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            try:
                while header := stream.read(HEADER.size):
                    size, number, kind, _ = HEADER.unpack(header)
                    assert kind == REQUEST
                    answer = self._answer(stream.read(size)).SerializeToString()
                    connection.sendall(HEADER.pack(len(answer), number, RESPONSE, 0) + answer)
            except (HangUp, OSError):
                pass

    def _answer(self, payload):
        request = wire.Request.FromString(payload)
        assert request.service == "ringside.v1.Control"
        message = getattr(control, f"{request.method}Request").FromString(request.payload)
        self.requests.append((request.method, message))
        response = wire.Response()
        try:
            response.payload = self.handlers[request.method](message).SerializeToString()
        except Refusal as refusal:
            response.status.code, response.status.message = refusal.code, refusal.message
        return response

# SPDX-License-Identifier: Apache-2.0
"""A worker over the control socket alone: protobuf, a UNIX socket and mmap, and nothing of Ringside's but its .proto files.

Build and run (Debian: protobuf-compiler, python3-protobuf):

    protoc -I../../proto --python_out=. control.proto ttrpc_wire.proto
    python3 worker.py SOCKET send ROUTE      # a float32 [80, 3000] written in place, then sent on a route of the stage
    python3 worker.py SOCKET receive         # the next message of the stage's inbox
    python3 worker.py SOCKET stream COUNT    # COUNT messages as they come, at most 8 of them unacknowledged
"""
import array
import collections
import mmap
import socket
import struct
import sys

import control_pb2 as pb
import ttrpc_wire_pb2 as wire

HEADER = struct.Struct(">IIBB")  # bytes of the payload, stream, type, flags
REQUEST, RESPONSE, DATA = 1, 2, 3
REMOTE_CLOSED, NO_DATA = 1, 4


class Refused(Exception):
    """The sidecar's answer was an error: its gRPC code, and "NAME: what was wrong"."""


class Connection:
    """ttrpc: each call has a stream of its own on the one socket, with an odd number."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")
        self.last = -1
        self.frames = collections.defaultdict(collections.deque)  # arrived and not yet asked for, by stream

    def begin(self, method, request, timeout, flags=0):
        self.last += 2
        envelope = wire.Request(service="ringside.v1.Control", method=method, payload=request.SerializeToString(),
                                timeout_nano=int(timeout * 1e9))
        data = envelope.SerializeToString()
        self.socket.sendall(HEADER.pack(len(data), self.last, REQUEST, flags) + data)
        return self.last

    def next_frame(self, stream):
        """Type, flags and payload of the stream's next frame; keeps those of others."""
        while not self.frames[stream]:
            size, of, kind, flags = HEADER.unpack(self.read(HEADER.size))
            self.frames[of].append((kind, flags, self.read(size)))
        kind, flags, payload = self.frames[stream].popleft()
        if kind == RESPONSE:
            response = wire.Response.FromString(payload)
            if response.status.code:
                raise Refused(f"{response.status.code} {response.status.message}")
            payload = response.payload
        return kind, flags, payload

    def read(self, size):
        data = self.file.read(size)
        if len(data) < size:
            raise ConnectionError("closed by the sidecar")
        return data

    def call(self, method, request, answer=pb.Empty, timeout=10):
        return answer.FromString(self.next_frame(self.begin(method, request, timeout))[2])

    def stream(self, method, request, answer, timeout=0):
        """The messages of a call that streams them; 0: without an end in time."""
        stream = self.begin(method, request, timeout, REMOTE_CLOSED)
        while True:
            kind, flags, payload = self.next_frame(stream)
            if not flags & NO_DATA:
                yield answer.FromString(payload)
            if kind == RESPONSE or flags & REMOTE_CLOSED:
                return


bodies = {}  # mapped files; a mapping stays while anything in it is held


def body(path, writable):
    """Maps the whole file: slots begin at multiples of 4 KiB, and pages may be larger."""
    if path not in bodies:
        with open(path, "r+b" if writable else "rb") as file:
            bodies[path] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
    return bodies[path]


def send(sidecar, route):
    mel = pb.Tensor(dtype=pb.FLOAT32, shape=[80, 3000])
    loan = sidecar.call("Loan", pb.LoanRequest(tensors=[mel], metadata_bytes=64), pb.LoanResponse)
    at = loan.slot_offset + loan.tensors[0].offset
    view = memoryview(body(loan.body_path, True))[at:at + loan.tensors[0].bytes].cast("f")
    view[:] = array.array("f", (i / 2 for i in range(80 * 3000)))
    options = pb.Options(metadata=b'{"from":"python-socket"}', metadata_kind=pb.JSON)
    sent = sidecar.call("Send", pb.SendRequest(lease=loan.lease, route=route, options=options), pb.SendResponse)
    print(f"sent as ticket {sent.ticket:#x}")


def use(message):
    tensor = message.tensors[0]
    at = message.slot_offset + tensor.offset
    data = memoryview(body(message.body_path, False))[at:at + tensor.bytes].cast("f")
    print(f"received {pb.Dtype.Name(tensor.dtype).lower()} {list(tensor.shape)} sum {sum(data):.0f} "
          f"{message.metadata.decode()}", flush=True)


def release(sidecar, message):
    sidecar.call("Release", pb.LeaseRequest(lease=message.lease))


def receive(sidecar):
    message = sidecar.call("Receive", pb.ReceiveRequest(request_id=1), pb.ReceiveResponse).message
    use(message)
    release(sidecar, message)


def stream(sidecar, count):
    left = int(count)
    request = pb.ReceiveStreamRequest(request_id=1, credits=min(left, 8))
    left -= request.credits
    for response in sidecar.stream("ReceiveStream", request, pb.ReceiveResponse):
        use(response.message)
        release(sidecar, response.message)
        if left > 0:  # one more for the one that is done
            sidecar.call("Credit", pb.CreditRequest(request_id=1, credits=1))
            left -= 1
        count = int(count) - 1
        if count == 0:
            sidecar.call("Credit", pb.CreditRequest(request_id=1, end=True))


def main():
    path, verb, *arguments = sys.argv[1:]
    sidecar = Connection(path)
    sidecar.call("Attach", pb.AttachRequest(name="python-socket"), pb.AttachResponse)
    {"send": send, "receive": receive, "stream": stream}[verb](sidecar, *arguments)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""A worker over the control socket alone: protobuf, a UNIX socket and mmap, and nothing of Ringside's but its .proto files.

Build and run (Debian: protobuf-compiler, python3-protobuf):

    protoc -I../../proto --python_out=. control.proto ttrpc_wire.proto
    python3 worker.py SOCKET send ROUTE      # a float32 [80, 3000] written in place, then sent on a route of the stage
    python3 worker.py SOCKET receive         # the next message of the stage's inbox
    python3 worker.py SOCKET stream COUNT    # COUNT messages as they come, at most 8 of them unacknowledged
    python3 worker.py SOCKET call ROUTE      # calls the method Scale of a stage with such a tensor, and reads the reply
    python3 worker.py SOCKET serve           # answers one call: Scale doubles the tensor
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


OPTIONS = pb.Options(metadata=b'{"from":"python-socket"}', metadata_kind=pb.JSON)


def view_of(holder, writable):
    """The first tensor of a loan or of a message, where it lies."""
    at = holder.slot_offset + holder.tensors[0].offset
    return memoryview(body(holder.body_path, writable))[at:at + holder.tensors[0].bytes].cast("f")


def filled(sidecar, numbers):
    mel = pb.Tensor(dtype=pb.FLOAT32, shape=[80, 3000])
    loan = sidecar.call("Loan", pb.LoanRequest(tensors=[mel], metadata_bytes=128), pb.LoanResponse)
    view_of(loan, True)[:] = array.array("f", numbers)
    return loan.lease


def send(sidecar, route):
    lease = filled(sidecar, (i / 2 for i in range(80 * 3000)))
    sent = sidecar.call("Send", pb.SendRequest(lease=lease, route=route, options=OPTIONS), pb.SendResponse)
    print(f"sent as ticket {sent.ticket:#x}")


def use(message):
    tensor = message.tensors[0]
    print(f"received {pb.Dtype.Name(tensor.dtype).lower()} {list(tensor.shape)} sum {sum(view_of(message, False)):.0f} "
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


def call(sidecar, route):
    request = pb.CallRequest(lease=filled(sidecar, (i / 2 for i in range(80 * 3000))), route=route, method="Scale",
                             options=OPTIONS)
    reply = sidecar.call("Call", request, pb.CallResponse).message
    use(reply)
    release(sidecar, reply)


def serve(sidecar):
    request = sidecar.call("Receive", pb.ReceiveRequest(request_id=1), pb.ReceiveResponse).message
    if request.method == "Scale":
        reply = pb.ReplyRequest(reply=filled(sidecar, (2 * x for x in view_of(request, False))), options=OPTIONS)
    else:
        reply = pb.ReplyRequest(status=12, text=f'no method "{request.method}"; there is: Scale')  # UNIMPLEMENTED
    reply.request.CopyFrom(request.lease)
    sidecar.call("Reply", reply)
    release(sidecar, request)


def main():
    path, verb, *arguments = sys.argv[1:]
    sidecar = Connection(path)
    sidecar.call("Attach", pb.AttachRequest(name="python-socket"), pb.AttachResponse)
    {"send": send, "receive": receive, "stream": stream, "call": call, "serve": serve}[verb](sidecar, *arguments)


if __name__ == "__main__":
    main()

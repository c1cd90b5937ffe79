# SPDX-License-Identifier: Apache-2.0
"""A ttrpc client of the control socket, written from the protocol: what a foreign language would do."""
import array
import socket
import struct

import control_pb2 as pb

HEADER = struct.Struct(">IIBB")
REQUEST, RESPONSE, DATA = 1, 2, 3
REMOTE_CLOSED, REMOTE_OPEN, NO_DATA = 1, 2, 4


class Refused(Exception):
    """The sidecar answered with a status: `code` is gRPC's, `name` ours ("STALE_TICKET")."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.name = message.split(":", 1)[0]


def varint(value):
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        out.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def read_fields(data):
    """Fields of a message as {number: last value}: bytes for length-prefixed ones, else an integer."""
    fields, at = {}, 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = number()
        if key & 7 == 2:
            size = number()
            fields[key >> 3] = data[at:at + size]
            at += size
        else:
            fields[key >> 3] = number()
    return fields


class Client:
    """One connection. Calls are made one at a time, or pipelined with begin() and end()."""

    def __init__(self, path, timeout=10):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        self.socket.connect(str(path))
        self.stream = -1
        self.buffer = b""
        self.descriptors = []
        self.answers = {}
        self.data = {}  # frames of streams, by stream

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def begin(self, method, payload=b"", timeout=None, service="ringside.v1.Control", flags=0):
        self.stream += 2
        body = field(1, service.encode()) + field(2, method.encode()) + field(3, payload)
        if timeout is not None:
            body += varint(4 << 3) + varint(int(timeout * 1e9))
        self.socket.sendall(HEADER.pack(len(body), self.stream, REQUEST, flags) + body)
        return self.stream

    def fill(self):
        data, ancillary, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(16 * 4))
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self.descriptors += array.array("i", content[:len(content) // 4 * 4])
        if not data:
            raise ConnectionError("closed by the sidecar")
        self.buffer += data

    def frame(self):
        """Takes the next frame in."""
        while len(self.buffer) < HEADER.size:
            self.fill()
        size, stream, kind, flags = HEADER.unpack_from(self.buffer)
        while len(self.buffer) < HEADER.size + size:
            self.fill()
        body = self.buffer[HEADER.size:HEADER.size + size]
        self.buffer = self.buffer[HEADER.size + size:]
        assert kind in (RESPONSE, DATA)
        if kind == RESPONSE:
            self.answers[stream] = body
        else:
            self.data.setdefault(stream, []).append((flags, body))

    def end(self, stream, kind):
        while stream not in self.answers:
            self.frame()
        fields = read_fields(self.answers.pop(stream))
        status = read_fields(fields.get(1, b""))
        if status.get(1, 0):
            raise Refused(status[1], status.get(2, b"").decode())
        answer = kind()
        answer.ParseFromString(fields.get(2, b""))
        return answer

    def next(self, stream):
        """The next message of a stream of messages; None when it ended well."""
        while not self.data.get(stream) and stream not in self.answers:
            self.frame()
        if not self.data.get(stream):
            return self.end(stream, pb.Empty)  # raises
        flags, body = self.data[stream].pop(0)
        if flags & NO_DATA:
            assert flags == NO_DATA | REMOTE_CLOSED and body == b""
            return None
        assert flags == 0
        return pb.ReceiveResponse.FromString(body).message

    def call(self, method, request=None, kind=pb.Empty, timeout=None):
        payload = request.SerializeToString() if request is not None else b""
        return self.end(self.begin(method, payload, timeout), kind)

    # The verbs.

    def attach(self, name="test", **fields):
        return self.call("Attach", pb.AttachRequest(name=name, **fields), pb.AttachResponse)

    def loan(self, shape=(16,), dtype=pb.UINT8, timeout=1, **fields):
        request = pb.LoanRequest(tensors=[pb.Tensor(dtype=dtype, shape=shape)], **fields)
        return self.call("Loan", request, pb.LoanResponse, timeout)

    def send(self, lease, route="self", timeout=1, **options):
        request = pb.SendRequest(lease=lease, route=route, options=pb.Options(**options))
        return self.call("Send", request, pb.SendResponse, timeout)

    def receive(self, timeout=1, request_id=0):
        request = pb.ReceiveRequest(request_id=request_id)
        return self.call("Receive", request, pb.ReceiveResponse, timeout).message

    def receive_stream(self, request_id, credits, timeout=10, flags=REMOTE_CLOSED):
        request = pb.ReceiveStreamRequest(request_id=request_id, credits=credits)
        return self.begin("ReceiveStream", request.SerializeToString(), timeout, flags=flags)

    def credit(self, request_id, credits=0, end=False):
        return self.call("Credit", pb.CreditRequest(request_id=request_id, credits=credits, end=end))

    def begin_call(self, method, data=b"", route="self", timeout=10, request_id=0, credits=0, **options):
        """Sends a call; end_call() or, with credits, next() gives what comes."""
        loan = self.loan((len(data),), metadata_bytes=64 + len(options.get("metadata", b"")))
        with open(loan.body_path, "r+b") as body:
            body.seek(loan.slot_offset)
            body.write(data)
        request = pb.CallRequest(request_id=request_id, lease=loan.lease, route=route, method=method, credits=credits,
                                 options=pb.Options(**options))
        return self.begin("CallStream" if credits else "Call", request.SerializeToString(), timeout,
                          flags=REMOTE_CLOSED if credits else 0)

    def end_call(self, stream):
        return self.end(stream, pb.CallResponse).message

    def reply(self, request, data=None, timeout=1, options=None, **fields):
        """Answers a received call with bytes, or with status and text."""
        if data is not None:
            loan = self.loan((len(data),), metadata_bytes=256)
            with open(loan.body_path, "r+b") as body:
                body.seek(loan.slot_offset)
                body.write(data)
            fields["reply"] = loan.lease
        return self.call("Reply", pb.ReplyRequest(request=request, options=options, **fields), timeout=timeout)

    def cancelled(self, request):
        return self.call("Cancelled", pb.LeaseRequest(lease=request), pb.CancelledResponse).cancelled

    def release(self, lease):
        return self.call("Release", pb.LeaseRequest(lease=lease))

    def status(self):
        return self.call("Status", pb.StatusRequest(), pb.StatusResponse)

    def slots(self, held_only=False):
        slots, first = [], 0
        while True:
            request = pb.ListRequest(first_slot=first, held_only=held_only)
            page = self.call("List", request, pb.ListResponse)
            slots += page.slots
            first = page.next_slot
            if not first:
                return slots

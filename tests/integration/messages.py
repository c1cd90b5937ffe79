# SPDX-License-Identifier: Apache-2.0
"""What tests do with messages and tickets over the socket and the body file."""
import contextlib
import mmap

import pytest

import control_pb2 as pb
from ttrpc_client import Refused


@contextlib.contextmanager
def refused(name):
    with pytest.raises(Refused) as error:
        yield error
    assert error.value.name == name, error.value


def body(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def put(client, data, route="self", **options):
    loan = client.loan((len(data),))
    with body(loan.body_path) as memory:
        memory[loan.slot_offset:loan.slot_offset + len(data)] = data
    return client.send(loan.lease, route, **options)


def data_of(message):
    with body(message.body_path) as memory:
        at = message.slot_offset + message.tensors[0].offset
        return memory[at:at + message.tensors[0].bytes]


def share(client, **how):
    loan = client.loan((4,))
    return client.call("Share", pb.ShareRequest(lease=loan.lease, **how), pb.ShareResponse)


def read(client, **by):
    return client.call("Read", pb.ReadRequest(**by), pb.ReadResponse).message

# SPDX-License-Identifier: Apache-2.0
"""iceoryx2: publish and subscribe with slices of bytes, a service in each direction; its receive() is polled.

Of bytes, because Slice counts float32 elements four times in version 0.10.0.
"""

import ctypes
import os

import iceoryx2
import numpy

from rivals.pair import Way, ends, mark


class InPlace(Way):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.name = f"ringside-rivals-{os.getpid()}"

    def open(self, side):
        iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
        self.node = iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)
        services = [self.node.service_builder(iceoryx2.ServiceName.new(f"{self.name}-{direction}"))
                    .publish_subscribe(iceoryx2.Slice[ctypes.c_uint8]).open_or_create() for direction in (0, 1)]
        self.publisher = services[side].publisher_builder().initial_max_slice_len(self.size).create()
        self.subscriber = services[1 - side].subscriber_builder().create()

    def close(self):
        del self.publisher, self.subscriber, self.node

    def send(self, value, array):
        sample = self.publisher.loan_slice_uninit(array.nbytes)
        self.fill(numpy.frombuffer(sample.payload().as_memory_view(), numpy.float32), value, array)
        sample.assume_init().send()

    def fill(self, payload, value, array):
        mark(payload, value)

    def receive(self):
        receive = self.subscriber.receive
        sample = receive()
        while sample is None:
            sample = receive()
        got = ends(numpy.frombuffer(sample.payload().as_memory_view(), numpy.float32))
        sample.delete()
        return got


class CopiedIn(InPlace):
    def fill(self, payload, value, array):
        mark(array, value)
        payload[:] = array


WAYS = {"iceoryx2_inplace": InPlace, "iceoryx2_copy": CopiedIn}

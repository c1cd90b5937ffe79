# SPDX-License-Identifier: Apache-2.0
"""gRPC: a unary call over a UNIX socket, the array as the bytes of request and answer."""

import concurrent.futures
import contextlib
import os
import tempfile
import threading

import grpc
import numpy

from rivals.pair import STOP, Way, ends, mark

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]  # 4 MiB by default


class Unary(Way):
    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.path = tempfile.mktemp(prefix="ringside-rivals-grpc-")
        self.stopped = threading.Event()

    def open(self, side):
        self.side = side
        if side == 1:
            self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(1), options=OPTIONS)
            handler = grpc.unary_unary_rpc_method_handler(self.answer)
            self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("rivals", {"Move": handler}),))
            self.server.add_insecure_port(f"unix:{self.path}")
            self.server.start()
        else:
            self.channel = grpc.insecure_channel(f"unix:{self.path}", options=OPTIONS)
            self.call = self.channel.unary_unary("/rivals/Move")

    def close(self):
        if self.side == 1:
            self.server.stop(None).wait()
        else:
            self.channel.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def exchange(self, value, array):
        mark(array, value)
        return ends(numpy.frombuffer(self.call(array.tobytes(), wait_for_ready=True), numpy.float32))

    def answer(self, request, context):
        first, last = ends(numpy.frombuffer(request, numpy.float32))
        if first == STOP:
            self.stopped.set()
        mark(self.small, last)
        return self.small.tobytes()

    def serve(self):
        self.stopped.wait()

    def stop(self):
        self.exchange(STOP, self.small)


WAYS = {"grpc": Unary}

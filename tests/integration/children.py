# SPDX-License-Identifier: Apache-2.0
"""Processes that a test begins, told by pipe, and that end with it."""
import multiprocessing

import pytest


@pytest.fixture
def children():
    """children(target, *arguments) runs target(pipe, *arguments) in a process of its own and gives (process, pipe)."""
    started = []

    def begin(target, *arguments):
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=target, args=(there, *arguments))
        process.start()
        started.append(process)
        return process, here

    yield begin
    for process in started:
        if process.is_alive():
            process.kill()
        process.join()


def told(pipe):
    assert pipe.poll(20)
    return pipe.recv()

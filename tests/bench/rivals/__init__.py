# SPDX-License-Identifier: Apache-2.0
"""What people use today to move an array between two processes, beside Ringside, in one run."""

import typing

SIZES = {"64B": 64, "64KiB": 64 << 10, "1MiB": 1 << 20, "16MiB": 16 << 20, "64MiB": 64 << 20}

RULES = """\
A float32 array goes one way, from one process to another, and a small one of 64 B comes back by the same means. A figure
is half of that round trip for 64 B, and for the larger ones the round trip less half of a small one made right after:
the p50 of single rounds after a warm-up, and of that the median of the runs. The same for all:
 - Before it is sent, the first and the last element are written; the receiver makes a NumPy array (torch: a tensor) of
   what it got and reads both. They are checked each time.
 - An array lies in its owner's memory, and what it takes to send it from there counts: pickling, a copy into shared
   memory, a copy into a socket. Only what is called in place is written where the receiver reads it.
 - What was received is given back before the next is sent.
 - Each library has its defaults, and waits as it does by default. Where a limit forbids a size it is raised.
 - Each process is pinned to a core of its own ({cores}), all its threads with it; sidecars and Ray's own processes are
   where the kernel puts them.
"""


class Rival(typing.NamedTuple):
    """One row of the table."""

    name: str  # as in the keys NAME_SIZE_us_p50
    module: str  # in rivals.methods; all names of a module are measured by one program
    needs: tuple  # what must be installed besides NumPy, which Ringside's Python package uses too
    beside: str  # the row of Ringside that does the same job; empty: none does
    text: str


RIVALS = [
    Rival("memcpy", "memcpy", (), "", "one copy, the same two places each time; a limit"),
    Rival("memcpy_cold", "memcpy", (), "", "one copy to another place each time, in turn over 256 MiB"),
    Rival("pickle_uds", "pickle_uds", (), "ringside_copy", "pickle, protocol 5, over a UNIX socket"),
    Rival("mp_queue", "mp_queue", (), "ringside_queue_ticket", "multiprocessing.Queue"),
    Rival("shared_memory", "shared_memory", (), "ringside_copy",
          "multiprocessing.shared_memory, copied in, and a semaphore"),
    Rival("torch_mp", "torch_mp", ("torch",), "ringside_copy", "torch.multiprocessing.Queue"),
    Rival("zmq", "zeromq", ("pyzmq",), "ringside_copy", "ZeroMQ, ipc"),
    Rival("grpc", "grpc_unary", ("grpcio",), "ringside_copy", "gRPC, unary calls over a UNIX socket"),
    Rival("iceoryx2_inplace", "iceoryx2_slices", ("iceoryx2",), "ringside_inplace", "iceoryx2, in place"),
    Rival("iceoryx2_copy", "iceoryx2_slices", ("iceoryx2",), "ringside_copy", "iceoryx2, copied in"),
    Rival("ray", "ray_actors", ("ray",), "ringside_ray_ticket", "Ray, actor to actor"),
    Rival("ray_int", "ray_actors", ("ray",), "", "a plain int, and no array, actor to actor"),
    Rival("ringside_inplace", "ringside_ways", (), "", "Ringside, in place"),
    Rival("ringside_copy", "ringside_ways", (), "", "Ringside, copied in: rs.send(route, array)"),
    Rival("ringside_put", "ringside_ways", (), "", "Ringside, rs.put and rs.get; the ticket over a UNIX socket"),
    Rival("ringside_ray_ticket", "ray_actors", ("ray",), "", "Ringside, in place, int(ticket) through a Ray actor call"),
    Rival("ringside_queue_ticket", "ringside_ways", (), "",
          "Ringside, in place, by ticket through multiprocessing.Queue"),
]

# What must hold: (name, "<=" or ">=", factor, the name it is compared with).
BOUNDS = [(f"{name}_{size}_us_p50", relation, factor, f"{base}_{size}_us_p50")
          for size, name, relation, factor, base in (
    ("16MiB", "ringside_inplace", "<=", 0.7, "iceoryx2_inplace"),
    ("16MiB", "ringside_copy", "<=", 1.25, "memcpy"),
    ("16MiB", "ringside_copy", "<=", 1, "iceoryx2_copy"),
    ("16MiB_read", "ringside_copy", "<=", 0.7, "iceoryx2_copy"),  # as receivers do; proto/copy.h
    ("16MiB", "ray", ">=", 1000, "ringside_inplace"),
    ("16MiB", "ray", ">=", 10, "ringside_copy"),
    ("64B", "ringside_inplace", "<=", 0.7, "iceoryx2_inplace"),
    ("64B", "ringside_copy", "<=", 0.7, "iceoryx2_copy"),
    ("64B", "ringside_ray_ticket", "<=", 1.1, "ray_int"),
)]

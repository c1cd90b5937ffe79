# SPDX-License-Identifier: Apache-2.0
"""Measures the ways of one module; prints lines of `NAME_SIZE_us_p50 VALUE`, `… skip REASON` or `… fail REASON`."""

import argparse
import contextlib
import importlib
import signal
import sys

from rivals import RIVALS, SIZES
from rivals.pair import RATE_HZ, measure_pair
from rivals.stages import two_stages


def measure_ways(module, names, sockets, options):
    """Each way and size of a module in a pair of processes of its own."""
    for label in options.sizes:
        for name in names:
            figures = measure_pair(module.WAYS[name], SIZES[label], sockets, options.cpus, options.seconds)
            print(f"{name}_{label}_us_p50", *figures, flush=True)
    for name in names if options.read else ():
        figures = measure_pair(module.WAYS[name], SIZES["16MiB"], sockets, options.cpus, options.seconds, whole=True)
        print(f"{name}_16MiB_read_us_p50", *figures, flush=True)
    for name in names if options.share else ():
        share, *rate = measure_pair(module.WAYS[name], SIZES["16MiB"], sockets, options.cpus, None)
        print(f"{name}_16MiB_{RATE_HZ}rps_thread_share", share, flush=True)
        for figure in rate:
            print(f"{name}_16MiB_{RATE_HZ}rps_arrived_per_s", figure, flush=True)


def on_interrupt(number, frame):
    """The first one ends it; while what was started is ended, more of them change nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module", choices=sorted({rival.module for rival in RIVALS}))
    parser.add_argument("--names", type=lambda s: s.split(","), help="some of the module's")
    parser.add_argument("--sizes", type=lambda s: s.split(","), default=list(SIZES))
    parser.add_argument("--seconds", type=float, default=0.5, help="for each way and size (%(default)s)")
    parser.add_argument("--cpus", default="0,1", type=lambda s: [int(c) for c in s.split(",")])
    parser.add_argument("--read", action="store_true", help="also 16 MiB of which the receiver reads all")
    parser.add_argument("--share", action="store_true", help="also how fast another thread of the receiver runs")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_interrupt)
    names = options.names or [rival.name for rival in RIVALS if rival.module == options.module]
    module = importlib.import_module(f"rivals.methods.{options.module}")
    stages = two_stages() if getattr(module, "NEEDS_STAGES", False) else contextlib.nullcontext()
    with stages as sockets:
        getattr(module, "measure", measure_ways)(module, names, sockets, options)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

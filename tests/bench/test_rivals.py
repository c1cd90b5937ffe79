# SPDX-License-Identifier: Apache-2.0
"""The rivals' harness: a tiny run of what needs no installation, and how it takes what goes wrong."""

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import types
import unittest

import bench
from rivals import BOUNDS, RIVALS, SIZES, compare, page, pair, venv

HERE = pathlib.Path(__file__).resolve().parent
CPUS = bench.pick_cpus()
NAMES = """memcpy memcpy_cold pickle_uds mp_queue shared_memory torch_mp zmq grpc iceoryx2_inplace iceoryx2_copy ray
    ringside_inplace ringside_copy ringside_put ringside_ray_ticket ringside_queue_ticket ray_int""".split()


def measured(module, *options):
    """Name to text of what a tiny run prints."""
    command = [sys.executable, "-m", "rivals.measure", module, "--sizes", "64B,64KiB", "--seconds", "0.02",
               "--cpus", ",".join(map(str, CPUS)), *options]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100,
                          env={**os.environ, "PYTHONPATH": path})
    return dict(line.split(" ", 1) for line in done.stdout.splitlines())


class Echo(pair.Way):
    """Two pipes; what arrives is what was sent."""

    def __init__(self, size, sockets):
        super().__init__(size, sockets)
        self.pipes = [pair.context.Pipe(duplex=False) for _ in range(2)]

    def open(self, side):
        self.incoming, self.outgoing = self.pipes[1 - side][0], self.pipes[side][1]

    def send(self, value, array):
        self.outgoing.send(value)

    def receive(self):
        value = self.incoming.recv()
        return value, value


class Wrong(Echo):
    def receive(self):
        first, last = super().receive()
        return first, last + (first != pair.STOP)


class Dying(Echo):
    def serve(self):
        self.receive()
        os.kill(os.getpid(), signal.SIGKILL)


class Whole(Echo):
    def receive(self):
        assert pair.reads_all, "the ends alone were read"
        return super().receive()


class Unwilling(Echo):
    def open(self, side):
        raise pair.Skip("not today")


class TinyRun(unittest.TestCase):
    def check(self, module, names, *options):
        figures = measured(module, "--names", ",".join(names), *options)
        self.assertEqual(set(figures), {f"{name}_{size}_us_p50" for name in names for size in ("64B", "64KiB")})
        if len(CPUS) < 2 and module != "memcpy":
            self.skipTest("needs 2 cores")
        for name, figure in figures.items():
            self.assertGreater(float(figure), 0, name)

    def test_memcpy(self):
        self.check("memcpy", ["memcpy", "memcpy_cold"])

    def test_pickle_uds(self):
        self.check("pickle_uds", ["pickle_uds"])

    def test_shared_memory(self):
        self.check("shared_memory", ["shared_memory"])

    def test_reading_all_is_more(self):
        read = []
        array = type("Array", (), {"max": lambda self: read.append(1), "__getitem__": lambda self, i: i})()
        self.assertEqual(pair.ends(array), (0, -1))
        self.assertEqual(read, [])
        pair.reads_all = True
        try:
            self.assertEqual(pair.ends(array), (0, -1))
        finally:
            pair.reads_all = False
        self.assertEqual(read, [1])

    def test_ringside(self):
        if not importlib.util.find_spec("ringside"):
            self.skipTest("the ringside package is not built")
        self.check("ringside_ways", ["ringside_inplace", "ringside_copy", "ringside_put", "ringside_queue_ticket"])


@unittest.skipIf(len(CPUS) < 2, "needs 2 cores")
class Harness(unittest.TestCase):
    def figures(self, way, seconds=0.02):
        return pair.measure_pair(way, 4096, None, CPUS, seconds)

    def test_good(self):
        self.assertGreater(float(*self.figures(Echo)), 0)

    def test_share_and_rate(self):
        share, rate = self.figures(Echo, None)
        self.assertGreater(float(share), 0)
        self.assertLess(float(rate), pair.RATE_HZ * 1.1)

    def test_read_whole(self):
        value, = pair.measure_pair(Whole, 4096, None, CPUS, 0.02, whole=True)
        self.assertGreater(float(value), 0)
        text, = self.figures(Whole)
        self.assertRegex(text, "AssertionError: the ends alone were read")

    def test_wrong_data_is_a_failure(self):
        text, = self.figures(Wrong)
        self.assertRegex(text, r"^fail side 0: ValueError: sent 1.0, got 2.0 and 3.0")

    def test_death_is_a_failure(self):
        self.assertEqual(self.figures(Dying), ["fail side 1 ended with -9"])

    def test_skip_has_its_reason(self):
        self.assertEqual(self.figures(Unwilling), ["skip not today"])

    def test_one_core_is_a_skip(self):
        self.assertEqual(pair.measure_pair(Echo, 64, None, CPUS[:1], 0.01), ["skip needs 2 cores"])

    def test_both_are_pinned_and_the_test_is_not(self):
        before = os.sched_getaffinity(0)
        self.figures(Echo)
        self.assertEqual(os.sched_getaffinity(0), before)


def one_way_of(big_us, small_us):
    """What time_way makes of a way that takes so long there and so long back."""
    clock = [0]

    def exchange(value, array):
        clock[0] += int((big_us if array.nbytes > pair.SMALL_BYTES else small_us) * 1000) + int(small_us * 1000)
        return value, value

    real, pair.time = pair.time, types.SimpleNamespace(perf_counter_ns=lambda: clock[0])
    try:
        return pair.time_way(exchange, pair.new_array(4096), pair.new_array(pair.SMALL_BYTES), 0.001)
    finally:
        pair.time = real


class Tables(unittest.TestCase):
    GOOD = {f"{name}_{size}_us_p50": 100.0 for name in NAMES for size in [*SIZES, "16MiB_read"]}

    def test_the_way_back_is_taken_off(self):
        self.assertEqual(set(one_way_of(70, 3)), {70.0})

    def test_keys_are_those_that_are_promised(self):
        self.assertEqual(sorted(rival.name for rival in RIVALS), sorted(NAMES))
        self.assertEqual(list(SIZES), "64B 64KiB 1MiB 16MiB 64MiB".split())
        self.assertLessEqual({key for name, _, _, base in BOUNDS for key in (name, base)}, set(self.GOOD))

    def test_every_module_is_run_and_is_there(self):
        self.assertEqual(set(compare.ORDER), {rival.module for rival in RIVALS})
        for module in compare.ORDER:
            self.assertTrue((HERE / "rivals/methods" / f"{module}.py").exists(), module)

    def test_each_bound_can_be_missed(self):
        for i, (name, relation, _, _) in enumerate(BOUNDS):
            bad = dict(self.GOOD)
            bad[name] = 1e-3 if relation == ">=" else 1e9
            with self.subTest(name):
                self.assertEqual(bench.judge([bad], (), BOUNDS)[i].outcome, "MISS")

    def test_a_rival_that_wins_is_named(self):
        medians = dict(self.GOOD, zmq_1MiB_us_p50=99.0, memcpy_64B_us_p50=1.0)
        self.assertEqual(list(compare.faster(medians, SIZES)), [("1MiB", "zmq", "ringside_copy")])
        self.assertIn("99*", str(list(compare.table(medians, SIZES))))

    def test_what_is_not_installed_is_named_with_its_reason(self):
        notes = compare.reasons({"ray": "no wheel"}, ["64B"])
        self.assertEqual(notes, {f"{name}_64B_us_p50": ("skip", "ray: no wheel")
                                 for name in ("ray", "ray_int", "ringside_ray_ticket")})

    def test_a_reason_for_all_sizes_is_given_once(self):
        notes = {**compare.reasons({"torch": "why"}, SIZES), "zmq_64B_us_p50": ("fail", "that")}
        self.assertEqual(compare.grouped(notes, SIZES), {("skip", "torch: why"): ["torch_mp"],
                                                         ("fail", "that"): ["zmq_64B_us_p50"]})

    def test_pip_that_fails_gives_its_reason(self):
        with tempfile.TemporaryDirectory() as directory:
            python = pathlib.Path(directory, "python")
            python.write_text("#!/bin/sh\necho noise\necho 'ERROR: no index'\nexit 1\n")
            python.chmod(0o755)
            self.assertEqual(venv.install(str(python), "pyzmq", "1"), "pip: no index")

    def test_page_has_the_plot_and_the_table(self):
        if not importlib.util.find_spec("matplotlib"):
            self.skipTest("matplotlib is not there")
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "rivals.html")
            self.assertIsNone(page.write(path, dict(self.GOOD, zmq_1MiB_us_p50=9.0), list(SIZES), "rules", "system"))
            text = path.read_text()
        self.assertIn("<svg", text)
        self.assertIn("<td class=faster>9*</td>", text)
        self.assertNotIn("<?xml", text)


if __name__ == "__main__":
    unittest.main()

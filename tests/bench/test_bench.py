# SPDX-License-Identifier: Apache-2.0
"""How bench.py judges figures: each bound can be held, missed, skipped and left unmeasured."""

import argparse
import os
import unittest

import bench

GOOD = {
    "cacheline_one_way_ns_p50": 50, "iceoryx_one_way_ns_p50": 1000,
    "handoff_one_way_ns_p50": 150, "handoff_64B_ns_p50": 150, "handoff_256MiB_ns_p50": 200,
    "tickets_per_second": 1e7, "call_rtt_ns_p50": 330, "futex_wake_rtt_ns_p50": 40000, "wake_rtt_ns_p50": 41000,
    "uds_echo_rtt_ns_p50": 40000, "control_rtt_ns_p50": 60000, "python_one_way_ns_p50": 1900,
    "memcpy_16MiB_ms_p50": 0.5, "python_send_16MiB_ms_p50": 0.6, "pickle_socket_16MiB_ms_p50": 11,
    "memcpy_read_8MiB_ns_p50": 300000, "copy_read_8MiB_ns_p50": 200000,
    "memcpy_read_16MiB_ms_p50": 1.6, "copy_read_16MiB_ms_p50": 1,
    "syscalls_per_million_handoffs": 0, "mallocs_per_million_handoffs": 0,
    "context_switches_per_s_at_120rps_busy": 4,
}


def outcomes(values, skipped=()):
    return [v.outcome for v in bench.judge([values] * 5, skipped)]


class Judge(unittest.TestCase):
    def test_good_figures_hold(self):
        self.assertEqual(outcomes(GOOD), ["ok"] * len(bench.BOUNDS))

    def test_each_bound_can_be_missed(self):
        for name, relation, *_ in bench.BOUNDS:
            bad = dict(GOOD)
            key = "tickets_per_second" if name == "ticket_ns" else name
            low = relation == ">=" or name == "ticket_ns"
            bad[key] = bad[key] / 100 if low else bad[key] * 100 + 1
            with self.subTest(name):
                verdicts = bench.judge([bad] * 3 + [GOOD] * 2)
                missed = [v.name for v in verdicts if v.outcome == "MISS"]
                self.assertIn(name, missed)

    def test_a_minority_of_bad_runs_is_forgiven(self):
        bad = dict(GOOD, handoff_one_way_ns_p50=9999)
        self.assertTrue(all(v.outcome == "ok" for v in bench.judge([bad] * 2 + [GOOD] * 3)))

    def test_ratio_is_taken_within_a_run(self):
        near, far = dict(GOOD), {k: v * 4 if k.endswith("_p50") else v for k, v in GOOD.items()}
        far["tickets_per_second"] /= 4
        verdicts = bench.judge([near, far, far])
        self.assertEqual([v.ratio for v in verdicts if "iceoryx" in v.bound], [0.15])

    def test_skipped_rival_is_not_judged(self):
        values = {k: v for k, v in GOOD.items() if k != "iceoryx_one_way_ns_p50"}
        verdicts = bench.judge([values], ["iceoryx_one_way_ns_p50"])
        self.assertEqual([v.outcome for v in verdicts].count("skip"), 1)

    def test_unmeasured_is_not_held(self):
        self.assertEqual(set(outcomes({})), {"none"})

    def test_cores_are_different(self):
        cpus = bench.pick_cpus()
        self.assertEqual(len(cpus), len(set(cpus)))

    def test_every_bound_is_about_a_key(self):
        named = {name for name, _, _, base in bench.BOUNDS for name in (name, base) if name}
        self.assertEqual(named - set(bench.KEYS), {"ticket_ns"})

    def test_every_key_is_measured_by_a_program(self):
        build = os.environ.get("RINGSIDE_BENCH_BUILD")
        if not build:
            self.skipTest("RINGSIDE_BENCH_BUILD names no build directory")
        measured = []
        for command in bench.programs(argparse.Namespace(build=build, quick=True)):
            measured += bench.names_of(command)
        self.assertEqual(set(bench.KEYS) - set(measured), set())
        self.assertEqual(len(measured), len(set(measured)))

    def test_units(self):
        self.assertEqual(bench.unit_of("memcpy_16MiB_ms_p50"), "ms")
        self.assertEqual(bench.unit_of("handoff_256MiB_ns_p50"), "ns")
        self.assertEqual(bench.unit_of("context_switches_per_s_at_120rps_busy"), "1/s")
        self.assertEqual(bench.unit_of("syscalls_per_million_handoffs"), "")


if __name__ == "__main__":
    unittest.main()

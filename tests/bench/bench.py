# SPDX-License-Identifier: Apache-2.0
"""Runs every measurement several times, prints figures and bounds, writes one flat JSON object.

Exit status: 0 all bounds hold, 1 a bound is missed or a measurement failed, 77 one was skipped.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
import typing

HERE = pathlib.Path(__file__).resolve().parent

# What must hold: (name, "<=" or ">=", factor, the name it is compared with or None for a number).
BOUNDS = [
    ("handoff_one_way_ns_p50", "<=", 4, "cacheline_one_way_ns_p50"),
    ("handoff_one_way_ns_p50", "<=", 0.4, "iceoryx_one_way_ns_p50"),
    ("handoff_256MiB_ns_p50", "<=", 1.5, "handoff_64B_ns_p50"),
    ("ticket_ns", "<=", 3, "cacheline_one_way_ns_p50"),
    ("call_rtt_ns_p50", "<=", 2.3, "handoff_one_way_ns_p50"),
    ("wake_rtt_ns_p50", "<=", 1.3, "futex_wake_rtt_ns_p50"),
    ("control_rtt_ns_p50", "<=", 2, "uds_echo_rtt_ns_p50"),
    ("python_one_way_ns_p50", "<=", 40, "cacheline_one_way_ns_p50"),
    ("python_send_16MiB_ms_p50", "<=", 1.25, "memcpy_16MiB_ms_p50"),
    ("copy_read_8MiB_ns_p50", "<=", 1.1, "memcpy_read_8MiB_ns_p50"),
    ("copy_read_16MiB_ms_p50", "<=", 1.1, "memcpy_read_16MiB_ms_p50"),
    ("pickle_socket_16MiB_ms_p50", ">=", 8, "python_send_16MiB_ms_p50"),
    ("syscalls_per_million_handoffs", "<=", 0, None),
    ("mallocs_per_million_handoffs", "<=", 0, None),
    ("context_switches_per_s_at_120rps_busy", "<=", 14, None),
]

# What the JSON object holds at least. Others explain these.
KEYS = """
    cacheline_one_way_ns_p50 handoff_one_way_ns_p50 handoff_one_way_ns_p99_9 handoff_64B_ns_p50
    handoff_256MiB_ns_p50 handoff_cold_one_way_ns_p50 tickets_per_second call_rtt_ns_p50
    futex_wake_rtt_ns_p50
    wake_rtt_ns_p50 uds_echo_rtt_ns_p50 control_rtt_ns_p50 python_one_way_ns_p50
    memcpy_16MiB_ms_p50 memcpy_cold_16MiB_ms_p50
    memcpy_read_8MiB_ns_p50 copy_read_8MiB_ns_p50 memcpy_read_16MiB_ms_p50 copy_read_16MiB_ms_p50 python_send_16MiB_ms_p50
    pickle_socket_16MiB_ms_p50 iceoryx_one_way_ns_p50 syscalls_per_million_handoffs
    mallocs_per_million_handoffs context_switches_per_s_at_120rps_busy
""".split()


def unit_of(name):
    """The unit that a name carries, as in handoff_one_way_ns_p50."""
    for mark, unit in (("_ns", "ns"), ("_ms", "ms"), ("per_second", "1/s"), ("per_s_", "1/s")):
        if mark in name:
            return unit
    return ""


class Verdict(typing.NamedTuple):
    """How one bound came out."""

    name: str
    bound: str
    value: typing.Optional[float]  # the median of the runs
    ratio: typing.Optional[float]  # the median of the runs' ratios (of the values, without a base)
    outcome: str  # "ok", "MISS", "skip" (a side of it was skipped) or "none" (not measured)


def judge(runs, skipped=(), bounds=None):
    """Hold runs (each a dict of name to number) against `bounds` (BOUNDS); a Verdict for each, in order.

    A ratio is taken within a run and the median over the runs: a virtual machine whose cores move
    apart between two runs changes both sides of it.
    """
    runs = [dict(run) for run in runs]
    for run in runs:
        if run.get("tickets_per_second"):
            run["ticket_ns"] = 1e9 / run["tickets_per_second"]
    verdicts = []
    for name, relation, factor, base in BOUNDS if bounds is None else bounds:
        usable = [run for run in runs if name in run and (base is None or base in run)]
        value = ratio = None
        if usable:
            value = statistics.median(run[name] for run in usable)
            ratio = statistics.median(run[name] / (run[base] if base else 1) for run in usable)
            holds = ratio <= factor if relation == "<=" else ratio >= factor
            outcome = "ok" if holds else "MISS"
        else:
            needed = {"tickets_per_second" if name == "ticket_ns" else name, base}
            outcome = "skip" if needed & set(skipped) else "none"
        bound = f"{relation} {factor:g}" + (f" x {base}" if base else "")
        verdicts.append(Verdict(name, bound, value, ratio, outcome))
    return verdicts


def pick_cpus():
    """Two allowed cores that are not two threads of one core; fewer if there are not two."""
    allowed, chosen, taken = sorted(os.sched_getaffinity(0)), [], set()
    for cpu in allowed:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            core = pathlib.Path(path).read_text().strip()
        except OSError:
            core = str(cpu)
        if core not in taken:
            taken.add(core)
            chosen.append(cpu)
    return (chosen if len(chosen) > 1 else allowed)[:2]


def busy_share():
    """The share of time in which the cores are not idle, over half a second."""
    def ticks():
        line = pathlib.Path("/proc/stat").read_text().split("\n")[0]
        fields = [int(field) for field in line.split()[1:9]]
        return fields[3] + fields[4], sum(fields)
    idle, total = ticks()
    time.sleep(0.5)
    idle_after, total_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def programs(options):
    """The command lines that measure, without --only, in the order in which they run.

    Python first: the copy and the cache line that it is held against are the first of the other.
    """
    build = pathlib.Path(options.build).resolve()
    os.environ["RINGSIDE_PROXY"] = str(build / "proxy/ringside-proxy")
    common = ["--cpus", ",".join(map(str, pick_cpus()))] + (["--quick"] if options.quick else [])
    return [
        [sys.executable, str(HERE / "bench_python.py"), "--build", str(build), *common],
        [str(build / "tests/bench/ringside-bench"), *common],
    ]


def names_of(command):
    """The names that a program can measure."""
    listed = subprocess.run([*command, "--list"], stdout=subprocess.PIPE, text=True, check=False)
    if listed.returncode != 0:
        sys.exit(f"bench: `{' '.join(command)} --list` failed, see above")
    return listed.stdout.split()


@contextlib.contextmanager
def running(command):
    """A program whose output is read. On an interrupt it may first tidy up what it started."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # a terminal sent its own: no harm
            process.wait(15)
            raise


def measure_once(command, run, notes):
    """Run one program once; add each value to `run` and each reason to `notes`."""
    with running(command) as process:
        for line in process.stdout:
            name, _, rest = line.strip().partition(" ")
            kind, _, reason = rest.partition(" ")
            if kind in ("skip", "fail"):
                notes[name] = (kind, reason)
            else:
                run[name] = float(rest)
    if process.returncode < 0:
        notes[pathlib.Path(command[0]).name] = ("fail", f"ended by signal {-process.returncode}")


def measure(options):
    """All runs of all programs: a dict of name to value per run, and of name to (kind, reason)."""
    wanted = [name for name in options.only.split(",") if name]
    commands = [(command, names_of(command)) for command in programs(options)]
    known = [name for _, names in commands for name in names]
    for name in wanted:
        if name not in known:
            sys.exit(f"bench: --only {name}: no such measurement. There are: {', '.join(known)}")
    runs, notes = [], {}
    for turn in range(options.runs):
        print(f"run {turn + 1} of {options.runs}", file=sys.stderr, flush=True)
        runs.append({})
        for command, names in commands:
            chosen = [name for name in names if name in wanted]
            if not wanted or chosen:
                only = ["--only", ",".join(chosen)] if chosen else []
                measure_once(command + only, runs[-1], notes)
    return runs, notes


def number(value):
    """Four digits are what a run can tell apart."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def print_tables(taken, notes, verdicts):
    print(f"\n{'measurement':<38} {'median':>11} {'unit':<4} {'lowest':>11} {'highest':>11}")
    for name, values in taken.items():
        print(f"{name:<38} {number(statistics.median(values)):>11} {unit_of(name):<4}"
              f" {number(min(values)):>11} {number(max(values)):>11}")
    for name, (kind, reason) in notes.items():
        print(f"{name:<38} {'SKIPPED' if kind == 'skip' else 'FAILED'}: {reason}")
    print_verdicts(verdicts)


def print_verdicts(verdicts):
    if verdicts:
        print(f"\n{'must hold':<38} {'value':>11} {'ratio':>8}  {'bound':<36}")
    words = {"skip": "NOT JUDGED: skipped", "none": "NOT MEASURED"}
    for v in verdicts:
        print(f"{v.name:<38} {number(v.value):>11} {number(v.ratio):>8}  {v.bound:<36}"
              f" {words.get(v.outcome, v.outcome)}")


def warn_if_busy():
    busy = busy_share()
    if busy > 0.1:
        print(f"bench: WARNING: other programs keep this machine {busy:.0%} busy:"
              " figures will be too high", file=sys.stderr)


def write_json(path, medians):
    pathlib.Path(path).write_text(json.dumps(medians, indent=2) + "\n")


def exit_status(notes, verdicts):
    failed = any(kind == "fail" for kind, _ in notes.values())
    if failed or any(v.outcome in ("MISS", "none") for v in verdicts):
        return 1
    return 77 if notes else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default="build", help="the meson build directory (%(default)s)")
    parser.add_argument("--json", help="where to write the medians")
    parser.add_argument("--only", default="", help="NAME,...: these and the bounds among them")
    parser.add_argument("--runs", type=int, help="take the median of N (5; with --rivals 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples")
    parser.add_argument("--rivals", nargs="?", const="full", choices=("full", "light"),
                        help="what moves an array between processes today, beside Ringside: installs about 7 GB of"
                        " packages into the build directory; light: without torch and ray")
    options = parser.parse_args()
    if options.rivals:
        return compare_rivals(options)
    options.runs = options.runs or 5
    warn_if_busy()
    runs, notes = measure(options)
    taken = {}
    for name, value in (item for run in runs for item in run.items()):
        taken.setdefault(name, []).append(value)
    verdicts = judge(runs, [name for name, (kind, _) in notes.items() if kind == "skip"])
    if options.only:
        verdicts = [v for v in verdicts if v.outcome != "none"]
    else:
        for name in KEYS:
            if name not in taken:
                notes.setdefault(name, ("fail", "nothing measured it"))
    print_tables(taken, notes, verdicts)
    if options.json:
        write_json(options.json, {name: statistics.median(values) for name, values in taken.items()})
    return exit_status(notes, verdicts)


def compare_rivals(options):
    from rivals import compare

    if options.only:
        sys.exit("bench: --only: --rivals measures all; leave it out")
    options.runs = options.runs or 3
    return compare.run(options, sys.modules[__name__])


def on_interrupt(number, frame):
    """The first one ends it; while what was started is ended, more of them change nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, on_interrupt)
    signal.signal(signal.SIGTERM, on_interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

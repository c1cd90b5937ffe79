# SPDX-License-Identifier: Apache-2.0
"""Runs Ringside and its rivals in turn; prints rules, table and bounds, and writes JSON and a page with a plot."""

import os
import pathlib
import platform
import statistics
import sys

from rivals import BOUNDS, RIVALS, RULES, SIZES, venv

SECONDS = 0.4  # for each way and size
HERE = pathlib.Path(__file__).resolve().parent.parent
# Of a run: what is held against each other is measured next to each other.
ORDER = ["memcpy", "ringside_ways", "iceoryx2_slices", "ray_actors", "shared_memory", "pickle_uds", "mp_queue",
         "torch_mp", "zeromq", "grpc_unary"]

SHARES = ("What a second Python thread of the receiver keeps of its own speed while arrays of 16 MiB arrive 60 times a"
          " second,\nor less often where that is too fast:")


READS = "One way of 16 MiB when the receiver reads every element (NumPy's max): us, p50, and its ratio to ringside_copy's:"


def environment(build):
    """For the programs: this package, ringside's, and the sidecar."""
    build = pathlib.Path(build).resolve()
    os.environ["RINGSIDE_PROXY"] = str(build / "proxy/ringside-proxy")
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{build / 'client/python'}"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


def us(value):
    """Three digits are what a run can tell apart."""
    if value is None:
        return "-"
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.995 else f"{value:.2f}"


def programs(python, lacking, cpus, options, first):
    """The command lines of one run."""
    for module in ORDER:
        names = [r.name for r in RIVALS if r.module == module and not lacking_of(r, lacking)]
        if names:
            yield [python or sys.executable, "-m", "rivals.measure", module, "--names", ",".join(names),
                   "--sizes", ",".join(options.sizes), "--cpus", ",".join(map(str, cpus)),
                   "--seconds", str(SECONDS / (10 if options.quick else 1)), "--read", *(["--share"] if first else [])]


def lacking_of(rival, lacking):
    """What of its needs is not there."""
    return [name for name in rival.needs if name in lacking]


def reasons(lacking, sizes):
    """Notes for what is skipped because something could not be installed."""
    return {f"{r.name}_{size}_us_p50": ("skip", "; ".join(f"{name}: {lacking[name]}" for name in missing))
            for r in RIVALS for size in sizes for missing in [lacking_of(r, lacking)] if missing}


def faster(medians, sizes):
    """(size, rival, beside) of each rival whose figure, as printed, is lower than that of Ringside's way of the same job."""
    for size in sizes:
        for rival in RIVALS:
            theirs = medians.get(f"{rival.name}_{size}_us_p50")
            ours = medians.get(f"{rival.beside}_{size}_us_p50")
            if theirs is not None and ours is not None and theirs < ours and us(theirs) != us(ours):
                yield size, rival.name, rival.beside


def table(medians, sizes):
    """Rows of cells; a figure that beats Ringside's has a star."""
    stars = {(size, name) for size, name, _ in faster(medians, sizes)}
    for rival in RIVALS:
        yield [rival.name] + [us(medians.get(f"{rival.name}_{size}_us_p50")) + ("*" if (size, rival.name) in stars
                                                                              else " ") for size in sizes]


def reads(medians):
    """Of each way whose receiver read all of 16 MiB: its name, the figure, the ratio to ringside_copy."""
    ours = medians.get("ringside_copy_16MiB_read_us_p50")
    for rival in RIVALS:
        value = medians.get(f"{rival.name}_16MiB_read_us_p50")
        if value is not None:
            yield rival.name, us(value), f"{value / ours:.2f}" if ours else "-"


def shares(medians):
    """Of each way beside which a thread counted: its name, the share, the arrays a second."""
    for rival in RIVALS:
        share, rate = (medians.get(f"{rival.name}_16MiB_60rps_{what}") for what in ("thread_share", "arrived_per_s"))
        if share is not None:
            yield rival.name, f"{share:.0%}", f"{rate:.0f}/s"


def verdict_lines(medians, sizes):
    """Where a rival wins, in words."""
    for size, name, beside in faster(medians, sizes):
        yield (f"* {size}: {name}, {us(medians[f'{name}_{size}_us_p50'])} us, is faster than {beside},"
               f" {us(medians[f'{beside}_{size}_us_p50'])} us")


def grouped(notes, sizes):
    """(kind, reason) to what it holds for: a name where it is all of its sizes, else the keys."""
    groups = {}
    for name, note in notes.items():
        groups.setdefault(note, []).append(name)
    for names in groups.values():
        for rival in RIVALS:
            keys = [f"{rival.name}_{size}_us_p50" for size in sizes]
            if set(keys) <= set(names):
                names[:] = [rival.name if name == keys[0] else name for name in names if name not in keys[1:]]
    return groups


def print_tables(medians, notes, sizes):
    print(f"\n{'one way, us, p50':<22}" + "".join(f"{size:>12} " for size in sizes))
    for cells in table(medians, sizes):
        print(f"{cells[0]:<22}" + "".join(f"{cell:>13}" for cell in cells[1:]))
    print()
    for rival in RIVALS:
        print(f"  {rival.name:<22}{rival.text}")
    print()
    print("\n".join(verdict_lines(medians, sizes)) or "No rival is faster than the way of Ringside that does its job.")
    print("\n" + READS)
    for name, value, ratio in reads(medians):
        print(f"  {name:<22}{value:>10}{ratio:>10}")
    print("\n" + SHARES)
    for name, share, rate in shares(medians):
        print(f"  {name:<22}{share:>6} at {rate}")
    for (kind, reason), names in grouped(notes, sizes).items():
        print(f"\n{'SKIPPED' if kind == 'skip' else 'FAILED'}: {', '.join(names)}\n  {reason}")


def system_line():
    model = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                 platform.machine())
    return f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, CPython {platform.python_version()}"


def run(options, bench):
    """The command; `bench` is the module with what all benches have in common. Returns the exit status."""
    build = pathlib.Path(options.build).resolve()
    options.sizes = list(SIZES)
    environment(build)
    cpus = bench.pick_cpus()
    cores = " and ".join(map(str, cpus)) if len(cpus) > 1 else f"{cpus[0]}: the only one, so pairs are skipped"
    python, lacking = venv.prepare(build / "rivals-venv", options.rivals == "light")
    if python is None:
        print(f"bench: NumPy: {lacking.get('numpy')}; only what {sys.executable} can measure is measured",
              file=sys.stderr)
        lacking = {name: lacking.get(name, "NumPy is not there for it") for name in venv.PINNED}
    rules = RULES.format(cores=cores)
    packages = [f"{name} {version}" for name, version in venv.PINNED.items() if name not in lacking]
    print(f"{rules}{system_line()}; {', '.join(packages) or 'nothing from PyPI'}", flush=True)
    bench.warn_if_busy()
    runs, notes = [], reasons(lacking, options.sizes)
    for turn in range(options.runs):
        runs.append({})
        print(f"run {turn + 1} of {options.runs}", file=sys.stderr, flush=True)
        for command in programs(python, lacking, cpus, options, turn == 0):
            bench.measure_once(command, runs[-1], notes)
    return report(options, bench, runs, notes, rules)


def report(options, bench, runs, notes, rules):
    taken = {}
    for name, value in (item for each in runs for item in each.items()):
        taken.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    for rival in RIVALS:
        for size in options.sizes:
            if f"{rival.name}_{size}_us_p50" not in medians:
                notes.setdefault(f"{rival.name}_{size}_us_p50", ("fail", "nothing measured it"))
    skipped = [name for name, (kind, _) in notes.items() if kind == "skip"]
    skipped += [name.replace("_16MiB_", "_16MiB_read_") for name in skipped]  # who is not there reads nothing
    verdicts = bench.judge(runs, skipped, BOUNDS)
    print_tables(medians, notes, options.sizes)
    bench.print_verdicts(verdicts)
    if options.json:
        bench.write_json(options.json, medians)
    write_page(options, medians, rules)
    return bench.exit_status(notes, verdicts)


def write_page(options, medians, rules):
    from rivals import page  # matplotlib takes its time

    path = pathlib.Path(options.build) / "bench/rivals.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    why = page.write(path, medians, options.sizes, rules, system_line())
    print(f"\n{path}" + (f" (without a plot: {why})" if why else ""))

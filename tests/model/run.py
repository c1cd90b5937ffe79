#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the Spin models of this folder: each case must hold, or must fail, in an exhaustive search.

Usage: run.py [--all] [--list] [--jobs N] [PATTERN...]
       run.py --trail CASE     run a case that fails and print each change of shared state, in order
       run.py --map            print README.md's table of model steps and functions with line numbers

Without --all only the small cases run. PATTERN: names of cases, with * and ?. Each run checks README.md's
table as well. Exit status 1 when an expectation is not met, 77 without spin.
"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import typing

from cases import CASES, Case

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILER = ["gcc", "-w", "-DSAFETY", "-DCOLLAPSE", "-DVECTORSZ=2048", "-o", "pan", "pan.c"]
# Compiling with optimisation takes longer than searching a small model.
SIZES = {"small": (["-O0", "-DMEMLIM=2000"], ["-w18"]), "late": (["-O0", "-DMEMLIM=2000"], ["-w20"]), "large": (["-O2", "-fno-gcse", "-DMEMLIM=5000"], ["-w24"])}
SECONDS = 3600  # of one program, on a machine that has other things to do
UNFINISHED = re.compile(r"out of memory|max search depth too small|reached -DMEMLIM|Search not completed")
MAP_ROW = re.compile(r"^\| [^|]+ \| (\w+\.pml: [^|]+) \| (\w+/[^|]+) \|$", re.M)


class Outcome(typing.NamedTuple):
    """What one case did; wrong says how that differs from what was expected."""

    case: Case
    states: int
    seconds: float
    wrong: str


def command(arguments: list[str], folder: str) -> str:
    """What it prints, run there."""
    done = subprocess.run(arguments, cwd=folder, timeout=SECONDS, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0 and arguments[0] != "./pan":
        raise RuntimeError(f"{' '.join(arguments)}: {done.stdout[-2000:]}")
    return done.stdout


def search(case: Case, folder: str) -> str:
    """What the search prints."""
    compile_options, run_options = SIZES[case.size]
    for source in HERE.glob("*.pml"):
        shutil.copy(source, folder)
    command(["spin", *case.options.split(), "-a", case.model + ".pml"], folder)
    # What must fail is found sooner when the processes that begin last are tried first.
    command([*COMPILER, *compile_options, *([] if case.holds else ["-DREVERSE"])], folder)
    # -E: who waits for ever in dekker.pml is judged by its assertions.
    return command(["./pan", "-m400000", *run_options, *(["-E"] if case.model == "dekker" else [])], folder)


def judge(case: Case, states: int, output: str) -> str:
    """How the search differs from what the case expects; empty when it does not."""
    errors = re.search(r"errors: (\d+)", output)
    if not errors:
        return "no result: " + output[-500:].strip()
    why = re.search(r"pan:\d+: (.*) \(at depth", output)
    unfinished = UNFINISHED.search(output)
    if int(errors[1]):
        if case.holds:
            return f"must hold, but: {why[1] if why else 'an error'}"
        return "" if why and "assertion violated" in why[1] else f"fails for another reason: {why and why[1]}"
    if not case.holds:
        return "must fail, but holds: the models cannot see this fault any more"
    if unfinished:
        return "the search did not cover everything: " + unfinished[0]
    if states * 2 < case.states:
        return f"only {states} states instead of {case.states}: the model does less than it did"
    return ""


def run(case: Case) -> Outcome:
    """One case, in a folder of its own."""
    begin, states = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix=f"{case.name}-") as folder:
        try:
            output = search(case, folder)
            stored = re.search(r"^\s*(\d+) states, stored", output, re.M)
            states = int(stored[1]) if stored else 0
            wrong = judge(case, states, output)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            wrong = str(error)
    return Outcome(case, states, time.monotonic() - begin, wrong)


def run_all(cases: list[Case], jobs: int) -> list[Outcome]:
    """Small and late cases side by side, then large ones alone; every outcome, printed as it comes."""
    print(f"{'case':<26} {'':<4} {'must':<5} {'states':>11} {'seconds':>7}", flush=True)
    outcomes = []
    for size, workers in (("small", jobs), ("late", jobs), ("large", 1)):
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            for outcome in pool.map(run, [case for case in cases if case.size == size]):
                outcomes.append(outcome)
                case = outcome.case
                print(f"{case.name:<26} {'BAD' if outcome.wrong else 'ok':<4} {'hold' if case.holds else 'fail':<5} "
                      f"{outcome.states:>11,} {outcome.seconds:>7.1f}  {outcome.wrong or case.note}", flush=True)
    return outcomes


def trail(case: Case) -> int:
    """Print what a failing case does, as changes of shared variables."""
    with tempfile.TemporaryDirectory(prefix="trail-") as folder:
        print("\n".join(line for line in search(case, folder).splitlines() if "errors:" in line or "violated" in line))
        if not pathlib.Path(folder, case.model + ".pml.trail").exists():
            print(f"run.py: {case.name} left no trail: it holds", file=sys.stderr)
            return 1
        steps = command(["spin", *case.options.split(), "-t", "-p", "-g", case.model + ".pml"], folder)
    where = ""
    last: dict[str, str] = {}
    for line in steps.splitlines():
        step = re.match(r"\s*\d+:\s+proc\s+(\d+) \((\w+).*?\) (\S+) \(state \d+\)", line)
        value = re.match(r"\s*([\w\[\]]+) = (-?\d+)\s*$", line)
        if step:
            where = f"{step[2] + ' ' + step[1]:<14} {step[3]:<18}"
        elif value and last.get(value[1]) != value[2]:
            last[value[1]] = value[2]
            print(f"{where} {value[1]} = {value[2]}")
        elif "violated" in line:
            print(line.strip())
            break
    return 0


def check_map(show: bool) -> list[str]:
    """The names in README.md's rows `| step | file.pml: name | path: function, function |` that are not there."""
    missing = []
    for row in MAP_ROW.findall((HERE / "README.md").read_text("utf-8")):
        for column, folder, pattern in ((row[0], HERE, r"^(?:inline|proctype|init|#define) ?{}\b"),
                                        (row[1], ROOT, r"^(?!\s)[\w\s\*]*\b{}\(")):
            for part in column.split("; "):
                path, _, names = part.strip().partition(": ")
                text = (folder / path).read_text("utf-8") if (folder / path).is_file() else ""
                for name in names.split(", "):
                    found = re.search(pattern.format(re.escape(name)), text, re.M)
                    if not found:
                        missing.append(f"README.md names {path}: {name}, which is not there")
                    elif show:
                        print(f"{path}:{text[:found.start()].count(chr(10)) + 1}: {name}")
    return missing


def main(arguments: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of cases, with * and ?")
    parser.add_argument("--all", action="store_true", help="the large cases as well")
    parser.add_argument("--list", action="store_true", help="print the cases and leave")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="small cases at once")
    parser.add_argument("--trail", metavar="CASE", help="print what a failing case does")
    parser.add_argument("--map", action="store_true", help="print the table of steps and functions")
    options = parser.parse_args(arguments)
    missing = check_map(options.map)
    print("".join(f"run.py: {line}\n" for line in missing), end="", file=sys.stderr)
    if options.map:
        return 1 if missing else 0
    patterns = [options.trail] if options.trail else options.patterns
    cases = [case for case in CASES if (any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns) if patterns
                                        else options.all or options.list or case.size == "small")]
    if not cases:
        parser.error(f"no case is called {' or '.join(patterns)}; --list names them")
    if options.list:
        for case in cases:
            print(f"{case.name:<26} {case.size} must {'hold' if case.holds else 'fail'}: "
                  f"{case.model}.pml {case.options}\n{'':<26}   {case.note}")
        return 0
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            print(f"SKIPPED: no {tool} here, so no model was checked. Debian: apt-get install {tool}", file=sys.stderr)
            return 77
    if options.trail:
        return trail(cases[0])
    begin = time.monotonic()
    bad = len(missing) + sum(bool(outcome.wrong) for outcome in run_all(cases, options.jobs))
    print(f"\nRan {len(cases)} tests in {time.monotonic() - begin:.1f}s\n")
    print(f"FAILED (failures={bad})" if bad else "OK")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

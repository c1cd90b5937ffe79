#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what meson's test logs say, down to the cases, and tells of skips and failures at the end.

Usage: summary.py LABEL=testlog.json...

A log that is not there counts as a failure: its build or its run broke. Exit status 1 when anything
failed.
"""
import json
import pathlib
import re
import sys
import typing

GOOD, BAD = {"OK", "EXPECTEDFAIL"}, {"FAIL", "TIMEOUT", "ERROR", "INTERRUPT", "UNEXPECTEDPASS"}
PYTEST = re.compile(r"^[= ]*((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", re.M)
PYTEST_SKIP = re.compile(r"^SKIPPED \[(\d+)\] (.*)$", re.M)
CMOCKA = re.compile(r"^\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) test\(s\)", re.M)
CMOCKA_SKIP = re.compile(r"^\[ RUN +\] (\S+)\n((?:(?!\[ ).*\n)*?)\[ +SKIPPED +\] \1$", re.M)
UNITTEST = re.compile(r"^Ran (\d+) tests? in .*\n\n(?:OK|FAILED)(?: \((.*)\))?$", re.M)
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Tally(typing.NamedTuple):
    """Cases of one program, or of all."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other):
        return Tally(*(a + b for a, b in zip(self, other)))


def _words(text):
    """How often each word follows a number, as in "2 failed, 76 passed"."""
    return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", text)}


def cases(output):
    """What a test program's own summary counts; empty when it prints none that is known."""
    total = Tally()
    for line in PYTEST.findall(output):
        count = _words(line)
        total += Tally(count.get("passed", 0) + count.get("xpassed", 0),
                       sum(count.get(word, 0) for word in ("failed", "error", "errors")),
                       count.get("skipped", 0) + count.get("xfailed", 0))
    for word, number in CMOCKA.findall(output):
        total += Tally(**{word.lower(): int(number)})
    for ran, details in UNITTEST.findall(output):
        count = {word: int(number) for word, number in re.findall(r"(\w+)=(\d+)", details)}
        failed = count.get("failures", 0) + count.get("errors", 0)
        skipped = count.get("skipped", 0)
        total += Tally(int(ran) - failed - skipped, failed, skipped)
    return total


def reasons(output):
    """Why cases were skipped, one text each."""
    found = [f"{why} ({number} cases)" if number != "1" else why
             for number, why in PYTEST_SKIP.findall(output)]
    for case, why in CMOCKA_SKIP.findall(output):
        found.append(f"{case}: {' '.join(why.split()) or 'no reason given'}")
    return found


def judge(entry):
    """The tally of one line of a log, and why anything in it was skipped."""
    output = COLOUR.sub("", (entry.get("stdout") or "") + "\n" + (entry.get("stderr") or ""))
    tally, result = cases(output), entry["result"]
    if result == "SKIP":
        lines = output.split("\n")
        why = next((line.strip() for line in reversed(lines) if line.strip()), "no reason given")
        return Tally(skipped=max(1, tally.skipped)), reasons(output) or [why]
    if result == "EXPECTEDFAIL" or (result in GOOD and not any(tally)):
        return Tally(passed=1), []
    if result in BAD and not tally.failed:
        tally += Tally(failed=1)  # it crashed, hung or leaked after its cases
    if tally.skipped and not reasons(output):
        return tally, [f"{tally.skipped} cases, no reason given"]
    return tally, reasons(output)


def read(path):
    """The lines of a log."""
    return [json.loads(line) for line in pathlib.Path(path).read_text("utf-8").splitlines()]


def main(arguments):
    """Print everything; the exit status."""
    total, skips, failures = Tally(), [], []
    for argument in arguments:
        label, _, path = argument.partition("=")
        try:
            entries = read(path)
        except (OSError, ValueError) as error:
            total += Tally(failed=1)
            failures.append(f"{label}: nothing was run: {error}")
            continue
        part = Tally()
        for entry in entries:
            tally, whys = judge(entry)
            part += tally
            name = f"{label}: {entry['name']}"
            skips += [f"{name}: {why}" for why in whys]
            if tally.failed:
                failures.append(f"{name}: {entry['result']}, see {path}")
        print(f"{label}: {part.passed} passed, {part.failed} failed, {part.skipped} skipped "
              f"in {len(entries)} programs")
        total += part
    for title, lines in (("SKIPPED", skips), ("FAILED", failures)):
        if lines:
            print(f"\n{title}")
            print("\n".join(f"  {line}" for line in lines))
    print(f"\n{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return 1 if total.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

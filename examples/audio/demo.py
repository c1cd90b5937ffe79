# SPDX-License-Identifier: Apache-2.0
"""The demo: real speech through four sidecars and four workers, beside pickle over a socket.

    demo.py --build DIR [--proxy PATH] [--minutes N] [speech.wav]

Writes out.wav, report.json and report.html into DIR/demo. Exits with 0 if everything that it
prints holds, 1 if not or if it could not run, 130 after Ctrl-C.
"""
from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import ending
import fleet
import recording
import report
import results
import stages
from pickle_rival import Rival
from switches import Switches

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parents[1] / "config" / "examples"
STALL_S = 60.0  # a batch takes milliseconds


class Progress:
    """A bar on a terminal, a line for every quarter elsewhere; both on standard error."""

    def __init__(self, name: str, total: int) -> None:
        self._name, self._total, self._live = name, total, sys.stderr.isatty()
        self._said = 0

    def update(self, done: int) -> None:
        """Show that `done` of the total are done."""
        quarter = done * 4 // self._total
        if self._live:
            filled = done * 32 // self._total
            end = "\n" if done == self._total else ""
            print(f"\r{self._name:<22} [{'█' * filled}{'·' * (32 - filled)}] "
                  f"{done}/{self._total} batches", end=end, file=sys.stderr, flush=True)
        elif quarter > self._said:
            self._said = quarter
            print(f"{self._name}: {done}/{self._total} batches", file=sys.stderr, flush=True)


def through_ring(corpus: recording.Corpus, run: results.Run, herd: fleet.Fleet) -> np.ndarray:
    """Send every batch through the four workers and fill in the ring's part of `run`.

    Returns the output of the last worker, float32 (rows, UTTERANCE).
    """
    source, sink = herd.directory / "noisy.npy", herd.directory / "output.npy"
    np.save(source, corpus.noisy)
    np.lib.format.open_memmap(sink, "w+", np.float32, corpus.noisy.shape).flush()
    begin = time.monotonic()
    herd.start_sidecars()
    print(f"Four sidecars ready after {time.monotonic() - begin:.1f} s.", flush=True)
    for stage in fleet.STAGES:
        herd.start_worker(stage, HERE / "worker.py",
                          str(source if stage == "features" else sink))
    _pump(corpus, run, herd)
    for stage in fleet.STAGES[1:]:
        run.hops[stage] = [tuple(hop) for hop in json.loads(_line(herd, stage))]
    for worker in herd.workers.values():
        worker.wait(STALL_S)
    herd.check()
    return np.load(sink)


def _pump(corpus: recording.Corpus, run: results.Run, herd: fleet.Fleet) -> None:
    plan = recording.batches(len(corpus.noisy))
    progress = Progress("Through the ring", len(plan))
    feed = herd.workers["features"].stdin
    before: dict[str, Switches] = {}
    begin = 0.0
    for done, (first, count) in enumerate(plan, 1):
        try:
            feed.write(b"%d %d\n" % (first, count))
        except BrokenPipeError:
            herd.check()
            raise
        _line(herd, "vocoder")
        if done == 1:  # the start of the interpreters is not part of the rate
            before, begin = herd.switches(), time.monotonic()
        progress.update(done)
    run.seconds = time.monotonic() - begin
    run.switches = {stage: now.plus(before[stage], -1)
                    for stage, now in herd.switches().items()}
    feed.close()


def _line(herd: fleet.Fleet, stage: str) -> bytes:
    """The next line of a worker; FleetError as soon as any process is gone, or after STALL_S."""
    pipe, line = herd.workers[stage].stdout, b""
    deadline = time.monotonic() + STALL_S
    while not line.endswith(b"\n"):
        if select.select([pipe], [], [], 0.5)[0]:
            part = pipe.readline()
            line += part
            if part:
                continue
            time.sleep(0.05)  # its end is seen before its death
        herd.check()
        if time.monotonic() > deadline:
            raise fleet.FleetError(f"the worker of {stage} said nothing for {STALL_S:.0f} s")
    return line


def through_pickle(corpus: recording.Corpus, run: results.Run) -> np.ndarray:
    """Run the four functions in this process, sending what lies between them through the rival.

    Returns the output of the last function, float32 (rows, UTTERANCE).
    """
    plan = recording.batches(len(corpus.noisy))
    progress = Progress("Through pickle", len(plan))
    output = np.empty_like(corpus.noisy)
    run.rival = {stage: [] for stage in fleet.STAGES[1:]}
    rival = Rival()
    try:
        before, begin = rival.switches(), time.monotonic()
        for done, (first, count) in enumerate(plan, 1):
            meta = {"first": first, "count": count}
            spectrum = stages.features(corpus.noisy[first:first + count])
            run.rival["embeddings"].append(rival.transfer([spectrum], meta))
            embedded, floor = stages.embeddings(spectrum)
            run.rival["latent"].append(rival.transfer([embedded, floor], meta))
            speech = stages.latent(embedded, floor)
            run.rival["vocoder"].append(rival.transfer([speech], meta))
            stages.vocoder(speech, out=output[first:first + count])
            progress.update(done)
        run.rival_seconds = time.monotonic() - begin
        run.rival_switches = rival.switches().plus(before, -1)
    finally:
        rival.close()
    return output


def demo(build: Path, proxy: Path, minutes: float, speech: Path | None) -> bool:
    """Run everything, print and write the results; whether all that must hold does."""
    corpus = recording.corpus(*recording.load(speech), minutes)
    print(f"{corpus.source}: {corpus.seconds:.1f} s, {corpus.streams} streams, "
          f"{len(recording.batches(len(corpus.noisy)))} batches of 1 to {recording.MAX_BATCH} "
          "utterances.", flush=True)
    run = results.Run(corpus.source, corpus.seconds, corpus.streams)
    with fleet.Fleet(proxy, CONFIGS) as herd:
        output = through_ring(corpus, run, herd)
    left = herd.leftovers() + herd.litter
    reference = through_pickle(corpus, run)

    clean, noisy, heard = map(corpus.by_stream, (corpus.clean, corpus.noisy, output))
    run.snr_in_db, run.snr_out_db = (recording.snr_db(clean, x) for x in (noisy, heard))
    run.bit_identical = output.tobytes() == reference.tobytes()
    target = build / "demo"
    target.mkdir(parents=True, exist_ok=True)
    recording.write_wav(target / "out.wav", heard[0])
    figures = report.write(target, run, clean[0], noisy[0], heard[0])

    held = results.verdicts(figures)
    held.append((not left, "torn down: no process, socket or ring file remains" if not left
                 else "LEFT BEHIND: " + ", ".join(left)))
    print(f"\n{results.table(run)}\n")
    for ok, text in held:
        print(f"{'ok  ' if ok else 'FAIL'} {text}")
    print(f"\n{target}/out.wav, report.json and report.html")
    return all(ok for ok, _ in held)


def main() -> int:
    """Parse the command line, run the demo, and turn its end into an exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True, help="build directory")
    parser.add_argument("--proxy", type=Path, help="ringside-proxy (default: BUILD/proxy/…)")
    parser.add_argument("--minutes", type=float, default=recording.TOTAL_MINUTES,
                        help="speech of all streams together (default: %(default).0f)")
    parser.add_argument("speech", type=Path, nargs="?", help="a WAV file with speech")
    options = parser.parse_args()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # a terminal without µ
    ending.install()
    proxy = options.proxy or options.build / "proxy" / "ringside-proxy"
    try:
        return 0 if demo(options.build, proxy.resolve(), options.minutes, options.speech) else 1
    except SystemExit as end:
        print("\nInterrupted.", file=sys.stderr)
        return int(end.code or 0)
    except (fleet.FleetError, recording.RecordingError, subprocess.SubprocessError,
            OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

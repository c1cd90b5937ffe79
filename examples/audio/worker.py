# SPDX-License-Identifier: Apache-2.0
"""One worker of the pipeline: takes tensors from its stage's inbox, computes, sends them on.

    worker.py STAGE ARRAY.npy

The first stage reads "first count" lines, each a batch of rows of ARRAY, from standard input; the
end of the input ends the pipeline. The last stage writes its rows into ARRAY and prints a
line for each batch. Every stage but the first ends with a line of JSON: its hops as [bytes, ns].
"""
from __future__ import annotations

import json
import sys
import time

import numpy as np
import ringside

import stages

C64, F32 = "complex64", "float32"
END = {"end": True}


class Inbox:
    """The messages of this stage, each timed from the producer's send to the views held here."""

    def __init__(self, rs: ringside.Connection) -> None:
        self._messages = iter(rs.inbox())
        self.hops: list[tuple[int, int]] = []

    def __iter__(self):
        """Yield (views, meta) until the end of the pipeline; a lease lasts until the next one."""
        for message in self._messages:
            meta = message.meta
            if meta == END:
                message.release()
                return
            views = message.arrays()
            held = time.monotonic_ns()
            self.hops.append((sum(v.nbytes for v in views), held - meta["sent_ns"]))
            yield views, meta
            del views, message  # an array keeps its lease


def run_features(rs: ringside.Connection, path: str) -> None:
    """Read noisy speech, send its spectra."""
    audio = np.load(path, mmap_mode="r")
    for line in sys.stdin:
        first, count = map(int, line.split())
        shape = (count, stages.frames(audio.shape[1]), stages.BINS)
        with rs.loan([(shape, C64)]) as slot:
            stages.features(audio[first:first + count], out=slot.numpy())
            send(slot, "embeddings", first, count)
    rs.send("embeddings", np.zeros(1, F32), meta=END)


def run_embeddings(rs: ringside.Connection, inbox: Inbox) -> None:
    """Spectra in, spectra in units of the noise floor and the floor out."""
    for (spectrum,), meta in inbox:
        with rs.loan([(spectrum.shape, C64), (spectrum.shape, F32)]) as slot:
            stages.embeddings(spectrum, out=(slot.numpy(0), slot.numpy(1)))
            send(slot, "latent", meta["first"], meta["count"])
        del spectrum
    rs.send("latent", np.zeros(1, F32), meta=END)


def run_latent(rs: ringside.Connection, inbox: Inbox) -> None:
    """Embedded spectra and their floor in, spectra of the speech out."""
    for (embedded, floor), meta in inbox:
        with rs.loan([(embedded.shape, C64)]) as slot:
            stages.latent(embedded, floor, out=slot.numpy())
            send(slot, "vocoder", meta["first"], meta["count"])
        del embedded, floor
    rs.send("vocoder", np.zeros(1, F32), meta=END)


def run_vocoder(inbox: Inbox, path: str) -> None:
    """Spectra in, speech into the rows of the array."""
    audio = np.load(path, mmap_mode="r+")
    for (spectrum,), meta in inbox:
        first, count = meta["first"], meta["count"]
        stages.vocoder(spectrum, out=audio[first:first + count])
        del spectrum
        print(first, count, flush=True)
    audio.flush()


def send(slot: ringside.Slot, route: str, first: int, count: int) -> None:
    """Send what stands in `slot`; the clock of the hop starts here."""
    slot.send(route, meta={"first": first, "count": count, "sent_ns": time.monotonic_ns()})


def main(stage: str, path: str) -> None:
    """Run the worker of `stage` until the pipeline ends."""
    with ringside.connect() as rs:
        if stage == "features":
            run_features(rs, path)
            return
        inbox = Inbox(rs)
        if stage == "vocoder":
            run_vocoder(inbox, path)
        else:
            {"embeddings": run_embeddings, "latent": run_latent}[stage](rs, inbox)
        print(json.dumps(inbox.hops), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

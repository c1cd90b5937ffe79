# SPDX-License-Identifier: Apache-2.0
"""A worker with the package `ringside`: steps in shared memory, arrays without a copy.

Run (after ./run build; Debian: python3-numpy):

    export PYTHONPATH=../../build/client/python
    python3 worker.py SOCKET send ROUTE      # a float32 [80, 3000] written in place, then sent on a route of the stage
    python3 worker.py SOCKET receive         # the next message of the stage's inbox
"""
import json
import sys

import numpy as np
import ringside


def send(rs, route):
    with rs.loan((80, 3000), "float32", timeout=10) as slot:
        slot.numpy()[...] = np.arange(80 * 3000, dtype="float32").reshape(80, 3000) / 2
        slot.send(route, meta={"from": "python"}, timeout=10)
        print("sent")


def receive(rs):
    with rs.receive(timeout=10) as message:
        mel = message.numpy()
        meta = json.dumps(message.meta, separators=(",", ":"))
        print(f"received {message.dtype} {list(mel.shape)} sum {mel.sum(dtype='float64'):.0f} {meta}")


path, verb, *arguments = sys.argv[1:]
with ringside.connect(path) as sidecar:
    {"send": send, "receive": receive}[verb](sidecar, *arguments)

# SPDX-License-Identifier: Apache-2.0
"""A worker with the package `ringside`: steps in shared memory, arrays without a copy.

Run (after ./run build; Debian: python3-numpy):

    export PYTHONPATH=../../build/client/python
    python3 worker.py SOCKET send ROUTE      # a float32 [80, 3000] written in place, then sent on a route of the stage
    python3 worker.py SOCKET receive         # the next message of the stage's inbox
    python3 worker.py SOCKET call ROUTE      # calls the method Scale of a stage with such a tensor, and reads the reply
    python3 worker.py SOCKET serve           # answers one call: Scale doubles the tensor
"""
import json
import sys

import numpy as np
import ringside


META = {"from": "python"}


def filled(rs):
    slot = rs.loan((80, 3000), "float32", timeout=10)
    slot.numpy()[...] = np.arange(80 * 3000, dtype="float32").reshape(80, 3000) / 2
    return slot


def use(message):
    mel = message.numpy()
    meta = json.dumps(message.meta, separators=(",", ":"))
    print(f"received {message.dtype} {list(mel.shape)} sum {mel.sum(dtype='float64'):.0f} {meta}")


def send(rs, route):
    with filled(rs) as slot:  # given back when it could not be sent
        slot.send(route, meta=META, timeout=10)
    print("sent")


def receive(rs):
    with rs.receive(timeout=10) as message:
        use(message)


def call(rs, route):
    with filled(rs) as slot, rs.call(f"{route}.Scale", slot, meta=META, timeout=10) as reply:
        use(reply)


def serve(rs):
    stage = ringside.Stage()

    @stage.method
    def Scale(request):
        mel = request.numpy()
        with rs.loan(mel.shape, mel.dtype, timeout=10) as slot:
            np.multiply(mel, 2, out=slot.numpy())
            request.reply(slot, meta=META)  # without the metadata: return slot
        stage.stop()  # else: until none has come for so many seconds

    stage.serve(rs, timeout=10)


path, verb, *arguments = sys.argv[1:]
with ringside.connect(path) as sidecar:
    {"send": send, "receive": receive, "call": call, "serve": serve}[verb](sidecar, *arguments)

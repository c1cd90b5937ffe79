# SPDX-License-Identifier: Apache-2.0
"""Two sidecars, each the other's route "other", in directories that go with them."""

import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time

START_S = 20

# The default sizes, and one that a message of 64 MiB fits with its metadata.
CLASSES = [{"slot_bytes": "256Ki", "slots": 64}, {"slot_bytes": "16Mi", "slots": 8},
           {"slot_bytes": "65Mi", "slots": 4}]


def config(side, base, ring_dir):
    return {"stage": f"rival{side}", "socket": {"path": f"{base}/{side}.sock"},
            "ring": {"control_dir": ring_dir, "body_dir": ring_dir, "classes": CLASSES},
            "routes": {"other": {"to": [f"unix:{base}/{1 - side}.sock"]}}}


def await_socket(process, path, log):
    end = time.monotonic() + START_S
    while not os.path.exists(path):
        if process.poll() is not None:
            raise RuntimeError(f"the sidecar ended at once: {pathlib.Path(log).read_text().strip()}")
        if time.monotonic() > end:
            raise RuntimeError(f"{path}: the sidecar did not open it within {START_S} s")
        time.sleep(0.005)


@contextlib.contextmanager
def two_stages():
    """Yields the two sockets. RINGSIDE_PROXY names the sidecar."""
    with contextlib.ExitStack() as stack:
        base = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringside-rivals-"))
        ring_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringside-rivals-", dir="/dev/shm"))
        processes = []
        stack.callback(lambda: [end(process) for process in processes])
        for side in (0, 1):
            path = pathlib.Path(base, f"{side}.json")
            path.write_text(json.dumps(config(side, base, ring_dir)))
            with open(f"{base}/{side}.log", "wb") as log:
                processes.append(subprocess.Popen([os.environ["RINGSIDE_PROXY"], str(path)], stdout=log, stderr=log,
                                                  stdin=subprocess.DEVNULL))
        for side in (0, 1):
            await_socket(processes[side], f"{base}/{side}.sock", f"{base}/{side}.log")
        yield [f"{base}/{side}.sock" for side in (0, 1)]


def end(process):
    """The second TERM ends one that drains."""
    for _ in range(2):
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
            return
    process.kill()
    process.wait()

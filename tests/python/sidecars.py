# SPDX-License-Identifier: Apache-2.0
"""Real sidecars for the tests of the Python package, and what the tests look at them with."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
import ringside

ROOT = pathlib.Path(__file__).resolve().parents[2]
SLOTS = 8
SLOT_BYTES = 1 << 20


def proxy_path():
    path = os.environ.get("RINGSIDE_PROXY") or ROOT / "build" / "proxy" / "ringside-proxy"
    if not os.access(path, os.X_OK):
        raise pytest.UsageError(f"no sidecar to test with at {path}; set RINGSIDE_PROXY to ringside-proxy")
    return str(path)


class Sidecar:
    """A running ringside-proxy; `routes` maps a name to sockets, or to a whole route as in the config."""

    def __init__(self, directory, stage, routes, **settings):
        self.socket = str(directory / f"{stage}.sock")
        self.log = directory / f"{stage}.log"
        config = {
            "stage": stage,
            "socket": {"path": self.socket},
            "ring": {
                "control_dir": str(directory), "body_dir": str(directory), "pages": "4Ki", "lock": "off",
                "classes": [{"slot_bytes": SLOT_BYTES, "slots": SLOTS}],
            },
            "routes": routes,
        }
        config.update(settings)
        self.config = directory / f"{stage}.json"
        self.config.write_text(json.dumps(config))
        self.start()

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([proxy_path(), str(self.config)], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log)
        give_up = time.monotonic() + 20
        while True:
            try:
                ringside.connect(self.socket, name="probe", timeout=1).close()
                return
            except ringside.RingsideError as error:
                if self.process.poll() is not None or time.monotonic() > give_up:
                    self.stop()
                    raise RuntimeError(f"the sidecar did not start: {error}\n{self.log.read_text()}")
                time.sleep(0.02)

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def to_itself(socket, **more):
    return {"to": [f"unix:{socket}"], "when_full": "error", "attempts": 15, **more}


def wait_for_route(producer, route, consumer):
    """Until the two sidecars have met and a worker's message goes through."""
    give_up = time.monotonic() + 20
    with ringside.connect(producer.socket) as sender, ringside.connect(consumer.socket) as receiver:
        while True:
            try:
                sender.send(route, b"hello", timeout=1)
                return receiver.receive(timeout=10).release()
            except ringside.RingsideError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.02)


def drain(connection):
    while True:
        try:
            connection.receive(timeout=0).release()
        except ringside.Timeout:
            return


def free_slots(connection):
    """How many slots can be loaned now."""
    slots = []
    try:
        while True:
            slots.append(connection.loan(SLOT_BYTES, "uint8", timeout=0))
    except ringside.RingFull:
        return len(slots)
    finally:
        for slot in slots:
            slot.abandon()

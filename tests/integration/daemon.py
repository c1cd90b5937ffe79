# SPDX-License-Identifier: Apache-2.0
"""Starts real sidecars for tests, each with a socket and directories of its own."""
import json
import os
import pathlib
import signal
import subprocess
import time

import ttrpc_client

PROXY = os.environ["RINGSIDE_PROXY"]


class Daemon:
    """A sidecar of a stage in `directory`; `settings` are merged over a small default config."""

    def __init__(self, directory, stage="stage", **settings):
        self.directory = pathlib.Path(directory)
        self.socket = str(self.directory / f"{stage}.sock")
        self.ring = self.directory / "ring"
        self.log_path = self.directory / f"{stage}.log"
        self.config = {
            "stage": stage,
            "socket": {"path": self.socket},
            "ring": {"control_dir": str(self.ring), "body_dir": str(self.ring), "pages": "4Ki",
                     "lock": "off", "classes": [{"slot_bytes": "64Ki", "slots": 8}]},
            "inbox": {"cells": 16, "depth": 4},
            "routes": {"self": {"to": [f"unix:{self.socket}"], "when_full": "error"}},
            "drain_timeout_ms": 500,
            "log": {"level": "debug"},
        }
        for key, value in settings.items():
            if isinstance(value, dict) and isinstance(self.config.get(key), dict):
                self.config[key] = {**self.config[key], **value}
            else:
                self.config[key] = value
        self.socket = self.config["socket"]["path"]
        self.process = None

    def start(self, wait=True, **popen):
        path = self.directory / f"{self.config['stage']}.json"
        fresh = path.with_suffix(f".{id(self)}")
        fresh.write_text(json.dumps(self.config))
        fresh.replace(path)  # another of the same stage may be reading it
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen([PROXY, str(path)], stderr=log, **popen)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the sidecar ended with {self.process.returncode}: {self.log()}")
            try:
                with self.client() as client:
                    client.status()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"the sidecar did not get ready: {self.log()}")

    def client(self, **arguments):
        return ttrpc_client.Client(self.socket, **arguments)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self, seconds=10):
        return self.process.wait(seconds)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                return self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode if self.process else None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def files(self):
        """What is left of the ring and the socket."""
        left = sorted(p.name for p in self.ring.glob("*")) if self.ring.exists() else []
        return left + sorted(p.name for p in self.directory.glob("*.sock*"))


def wait_for(condition, seconds=10, tell=lambda: ""):
    """Waits until condition() is true and returns its value; fails the test otherwise, with what tell() says."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"not so within {seconds} s {tell()}")

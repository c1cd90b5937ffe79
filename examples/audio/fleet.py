# SPDX-License-Identifier: Apache-2.0
"""The demo's processes and directories: all of them start here and all of them end here."""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Collection

import switches
from ending import step
from switches import Switches

STAGES = ("features", "embeddings", "latent", "vocoder")
PREFIX = "ringside-demo-"
CONFIGURED_DIR = "/run/ringside"  # where the example configs put their sockets
RING_ROOT = Path(os.environ.get("RINGSIDE_BODY_DIR", "/dev/shm"))
READY_S = 120.0  # rings are pre-faulted before a sidecar is ready
DRAIN_S = 15.0   # longer than the configs' drain_timeout_ms
HURRY_S = 0.3    # to drain what no worker is left to take

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class FleetError(RuntimeError):
    """A process that did not start or did not last; the message carries the end of its log."""


def die_with_parent() -> None:
    """In a new child: be terminated when the demo dies, however that happens."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Fleet(contextlib.AbstractContextManager):
    """Four sidecars and four workers in private directories; leaving it leaves nothing behind.

    Attributes
    ----------
    litter : list[str]
        Sockets and ring files that the sidecars should have removed themselves.
    """

    def __init__(self, proxy: Path, configs: Path) -> None:
        self._proxy, self._configs = proxy, configs
        self._sidecars: dict[str, subprocess.Popen] = {}
        self.workers: dict[str, subprocess.Popen] = {}
        self._locks: list[int] = []
        self.directory = self.rings = Path()
        self.litter: list[str] = []

    def __enter__(self) -> Fleet:
        sweep()
        atexit.register(self.close)  # for a signal between __enter__ and the block, or in __exit__
        try:
            with step():
                self.directory = self._make(Path(tempfile.gettempdir()))
            with step():
                self.rings = self._make(RING_ROOT)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()
        if kind and self.leftovers():
            print("left behind: " + ", ".join(self.leftovers()), file=sys.stderr)

    def _make(self, root: Path) -> Path:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._locks.append(_lock(path))
        return path

    def start_sidecars(self) -> None:
        """Start the four at once and return when all accept connections."""
        for stage in STAGES:
            config = self._configs / f"{stage}.json"
            text = config.read_text().replace(CONFIGURED_DIR, str(self.directory))
            own = json.loads(text)
            own.setdefault("ring", {}).update(control_dir=str(self.rings), body_dir=str(self.rings))
            path = self.directory / config.name
            path.write_text(json.dumps(own, indent=2))
            with step():
                self._sidecars[stage] = self._spawn([str(self._proxy), str(path)],
                                                    f"{stage}.sidecar", self._environment(stage))
        deadline = time.monotonic() + READY_S
        for stage in STAGES:
            while not _accepts(self.socket(stage)):
                self.check()
                if time.monotonic() > deadline:
                    raise FleetError(f"the sidecar of {stage} is not ready after {READY_S:.0f} s"
                                     + self._log(f"{stage}.sidecar"))
                time.sleep(0.02)

    def start_worker(self, stage: str, script: Path, *arguments: str) -> subprocess.Popen:
        """Start the worker of `stage`, with pipes at its standard input and output."""
        with step():
            self.workers[stage] = self._spawn(
                [sys.executable, str(script), stage, *arguments], f"{stage}.worker",
                self._environment(stage), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self.workers[stage]

    def socket(self, stage: str) -> Path:
        """Path of the control socket of `stage`."""
        return self.directory / f"{stage}.sock"

    def check(self) -> None:
        """Raise FleetError if a process ended that should still be there."""
        for role, group in (("sidecar", self._sidecars), ("worker", self.workers)):
            for stage, process in group.items():
                code = process.poll()
                if code is not None and (code or role == "sidecar"):
                    raise FleetError(f"the {role} of {stage} ended with {code}"
                                     + self._log(f"{stage}.{role}"))

    def switches(self) -> dict[str, Switches]:
        """Context switches so far of each worker."""
        return {stage: switches.of(worker.pid) for stage, worker in self.workers.items()}

    def close(self) -> None:
        """End workers, then sidecars, then remove what they had; safe to call twice."""
        with step():
            finished = all(worker.poll() == 0 for worker in self.workers.values())
            _stop(self.workers.values(), 3.0)
            _stop(self._sidecars.values(), DRAIN_S if finished else HURRY_S)
            self.litter += map(str, [*_files(self.rings), *_files(self.directory, "*.sock*")])
            for path in (self.rings, self.directory):
                if path != Path():
                    shutil.rmtree(path, ignore_errors=True)
            while self._locks:
                os.close(self._locks.pop())

    def leftovers(self) -> list[str]:
        """What a closed fleet has left: living processes, sockets and ring files."""
        alive = [f"process {p.pid}" for group in (self._sidecars, self.workers)
                 for p in group.values() if p.poll() is None]
        return alive + [str(p) for p in (self.rings, self.directory) if p != Path() and p.exists()]

    def _environment(self, stage: str) -> dict[str, str]:
        here = {key: value for key, value in os.environ.items() if not key.startswith("RINGSIDE_")}
        return {**here, "RINGSIDE_SOCKET": str(self.socket(stage)),
                "RINGSIDE_CONTROL_DIR": str(self.rings), "RINGSIDE_BODY_DIR": str(self.rings),
                "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def _spawn(self, command: list[str], name: str, environment: dict[str, str],
               **pipes: int) -> subprocess.Popen:
        pipes.setdefault("stdin", subprocess.DEVNULL)
        with open(self.directory / f"{name}.log", "wb") as log:
            pipes.setdefault("stdout", log.fileno())
            try:
                # A session of its own: Ctrl-C reaches the demo alone, which ends them in order.
                return subprocess.Popen(command, env=environment, stderr=log, bufsize=0,
                                        start_new_session=True, preexec_fn=die_with_parent, **pipes)
            except OSError as error:
                raise FleetError(f"{command[0]}: {error.strerror}") from error

    def _log(self, name: str) -> str:
        lines = (self.directory / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
        return "".join(f"\n  {line}" for line in lines) or " without a word"


def sweep() -> None:
    """Remove the directories of demos that were killed: nobody holds their lock."""
    for root in (Path(tempfile.gettempdir()), RING_ROOT):
        for path in root.glob(PREFIX + "*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime < 10:  # perhaps not locked yet
                    continue
                lock = _lock(path)
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(directory: Path) -> int:
    """Descriptor with an exclusive lock on `directory`; OSError if another has it."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _stop(processes: Collection[subprocess.Popen], patience_s: float) -> None:
    """TERM to all, after `patience_s` a second one, a second later KILL; reap every one."""
    running = [process for process in processes if process.poll() is None]
    for number, wait_s in ((signal.SIGTERM, patience_s), (signal.SIGTERM, 1.0),
                           (signal.SIGKILL, 10.0)):
        for process in running:
            process.send_signal(number)
        deadline = time.monotonic() + wait_s
        running = [process for process in running if not _ended(process, deadline)]
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()


def _ended(process: subprocess.Popen, deadline: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return process.returncode is not None


def _files(directory: Path, pattern: str = "*") -> list[Path]:
    return sorted(directory.rglob(pattern)) if directory != Path() else []


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True

# SPDX-License-Identifier: Apache-2.0
"""What tests change about the machine or about a process before its exec, and how all of it is changed back."""
import contextlib
import ctypes
import os
import pathlib
import signal
import struct
import subprocess
import time

import pytest

from daemon import Daemon

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, PR_CAPBSET_DROP, CAP_IPC_LOCK = 0x20000, 24, 14
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
HUGE = pathlib.Path("/sys/kernel/mm/hugepages")


def must(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def root():
    if os.geteuid() != 0:
        pytest.skip("needs root")


def is_sanitized(program):
    """Sanitizers turn some calls (mlock) into nothing."""
    return b"__asan_init" in pathlib.Path(program).read_bytes()


# ---- before the exec of a process ----

def drop_lock_capability():
    """Root has its capabilities from the bounding set, so this takes one from what is executed next."""
    must(LIBC.prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0))


def refuse_calls(numbers, error):
    """A seccomp filter as container engines use it: these system calls fail with that errno."""
    code = struct.Struct("<HBBI")
    program = [code.pack(0x20, 0, 0, 0)]  # load the number
    for number in numbers:
        program += [code.pack(0x15, 0, 1, number), code.pack(0x06, 0, 0, 0x50000 | error)]
    program.append(code.pack(0x06, 0, 0, 0x7FFF0000))
    text = ctypes.create_string_buffer(b"".join(program))
    descriptor = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(text))
    must(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    must(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.c_char_p(descriptor), 0, 0))


# ---- fixtures ----

@pytest.fixture
def sidecar(place):
    """sidecar(stage, **settings) gives one that is not started yet; whatever runs in the end is killed."""
    daemons = []

    def make(stage="stage", **settings):
        daemons.append(Daemon(place, stage, **settings))
        return daemons[-1]

    yield make
    for daemon in daemons:
        if daemon.process is not None and daemon.process.poll() is None:
            daemon.kill()
        log = daemon.log() if daemon.log_path.exists() else ""
        assert "Sanitizer" not in log and "runtime error" not in log, log


@pytest.fixture(scope="module")
def own_mounts():
    """This process and its children see mounts that nobody else does; they go with the process."""
    root()
    if LIBC.unshare(CLONE_NEWNS) or LIBC.mount(None, b"/", None, 0x44000, None):  # MS_REC | MS_PRIVATE
        pytest.skip(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}")


@pytest.fixture
def mount(own_mounts, place):
    """mount(name, type, options) gives a directory."""
    mounted = []

    def make(name, kind, options):
        path = place / name
        path.mkdir()
        done = subprocess.run(["mount", "-t", kind, "-o", options, "none", path], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a {kind} with {options} cannot be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def huge_pages():
    """huge_pages(bytes, count) has the kernel reserve that many further pages of that size."""
    added = {}
    earlier = signal.signal(signal.SIGTERM, signal.default_int_handler)  # a test that takes too long gives back too

    def reserve(size, count):
        knob = HUGE / f"hugepages-{size >> 10}kB" / "nr_hugepages"
        if not knob.exists():
            pytest.skip(f"this kernel has no pages of {size} bytes")
        root()
        before = int(knob.read_text())
        knob.write_text(str(before + count))
        added[knob] = added.get(knob, 0) + int(knob.read_text()) - before
        if added[knob] < count:
            pytest.skip(f"the kernel finds no room for {count} pages of {size} bytes")

    yield reserve
    for knob, count in added.items():  # by difference: others may have changed it as well
        knob.write_text(str(max(0, int(knob.read_text()) - count)))
    signal.signal(signal.SIGTERM, earlier)


class Group:
    """A control group."""

    def __init__(self, path):
        self.path = path

    def limit(self, name, value):
        knob = self.path / f"hugetlb.{name}"
        if not knob.exists():
            pytest.skip(f"this kernel has no {knob.name}")
        knob.write_text(str(value))

    def enter(self):
        (self.path / "cgroup.procs").write_text("0")


@pytest.fixture
def cpu_group():
    """cpu_group(percent) gives a control group whose processes together get that share of one processor."""
    root()
    top = next((p for p in map(pathlib.Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"))
                if (p / "cpu.cfs_quota_us").exists()), None)
    if top is None:
        pytest.skip("no cpu controller with quotas in a cgroup of version 1")
    path = top / f"ringside-test-{os.getpid()}"
    path.mkdir(exist_ok=True)

    def make(percent):
        (path / "cpu.cfs_quota_us").write_text(str(percent * int((path / "cpu.cfs_period_us").read_text()) // 100))
        return Group(path)

    yield make
    for _ in range(500):
        for pid in (path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        with contextlib.suppress(OSError):
            path.rmdir()
            break
        time.sleep(0.01)
    assert not path.exists()


@pytest.fixture
def hugetlb_group():
    root()
    tops = [p for p in (pathlib.Path("/sys/fs/cgroup/unified"), pathlib.Path("/sys/fs/cgroup"))
            if (p / "cgroup.controllers").exists() and "hugetlb" in (p / "cgroup.controllers").read_text().split()]
    if not tops:
        pytest.skip("no hugetlb controller in a cgroup of version 2")
    switch = tops[0] / "cgroup.subtree_control"
    was_on = "hugetlb" in switch.read_text().split()
    path = tops[0] / f"ringside-test-{os.getpid()}"
    try:
        switch.write_text("+hugetlb")
        path.mkdir(exist_ok=True)
    except OSError as error:
        pytest.skip(f"the hugetlb controller cannot be turned on: {error}")
    yield Group(path)
    (path / "cgroup.kill").write_text("1")
    for _ in range(200):  # until the last process is out
        with contextlib.suppress(OSError):
            path.rmdir()
            break
        time.sleep(0.01)
    if not was_on:
        switch.write_text("-hugetlb")
    assert not path.exists()

# SPDX-License-Identifier: Apache-2.0
"""Fixtures: sidecars that are ended after each test and must have ended well."""
import pathlib
import shutil
import signal
import tempfile

import pytest


@pytest.fixture
def place():
    """A short-named directory in memory: socket paths are limited, and ring files belong into tmpfs."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="rs-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def start(place):
    """start(stage=..., **settings) gives a running sidecar; all of them are ended after the test."""
    from daemon import Daemon

    daemons = []

    def launch(stage="stage", wait=True, **settings):
        daemon = Daemon(place, stage, **settings)
        daemons.append(daemon)
        return daemon.start(wait=wait)

    yield launch
    for daemon in daemons:
        code = daemon.stop()
        assert code in (0, -signal.SIGKILL), daemon.log()  # the latter: a test killed it

# SPDX-License-Identifier: Apache-2.0
"""Who may connect: the socket's mode, and the user ids of the config."""
import os

import pytest

from daemon import Daemon
from ttrpc_client import Client, Refused


def as_user(uid, path):
    """What a process of that user gets from Attach: "ok", the error's name, or the errno's text."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            with Client(path) as client:
                client.attach()
            answer = "ok"
        except Refused as error:
            answer = error.name
        except OSError as error:
            answer = type(error).__name__
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        return pipe.read()


@pytest.fixture
def launch(place):
    if os.geteuid() != 0:
        pytest.skip("needs root to become other users")
    os.chmod(place, 0o755)
    daemons = []

    def start(**socket):
        daemon = Daemon(place)
        daemon.config["socket"].update(socket)
        daemons.append(daemon)
        return daemon.start()

    yield start
    for daemon in daemons:
        assert daemon.stop() == 0


def test_mode_keeps_others_out(launch):
    daemon = launch(mode="0600")
    assert as_user(1001, daemon.socket) == "PermissionError"
    assert as_user(0, daemon.socket) == "ok"


def test_group_lets_its_members_in(launch):
    daemon = launch(mode="0660", group="1001")
    assert as_user(1001, daemon.socket) == "ok"
    assert as_user(1002, daemon.socket) == "PermissionError"


def test_allow_uids_decides_beyond_the_mode(launch):
    daemon = launch(mode="0666", allow_uids=[0, 1001])
    assert as_user(1001, daemon.socket) == "ok"
    assert as_user(1002, daemon.socket) == "DENIED"
    assert "1002" in daemon.log()

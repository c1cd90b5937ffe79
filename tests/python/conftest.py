# SPDX-License-Identifier: Apache-2.0
"""Fixtures: sidecars with a socket and directories of their own, and a worker's connection.

The package is imported by the fixtures that need it, so that tests of other things run without it.
"""

import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture(scope="session")
def directory():
    path = pathlib.Path(tempfile.mkdtemp(prefix="ringside-pytest-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def sidecar(directory):
    """One stage whose routes lead to its own inbox."""
    from sidecars import Sidecar, to_itself

    socket = directory / "loop.sock"
    running = Sidecar(directory, "loop", {
        "loop": to_itself(socket), "again": to_itself(socket)})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def pair(directory):
    """Two stages: front --next--> back --home--> front."""
    from sidecars import Sidecar, wait_for_route

    back_socket = directory / "back.sock"
    front = Sidecar(directory, "front", {"next": {"to": [f"unix:{back_socket}"], "when_full": "block"}})
    back = Sidecar(directory, "back", {"home": {"to": [f"unix:{front.socket}"], "when_full": "error"}})
    wait_for_route(front, "next", back)
    wait_for_route(back, "home", front)
    yield front, back
    back.stop()
    front.stop()


@pytest.fixture
def rs(sidecar):
    """A connection to the loop; whatever a test leaves in the inbox is gone afterwards."""
    import ringside
    from sidecars import drain

    with ringside.connect(sidecar.socket, name="test") as connection:
        drain(connection)
        yield connection
    with ringside.connect(sidecar.socket, name="drain") as connection:
        drain(connection)

# SPDX-License-Identifier: Apache-2.0
"""The place for sidecars' files, as in the integration tests."""
import pathlib
import shutil
import tempfile

import pytest


@pytest.fixture
def place():
    path = pathlib.Path(tempfile.mkdtemp(prefix="rs-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path, ignore_errors=True)

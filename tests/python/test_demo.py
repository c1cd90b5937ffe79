# SPDX-License-Identifier: Apache-2.0
"""The whole demo with real sidecars: what it leaves behind when it ends, well or by a signal."""
from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import wave

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
AUDIO = ROOT / "examples" / "audio"
sys.path.insert(0, str(AUDIO))

import recording  # noqa: E402
from stages import SAMPLE_RATE  # noqa: E402

KEYS = """audio_seconds snr_in_db snr_out_db bit_identical messages hop_us_p50 hop_us_p99 hop_us_max
    hop_us_stddev pickle_hop_us_p50 pickle_serialize_us_p50 pickle_copy_us_p50
    pickle_deserialize_us_p50 context_switches_per_s""".split()


@pytest.fixture
def place():
    """Everything that the demo makes is in here; the name is short because sockets' names are."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="rsd-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def speech(place):
    """A voice that speaks and pauses, 5 s at 22050 Hz in stereo: shorter than the demo wants it."""
    at = np.arange(5 * 22_050) / 22_050
    voice = sum(np.sin(2 * np.pi * 140 * k * at) / k for k in range(1, 12)) / 4
    voice *= np.sin(2 * np.pi * 1.5 * at) > 0.2
    path = place / "voice.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 22_050, 0, "NONE", ""))
        file.writeframes((np.repeat(voice, 2) * 8000).astype("<i2").tobytes())
    return path


def start(place: pathlib.Path, *arguments: object) -> subprocess.Popen:
    environment = {**os.environ, "TMPDIR": str(place), "RINGSIDE_BODY_DIR": str(place)}
    return subprocess.Popen(
        [sys.executable, AUDIO / "demo.py", "--build", place / "build", "--proxy",
         os.environ["RINGSIDE_PROXY"], *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True)


def remains(place: pathlib.Path) -> list[str]:
    """Directories of the demo, and processes whose command line or environment names `place`."""
    left = [str(path) for path in place.glob("ringside-demo-*")]
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(str(place)) in told:
            left.append(f"process {entry.name}: {told[:200]!r}")
    return left


def test_demo_of_a_users_recording(place, speech) -> None:
    demo = start(place, "--minutes", 3, speech)
    said, _ = demo.communicate(timeout=120)
    assert remains(place) == []
    assert "torn down: no process, socket or ring file remains" in said
    figures = json.loads((place / "build" / "demo" / "report.json").read_text())
    assert list(figures) == KEYS
    assert figures["bit_identical"] == 1
    assert figures["snr_in_db"] == pytest.approx(5, abs=0.05)
    assert figures["snr_out_db"] - figures["snr_in_db"] >= 5
    assert figures["audio_seconds"] == pytest.approx(60, abs=5)
    assert figures["messages"] > 0 and figures["messages"] % 3 == 0
    assert 0 < figures["hop_us_p50"] <= figures["hop_us_p99"] <= figures["hop_us_max"]
    page = (place / "build" / "demo" / "report.html").read_text()
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import""", page)
    sound, rate = recording.read_wav(place / "build" / "demo" / "out.wav")
    assert rate == SAMPLE_RATE
    assert sound.size / rate == pytest.approx(figures["audio_seconds"], abs=0.01)
    # How much faster a hop is says nothing on a machine that other tests keep busy.
    failed = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert all("pickle takes" in line for line in failed), said
    assert demo.returncode == (1 if failed else 0)


def test_demo_says_what_is_wrong_with_a_recording(place) -> None:
    demo = start(place, place / "nothing.wav")
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert re.fullmatch(r"demo: .*nothing\.wav: No such file or directory\n", said)
    assert remains(place) == []


@pytest.mark.parametrize("moment", [
    "batches of 1 to",          # the sidecars are starting
    "Four sidecars ready",      # the workers are
    "Through the ring: [12]/",  # messages are under way
    r"the ring: (\d+)/\1 ",     # the workers end
    "Through pickle: [12]/",    # only the rival runs
])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_remains_after(place, speech, moment: str, number: signal.Signals) -> None:
    demo = start(place, "--minutes", 2, speech)
    said = ""
    for line in demo.stdout:
        said += line
        if re.search(moment, line):
            break
    begin = time.monotonic()
    os.killpg(demo.pid, number)
    os.killpg(demo.pid, number)  # impatience changes nothing
    said += demo.communicate(timeout=60)[0]
    assert demo.returncode == 128 + number, said
    assert "Traceback" not in said
    assert remains(place) == []
    assert time.monotonic() - begin < 8  # no drain of what no worker is left to take

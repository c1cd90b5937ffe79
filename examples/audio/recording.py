# SPDX-License-Identifier: Apache-2.0
"""Recordings: reading WAV files, resampling, noise at a given SNR, and the batches of the demo."""
from __future__ import annotations

import struct
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from stages import BINS, SAMPLE_RATE, frames

ALSA_SPEECH = Path("/usr/share/sounds/alsa")
UTTERANCE = 65_536        # samples, 4.1 s
MIN_SECONDS = 60.0        # shorter recordings are repeated
MAX_SECONDS = 600.0       # longer ones are cut
TOTAL_MINUTES = 48.0      # of all streams together: enough batches for a 99th percentile
SNR_DB = 5.0
BODY_BYTES = 16 << 20     # largest body of a hop
UTTERANCE_BYTES = frames(UTTERANCE) * BINS * 12  # one utterance of the widest hop: c64 and f32
MAX_BATCH = (BODY_BYTES - 4096) // UTTERANCE_BYTES

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE


class RecordingError(ValueError):
    """A recording that cannot be used; the message says which, why and what would do."""


@dataclass(frozen=True)
class Corpus:
    """Streams cut into utterances: row ``stream * per_stream + k`` is utterance k of a stream."""

    clean: np.ndarray   # float32 (rows, UTTERANCE)
    noisy: np.ndarray   # float32 (rows, UTTERANCE)
    streams: int
    per_stream: int
    samples: int        # of one stream; its last utterance is padded with silence
    source: str

    @property
    def seconds(self) -> float:
        """Length of the recording, that is of one stream."""
        return self.samples / SAMPLE_RATE

    def by_stream(self, rows: np.ndarray) -> np.ndarray:
        """All utterances (rows, UTTERANCE) as streams (streams, samples), without the padding."""
        return rows.reshape(self.streams, -1)[:, :self.samples]


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """Read a WAV file of 8, 16, 24 or 32 bit PCM or 32 or 64 bit float, any number of channels.

    Returns
    -------
    samples : float64, shape (n,)
        Mean of the channels, full scale 1.0.
    rate : int
        Hz.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from error
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise RecordingError(f"{path}: not a WAV file (no RIFF/WAVE header); convert it to WAV")
    kind = channels = rate = width = 0
    at = 12
    while at + 8 <= len(data):
        name, size = data[at:at + 4], struct.unpack_from("<I", data, at + 4)[0]
        if name == b"fmt " and size >= 16 and at + 24 <= len(data):
            kind, channels, rate, _, _, width = struct.unpack_from("<HHIIHH", data, at + 8)
            if kind == _EXTENSIBLE and size >= 40 and at + 34 <= len(data):
                kind = struct.unpack_from("<H", data, at + 32)[0]
        elif name == b"data" and channels and rate:
            return _decode(path, data[at + 8:at + 8 + size], kind, channels, width), rate
        at += 8 + size + (size & 1)
    raise RecordingError(f"{path}: the file ends before its sound (no usable fmt and data chunk)")


def _decode(path: Path, raw: bytes, kind: int, channels: int, width: int) -> np.ndarray:
    frame = channels * width // 8
    if (kind, width) not in {(_PCM, 8), (_PCM, 16), (_PCM, 24), (_PCM, 32),
                             (_FLOAT, 32), (_FLOAT, 64)}:
        raise RecordingError(f"{path}: format {kind} with {width} bits; "
                             "use PCM of 8, 16, 24 or 32 bits or float of 32 or 64")
    raw = raw[:len(raw) // frame * frame]  # a cut recording ends in half a frame
    if kind == _FLOAT:
        samples = np.frombuffer(raw, f"<f{width // 8}").astype(np.float64)
    elif width == 8:
        samples = np.frombuffer(raw, np.uint8) / 128.0 - 1.0
    elif width == 24:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        samples = wide.view("<i4")[:, 0] / 2.0 ** 31
    else:
        samples = np.frombuffer(raw, f"<i{width // 8}") / 2.0 ** (width - 1)
    return samples.reshape(-1, channels).mean(axis=1)


def write_wav(target: Path | BinaryIO, samples: np.ndarray) -> None:
    """Write float samples (n,) at SAMPLE_RATE as 16-bit mono, clipped at full scale."""
    with wave.open(str(target) if isinstance(target, Path) else target, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SAMPLE_RATE)
        out.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())


def resample(samples: np.ndarray, rate: int, target: int = SAMPLE_RATE) -> np.ndarray:
    """Resample (n,) at `rate` Hz to ``round(n * target / rate)`` samples, band-limited by FFT.

    Silence of 50 ms at the end keeps the end of the recording from ringing into its start.
    """
    if rate == target or not samples.size:
        return samples
    length = round(samples.size * target / rate)
    blocks = -(-(samples.size + rate // 20) // rate)  # whole seconds: both lengths are integers
    spectrum = np.fft.rfft(samples, blocks * rate)
    resampled = np.fft.irfft(spectrum[:blocks * target // 2 + 1], blocks * target)
    return resampled[:length] * (target / rate)


def load(path: Path | None = None) -> tuple[np.ndarray, str]:
    """The recording in `path`, or the voice that ships with alsa-utils, and what it is called.

    Returns float64 (n,) at SAMPLE_RATE, at least MIN_SECONDS and at most MAX_SECONDS long.
    """
    if path is not None:
        files = [Path(path)]
    else:
        files = sorted(p for p in ALSA_SPEECH.glob("*.wav") if p.name != "Noise.wav")
        if not files:
            raise RecordingError(f"{ALSA_SPEECH}: no recordings; install alsa-utils or name a WAV")
    speech = np.concatenate([resample(*read_wav(p)) for p in files])
    if not np.isfinite(speech).all() or not speech.any():
        raise RecordingError(f"{files[0]}: silent or not finite; use a recording with speech")
    name = str(files[0]) if path else f"{len(files)} spoken files of {ALSA_SPEECH}"
    speech = np.tile(speech, int(np.ceil(MIN_SECONDS * SAMPLE_RATE / speech.size)))
    return speech[:int(MAX_SECONDS * SAMPLE_RATE)], name


def snr_db(clean: np.ndarray, heard: np.ndarray) -> float:
    """Energy of `clean` over the energy of what `heard` adds to it, in dB, over the whole."""
    clean = clean.astype(np.float64)
    error = ((heard - clean) ** 2).sum()
    return float(10 * np.log10((clean ** 2).sum() / error)) if error else float("inf")


def corpus(speech: np.ndarray, source: str = "", minutes: float = TOTAL_MINUTES,
           seed: int = 20) -> Corpus:
    """Streams of `speech`, each shifted in time, with white Gaussian noise of its own at SNR_DB.

    There are as many as last about `minutes` together, but at least two.
    """
    streams = max(2, round(minutes * 60 * SAMPLE_RATE / speech.size))
    per_stream = -(-speech.size // UTTERANCE)
    speech = speech * (0.5 / np.abs(speech).max())  # room for the noise below full scale
    sigma = np.sqrt((speech ** 2).mean() / 10 ** (SNR_DB / 10))
    clean = np.zeros((streams, per_stream * UTTERANCE), np.float32)
    noisy = np.zeros_like(clean)
    random = np.random.default_rng(seed)
    for index in range(streams):
        clean[index, :speech.size] = np.roll(speech, -index * speech.size // streams)
        noise = random.standard_normal(per_stream * UTTERANCE)
        noise *= sigma / np.sqrt((noise[:speech.size] ** 2).mean())
        noisy[index] = clean[index] + noise
    shape = (streams * per_stream, UTTERANCE)
    return Corpus(clean.reshape(shape), noisy.reshape(shape), streams, per_stream, speech.size,
                  source)


def batches(rows: int, seed: int = 7) -> list[tuple[int, int]]:
    """Cut `rows` utterances into (first, count) batches as a loaded server would.

    Two of three are full, that is of MAX_BATCH; the third is what happened to wait.
    """
    random, at, result = np.random.default_rng(seed), 0, []
    while at < rows:
        count = MAX_BATCH if len(result) % 3 else int(random.integers(1, MAX_BATCH))
        result.append((at, min(count, rows - at)))
        at += count
    return result

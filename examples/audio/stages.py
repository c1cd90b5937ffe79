# SPDX-License-Identifier: Apache-2.0
"""The four stages of the audio pipeline as pure NumPy functions.

A batch holds ``S`` utterances of ``N`` samples; each gives ``T = N / HOP + 3`` frames of ``BINS``
frequency bins. Utterances do not touch each other, and every operation is elementwise, a row-wise
FFT or a recursion along time, so an utterance gives the same bits in whatever batch, process or
memory it stands. Results go into arrays that the caller may bring (``out``): tensors of a ring,
for instance.
"""
from __future__ import annotations

import numpy as np

SAMPLE_RATE = 16_000  # Hz
FRAME = 512           # samples: 32 ms
HOP = 128             # samples: 8 ms, so that each sample lies in OVERLAP windows
BINS = FRAME // 2 + 1
OVERLAP = FRAME // HOP
EDGE = OVERLAP - 1    # frames at either end that reach over the end of the utterance

POWER_SMOOTHING = 0.85  # of the periodogram along time, before its minimum is taken
MINIMUM_FRAMES = 128    # a power of two; 1 s: longer than a syllable, shorter than a phrase
MINIMUM_BIAS = 2.48     # mean power of white noise over its mean minimum; held by a test
SNR_SMOOTHING = 0.96    # decision-directed: weight of the previous frame
SNR_FLOOR = 0.003       # -25 dB: a lower one sounds metallic, a higher one leaves noise
POWER_FLOOR = 1e-12     # keeps digital silence out of the divisions

_WINDOW = np.sqrt(np.hanning(FRAME + 1)[:-1])  # its squares overlap-add to OVERLAP / 2


def frames(samples: int) -> int:
    """Frames that an utterance of `samples` (a multiple of HOP) gives."""
    if samples <= 0 or samples % HOP:
        raise ValueError(f"an utterance of {samples} samples: must be a positive multiple of {HOP}")
    return samples // HOP + EDGE


def features(audio: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Short-time spectra of a batch of utterances.

    Parameters
    ----------
    audio : float32, shape (S, N)
        Samples at SAMPLE_RATE, full scale 1.0.
    out : complex64, shape (S, T, BINS), optional
        Receives the spectra.

    Returns
    -------
    complex64, shape (S, T, BINS)
    """
    batch, samples = audio.shape
    if out is None:
        out = np.empty((batch, frames(samples), BINS), np.complex64)
    padded = np.pad(audio, ((0, 0), (FRAME - HOP, FRAME - HOP)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, FRAME, axis=1)[:, ::HOP]
    out[...] = np.fft.rfft(windows * _WINDOW)
    return out


def embeddings(spectrum: np.ndarray, out: tuple[np.ndarray, np.ndarray] | None = None
               ) -> tuple[np.ndarray, np.ndarray]:
    """Embed spectra in the space whose unit is the noise floor at that time and frequency.

    The floor follows minimum statistics: speech pauses in every band sooner or later, so the
    smallest smoothed power within a second is noise, but for a known bias.

    Parameters
    ----------
    spectrum : complex64, shape (S, T, BINS)
    out : (complex64, float32), each of shape (S, T, BINS), optional
        Receive the results.

    Returns
    -------
    embedded : complex64, shape (S, T, BINS)
        `spectrum / floor`: its squared magnitude is the a-posteriori SNR.
    floor : float32, shape (S, T, BINS)
        Amplitude of the noise, in the unit of `spectrum`.
    """
    if out is None:
        out = np.empty_like(spectrum), np.empty(spectrum.shape, np.float32)
    embedded, floor = out
    smoothed = _smooth(_power(spectrum))
    np.multiply(_running_minimum(smoothed), np.float32(MINIMUM_BIAS), out=floor)
    np.maximum(floor, np.float32(POWER_FLOOR), out=floor)
    np.sqrt(floor, out=floor)
    np.divide(spectrum.real, floor, out=embedded.real)
    np.divide(spectrum.imag, floor, out=embedded.imag)
    return embedded, floor


def latent(embedded: np.ndarray, floor: np.ndarray, out: np.ndarray | None = None
           ) -> np.ndarray:
    """Apply a Wiener gain in the embedded space and return to spectra.

    The a-priori SNR is estimated the decision-directed way (Ephraim and Malah): mostly from the
    previous frame's result, a little from this frame's power.

    Parameters
    ----------
    embedded, floor : complex64 and float32, shape (S, T, BINS)
        What `embeddings` returns.
    out : complex64, shape (S, T, BINS), optional
        Receives the spectra.

    Returns
    -------
    complex64, shape (S, T, BINS)
        Spectra of the speech alone.
    """
    if out is None:
        out = np.empty_like(embedded)
    posterior = _power(embedded)
    scale = np.empty(embedded.shape, np.float32)  # gain, then gain times floor
    weight, rest = np.float32(SNR_SMOOTHING), np.float32(1 - SNR_SMOOTHING)
    previous = np.zeros((embedded.shape[0], BINS), np.float32)
    for t in range(embedded.shape[1]):
        prior = np.maximum(posterior[:, t] - np.float32(1), np.float32(0))
        prior *= rest
        prior += weight * previous
        np.maximum(prior, np.float32(SNR_FLOOR), out=prior)
        gain = np.divide(prior, prior + np.float32(1), out=scale[:, t])
        previous = gain * gain * posterior[:, t]
    scale *= floor
    np.multiply(embedded.real, scale, out=out.real)
    np.multiply(embedded.imag, scale, out=out.imag)
    return out


def vocoder(spectrum: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Waveforms of spectra: the exact inverse of `features`.

    Parameters
    ----------
    spectrum : complex64, shape (S, T, BINS)
    out : float32, shape (S, N), optional
        Receives the samples.

    Returns
    -------
    float32, shape (S, N)
    """
    batch, count, _ = spectrum.shape
    hops = count - EDGE
    if out is None:
        out = np.empty((batch, hops * HOP), np.float32)
    pieces = np.fft.irfft(spectrum, FRAME)
    pieces *= _WINDOW / (OVERLAP / 2)
    pieces = pieces.reshape(batch, count, OVERLAP, HOP)
    total = np.zeros((batch, hops, HOP))
    for k in range(OVERLAP):  # hop h is piece k of frame h + EDGE - k
        total += pieces[:, EDGE - k:EDGE - k + hops, k]
    out[...] = total.reshape(batch, -1)
    return out


def pipeline(audio: np.ndarray) -> np.ndarray:
    """All four stages in one process; float32 (S, N) to float32 (S, N)."""
    return vocoder(latent(*embeddings(features(audio))))


def _power(spectrum: np.ndarray) -> np.ndarray:
    """Squared magnitude, float32, in steps that IEEE 754 rounds one way only."""
    power = spectrum.real * spectrum.real
    power += spectrum.imag * spectrum.imag
    return power


def _smooth(power: np.ndarray) -> np.ndarray:
    """Recursive mean along time in place, without the frames that hang over the ends."""
    old, new = np.float32(POWER_SMOOTHING), np.float32(1 - POWER_SMOOTHING)
    last = power.shape[1] - EDGE
    state = power[:, EDGE].copy()
    settle = range(EDGE + 1, min(EDGE + 16, last))
    for t in settle:  # a single periodogram may be near 0, which would pass for the minimum
        state += power[:, t]
    state /= np.float32(1 + len(settle))
    power[:, :EDGE] = state[:, None]
    for t in range(EDGE, last):
        state *= old
        state += new * power[:, t]
        power[:, t] = state
    power[:, last:] = state[:, None]
    return power


def _running_minimum(power: np.ndarray) -> np.ndarray:
    """Minimum along time over a centred window of MINIMUM_FRAMES, shorter at the ends."""
    half = MINIMUM_FRAMES // 2
    low = np.pad(power, ((0, 0), (half, half), (0, 0)), mode="edge")
    width = 1
    while width < MINIMUM_FRAMES:  # low[t] covers width frames from t on
        np.minimum(low[:, :-width], low[:, width:], out=low[:, :-width])
        width *= 2
    return low[:, :power.shape[1]]

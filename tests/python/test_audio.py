# SPDX-License-Identifier: Apache-2.0
"""The audio example: its four functions, its recordings, its rival and its report."""
from __future__ import annotations

import json
import re
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "audio"))

import fleet  # noqa: E402
import pickle_rival  # noqa: E402
import recording  # noqa: E402
import results  # noqa: E402
import stages  # noqa: E402
from switches import Switches  # noqa: E402

RATE = stages.SAMPLE_RATE


def noise(rows: int, samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, samples)).astype(np.float32)


def wav(samples: bytes, channels: int, bits: int, rate: int = RATE, kind: int = 1,
        extra: bytes = b"") -> bytes:
    frame = channels * bits // 8
    fmt = struct.pack("<HHIIHH", kind, channels, rate, rate * frame, frame, bits) + extra
    body = (b"WAVEfmt " + struct.pack("<I", len(fmt)) + fmt + b"LIST\x03\0\0\0abc\0"
            + b"data" + struct.pack("<I", len(samples)) + samples)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("samples", [stages.HOP, 5 * stages.HOP, 65_536])
def test_vocoder_inverts_features(samples: int) -> None:
    audio = noise(3, samples)
    spectrum = stages.features(audio)
    assert spectrum.shape == (3, stages.frames(samples), stages.BINS)
    assert spectrum.dtype == np.complex64
    back = stages.vocoder(spectrum)
    assert back.dtype == np.float32
    assert np.abs(back - audio).max() < 2e-6


def test_embedding_is_invertible() -> None:
    spectrum = stages.features(noise(2, 65_536))
    embedded, floor = stages.embeddings(spectrum)
    np.testing.assert_allclose(embedded * floor, spectrum, rtol=1e-5, atol=1e-6)


def test_floor_of_noise_is_its_power() -> None:
    spectrum = stages.features(noise(6, 4 * 65_536))[:, stages.EDGE:-stages.EDGE, 1:-1]
    floor = stages.embeddings(np.ascontiguousarray(spectrum))[1]
    assert np.mean(floor ** 2.0) == pytest.approx(np.mean(np.abs(spectrum) ** 2.0), rel=0.05)


def test_frames_refuses_half_hops() -> None:
    with pytest.raises(ValueError, match="1000 samples.*multiple of 128"):
        stages.frames(1000)


@pytest.mark.parametrize("audio", [np.zeros((1, 65_536), np.float32), noise(1, 4 * stages.HOP)])
def test_pipeline_of_silence_and_of_little_is_finite(audio: np.ndarray) -> None:
    assert np.isfinite(stages.pipeline(audio)).all()


def test_same_bits_in_every_batch_and_every_memory() -> None:
    audio = noise(recording.MAX_BATCH, recording.UTTERANCE)
    whole = stages.pipeline(audio)
    for first, count in ((0, 1), (3, 1), (1, 2), (4, 5), (1, 9)):
        shape = (count, stages.frames(recording.UTTERANCE), stages.BINS)
        spectrum, embedded, speech = (odd_memory(shape, np.complex64) for _ in range(3))
        floor = odd_memory(shape, np.float32)
        out = odd_memory((count, recording.UTTERANCE), np.float32)
        stages.features(audio[first:first + count], out=spectrum)
        stages.embeddings(spectrum, out=(embedded, floor))
        stages.latent(embedded, floor, out=speech)
        stages.vocoder(speech, out=out)
        assert out.tobytes() == whole[first:first + count].tobytes()


def odd_memory(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(bytearray(size + 8), dtype, int(np.prod(shape)), 8).reshape(shape)


def test_stages_leave_their_input_alone() -> None:
    audio = noise(1, 65_536)
    audio.flags.writeable = False
    spectrum = stages.features(audio)
    spectrum.flags.writeable = False
    embedded, floor = stages.embeddings(spectrum)
    embedded.flags.writeable = floor.flags.writeable = False
    speech = stages.latent(embedded, floor)
    speech.flags.writeable = False
    stages.vocoder(speech)


def snr_gain(speech: np.ndarray) -> float:
    corpus = recording.corpus(speech, minutes=0.3)
    clean, noisy = (corpus.by_stream(rows)[:2] for rows in (corpus.clean, corpus.noisy))
    rows = slice(0, 2 * corpus.per_stream)
    heard = stages.pipeline(corpus.noisy[rows]).reshape(2, -1)[:, :corpus.samples]
    assert recording.snr_db(clean, noisy) == pytest.approx(5.0, abs=0.05)
    return recording.snr_db(clean, heard) - recording.snr_db(clean, noisy)


def test_gain_on_synthetic_speech() -> None:
    time = np.arange(10 * RATE) / RATE
    voice = sum(np.sin(2 * np.pi * 140 * k * time) / k for k in range(1, 12))
    assert snr_gain(voice * (np.sin(2 * np.pi * 1.5 * time) > 0.2)) >= 5.0


@pytest.mark.skipif(not recording.ALSA_SPEECH.is_dir(), reason="alsa-utils is not installed")
def test_gain_on_recorded_speech() -> None:
    speech, source = recording.load()
    assert speech.size >= 60 * RATE
    assert "spoken" in source
    assert snr_gain(speech[:10 * RATE]) >= 5.0


def test_corpus_is_the_same_every_time() -> None:
    speech = noise(1, 5 * RATE)[0]
    one, two = (recording.corpus(speech, minutes=1 / 3) for _ in range(2))
    assert one.noisy.tobytes() == two.noisy.tobytes()
    assert one.streams == 4
    assert not np.array_equal(*one.by_stream(one.clean)[:2])


@pytest.mark.parametrize("rows", [1, 17, 476])
def test_batches_cover_all_rows_in_order(rows: int) -> None:
    plan = recording.batches(rows)
    assert [r for first, count in plan for r in range(first, first + count)] == list(range(rows))
    assert all(1 <= count <= recording.MAX_BATCH for _, count in plan)


def test_bodies_are_1_to_16_mib() -> None:
    wide, narrow = recording.UTTERANCE_BYTES, recording.UTTERANCE_BYTES * 8 // 12
    assert narrow >= 1 << 20
    assert (16 << 20) - 2 * wide < recording.MAX_BATCH * wide < 16 << 20


RAMP = np.array([-1.0, -0.5, 0.0, 0.25, 0.5])


@pytest.mark.parametrize("bits, kind, raw", [
    (8, 1, (RAMP * 128 + 128).astype(np.uint8).tobytes()),
    (16, 1, (RAMP * 2 ** 15).astype("<i2").tobytes()),
    (24, 1, b"".join(int(x).to_bytes(3, "little", signed=True) for x in RAMP * 2 ** 23)),
    (32, 1, (RAMP * 2 ** 31).astype("<i4").tobytes()),
    (32, 3, RAMP.astype("<f4").tobytes()),
    (64, 3, RAMP.astype("<f8").tobytes()),
])
def test_read_wav_formats(tmp_path: Path, bits: int, kind: int, raw: bytes) -> None:
    width = bits // 8
    frames = [raw[k:k + width] for k in range(0, len(raw), width)]
    extra = struct.pack("<HHIH14x", 22, bits, 0, kind)
    for data in (wav(raw, 1, bits, kind=kind), wav(raw, 1, bits, kind=0xFFFE, extra=extra),
                 wav(b"".join(f + f for f in frames), 2, bits, kind=kind)):
        (tmp_path / "x.wav").write_bytes(data)
        samples, rate = recording.read_wav(tmp_path / "x.wav")
        assert rate == RATE
        np.testing.assert_array_equal(samples, RAMP)


def test_read_wav_mixes_channels(tmp_path: Path) -> None:
    (tmp_path / "x.wav").write_bytes(wav(struct.pack("<4h", 16384, 0, 0, -16384), 2, 16))
    np.testing.assert_array_equal(recording.read_wav(tmp_path / "x.wav")[0], [0.25, -0.25])


@pytest.mark.parametrize("data, message", [
    (b"", "not a WAV file"),
    (b"fLaC" + bytes(40), "not a WAV file"),
    (wav(b"", 1, 16)[:30], "ends before its sound"),
    (wav(b"", 0, 16), "ends before its sound"),
    (wav(bytes(8), 1, 12), "format 1 with 12 bits"),
    (wav(bytes(8), 1, 16, kind=0x55), "format 85"),
])
def test_read_wav_refuses(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "bad.wav").write_bytes(data)
    with pytest.raises(recording.RecordingError, match=message) as caught:
        recording.read_wav(tmp_path / "bad.wav")
    assert "bad.wav" in str(caught.value)


def test_read_wav_truncated_in_a_frame(tmp_path: Path) -> None:
    (tmp_path / "cut.wav").write_bytes(wav(struct.pack("<4h", 1, 2, 3, 4), 2, 16)[:-1])
    assert recording.read_wav(tmp_path / "cut.wav")[0].size == 1


@pytest.mark.parametrize("content", [b"", bytes(3200)])
def test_load_refuses_silence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "silent.wav").write_bytes(wav(content, 1, 16))
    with pytest.raises(recording.RecordingError, match="silent.wav: silent"):
        recording.load(tmp_path / "silent.wav")


def test_write_wav_is_read_back(tmp_path: Path) -> None:
    recording.write_wav(tmp_path / "x.wav", np.array([0.5, -0.5, 2.0]))
    samples, rate = recording.read_wav(tmp_path / "x.wav")
    assert rate == RATE
    np.testing.assert_allclose(samples, [0.5, -0.5, 1.0], atol=1e-4)


@pytest.mark.parametrize("rate", [8_000, 11_025, 44_100, 48_000])
def test_resample_keeps_a_tone(rate: int) -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(rate * 3 // 2) / rate)
    out = recording.resample(tone, rate)
    assert out.size == round(tone.size * RATE / rate)
    expected = np.sin(2 * np.pi * 440 * np.arange(out.size) / RATE)
    assert np.abs(out - expected)[400:-400].max() < 1e-3


def test_resample_removes_what_would_alias() -> None:
    tone = np.sin(2 * np.pi * 12_000 * np.arange(48_000) / 48_000)
    assert np.abs(recording.resample(tone, 48_000))[400:-400].max() < 1e-3


def test_rival_carries_the_tensors_and_ends() -> None:
    rival = pickle_rival.Rival()
    try:
        before = rival.switches()
        transfer = rival.transfer([np.ones(1 << 18, np.float32), np.zeros(4, np.complex64)], {})
        assert sum(rival.switches()) > sum(before)
    finally:
        rival.close()
    assert transfer.body_bytes == (1 << 20) + 32
    assert min(transfer.serialize_ns, transfer.copy_ns, transfer.deserialize_ns) > 0
    assert transfer.hop_ns >= transfer.copy_ns
    assert rival._receiver.returncode == 0


def synthetic(hop_ns: int = 100_000, identical: bool = True, out_db: float = 15.0) -> results.Run:
    run = results.Run("speech.wav", 61.0, 2, 5.0, out_db, identical, seconds=2.0,
                      rival_seconds=4.0, rival_switches=Switches(380, 20))
    for k, stage in enumerate(results.HOPS):
        run.hops[stage] = [(size << 20, hop_ns + 1000 * k) for size in range(1, 16)]
        run.rival[stage] = [pickle_rival.Transfer(size << 20, 500_000, 700_000, 300_000)
                            for size in range(1, 16)]
    run.switches = dict.fromkeys(fleet.STAGES, Switches(4, 3))
    return run


def test_figures_of_known_timings() -> None:
    assert results.figures(synthetic()) == {
        "audio_seconds": 61.0, "snr_in_db": 5.0, "snr_out_db": 15.0, "bit_identical": 1,
        "messages": 45, "hop_us_p50": 101.0, "hop_us_p99": 102.0, "hop_us_max": 102.0,
        "hop_us_stddev": 0.816, "pickle_hop_us_p50": 1500.0, "pickle_serialize_us_p50": 500.0,
        "pickle_copy_us_p50": 700.0, "pickle_deserialize_us_p50": 300.0,
        "context_switches_per_s": 14.0}


@pytest.mark.parametrize("run, failing", [
    (synthetic(), []), (synthetic(hop_ns=200_000), ["pickle takes 7 times"]),
    (synthetic(identical=False), ["is NOT bit-identical"]),
    (synthetic(out_db=9.9), ["gain 4.90 dB"]),
])
def test_verdicts(run: results.Run, failing: list[str]) -> None:
    failed = [text for ok, text in results.verdicts(results.figures(run)) if not ok]
    assert len(failed) == len(failing)
    assert all(part in text for part, text in zip(failing, failed))


def test_table_has_a_row_for_each_hop_and_part() -> None:
    text = results.table(synthetic())
    assert len(text.splitlines()) == 12
    assert re.search(r"ring: latent → vocoder +15 +1\.0–15\.0 +102\.0", text)
    assert re.search(r"of which serialize +45 +1\.0–15\.0 +500\.0", text)
    assert re.search(r"both processes .* 100\.0 +95\.0$", text, re.MULTILINE)


def test_report_is_flat_and_self_contained(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="python3-matplotlib is not installed")
    import report

    run = synthetic()
    run.source = "<speech>&.wav"
    clean = noise(1, 2 * RATE)[0] * np.float32(0.1)
    report.write(tmp_path, run, clean, clean, clean)
    assert json.loads((tmp_path / "report.json").read_text()) == results.figures(run)
    page = (tmp_path / "report.html").read_text()
    assert "&lt;speech&gt;&amp;.wav" in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(sources) == 6
    assert all(source.startswith("data:") for source in sources)
    assert not re.search(r"https?://|@import|url\(", page)


def test_fleet_leaves_nothing_when_a_sidecar_does_not_start(tmp_path: Path) -> None:
    for stage in fleet.STAGES:
        (tmp_path / f"{stage}.json").write_text("{}")
    proxy = tmp_path / "proxy"
    proxy.write_text("#!/bin/sh\necho no ring today >&2\nexit 3\n")
    proxy.chmod(0o755)
    herd = fleet.Fleet(proxy, tmp_path)
    with pytest.raises(fleet.FleetError, match=r"sidecar of \w+ ended with 3\n +no ring today"):
        with herd:
            herd.start_sidecars()
    assert herd.leftovers() == []
    assert not herd.directory.exists()
    assert not herd.rings.exists()


def test_sweep_takes_only_what_nobody_holds(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "RING_ROOT", tmp_path)
    monkeypatch.setattr(fleet.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(fleet.time, "time", lambda: 4e9)
    with fleet.Fleet(tmp_path / "proxy", tmp_path) as herd:
        dead = tmp_path / (fleet.PREFIX + "dead")
        dead.mkdir()
        (dead / "ring").write_bytes(b"x")
        other = tmp_path / "other"
        other.mkdir()
        fleet.sweep()
        assert herd.directory.exists()
        assert herd.rings.exists()
        assert not dead.exists()
        assert other.exists()

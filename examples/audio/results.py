# SPDX-License-Identifier: Apache-2.0
"""What a run of the demo measured: figures, verdicts and the table that is printed."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pickle_rival import Transfer
from switches import Switches

MIN_GAIN_DB = 5.0
MIN_RATIO = 10.0
HOPS = {"embeddings": "features → embeddings", "latent": "embeddings → latent",
        "vocoder": "latent → vocoder"}  # by the stage that receives


@dataclass
class Run:
    """Raw measurements of one run; times in ns."""

    source: str = ""
    audio_seconds: float = 0.0
    streams: int = 0
    snr_in_db: float = 0.0
    snr_out_db: float = 0.0
    bit_identical: bool = False
    hops: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # (bytes, ns) by receiver
    seconds: float = 0.0                                                  # the ring's part
    switches: dict[str, Switches] = field(default_factory=dict)           # by worker, in `seconds`
    rival: dict[str, list[Transfer]] = field(default_factory=dict)        # by receiver
    rival_seconds: float = 0.0
    rival_switches: Switches = Switches()

    def hop_us(self, stage: str | None = None) -> np.ndarray:
        """Times of the ring's hops to one stage, or of all, float64 in µs."""
        return self._select(self.hops, stage)[:, 1] / 1e3

    def hop_bytes(self, stage: str | None = None) -> np.ndarray:
        """Body bytes of the same hops."""
        return self._select(self.hops, stage)[:, 0]

    def rival_us(self, part: str = "hop_ns", stage: str | None = None) -> np.ndarray:
        """Times of the rival's hops or of one part of them, float64 in µs."""
        return np.array([getattr(t, part) for t in self._transfers(stage)], float) / 1e3

    def rival_bytes(self, stage: str | None = None) -> np.ndarray:
        """Body bytes of the rival's hops."""
        return np.array([t.body_bytes for t in self._transfers(stage)])

    def switch_rate(self) -> Switches:
        """Context switches per second of the ring's workers together."""
        total = Switches()
        for one in self.switches.values():
            total = total.plus(one)
        return total.per(self.seconds)

    @staticmethod
    def _select(hops: dict[str, list[tuple[int, int]]], stage: str | None) -> np.ndarray:
        chosen = [hops[stage]] if stage else list(hops.values())
        return np.array([hop for part in chosen for hop in part]).reshape(-1, 2)

    def _transfers(self, stage: str | None) -> list[Transfer]:
        return self.rival[stage] if stage else [t for part in self.rival.values() for t in part]


def figures(run: Run) -> dict[str, float]:
    """The flat object of report.json."""
    hop = run.hop_us()
    return {
        "audio_seconds": round(run.audio_seconds, 3),
        "snr_in_db": round(run.snr_in_db, 3),
        "snr_out_db": round(run.snr_out_db, 3),
        "bit_identical": int(run.bit_identical),
        "messages": int(hop.size),
        "hop_us_p50": _percentile(hop, 50),
        "hop_us_p99": _percentile(hop, 99),
        "hop_us_max": _percentile(hop, 100),
        "hop_us_stddev": round(float(hop.std()), 3),
        "pickle_hop_us_p50": _percentile(run.rival_us(), 50),
        "pickle_serialize_us_p50": _percentile(run.rival_us("serialize_ns"), 50),
        "pickle_copy_us_p50": _percentile(run.rival_us("copy_ns"), 50),
        "pickle_deserialize_us_p50": _percentile(run.rival_us("deserialize_ns"), 50),
        "context_switches_per_s": round(sum(run.switch_rate()), 3),
    }


def ratio(result: dict[str, float]) -> float:
    """How many hops through the ring fit into one through pickle, by their medians."""
    return result["pickle_hop_us_p50"] / result["hop_us_p50"]


def verdicts(result: dict[str, float]) -> list[tuple[bool, str]]:
    """What must hold, whether it does, and the figures behind it."""
    gain = result["snr_out_db"] - result["snr_in_db"]
    same = bool(result["bit_identical"])
    return [
        (gain >= MIN_GAIN_DB,
         f"SNR {result['snr_in_db']:.2f} dB before, {result['snr_out_db']:.2f} dB after: gain "
         f"{gain:.2f} dB (white Gaussian noise; at least {MIN_GAIN_DB:.0f} dB asked)"),
        (same, f"output {'is' if same else 'is NOT'} bit-identical to the same four functions "
               "in one process"),
        (ratio(result) >= MIN_RATIO,
         f"pickle takes {ratio(result):.0f} times as long as the ring's hop (median "
         f"{result['pickle_hop_us_p50']:.0f} against {result['hop_us_p50']:.0f} µs; at least "
         f"{MIN_RATIO:.0f} asked)"),
    ]


HEADER = ("hop", "messages", "MiB a body", "p50 µs", "p99 µs", "max µs", "σ µs", "switches/s",
          "voluntary/s")


def rows(run: Run) -> list[tuple[str, ...]]:
    """Rows of the per-hop table under HEADER: the ring's first, then the rival's and its parts."""
    lines = [_row(f"ring: {HOPS[stage]}", run.hop_us(stage), run.hop_bytes(stage),
                  run.switches[stage].per(run.seconds)) for stage in run.hops]
    lines.append(_row("ring: all hops, all four workers", run.hop_us(), run.hop_bytes(),
                      run.switch_rate()))
    lines += [_row(f"pickle: {HOPS[stage]}", run.rival_us("hop_ns", stage), run.rival_bytes(stage))
              for stage in run.rival]
    lines.append(_row("pickle: all hops, both processes", run.rival_us(), run.rival_bytes(),
                      run.rival_switches.per(run.rival_seconds)))
    lines += [_row(f"  of which {name}", run.rival_us(f"{name}_ns"), run.rival_bytes())
              for name in ("serialize", "copy", "deserialize")]
    return lines


def table(run: Run) -> str:
    """The per-hop table as text."""
    lines = [HEADER, *rows(run)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(HEADER))]
    return "\n".join("  ".join([line[0].ljust(widths[0])]
                               + [cell.rjust(w) for cell, w in zip(line[1:], widths[1:])]).rstrip()
                     for line in lines)


def _row(name: str, us: np.ndarray, body: np.ndarray, rate: Switches | None = None
         ) -> tuple[str, ...]:
    mib = body / 2 ** 20
    return (name, str(us.size), f"{mib.min():.1f}–{mib.max():.1f}",
            *(f"{np.percentile(us, p):,.1f}" for p in (50, 99, 100)), f"{us.std():,.1f}",
            *((f"{sum(rate):,.1f}", f"{rate.voluntary:,.1f}") if rate else ("", "")))


def _percentile(values: np.ndarray, p: float) -> float:
    return round(float(np.percentile(values, p)), 3)

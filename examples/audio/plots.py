# SPDX-License-Identifier: Apache-2.0
"""The plots of the report, drawn by matplotlib, as data URIs."""
from __future__ import annotations

import base64
import io

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from results import Run
from stages import HOP, SAMPLE_RATE, features

RING, SERIALIZE, COPY, DESERIALIZE = "#0072b2", "#d55e00", "#e69f00", "#cc79a7"  # Okabe and Ito
PICKLE = SERIALIZE
_STYLE = {"font.family": "sans-serif", "font.size": 10, "svg.fonttype": "none", "axes.grid": True,
          "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False,
          "axes.axisbelow": True, "svg.hashsalt": "ringside"}


def distribution(run: Run) -> str:
    """Cumulative distribution of the hop times."""
    figure, axes = _axes()
    for values, colour, name in ((run.hop_us(), RING, "ring"),
                                 (run.rival_us(), PICKLE, "pickle over a UNIX socket")):
        ordered = np.sort(values)
        axes.step(ordered, np.arange(1, ordered.size + 1) / ordered.size * 100, where="post",
                  color=colour, label=name, linewidth=2)
    axes.set(xscale="log", xlabel="time of a hop in µs (logarithmic)", ylabel="% of hops",
             ylim=(0, 101))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="center", frameon=False)
    return _svg(figure)


def by_size(run: Run) -> str:
    """Hop time against the bytes of the body."""
    figure, axes = _axes()
    for size, values, colour, name in ((run.hop_bytes(), run.hop_us(), RING, "ring"),
                                       (run.rival_bytes(), run.rival_us(), PICKLE, "pickle")):
        axes.plot(size / 2 ** 20, values, ".", color=colour, label=name, alpha=0.6, markersize=6)
    axes.set(yscale="log", xlabel="body in MiB", ylabel="time of a hop in µs (logarithmic)")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="center right", frameon=False)
    return _svg(figure)


def parts(run: Run) -> str:
    """Where the time of the median hop goes."""
    figure, axes = _axes(height=2.2)
    left = 0.0
    for name, colour in (("serialize", SERIALIZE), ("copy", COPY), ("deserialize", DESERIALIZE)):
        median = float(np.median(run.rival_us(f"{name}_ns")))
        axes.barh("pickle", median, left=left, color=colour, label=f"{name} {median:,.0f} µs")
        left += median
    ring = float(np.median(run.hop_us()))
    axes.barh("ring", ring, color=RING, label=f"ring {ring:,.0f} µs")
    axes.set_xlabel("median µs of a hop")
    axes.grid(False, axis="y")
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9,
                frameon=False)
    return _svg(figure)


def spectrograms(clean: np.ndarray, noisy: np.ndarray, heard: np.ndarray) -> str:
    """Spectrograms in dB of three float32 signals (n,), one above the other; n % HOP is 0."""
    with matplotlib.rc_context({**_STYLE, "axes.grid": False}):
        figure = Figure(figsize=(9, 5.4), layout="constrained")
        all_axes = figure.subplots(3, 1, sharex=True, sharey=True)
        top = None
        for axes, signal, name in zip(all_axes, (clean, noisy, heard),
                                      ("speech", "with noise at 5 dB", "out of the pipeline")):
            spectrum = features(signal[None])[0, 3:-3]
            level = 20 * np.log10(np.abs(spectrum).T + 1e-6)
            top = level.max() if top is None else top
            image = axes.imshow(level, origin="lower", aspect="auto", cmap="magma", vmin=top - 70,
                                vmax=top, extent=(0, level.shape[1] * HOP / SAMPLE_RATE, 0, 8))
            axes.set_title(name, loc="left", fontsize=10)
        all_axes[1].set_ylabel("kHz")
        all_axes[2].set_xlabel("seconds")
        figure.colorbar(image, ax=all_axes, label="dB", shrink=0.6)
        return _encode(figure, "png", "image/png", dpi=110)


def _axes(height: float = 3.4) -> tuple[Figure, matplotlib.axes.Axes]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, height), layout="constrained")
        return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    with matplotlib.rc_context(_STYLE):
        return _encode(figure, "svg", "image/svg+xml", metadata={"Date": None})


def _encode(figure: Figure, form: str, mime: str, **options: object) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=form, **options)
    return f"data:{mime};base64," + base64.b64encode(buffer.getvalue()).decode()

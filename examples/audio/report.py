# SPDX-License-Identifier: Apache-2.0
"""report.json and report.html: what the demo leaves to read, without a request to anywhere."""
from __future__ import annotations

import base64
import html
import io
import json
import platform
import time
from pathlib import Path

import numpy as np

import plots
import results
from recording import write_wav
from stages import HOP, SAMPLE_RATE

EXCERPT_SECONDS = 8

_STYLE = """
:root { --ink: #1c2430; --soft: #5b6675; --line: #dde2e8; --page: #fff; --card: #f6f8fa }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 62rem; margin: 2.5rem auto; padding: 0 1.25rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem }
p.lead, figcaption, footer { color: var(--soft) } figcaption, footer { font-size: .85rem }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem }
.cards div { background: var(--card); border-radius: .5rem; padding: .8rem 1rem }
.cards b { display: block; font-size: 1.5rem; font-variant-numeric: tabular-nums }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 1rem }
figure { margin: 0 } img { width: 100% } audio { width: 100% }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
         font-variant-numeric: tabular-nums; white-space: pre }
th:first-child, td:first-child { text-align: left } .no { color: #b3261e; font-weight: 600 }
"""


def write(directory: Path, run: results.Run, clean: np.ndarray, noisy: np.ndarray,
          heard: np.ndarray) -> dict[str, float]:
    """Write report.json and report.html.

    Parameters
    ----------
    directory : Path
        Receives the files.
    run : results.Run
        What was measured.
    clean, noisy, heard : float32, shape (n,)
        One stream before noise, with it, and as it left the pipeline.

    Returns
    -------
    dict
        What stands in report.json.
    """
    figures = results.figures(run)
    (directory / "report.json").write_text(json.dumps(figures, indent=2) + "\n")
    length = min(clean.size, EXCERPT_SECONDS * SAMPLE_RATE) // HOP * HOP
    page = _page(run, figures, clean[:length], noisy[:length], heard[:length])
    (directory / "report.html").write_text(page)
    return figures


def _page(run: results.Run, figures: dict[str, float], clean: np.ndarray, noisy: np.ndarray,
          heard: np.ndarray) -> str:
    cards = [
        (f"{results.ratio(figures):,.0f} ×", "pickle over the ring, median hop"),
        (f"{figures['hop_us_p50']:,.0f} µs", f"median hop; p99 {figures['hop_us_p99']:,.0f} µs"),
        (f"{figures['snr_out_db'] - figures['snr_in_db']:+.1f} dB",
         f"SNR, {figures['snr_in_db']:.1f} to {figures['snr_out_db']:.1f} dB"),
        ("identical" if run.bit_identical else "DIFFERENT", "bits, against one process"),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Ringside demo</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>
<body><h1>Tensors by ticket, not by pickle</h1>
<p class="lead">{html.escape(run.source)}: {run.audio_seconds:.1f} s of speech as {run.streams}
streams through features, embeddings, latent and vocoder, each a process of its own.</p>
<div class="cards">{"".join(f"<div><b>{a}</b>{b}</div>" for a, b in cards)}</div>
<h2>What must hold</h2><ul>{"".join(_verdict(ok, text) for ok, text in results.verdicts(figures))}
</ul><h2>The hops</h2><div class="pair">
{_figure(plots.distribution(run), "Time from the producer's send to the consumer holding the views "
         "(ring) or the unpickled arrays (pickle), cumulative.")}
{_figure(plots.by_size(run), "A ticket weighs the same whatever it names; pickle moves it all.")}
</div>{_figure(plots.parts(run), "Where the median hop goes.")}
<div class="scroll"><table><tr>{_cells("th", results.HEADER)}</tr>
{"".join(f"<tr>{_cells('td', row)}</tr>" for row in results.rows(run))}</table></div>
<h2>The sound</h2><div class="pair">
<figure><audio controls src="{_sound(noisy)}"></audio><figcaption>With noise.</figcaption></figure>
<figure><audio controls src="{_sound(heard)}"></audio><figcaption>Out of the pipeline.</figcaption>
</figure></div>
{_figure(plots.spectrograms(clean, noisy, heard), "The first seconds of the first stream.")}
<h2>How it was measured</h2>
<p>One batch is under way at a time, for the ring and for pickle alike, so a hop is a hand-over and
not a wait in a queue. Both carry the same tensors. Pickle is protocol 5 in band, to a process that
reads into one buffer which it keeps; serialize, copy and deserialize follow without a gap.
A worker that waits spins as long as its stage's clients.spin_us says and then sleeps; batches are
further apart than that, so a hop contains the waking of a process. Context switches are those of
all threads, those of a single hop being its receiving worker's; what is not voluntary, other
processes on the machine forced. The first messages, which map the ring, count too.</p>
<footer>{html.escape(_machine())}</footer></body></html>
"""


def _verdict(ok: bool, text: str) -> str:
    return f"<li{'' if ok else ' class=no'}>{'✓' if ok else '✗'} {html.escape(text)}</li>"


def _figure(image: str, caption: str) -> str:
    text = html.escape(caption)
    return f'<figure><img src="{image}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def _cells(tag: str, values: tuple[str, ...]) -> str:
    return "".join(f"<{tag}>{html.escape(value)}</{tag}>" for value in values)


def _sound(samples: np.ndarray) -> str:
    buffer = io.BytesIO()
    write_wav(buffer, samples)
    return "data:audio/wav;base64," + base64.b64encode(buffer.getvalue()).decode()


def _machine() -> str:
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return (f"{time.strftime('%Y-%m-%d %H:%M')} · {model} · Linux {platform.release()} · "
            f"Python {platform.python_version()} · NumPy {np.__version__}")

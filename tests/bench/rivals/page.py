# SPDX-License-Identifier: Apache-2.0
"""The page with the plot: one file that needs nothing else. matplotlib draws."""

import html
import io

from rivals import RIVALS, SIZES, compare

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Ringside and its rivals</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62em; margin: 2em auto; padding: 0 1em; color: #222 }
table { border-collapse: collapse } th, td { padding: .15em .8em; text-align: right; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left } td { font-variant-numeric: tabular-nums }
.ringside { background: #fdf1e3 } .faster { font-weight: bold; color: #a40000 } pre { white-space: pre-wrap }
svg { max-width: 100%; height: auto }
</style>
<h1>An array from one process to another</h1>
"""


def style(rival, i):
    """Ringside thick and warm, the limits black, the rest thin, cool and told apart by their marks."""
    if rival.module == "memcpy":
        return {"color": "black", "linestyle": ":" if rival.name == "memcpy" else "--", "linewidth": 1.2}
    if rival.name.startswith("ringside"):
        return {"color": ("#d62728", "#ff7f0e", "#e377c2", "#8c564b", "#e0b000")[i % 5], "marker": "o", "linewidth": 2.6}
    return {"color": ("#1f77b4", "#2ca02c", "#17becf", "#7f7f7f", "#393b79", "#637939")[i % 6],
            "marker": "sv^D<>P*X"[i % 9], "markersize": 4, "linewidth": 1}


def plot(medians, sizes):
    """The log-log plot as SVG text. Raises ImportError where matplotlib is not there."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(10, 7.5))
    for i, rival in enumerate(RIVALS):
        points = [(SIZES[size], medians[f"{rival.name}_{size}_us_p50"]) for size in sizes
                  if medians.get(f"{rival.name}_{size}_us_p50", 0) > 0]
        if points:
            axes.plot(*zip(*points), label=rival.name, **style(rival, i))
    axes.set(xscale="log", yscale="log", xlabel="size of the array", ylabel="one way, p50, \u00b5s")
    axes.xaxis.set_major_locator(ticker.FixedLocator([SIZES[size] for size in sizes]))
    axes.xaxis.set_major_formatter(ticker.FixedFormatter([f"{size}" for size in sizes]))
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg"):]


def row(cells, kind):
    return f"<tr class='{kind}'>" + "".join(
        f"<td{' class=faster' if cell.endswith('*') else ''}>{html.escape(cell.strip())}</td>" for cell in cells) + "</tr>\n"


def write(path, medians, sizes, rules, system):
    """Write the page. Returns why there is no plot in it, or None."""
    parts, why = [HEAD, f"<p>{html.escape(system)}</p>\n"], None
    try:
        parts.append(plot(medians, sizes))
    except ImportError as error:
        why = str(error)
        parts.append(f"<p>No plot: {html.escape(why)}</p>")
    parts.append("<h2>One way, p50, \u00b5s</h2><table><tr><th></th>" + "".join(f"<th>{s}</th>" for s in sizes) + "</tr>\n")
    parts += [row(cells, "ringside" if cells[0].startswith("ringside") else "rival")
              for cells in compare.table(medians, sizes)]
    parts.append("</table>")
    lines = list(compare.verdict_lines(medians, sizes))
    parts.append("<p>" + "<br>".join(map(html.escape, lines or ["No rival is faster than the way of Ringside that does"
                                                                " its job."])) + "</p>")
    parts.append("<dl>" + "".join(f"<dt><b>{r.name}</b></dt><dd>{html.escape(r.text)}</dd>" for r in RIVALS) + "</dl>")
    parts.append(f"<h2>Read whole</h2><p>{html.escape(compare.READS)}</p><table>"
                 + "".join(row(cells, "") for cells in compare.reads(medians)) + "</table>")
    parts.append(f"<h2>A second thread of the receiver</h2><p>{html.escape(compare.SHARES)}</p><table>"
                 + "".join(row(cells, "") for cells in compare.shares(medians)) + "</table>")
    parts.append(f"<h2>Rules</h2><pre>{html.escape(rules)}</pre></html>\n")
    path.write_text("".join(parts), encoding="utf-8")
    return why

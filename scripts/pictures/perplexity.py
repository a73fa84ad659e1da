"""Perplexity of each model in each mode: one row a model, one mark a mode."""

import math

from pictures.style import GRID, new_figure, shown_label, style_of

from matplotlib.ticker import FuncFormatter  # isort: skip (style names what is missing)

MODES = {"natural": "natural", "no_copy": "LM head alone", "force_copy": "Copy-Paste head alone"}


def draw(results):
    subjects = results["subjects"]
    figure, axes = new_figure(8, 1.8 + 0.6 * len(subjects))
    shown_modes = set()
    for row, subject in enumerate(subjects):
        for index, (mode, label) in enumerate(MODES.items()):
            perplexity = float(subject["modes"].get(mode, {}).get("perplexity", math.nan))
            style = style_of(index)
            if math.isinf(perplexity):
                axes.annotate(
                    f"{label}: infinite", (0, row), xycoords=("axes fraction", "data"), xytext=(4, -16),
                    textcoords="offset points", ha="left", fontsize=9, color=style["color"],
                )
            if not math.isfinite(perplexity):
                continue
            axes.plot(
                perplexity, row, linestyle="none", marker=style["marker"], color=style["color"],
                markersize=8, zorder=3, label=None if mode in shown_modes else label,
            )
            shown_modes.add(mode)
            axes.annotate(
                f"{perplexity:.4g}", (perplexity, row), xytext=(0, 8), textcoords="offset points",
                ha="center", fontsize=9, color=style["color"],
            )
    axes.set_yticks(range(len(subjects)), [shown_label(subject["name"]) for subject in subjects])
    axes.set_ylim(len(subjects) - 0.4, -0.6)
    axes.set_xscale("log")
    for axis_part in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        axis_part(FuncFormatter(lambda value, _position: f"{value:.4g}"))
    axes.margins(x=0.15)
    axes.set_xlabel("perplexity (log scale)")
    axes.grid(axis="x", which="both", **GRID)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=10)
    unit = "documents" if results["data"]["unit"] == "document" else "windows"
    axes.set_title(
        f"{results['data']['counted_tokens']:,} tokens in {results['data']['sequences']:,} {unit}, "
        f"context {results['data']['context']:,}", fontsize=10, loc="left",
    )
    return figure

"""Induction: loss on repeated random sequences by length, and the score of every attention head."""

import math

from matplotlib.ticker import MaxNLocator
from pictures.style import GRID, pyplot, shown_label, style_of

MODES = {"natural": "second copy", "no_copy": "second copy, LM head alone"}


def losses_axes(axes, results):
    for index, subject in enumerate(results["subjects"]):
        style = style_of(index)
        lengths = [loss["length"] for loss in subject["losses"]]
        for mode, label in MODES.items():
            losses = [float(loss["second_copy"].get(mode, math.nan)) for loss in subject["losses"]]
            if not any(math.isfinite(loss) for loss in losses):
                continue
            alone = mode != "natural"
            axes.plot(
                lengths, losses, color=style["color"], marker=style["marker"], zorder=3,
                linestyle=":" if alone else style["linestyle"], markerfacecolor="white" if alone else None,
                label=shown_label(f"{subject['name']}: {label}"),
            )  # fmt: skip
    axes.axhline(results["chance"], color="#808080", linewidth=1)
    axes.annotate(
        "chance",
        (0.5, results["chance"]),
        xycoords=("axes fraction", "data"),
        ha="center",
        va="top",
        fontsize=9,
    )
    axes.set_xscale("log", base=2)
    lengths = [loss["length"] for loss in results["subjects"][0]["losses"]]
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("symbols before they repeat")
    axes.set_ylabel("loss (nats a token)")
    axes.set_ylim(bottom=0)
    axes.grid(**GRID)
    axes.legend(frameon=False, fontsize=9)


def caption(subject):
    scores = subject["scores"]
    counts = ", ".join(f"{count} from {threshold}" for threshold, count in scores["heads_from"].items())
    text = f"{shown_label(subject['name'])}: of {scores['heads']} heads {counts}"
    if "copy_head" in scores:
        copy = scores["copy_head"]
        text += f"\nCopy-Paste head {float(copy['score']):.2f} (copy gate {float(copy['copy_gate']):.2f})"
    return text


def map_axes(axes, subject):
    """One row a layer; layers that do not attend stay empty. Returns the image, or None."""
    layers = subject["scores"]["layers"]
    heads = max(map(len, layers), default=0)
    axes.set_title(caption(subject), fontsize=9, loc="left")
    if heads == 0:
        axes.set_axis_off()
        return None
    scores = [[float(x) for x in layer] + [math.nan] * (heads - len(layer)) for layer in layers]
    image = axes.imshow(scores, vmin=0, vmax=1, cmap="Blues", aspect="auto", origin="lower")
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    for axis, count in ((axes.xaxis, heads), (axes.yaxis, len(layers))):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=min(count, 8)))
    if heads * len(layers) <= 64:
        for row, layer in enumerate(scores):
            for column, score in enumerate(layer):
                if math.isfinite(score):
                    axes.text(
                        column, row, f"{score:.2f}", ha="center", va="center", fontsize=8,
                        color="white" if score > 0.6 else "black",
                    )  # fmt: skip
    return image


def draw(results):
    subjects = results["subjects"]
    figure = pyplot.figure(figsize=(11, max(4.5, 2.6 * len(subjects))), layout="constrained")
    grid = figure.add_gridspec(len(subjects), 2, width_ratios=(1.2, 1))
    losses_axes(figure.add_subplot(grid[:, 0]), results)
    maps = [figure.add_subplot(grid[row, 1]) for row in range(len(subjects))]
    images = [map_axes(axes, subject) for axes, subject in zip(maps, subjects)]
    shown = [image for image in images if image is not None]
    if shown:
        length = results["score_length"]
        figure.colorbar(shown[0], ax=maps, label=f"induction score, {length} symbols", shrink=0.8)
    return figure

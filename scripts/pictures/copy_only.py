"""Accuracy by the way in which documents are read, one bar a model, each with its cache's size."""

from pictures.memory import shown_bytes
from pictures.style import GRID, new_figure, shown_label, style_of

WAYS = {
    "visible": "visible\nin the prompt",
    "copy_only": "copy keys\nalone",
    "last_layer": "last layer's keys\nand values alone",
    "dropped": "dropped",
}
HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo"]


def note(axes, text, x, y):
    axes.annotate(
        text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1}, zorder=5,
    )


def draw(results):
    subjects, asked = results["subjects"], results["questions"]
    ways = [way for way in WAYS if any(way in subject["ways"] for subject in subjects)]
    height = 0.8 / len(subjects)
    figure, axes = new_figure(8, 1.6 + 0.55 * len(ways) * max(1.6, len(subjects)))
    for index, subject in enumerate(subjects):
        style = style_of(index)
        for place, way in enumerate(ways):
            found = subject["ways"].get(way)
            row = place - 0.4 + height * (index + 0.5)
            if found is None:
                note(axes, "no copy head" if way == "copy_only" else "no attention layer at the end", 0, row)
                continue
            accuracy = found["accuracy"]  # at an end of the interval but for rounding
            error = [[max(0, accuracy - found["low"])], [max(0, found["high"] - accuracy)]]
            axes.barh(
                row, accuracy, height * 0.9, facecolor=style["color"] if index == 0 else "white",
                edgecolor=style["color"], hatch=HATCHES[index % len(HATCHES)], zorder=2,
                label=shown_label(subject["name"]) if way == ways[0] else None,
                xerr=error, error_kw={"ecolor": "#909090", "elinewidth": 1.2, "capsize": 3, "zorder": 4},
            )
            size = found["cache_bytes_a_token"]
            text = f"{100 * accuracy:.0f} %, " + (
                f"{shown_bytes(size)} a token" if size > 0 else "nothing kept"
            )
            note(axes, text, max(found["high"], accuracy), row)
    axes.axvline(asked["chance"], color="#707070", linestyle=":", linewidth=1.2, zorder=3)
    axes.annotate(
        "chance", (asked["chance"], 0), xycoords=("data", "axes fraction"), xytext=(3, 3),
        textcoords="offset points", fontsize=8, color="#505050",
    )
    axes.set_yticks(range(len(ways)), [WAYS[way] for way in ways])
    axes.set_ylim(len(ways) - 0.5, -0.5)
    axes.set_xlim(0, 1.42)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set_xticks(ticks, [f"{100 * tick:.0f} %" for tick in ticks])
    axes.spines["bottom"].set_bounds(0, 1)
    axes.set_xlabel("right answers (lines: 95 %)")
    axes.grid(axis="x", **GRID)
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=10)
    kind = "7-digit numbers" if asked["ask"] == "numbers" else "key-value pairs"
    axes.set_title(
        f"{asked['count']:,} questions for {kind} in {asked['documents']} documents of "
        f"{asked['document_tokens']:,} tokens in all", fontsize=10, loc="left",
    )
    return figure

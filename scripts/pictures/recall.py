"""Key-value recall by distance: one line a model, chance, and how far sliding layers see."""

from pictures.style import GRID, new_figure, shown_label, style_of

PARTS = {"no_copy": "LM head alone", "force_copy": "Copy-Paste head alone"}


def draw_subject(axes, results, subject, index):
    style = style_of(index)
    for mode, numbers in subject["modes"].items():
        percent = [100 * x for x in numbers["accuracy"]]
        if mode == "natural":
            axes.plot(
                results["distances"], percent, zorder=4, clip_on=False,
                label=shown_label(subject["name"]), **style,
            )  # fmt: skip
        else:
            axes.plot(
                results["distances"], percent, zorder=3, color=style["color"], linewidth=1, alpha=0.6,
                linestyle=":" if mode == "no_copy" else (0, (1, 3)), marker={"no_copy": "x"}.get(mode, "+"),
                label=f"{shown_label(subject['name'])}, {PARTS[mode]}",
            )  # fmt: skip


def mark_windows(axes, subjects):
    """A sliding window, and what all layers of sliding windows can hand on."""
    marks = {}
    for subject in subjects:
        window = subject["sliding_window"]
        if window is None:
            continue
        marks[window] = f"window {window:,}"
        if all(kind == "sliding_attention" for kind in subject["layers"]):
            layers = len(subject["layers"])
            if layers > 1:  # the answer is written at the key before it
                marks[layers * (window - 1) + 1] = f"reach of {layers} layers"
    for place, text in marks.items():
        axes.axvline(place, color="#808080", linewidth=1, linestyle=(0, (2, 2)), zorder=1)
        axes.annotate(
            text, (place, 0.5), xycoords=("data", "axes fraction"), xytext=(-3, 0), rotation=90,
            textcoords="offset points", ha="right", va="center", fontsize=9, color="#505050",
        )  # fmt: skip


def draw(results):
    figure, axes = new_figure(8, 5)
    for index, subject in enumerate(results["subjects"]):
        draw_subject(axes, results, subject, index)
    mark_windows(axes, results["subjects"])
    chance = 100 * results["chance"]
    axes.axhline(chance, color="#808080", linewidth=1.2, zorder=1)
    axes.annotate(
        f"chance among the pairs, {chance:.3g} %", (1, chance), xytext=(0, 3), fontsize=9, color="#505050",
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="right",
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks(results["distances"], [f"{distance:,}" for distance in results["distances"]])
    axes.minorticks_off()
    axes.set_ylim(0, 103)
    axes.set_xlabel("distance from the value to the answer, tokens (log scale)")
    axes.set_ylabel(f"right answers, % of {results['samples']:,}")
    axes.grid(axis="y", **GRID)
    if len(results["distances"]) > 9:
        axes.tick_params(axis="x", labelrotation=45)
    axes.set_title(f"{results['pairs']} pairs of a key and its value", fontsize=10, loc="left")
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure

"""SpamLang: how often each model repeats the symbol, on symbols seen in training and on others."""

from pictures.style import GRID, new_figure, shown_label, style_of

SPLITS = {"validation": "symbols of training", "held_out": "symbols never seen"}


def draw(results):
    subjects = results["subjects"]
    figure, axes = new_figure(8, 1.8 + 0.6 * len(subjects))
    shown = set()
    for row, subject in enumerate(subjects):
        for index, (split, label) in enumerate(SPLITS.items()):
            if split not in subject["splits"]:
                continue
            found, style = subject["splits"][split], style_of(index)
            for value, filled, what in (
                (found["accuracy"]["natural"], True, "likeliest token"),
                (found["greedy"], False, "going on by itself"),
            ):
                name = f"{label}, {what}"
                axes.plot(
                    value, row + 0.12 * (index - 0.5), linestyle="none", marker=style["marker"],
                    color=style["color"], markerfacecolor=style["color"] if filled else "white",
                    markersize=8, zorder=3, clip_on=False, label=None if name in shown else name,
                )  # fmt: skip
                shown.add(name)
    axes.set_yticks(range(len(subjects)), [shown_label(subject["name"]) for subject in subjects])
    axes.set_ylim(len(subjects) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share of right symbols")
    axes.grid(axis="x", **GRID)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure

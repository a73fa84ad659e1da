"""Requests: accuracy of each model on each file, with its standard error, beside a blind guess."""

from pictures.style import GRID, new_figure, shown_label, style_of


def arms_of(subjects):
    """(label, files, mode): one a model and mode."""
    for subject in subjects:
        modes = subject["files"][0]["modes"]
        for mode in modes:
            alone = len(modes) == 1 and mode == "natural"
            yield shown_label(subject["name"]) + ("" if alone else f", {mode}"), subject["files"], mode


def draw_arm(axes, label, files, mode, metrics, style, offset):
    """One mark a file: the first of `metrics` that it has."""
    for row, file in enumerate(files):
        found = next((file["modes"][mode][name] for name in metrics if name in file["modes"][mode]), None)
        if found is None:
            continue
        axes.errorbar(
            float(found["mean"]), row + offset, xerr=float(found["stderr"] or 0), linestyle="none",
            marker=style["marker"], color=style["color"], markersize=6, capsize=3, zorder=3, label=label,
        )  # fmt: skip
        label = None


def draw_panel(axes, title, metrics, arms):
    files = arms[0][1]
    for index, (label, own_files, mode) in enumerate(arms):
        offset = (index - (len(arms) - 1) / 2) * 0.7 / len(arms)
        draw_arm(axes, label, own_files, mode, metrics, style_of(index), offset)
    label = "blind guess"
    for row, file in enumerate(files):
        if "chance" not in file:
            continue
        axes.plot(
            [file["chance"]] * 2, [row - 0.4, row + 0.4], color="#888888", linewidth=1.5, linestyle=":",
            zorder=2, label=label,
        )  # fmt: skip
        label = None
    axes.set_xlim(-0.02, 1.02)
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel("share of items")
    axes.grid(axis="x", **GRID)


def label_of(file):
    name = shown_label(file["name"])
    return name if file["with_choices"] else f"{name}\n(greedy)"


def draw(results):
    arms = list(arms_of(results["subjects"]))
    files = arms[0][1]
    has_norm = any("acc_norm" in modes for file in files for modes in file["modes"].values())
    height = 2.0 + max(0.5, 0.2 * len(arms)) * len(files)
    figure, axes = new_figure(8, height, ncols=2 if has_norm else 1, squeeze=False, sharey=True)
    draw_panel(axes[0][0], "acc", ("acc", "greedy"), arms)
    if has_norm:
        draw_panel(axes[0][1], "acc_norm (by log P a byte)", ("acc_norm",), arms)
    axes[0][0].set_yticks(range(len(files)), [label_of(file) for file in files])
    axes[0][0].set_ylim(len(files) - 0.5, -0.5)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=10)
    return figure

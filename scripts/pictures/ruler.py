"""RULER's scores: a group of bars a task, the means beside them; one panel a length."""

from pictures.style import GRID, new_figure, shown_label, style_of

HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo"]


def scores_of(subject, length):
    """By label, in the order of the tasks, the means at the end."""
    scores = {task["task"]: task["score"] for task in subject["tasks"] if task["length"] == length}
    [mean] = [mean for mean in subject["means"] if mean["length"] == length]
    scores[f"mean niah\n({mean['niah_tasks']} of 8)"] = mean["niah_mean"]
    scores[f"mean all\n({mean['tasks']} of 13)"] = mean["mean"]
    return {label: score for label, score in scores.items() if score is not None}


def draw_length(axes, subjects, length):
    labels = list(scores_of(subjects[0], length))
    width = 0.8 / len(subjects)
    for index, subject in enumerate(subjects):
        scores = scores_of(subject, length)
        places = [i + (index - (len(subjects) - 1) / 2) * width for i in range(len(labels))]
        bars = axes.bar(
            places, [scores[label] for label in labels], width, zorder=2, edgecolor="white", linewidth=0,
            color=style_of(index)["color"], hatch=HATCHES[index % len(HATCHES)],
            label=shown_label(subject["name"]),
        )  # fmt: skip
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    axes.set_ylim(0, 108)
    axes.set_ylabel("score, 0 to 100")
    axes.grid(axis="y", **GRID)
    axes.set_title(f"{length:,} tokens", fontsize=10, loc="left")


def draw(results):
    lengths, subjects = results["lengths"], results["subjects"]
    figure, grid = new_figure(9, 0.5 + 3.4 * len(lengths), nrows=len(lengths), squeeze=False)
    for axes, length in zip(grid.flat, lengths):
        draw_length(axes, subjects, length)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3, frameon=False, fontsize=10)
    return figure

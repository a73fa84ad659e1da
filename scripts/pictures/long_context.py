"""Long context: perplexity by position, and beneath it what the copy heads do there."""

import math

from pictures.style import GRID, new_mosaic, shown_label, style_of

PANELS = {
    "copy_gate": "copy gate c",
    "sink_mass": "sink s",
    "copy_weight": "copied c(1 - s)",
    "copy_distance": "copy distance (tokens)",
}
# Points of a curve: more, crowded to the right of a log scale, would only make its line thick.
POINTS = 400
# A divergence may be of any size: above so many times the least, a curve leaves the picture.
TALLEST = 30


def number(value):
    return math.nan if value is None else float(value)


def drawn_points(count):
    """Indices of a curve's points, about evenly spaced on a log scale."""
    return sorted({round((count + 1) ** (i / POINTS)) - 1 for i in range(POINTS + 1)} - {count})


def perplexities(subject):
    return [math.exp(min(number(loss), 700)) for loss in subject["by_position"]["loss"]]


def thousands(position, _=None):
    if position >= 1024 and position % 1024 == 0:
        return f"{int(position) // 1024}k"
    return f"{int(position)}"


def set_up_positions(axes, length):
    axes.set_xscale("log", base=2)
    first = 2 ** max(0, math.floor(math.log2(length)) - 9)
    axes.set_xlim(first, length)
    axes.xaxis.set_major_formatter(thousands)
    axes.grid(**GRID)


def mark_training_lengths(axes, subjects, length):
    for trained in sorted({subject["sequence_length"] for subject in subjects}):
        if trained < length:
            axes.axvline(trained, color="#888888", linewidth=1, linestyle=":", zorder=1)
            axes.annotate(
                f"trained to {thousands(trained)}", (trained, 0), xycoords=("data", "axes fraction"),
                xytext=(-4, 4), textcoords="offset points", rotation=90, ha="right", va="bottom",
                fontsize=9, color="#666666",
            )  # fmt: skip


def draw_curve(axes, positions, values, index, label=None):
    style = {key: value for key, value in style_of(index).items() if key != "marker"}
    points = drawn_points(len(values))
    axes.plot(
        [positions[point] for point in points], [values[point] for point in points], label=label, zorder=3, **style
    )  # fmt: skip


def draw_perplexity(axes, subjects, positions, names):
    finite = []
    for index, subject in enumerate(subjects):
        values = perplexities(subject)
        draw_curve(axes, positions, values, index, names[index])
        finite += [value for value in values if math.isfinite(value)]
    axes.set_yscale("log")
    if finite and max(finite) > TALLEST * min(finite):
        axes.set_ylim(top=TALLEST * min(finite))
    for axis_format in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        axis_format(lambda value, _: f"{value:,.0f}" if value >= 1000 else f"{value:.3g}")
    axes.tick_params(axis="y", which="minor", labelsize=8)
    axes.set_ylabel("perplexity (log scale)")


def draw(results):
    data, subjects = results["data"], results["subjects"]
    positions = [index * data["stride"] + 0.5 for index in range(len(subjects[0]["by_position"]["loss"]))]
    names = [
        shown_label(subject["name"]) + (f" (YaRN x{subject['yarn']:g})" if subject["yarn"] else "")
        for subject in subjects
    ]
    copies = [index for index, subject in enumerate(subjects) if subject["head"] == "cplm"]
    rows = [["perplexity"] * 2] * 2 + [
        ["copy_gate", "sink_mass"],
        ["copy_weight", "copy_distance"],
    ] * bool(copies)
    figure, axes = new_mosaic(rows, 8, 9 if copies else 4.8)
    draw_perplexity(axes["perplexity"], subjects, positions, names)
    for key, label in PANELS.items() if copies else ():
        for index in copies:
            values = [number(value) for value in subjects[index]["by_position"][key]]
            draw_curve(axes[key], positions, values, index)
        axes[key].set_title(label, fontsize=11, loc="left")
        axes[key].set_ylim(bottom=0)
    for name, panel in axes.items():
        set_up_positions(panel, data["length"])
        if name in ("perplexity", "copy_weight", "copy_distance"):
            panel.set_xlabel(f"position in the {data['unit']} (log scale)")
    mark_training_lengths(axes["perplexity"], subjects, data["length"])
    axes["perplexity"].legend(frameon=False, fontsize=10)
    unit = data["unit"] + "s" * (data["sequences"] != 1)
    axes["perplexity"].set_title(
        f"{data['sequences']:,} {unit} of {data['length']:,} tokens, means of {data['smooth']:,} positions",
        fontsize=10, loc="left",
    )  # fmt: skip
    return figure

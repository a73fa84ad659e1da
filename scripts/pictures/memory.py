"""Cache size against loss, one mark a checkpoint, arms joined over windows; or, where no loss was
measured, cache size by length.
"""

from pictures.style import GRID, new_figure, shown_label, style_of

PARTS = {"keys_and_values": "keys and values", "states": "recurrent states", "copy_keys": "copy keys"}


def shown_bytes(size):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 999.5 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024


def arm_of(subject):
    """As the legend names it."""
    backbone = subject["backbone"] or "own layers"
    return f"{backbone} {'CPLM' if subject['head'] == 'cplm' else 'vanilla'}"


def by_arm(subjects):
    """(label, subjects): models that differ in nothing but the window are joined; of equal windows the next
    begins another arm."""
    arms = {}
    for subject in subjects:
        same = (arm_of(subject), len(subject["layers"]), subject["hidden_size"], subject["seed"])
        window = subject["rows"][-1]["window"]
        turn = 0
        while window in {s["rows"][-1]["window"] for s in arms.get((*same, turn), [])}:
            turn += 1
        arms.setdefault((*same, turn), []).append(subject)
    labels = [arm_of(subjects[0]) for subjects in arms.values()]
    for label, subjects in zip(labels, arms.values()):
        alone = labels.count(label) == 1
        yield label if alone else f"{label}, {shown_label(subjects[0]['name'])}", subjects


def set_size_ticks(axis, sizes):
    """Powers of two, as bytes are spoken of; every other one where there are many."""
    low, high = min(sizes), max(sizes)
    exponents = [e for e in range(0, 60) if low / 2 <= 2**e <= high * 2]
    step = 1 + len(exponents) // 9
    ticks = [2**e for e in exponents[::step]]
    axis.set_ticks(ticks, [shown_bytes(tick) for tick in ticks], minor=False)
    axis.set_ticks([], minor=True)


def draw_frontier(results, figure, axes):
    length = results["subjects"][0]["rows"][-1]["length"]
    sizes = []
    for index, (arm, subjects) in enumerate(by_arm(results["subjects"])):
        points = sorted(
            (subject["rows"][-1]["cache"], float(subject["perplexity"]), subject["rows"][-1]["window"])
            for subject in subjects
        )
        sizes += [point[0] for point in points]
        axes.plot(
            [point[0] for point in points], [point[1] for point in points], label=arm, zorder=3,
            markersize=7, **style_of(index),
        )
        copies = subjects[0]["head"] == "cplm"  # mostly below the other arm: away from its labels
        for size, perplexity, window in points:
            if window is None:
                continue
            axes.annotate(
                f"w {window}", (size, perplexity), xytext=(-5, -5) if copies else (5, 5),
                textcoords="offset points", ha="right" if copies else "left", va="top" if copies else "bottom",
                fontsize=9, color=style_of(index)["color"],
            )
    axes.set_xscale("log")
    axes.margins(x=0.1, y=0.15)
    set_size_ticks(axes.xaxis, sizes)
    axes.set_xlabel(f"caches of {length:,} tokens (log scale)")
    axes.set_ylabel("perplexity")
    data = results["data"]
    unit = "documents" if data["unit"] == "document" else "windows"
    axes.set_title(
        f"{data['counted_tokens']:,} tokens in {data['sequences']:,} {unit}, context {data['context']:,}",
        fontsize=10, loc="left",
    )


def lines_of(subject):
    """(label, rows) by window."""
    windows = {}
    for row in subject["rows"]:
        windows.setdefault(row["window"], []).append(row)
    for window, rows in windows.items():
        suffix = f", w {window}" if len(windows) > 1 else ""
        yield shown_label(subject["name"] + suffix), rows


def draw_lengths(results, figure, axes):
    lines = [line for subject in results["subjects"] for line in lines_of(subject)]
    sizes, lengths = [], set()
    for index, (label, rows) in enumerate(lines):
        axes.plot(
            [row["length"] for row in rows], [row["cache"] for row in rows], label=label, zorder=3,
            **style_of(index),
        )
        sizes += [row["cache"] for row in rows]
        lengths |= {row["length"] for row in rows}
    axes.set_xscale("log")
    axes.set_yscale("log")
    lengths = sorted(lengths)[:: 1 + len(lengths) // 9]
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.set_xticks([], minor=True)
    set_size_ticks(axes.yaxis, sizes)
    axes.set_xlabel("tokens of one sequence (log scale)")
    axes.set_ylabel("its caches (log scale)")
    number = results["bytes_per_number"]
    axes.set_title(f"{number} byte{'s' * (number != 1)} a number, ids apart", fontsize=10, loc="left")


def shown_share(share):
    return f"1/{1 / share:.2f}" if share < 1 else f"{share:.2f}"


def draw_one_length(results):
    """A bar a model, and its share of full attention without a copy head."""
    lines = [line for subject in results["subjects"] for line in lines_of(subject)]
    figure, axes = new_figure(8, 1.4 + 0.5 * len(lines))
    for place, (_, [row]) in enumerate(lines):
        begin = 0
        for index, (key, label) in enumerate(PARTS.items()):
            if not any(other[key] for _, [other] in lines):
                continue
            axes.barh(
                place, row[key], 0.6, begin, color=style_of(index)["color"], zorder=2,
                hatch=("", "..", "//")[index], edgecolor="white", label=label if place == 0 else None,
            )
            begin += row[key]
        axes.annotate(
            f"{shown_bytes(row['cache'])}, {shown_share(row['of_full_vanilla'])} of full",
            (begin, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=9,
        )
    largest = max(row["cache"] for _, [row] in lines)
    axes.set_xlim(0, 1.35 * largest)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks(range(len(lines)), [label for label, _ in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    number = results["bytes_per_number"]
    axes.set_title(
        f"caches of {lines[0][1][0]['length']:,} tokens, {number} byte{'s' * (number != 1)} a number, ids "
        "apart", fontsize=10, loc="left",
    )
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=10)
    return figure


def draw(results):
    measured = "data" in results
    lengths = {row["length"] for subject in results["subjects"] for row in subject["rows"]}
    if not measured and len(lengths) == 1:
        return draw_one_length(results)
    figure, axes = new_figure(8, 5)
    (draw_frontier if measured else draw_lengths)(results, figure, axes)
    axes.grid(which="major", **GRID)
    entries = len(axes.get_legend_handles_labels()[0])
    columns = 4 if entries in (4, 7, 8) else 3
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, fontsize=10)
    return figure

"""Heat maps of needle accuracy, depth by length: one a model, all with the same colours."""

from pictures.style import matplotlib, new_figure, shown_label

COLOURS = "cividis"  # lightness grows with accuracy, also for the colour-blind and in print


def length_label(tokens):
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"


def draw_map(axes, results, subject):
    accuracy = {(cell["length"], cell["depth"]): cell["accuracy"] for cell in subject["cells"]}
    lengths, depths = results["lengths"], results["depths"]
    rows = [[accuracy[length, depth] * 100 for length in lengths] for depth in depths]
    image = axes.imshow(rows, cmap=COLOURS, vmin=0, vmax=100, aspect="auto")
    for y, row in enumerate(rows):
        for x, percent in enumerate(row):
            axes.text(
                x, y, f"{percent:.0f}", ha="center", va="center", fontsize=9,
                color="black" if percent > 55 else "white",
            )
    axes.set_xticks(range(len(lengths)), [length_label(length) for length in lengths])
    axes.set_yticks(range(len(depths)), [f"{depth} %" for depth in depths])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel("tokens of prompt and answer")
    mean = subject["mean_accuracy"] * 100
    axes.set_title(f"{shown_label(subject['name'])}: mean {mean:.1f} %", fontsize=11, loc="left")
    return image


def draw(results):
    subjects = results["subjects"]
    columns = min(2, len(subjects))
    rows = -(-len(subjects) // columns)
    width = 1.9 + columns * max(3.0, 0.62 * len(results["lengths"]) + 0.7)
    height = rows * max(3.2, 1.4 + 0.34 * len(results["depths"]))
    figure, grid = new_figure(width, height, nrows=rows, ncols=columns, squeeze=False)
    panels = list(grid.flat)
    for axes, subject in zip(panels, subjects):
        image = draw_map(axes, results, subject)
    for axes in panels[len(subjects) :]:
        axes.set_visible(False)
    for row in grid:
        row[0].set_ylabel("depth of the needle")
    bar = figure.colorbar(
        matplotlib.cm.ScalarMappable(image.norm, image.cmap), ax=grid, shrink=0.8, pad=0.02
    )
    bar.set_label(f"right answers, % of {results['samples']:,} a cell")
    bar.outline.set_visible(False)
    return figure

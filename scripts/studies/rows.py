"""What studies with one row an arm share: how a mean and its interval read, and the picture of the rows."""


def interval_text(mean: float, interval: tuple[float, float] | None) -> str:
    """"+0.0123 [+0.0100, +0.0146]", signs always shown."""
    text = f"{mean:+.4f}"
    return text if interval is None else f"{text} [{interval[0]:+.4f}, {interval[1]:+.4f}]"


def new_rows(names: list[str], height: float, xlabel: str):
    """(figure, axes) with the first name on top and room for a line above each mark."""
    from pictures.style import GRID, new_figure

    figure, axes = new_figure(8, height)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.7)
    axes.margins(x=0.2)
    axes.set_xlabel(xlabel)
    axes.grid(axis="x", **GRID)
    return figure, axes


def mark(axes, row: int, value: float, text: str) -> str:
    """Draws a row's value with its text above; returns the row's colour."""
    from pictures.style import style_of

    style = style_of(row)
    axes.plot(value, row, marker=style["marker"], color=style["color"], markersize=9, zorder=3)
    axes.annotate(text, (value, row), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9)
    return style["color"]

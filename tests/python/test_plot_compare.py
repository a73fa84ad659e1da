"""scripts/plot_compare.py: what is drawn of a comparison, as matplotlib's own objects."""

from itertools import combinations

import pytest

pytest.importorskip("matplotlib")
from pictures.style import STYLES, use_own_style  # noqa: E402
from plot_compare import draw  # noqa: E402


def arm(index, seeds=1):
    curve = [
        {"step": step, "tokens": 100.0 * step, "loss": {"mean": loss, "min": loss - 0.05, "max": loss + 0.05}}
        for step, loss in ((s, 4 + 0.1 * index + 10 / s) for s in range(10, 110, 10))
    ]
    return {
        "name": f"arm {index}", "runs": [f"run {seed}" for seed in range(seeds)], "curve": curve,
        "cooldown_tokens": 8000.0, "before_cooldown": None, "at_end": None,
    }  # fmt: skip


def drawn(arms):
    use_own_style()
    return draw({"arms": arms, "targets": {"before_cooldown": None, "at_end": None}})


def curves(arms):
    """The lines that the legend names: one an arm."""
    lines, labels = drawn(arms).axes[0].get_legend_handles_labels()
    assert [label.split(" (")[0] for label in labels] == [arm["name"] for arm in arms]
    return lines


def dashes(line):
    return line._unscaled_dash_pattern  # get_linestyle() says "--" for every pattern of its own


def look_without_colour(line):
    """Of a curve in black and white."""
    return dashes(line), line.get_marker(), line.get_linewidth(), line.get_fillstyle()


def test_a_pair_of_arms_differs_by_line_and_marker():
    first, second = curves([arm(0), arm(1)])
    assert dashes(first) != dashes(second)
    assert first.get_marker() != second.get_marker()


@pytest.mark.parametrize("count", [len(STYLES), len(STYLES) + 3, 30])
def test_no_two_curves_look_alike_in_black_and_white(count):
    lines = curves([arm(index, seeds=2) for index in range(count)])
    for line in lines:  # line and marker are there to be seen
        assert line.get_linewidth() >= 1 and line.get_markersize() >= 4
        assert line.get_marker() not in ("", "None", None) and line.get_linestyle() not in ("", "None")
        assert line.get_markevery() in (None, 1) or len(line.get_xdata()) > line.get_markevery()
    for a, b in combinations(lines, 2):
        assert look_without_colour(a) != look_without_colour(b), (a.get_label(), b.get_label())


def test_the_legend_shows_line_and_marker():
    shown = drawn([arm(0), arm(1)]).legends[0].get_lines()
    assert len({dashes(line) for line in shown}) == 2
    assert len({line.get_marker() for line in shown}) == 2

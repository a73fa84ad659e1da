#!/usr/bin/env python3
"""Draws what `cplm compare --out` found: validation loss by training tokens.

Reads compare.json and writes compare.png and compare.svg beside it (or into --out). Arms differ by
line style and marker as well as colour, so the picture survives black and white; equal input gives
equal files.
"""

import math
import sys
import textwrap

from pictures.style import GRID, draw_from_command_line, new_figure, shown_label, style_of

from matplotlib.ticker import FuncFormatter  # isort: skip (style names what is missing)

MAX_MARKERS = 25
MAX_LEGEND_WIDTH = 96  # characters a line
# The first tokens lower the loss by more than all later ones; the picture is about the later ones.
SHOWN_FROM_SHARE = 0.05
# Beyond this ratio of tokens a linear axis would squeeze the shorter one into a corner.
LOG_AXIS_RATIO = 10.0


def points_of(arm):
    """An arm's curve as (tokens, mean, lowest, highest); a loss that is not finite is all nan."""
    points = []
    for point in arm["curve"]:
        losses = [float(point["loss"][key]) for key in ("mean", "min", "max")]
        if not all(math.isfinite(loss) for loss in losses):
            losses = [math.nan] * 3
        points.append((float(point["tokens"]), *losses))
    return points


def is_finite(point):
    return not math.isnan(point[1])


def reaches_of(comparison):
    """What is to be drawn, as (index of the arm, phase, target, reach)."""
    targets, reaches = comparison["targets"], []
    for index, arm in enumerate(comparison["arms"]):
        for phase in ("before_cooldown", "at_end"):
            if phase == "before_cooldown" and targets[phase] == targets["at_end"]:
                continue  # no cooldown: one target, told once
            reach = arm[phase]
            if targets[phase] and reach:
                reaches.append((index, phase, targets[phase], reach))
    return reaches


def format_tokens(value, _position=None):
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def percent(share):
    return f"{100 * share:.3g} %"


def describe_reach(reach, unit=" of the tokens"):
    if not reach["reached"]:
        return "not reached"
    if reach["share"] is None:
        return "reached"
    return f"{'at most ' if reach['at_most'] else ''}{percent(reach['share'])}{unit}"


def label_of(comparison, index):
    arm = comparison["arms"][index]
    seeds = len(arm["runs"])
    label = arm["name"] + (f" ({seeds} seeds)" if seeds > 1 else "")
    phrases = {"before_cooldown": "before the cooldown", "at_end": "at the end"}
    parts = []
    for arm_index, phase, _target, reach in reaches_of(comparison):
        if arm_index == index:
            told = describe_reach(reach, unit="") if parts else describe_reach(reach)
            parts.append(f"{told} {phrases[phase]}")
    if parts:
        label += ": " + ", ".join(parts)
    return shown_label(textwrap.fill(label, MAX_LEGEND_WIDTH))


def draw_arm(axes, label, style, points, has_band):
    tokens, mean, low, high = zip(*points)
    every = max(1, math.ceil(len(points) / MAX_MARKERS))
    axes.plot(tokens, mean, label=label, markevery=every, zorder=3, **style)
    if has_band:
        # The band runs from the lowest seed to the highest.
        axes.fill_between(tokens, low, high, color=style["color"], alpha=0.2, linewidth=0, zorder=2)


def draw_reach(axes, target, reach, color, text_side):
    """From the baseline's point, along its loss, back to where the arm reaches that loss.

    text_side: above or below the line, or None where several arms share it (the legend tells).
    """
    if not reach["reached"]:
        return
    loss, ends = target["loss"], [reach["tokens"], target["tokens"]]
    axes.plot(
        ends, [loss, loss], color=color, linewidth=1.0, zorder=4, marker="o", markersize=8,
        markerfacecolor="white", markeredgecolor=color, markeredgewidth=1.5,
    )
    text = describe_reach(reach)
    white = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
    style = {"color": color, "zorder": 6, "bbox": white}
    if text_side == "above":  # beside the crossing, since the baseline's curve is near further on
        # Near the right edge the text would leave the axes: there it ends at the baseline's point.
        start, align = (8, "left") if reach["share"] is None or reach["share"] < 0.75 else (-8, "right")
        axes.annotate(
            text, (ends[0] if align == "left" else ends[1], loss), xytext=(start, 4),
            textcoords="offset points", ha=align, **style,
        )
    elif text_side == "below":  # half-way, since the arm's own curve is near the crossing
        middle = math.sqrt(ends[0] * ends[1]) if axes.get_xscale() == "log" else sum(ends) / 2
        axes.annotate(
            text, (middle, loss), xytext=(0, -4), textcoords="offset points", ha="center",
            va="top", **style,
        )


def draw_cooldowns(axes, arms):
    for tokens in sorted({arm["cooldown_tokens"] for arm in arms if arm["cooldown_tokens"]}):
        axes.axvline(tokens, color="#808080", linestyle=(0, (2, 3)), linewidth=1.2, zorder=1)
        axes.annotate(
            "cooldown starts", (tokens, 1.0), xycoords=("data", "axes fraction"), xytext=(-4, -4),
            textcoords="offset points", rotation=90, ha="right", va="top", color="#505050", fontsize=9,
        )


def needs_log_axis(curves, reaches):
    lengths = [points[-1][0] for points in curves]
    shares = [reach["share"] for *_, reach in reaches if reach["reached"] and reach["share"]]
    return max(lengths) > LOG_AXIS_RATIO * min(lengths) or min(shares, default=1) < 1 / LOG_AXIS_RATIO


def set_limits(axes, curves, reaches, is_log):
    longest = max(points[-1][0] for points in curves)
    shown = []
    for points in curves:
        first = SHOWN_FROM_SHARE * points[-1][0]
        shown += [p for p in points if p[0] >= first and is_finite(p)]
    if shown:
        low, high = min(p[2] for p in shown), max(p[3] for p in shown)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim(low - margin, high + margin)
    if is_log:
        tokens = [p[0] for points in curves for p in points]
        tokens += [reach["tokens"] for *_, reach in reaches if reach["reached"]]
        axes.set_xlim(min(t for t in tokens if t > 0) / 1.1, longest * 1.1)
        axes.set_xscale("log", nonpositive="mask")
    else:
        axes.set_xlim(0, longest * 1.02)


def draw(comparison):
    arms, reaches = comparison["arms"], reaches_of(comparison)
    curves = [points_of(arm) for arm in arms]
    beyond_start = [points for points in curves if points and points[-1][0] > 0]
    if not beyond_start:
        sys.exit("no arm has a validation after step 0: nothing to draw")
    figure, axes = new_figure()
    is_log = needs_log_axis(beyond_start, reaches)
    set_limits(axes, beyond_start, reaches, is_log)
    draw_cooldowns(axes, arms)
    for index, (arm, points) in enumerate(zip(arms, curves)):
        label = label_of(comparison, index)
        draw_arm(axes, label, style_of(index), points, has_band=len(arm["runs"]) > 1)
    for index, phase, target, reach in reaches:
        text_side = {"before_cooldown": "above", "at_end": "below"}[phase] if len(arms) == 2 else None
        draw_reach(axes, target, reach, style_of(index)["color"], text_side)
    axes.set_xlabel("training tokens" + (" (log scale)" if is_log else ""))
    axes.set_ylabel("validation loss (nats per token)")
    axes.xaxis.set_major_formatter(FuncFormatter(format_tokens))
    axes.grid(**GRID)
    figure.legend(loc="outside upper left", frameon=False, handlelength=3.5, fontsize=10)
    return figure


def main():
    draw_from_command_line(
        __doc__.splitlines()[0], "compare.json, as `cplm compare --out` writes it", draw
    )


if __name__ == "__main__":
    main()

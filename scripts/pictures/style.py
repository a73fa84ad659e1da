"""The look of all pictures, and how they reach the disk.

Arms differ by line style and marker as well as colour, so that a picture survives black and white;
equal input gives equal files.
"""

import argparse
import json
import os
import sys

from project_version import add_version_argument

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
except ImportError as error:
    sys.exit(
        f"{sys.executable} cannot import matplotlib ({error}): use .venv/bin/python, made by scripts/setup"
    )

# Okabe-Ito colours, told apart by the colour-blind too, in an order of changing lightness.
STYLES = [
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    {"color": "#0072B2", "linestyle": "-.", "marker": "^"},
    {"color": "#009E73", "linestyle": ":", "marker": "D"},
    {"color": "#CC79A7", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#E69F00", "linestyle": (0, (8, 3)), "marker": "P"},
    {"color": "#56B4E9", "linestyle": (0, (3, 1, 1, 1)), "marker": "X"},
]
GRID = {"color": "#E0E0E0", "linewidth": 0.7, "zorder": 0}


def use_own_style():
    matplotlib.rcdefaults()  # not the user's matplotlibrc: equal input, equal picture
    matplotlib.rcParams.update(
        {
            "font.size": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "lines.linewidth": 1.8,
            "lines.markersize": 5,
            "svg.hashsalt": "cplm",
            "text.parse_math": False,  # a run may have a dollar sign in its name
        }
    )


def style_of(index):
    """Each round of styles pairs line and marker anew: 49 arms differ without their colours too."""
    turn, count = index // len(STYLES), len(STYLES)
    return {
        "color": STYLES[index % count]["color"],
        "linestyle": STYLES[(index + turn) % count]["linestyle"],
        "marker": STYLES[(index + 2 * turn) % count]["marker"],
    }


def shown_label(text):
    """matplotlib hides labels that begin with an underscore."""
    return " " + text if text.startswith("_") else text


def new_figure(width=8, height=5, **arguments):
    return pyplot.subplots(figsize=(width, height), layout="constrained", **arguments)


def new_mosaic(rows, width=8, height=5):
    """Panels by name; rows: lists of names, one that is repeated spans its places."""
    return pyplot.subplot_mosaic(rows, figsize=(width, height), layout="constrained")


def save(figure, folder, name, kind, **options):
    """Under its name only when whole."""
    path = os.path.join(folder, f"{name}.{kind}")
    aside = path + ".partial"
    figure.savefig(aside, format=kind, **options)
    os.replace(aside, path)


def draw_from_command_line(description, what, draw):
    """A program that reads a JSON file and writes a PNG and an SVG named like it beside it.

    draw(results): the figure.
    """
    parser = argparse.ArgumentParser(description=description)
    add_version_argument(parser)
    parser.add_argument("results", help=what)
    parser.add_argument("--out", help="folder for the pictures (default: beside the JSON file)")
    arguments = parser.parse_args()
    try:
        with open(arguments.results, encoding="utf-8") as file:
            results = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"cannot read {arguments.results}: {error}")
    use_own_style()
    figure = draw(results)
    folder = arguments.out or os.path.dirname(os.path.abspath(arguments.results))
    name = os.path.splitext(os.path.basename(arguments.results))[0]
    try:
        os.makedirs(folder, exist_ok=True)
        save(figure, folder, name, "png", dpi=200)
        save(figure, folder, name, "svg", metadata={"Date": None})
    except OSError as error:
        sys.exit(f"cannot write the pictures: {error}")

"""Two pictures of the study of small models: final losses of all pairs, and gate and sink over training."""

from pictures.style import GRID, new_figure, style_of


def _rows(results: dict) -> list[tuple[str, dict]]:
    rows = [(f"sliding, window {row['window']}", row) for row in results["windows"]]
    by_backbone = {row["backbone"]: row for row in results["pairs"]}
    return rows + [(backbone, by_backbone[backbone]) for backbone in ("hybrid", "full")]


def draw_losses(results: dict):
    """One row a pair: an arrow from the vanilla loss to the CPLM's, their difference beside it."""
    rows = _rows(results)
    figure, axes = new_figure(8, 1.4 + 0.5 * len(rows))
    for place, (_, row) in enumerate(rows):
        vanilla, cplm = row["vanilla"]["mean"], row["cplm"]["mean"]
        axes.plot([vanilla, cplm], [place, place], color="#808080", linewidth=1, zorder=2)
        for index, loss in enumerate((vanilla, cplm)):
            label = ("vanilla", "CPLM")[index] if place == 0 else None
            axes.plot(loss, place, linestyle="", label=label, zorder=3, markersize=8,
                      **{key: style_of(index)[key] for key in ("color", "marker")})  # fmt: skip
        axes.annotate(
            f"{row['difference']['mean']:+.3f}", ((vanilla + cplm) / 2, place), xytext=(0, 4), ha="center",
            textcoords="offset points", fontsize=9,
        )  # fmt: skip
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.6)
    axes.set_xlabel("validation loss after training, nats a token")
    axes.grid(axis="x", **GRID)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    return figure


def draw_gates(results: dict):
    """A panel a number: copy gate, sink mass and copied weight by tokens, one line a backbone."""
    panels = (("copy_gate", "copy gate c"), ("sink_mass", "sink s"), ("copy_weight", "copied weight c (1 - s)"))
    figure, all_axes = new_figure(8, 3.4, ncols=3, sharey=True)
    backbones = list(dict.fromkeys(point["backbone"] for point in results["gates"]))
    for axes, (key, title) in zip(all_axes, panels):
        for index, backbone in enumerate(backbones):
            points = [point for point in results["gates"] if point["backbone"] == backbone]
            style = {key: value for key, value in style_of(index).items() if key != "marker"}
            axes.plot([p["tokens"] / 1e6 for p in points], [p[key] for p in points], label=backbone, **style)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("million tokens")
        axes.grid(axis="y", **GRID)
    all_axes[0].set_ylim(0, 1)
    all_axes[0].set_ylabel("mean over validation targets")
    handles, labels = all_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), frameon=False)
    return figure

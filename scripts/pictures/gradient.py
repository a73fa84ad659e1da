"""Gradient: what the Copy-Paste head's two paths keep by position, and what the LM head loses."""

from pictures.style import GRID, new_figure, shown_label, style_of

PATHS = {"copy_query": "query path", "copy_key": "key path"}
TOLERANCES = {"1e-12": "-", "1e-3": "--", "1e-2": ":"}


def path_axes(axes, results, path, title):
    random = {}
    for index, subject in enumerate(results["subjects"]):
        if path not in subject:
            continue
        color = style_of(index)["color"]
        places = subject[path]["positions"]
        for place in places:
            if not isinstance(place["random"], str):
                random.setdefault(place["position"], place["random"])
        for tolerance, line in TOLERANCES.items():
            kept = [(p["position"], p["kept"][tolerance]) for p in places if p["kept"][tolerance]]
            if not kept:
                continue
            at = [position for position, _ in kept]
            axes.plot(
                at, [float(x["mean"]) for _, x in kept], color=color, linestyle=line, zorder=3,
                label=shown_label(f"{subject['name']}, rtol {tolerance}"),
            )  # fmt: skip
            if tolerance == "1e-3":
                low, high = ([float(x[name]) for _, x in kept] for name in ("q05", "q95"))
                axes.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0, zorder=2)
    if random:
        positions = sorted(random)
        axes.plot(
            positions, [random[p] for p in positions], color="#808080", linewidth=1, marker=".",
            label="random map",
        )  # fmt: skip
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel("position")
    axes.set_ylabel("share of the gradient's norm kept")
    axes.set_ylim(0, 1.05)
    axes.grid(**GRID)
    axes.legend(frameon=False, fontsize=8)


def lm_head_axes(axes, results):
    for row, subject in enumerate(results["subjects"]):
        head = subject["lm_head"]
        if not head["lost"]:
            continue
        style = style_of(row)
        lost = float(head["lost"]["mean"])
        axes.plot(
            [float(head["lost"][q]) for q in ("q05", "q95")], [row, row], color=style["color"], zorder=2
        )
        axes.plot(lost, row, marker=style["marker"], color=style["color"], markersize=8, zorder=3)
        axes.plot(head["isotropic_lost"], row, marker="|", color="#808080", markersize=14, zorder=3)
        axes.annotate(
            f"{lost:.4f}", (lost, row), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9
        )
    subjects = results["subjects"]
    axes.set_yticks(range(len(subjects)), [shown_label(subject["name"]) for subject in subjects])
    axes.set_ylim(len(subjects) - 0.4, -0.6)
    axes.set_title("LM head (bar: of an isotropic gradient)", fontsize=10, loc="left")
    axes.set_xlabel("share of the gradient's norm lost")
    axes.grid(axis="x", **GRID)


def draw(results):
    copies = [path for path in PATHS if any(path in subject for subject in results["subjects"])]
    figure, axes = new_figure(5 + 4 * len(copies), 4.2, ncols=1 + len(copies), squeeze=False)
    lm_head_axes(axes[0][0], results)
    for place, path in zip(axes[0][1:], copies):
        path_axes(place, results, path, "Copy-Paste head, " + PATHS[path])
    data = results["data"]
    band = "; bands: 5 to 95 % of them at rtol 1e-3" if copies else ""
    figure.suptitle(
        f"{data['sequences']:,} sequences of {data['context']:,} tokens{band}", fontsize=10, x=0.01, ha="left"
    )
    return figure

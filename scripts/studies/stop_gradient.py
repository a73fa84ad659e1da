"""Stop-gradient: how much of the Copy-Paste head's gain is left when its gradient does not reach the
backbone. Fraction kept = (loss of vanilla - loss of the cut arm) / (loss of vanilla - loss of CPLM)."""

import math
from pathlib import Path

from studies.command import aligned
from studies.errors import StudyError
from studies.study import Study

ARMS = {
    "vanilla": {"model.head": "vanilla"},
    "cplm": {"model.head": "cplm", "model.copy.stop_gradient": "none"},
    "scores": {"model.head": "cplm", "model.copy.stop_gradient": "scores"},
    "scores_and_gate": {"model.head": "cplm", "model.copy.stop_gradient": "scores_and_gate"},
}
CUTS = ("scores", "scores_and_gate")


def _run_name(arm: str, seed: int) -> str:
    return f"{arm.replace('_', '-')}-{seed}"


def _final_losses(comparison: dict) -> dict[str, float]:
    return {run["name"]: float(run["validations"][-1]["loss"]) for run in comparison["runs"]}


def fraction_kept(vanilla: float, cplm: float, cut: float) -> float:
    """nan where CPLM gains nothing."""
    return (vanilla - cut) / (vanilla - cplm) if vanilla > cplm else math.nan


def fractions(losses: dict[str, float], seeds: list[int], cut: str) -> list[float]:
    """One a seed."""
    return [fraction_kept(*(losses[_run_name(name, seed)] for name in ("vanilla", "cplm", cut))) for seed in seeds]


def _arm_results(comparison: dict, seeds: list[int]) -> list[dict]:
    losses = _final_losses(comparison)
    results = []
    for arm, compared in zip(ARMS, comparison["arms"]):
        of_seeds = [losses[_run_name(arm, seed)] for seed in seeds]
        result = {"arm": arm, "loss": sum(of_seeds) / len(of_seeds), "by_seed": of_seeds}
        if arm != "vanilla":
            result["difference"] = compared["difference"]  # to vanilla, window by window
        if arm in CUTS:
            kept = fractions(losses, seeds, arm)
            known = [x for x in kept if math.isfinite(x)]
            result["kept_by_seed"] = [x if math.isfinite(x) else None for x in kept]
            result["kept"] = sum(known) / len(known) if known else None
        results.append(result)
    return results


def _table(arms: list[dict]) -> str:
    rows = [["arm", "loss", "loss - vanilla (95 %)", "gain kept", "by seed"]]
    for arm in arms:
        difference, shown = arm.get("difference"), None
        if difference:
            shown = f"{difference['mean']:+.4f}"
            if "low" in difference:
                shown += f" [{difference['low']:+.4f}, {difference['high']:+.4f}]"
        kept = arm.get("kept")
        by_seed = [f"{x:.3f}" if x is not None else "-" for x in arm.get("kept_by_seed", [])]
        rows.append([
            arm["arm"], f"{arm['loss']:.4f}", shown, None if kept is None else f"{kept:.3f}",
            " ".join(by_seed) if len(by_seed) > 1 else None,
        ])  # fmt: skip
    return aligned(rows)


def draw(results: dict):
    from pictures.style import GRID, new_figure, style_of

    figure, axes = new_figure(8, 3.4)
    arms = results["arms"]
    for row, arm in enumerate(arms):
        style = style_of(row)
        axes.plot(arm["by_seed"], [row] * len(arm["by_seed"]), ".", color=style["color"], zorder=3)
        axes.plot(arm["loss"], row, marker=style["marker"], color=style["color"], markersize=9, zorder=3)
        text = f"{arm['loss']:.4f}"
        if arm.get("kept") is not None:
            text += f", keeps {arm['kept']:.0%} of the gain"
        axes.annotate(text, (arm["loss"], row), xytext=(0, 9), textcoords="offset points", ha="center", fontsize=9)
    axes.set_yticks(range(len(arms)), [arm["arm"].replace("_", " ") for arm in arms])
    axes.set_ylim(len(arms) - 0.5, -0.7)
    axes.margins(x=0.2)
    axes.set_xlabel("final validation loss (nats a token)")
    axes.grid(axis="x", **GRID)
    return figure


def run(given, program: Path) -> None:
    settings = {"config": str(given.config), "seeds": given.seeds, "set": given.overrides}
    if not given.config.is_file():
        raise StudyError(f"--config {given.config}: no such file", 2)
    study = Study("stop_gradient", given.out, settings, program)
    names = []
    for arm, overrides in ARMS.items():
        for seed in given.seeds:
            names.append(_run_name(arm, seed))
            study.train(names[-1], given.config, {**dict(given.overrides), **overrides, "run.seed": seed})
    comparison = study.compare(*names)
    arms = _arm_results(comparison, given.seeds)
    study.finish({"format": "cplm-study-stop-gradient-1", "settings": settings, "arms": arms}, _table(arms), draw)

"""Stop-gradient: how much of the Copy-Paste head's gain is left when its gradient does not reach the
backbone. Fraction kept = (loss of vanilla - loss of the cut arm) / (loss of vanilla - loss of CPLM)."""

import math
from pathlib import Path

from studies.command import aligned
from studies.rows import interval_text, mark, new_rows
from studies.study import Study, check_config_file

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
            interval = (difference["low"], difference["high"]) if "low" in difference else None
            shown = interval_text(difference["mean"], interval)
        kept = arm.get("kept")
        by_seed = [f"{x:.3f}" if x is not None else "-" for x in arm.get("kept_by_seed", [])]
        rows.append([
            arm["arm"], f"{arm['loss']:.4f}", shown, None if kept is None else f"{kept:.3f}",
            " ".join(by_seed) if len(by_seed) > 1 else None,
        ])  # fmt: skip
    return aligned(rows)


def draw(results: dict):
    arms = results["arms"]
    names = [arm["arm"].replace("_", " ") for arm in arms]
    figure, axes = new_rows(names, 3.4, "final validation loss (nats a token)")
    for row, arm in enumerate(arms):
        text = f"{arm['loss']:.4f}"
        if arm.get("kept") is not None:
            text += f", keeps {arm['kept']:.0%} of the gain"
        color = mark(axes, row, arm["loss"], text)
        axes.plot(arm["by_seed"], [row] * len(arm["by_seed"]), ".", color=color, zorder=3)
    return figure


def run(given, program: Path) -> None:
    settings = {"config": str(given.config), "seeds": given.seeds, "set": given.overrides}
    check_config_file(given.config)
    study = Study("stop_gradient", given.out, settings, program, (given.config,))
    names = []
    for arm, overrides in ARMS.items():
        for seed in given.seeds:
            names.append(_run_name(arm, seed))
            study.train(names[-1], given.config, {**dict(given.overrides), **overrides, "run.seed": seed})
    comparison = study.compare(*names)
    arms = _arm_results(comparison, given.seeds)
    study.finish({"format": "cplm-study-stop-gradient-1", "settings": settings, "arms": arms}, _table(arms), draw)

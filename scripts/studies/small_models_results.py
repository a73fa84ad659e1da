"""What the models of the study of small models found: tables from the JSON that `cplm` wrote, two pictures of
their own, and one page, OUT/study.md, that shows them with the pictures of the evaluations."""

import json
import math
import os
from pathlib import Path

from studies import small_models as models
from studies.small_models import HEADS, Plan, pair_name, window_name
from studies.stop_gradient import fraction_kept
from studies.study import Study, write_whole


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _comparison(plan: Plan, name: str) -> dict:
    return _read(plan.comparison(name) / "compare.json")


def _pair_row(plan: Plan, name: str, seeds: tuple[int, ...]) -> dict:
    """A vanilla arm and its Copy-Paste twin; shares of tokens are each seed's own pair's."""
    vanilla, cplm = _comparison(plan, name)["arms"]
    row = {
        "vanilla": vanilla["final"]["loss"], "cplm": cplm["final"]["loss"], "difference": cplm["difference"],
        "seeds": len(seeds),
    }  # fmt: skip
    twins = [_comparison(plan, f"{name}-{seed}" if name in models.BACKBONES else name)["arms"][1] for seed in seeds]
    for target in ("before_cooldown", "at_end"):
        row[target] = [twin[target]["share"] if twin[target]["reached"] else None for twin in twins]
    return row


def pairs(plan: Plan) -> list[dict]:
    return [
        {"backbone": backbone, **_pair_row(plan, backbone, models.SEEDS_OF[backbone])}
        for backbone in models.BACKBONES
    ]  # fmt: skip


def windows(plan: Plan) -> list[dict]:
    memory = {s["name"]: s for s in _read(plan.evaluation("memory") / "memory.json")["subjects"]}
    rows = []
    for window in sorted({models.WINDOW, *models.OTHER_WINDOWS}):
        name = f"sliding-{models.SEED}" if window == models.WINDOW else f"window-{window}"
        caches = {head: memory[window_name(window, head)]["rows"][0]["cache"] for head in HEADS}
        rows.append({"window": window, **_pair_row(plan, name, (models.SEED,)), "cache_bytes": caches})
    return rows


def gates(plan: Plan) -> list[dict]:
    """By backbone, the first seed's validations: tokens and the means of copy gate, sink, copied weight."""
    rows = []
    for backbone in models.BACKBONES:
        arm = _comparison(plan, f"{backbone}-{models.SEED}")["arms"][1]
        for point in arm["curve"]:
            rows.append({
                "backbone": backbone, "tokens": point["tokens"], "loss": point["loss"]["mean"],
                **{key: point[key] for key in ("loss_no_copy", "copy_gate", "sink_mass", "copy_weight")},
            })  # fmt: skip
    return rows


def cuts(plan: Plan) -> list[dict]:
    losses = [run["validations"][-1]["loss"] for run in _comparison(plan, "cuts")["runs"]]
    kept = [None, None, *(fraction_kept(losses[0], losses[1], loss) for loss in losses[2:])]
    return [
        {"arm": name, "loss": loss, "kept": share if share is None or math.isfinite(share) else None}
        for name, loss, share in zip([*HEADS, *models.CUTS], losses, kept)
    ]


def byte_levels(plan: Plan) -> list[dict]:
    return _read(plan.out / "bytes/bytes.json")["levels"]


def long_context(plan: Plan) -> list[dict]:
    rows = []
    for name in ("sliding", "full"):
        for subject in _read(plan.evaluation(f"long-context-{name}") / "long-context.json")["subjects"]:
            for bucket in subject["buckets"]:
                rows.append({"model": subject["name"], "head": subject["head"], **bucket})
    return rows


def gradient(plan: Plan) -> list[dict]:
    rows = []
    for subject in _read(plan.evaluation("gradient") / "gradient.json")["subjects"]:
        head, query = subject["lm_head"], subject.get("copy_query")
        rows.append({
            "model": subject["name"], "lost": head["lost"]["mean"], "isotropic_lost": head["isotropic_lost"],
            "query": query["bins"] if query else [],
        })  # fmt: skip
    return rows


def induction(plan: Plan) -> dict:
    return _read(plan.evaluation("induction") / "induction.json")


def retrieval(plan: Plan, task: str) -> dict:
    return _read(plan.retrieval / f"{task}.json")


def collect(plan: Plan) -> dict:
    return {
        "pairs": pairs(plan), "windows": windows(plan), "gates": gates(plan), "stop_gradient": cuts(plan),
        "bytes": byte_levels(plan), "long_context": long_context(plan), "gradient": gradient(plan),
        "induction": induction(plan), "recall": retrieval(plan, "recall"), "needle": retrieval(plan, "needle"),
    }  # fmt: skip


def picture_paths(plan: Plan) -> dict[str, str]:
    """From the page's folder, by the names of its sections."""
    paths = {
        "losses": plan.out / "losses.png", "gates": plan.out / "gates.png",
        "sliding": plan.comparison("sliding") / "compare.png", "full": plan.comparison("full") / "compare.png",
        "memory": plan.evaluation("memory") / "memory.png", "gradient": plan.evaluation("gradient") / "gradient.png",
        "long-context-sliding": plan.evaluation("long-context-sliding") / "long-context.png",
        "long-context-full": plan.evaluation("long-context-full") / "long-context.png",
        "induction": plan.evaluation("induction") / "induction.png",
        "recall": plan.retrieval / "recall.png", "needle": plan.retrieval / "needle.png",
    }  # fmt: skip
    return {name: os.path.relpath(path, plan.out) for name, path in paths.items()}


def write_results(study: Study, plan: Plan, seconds: dict[str, float]) -> None:
    from pictures.style import save, use_own_style
    from studies.small_models_page import page
    from studies.small_models_pictures import draw_gates, draw_losses

    results = {"format": "cplm-study-small-models-1", "seconds": seconds, **collect(plan)}
    write_whole(study.out / "study.json", json.dumps(results, indent=1) + "\n")
    use_own_style()
    for name, draw in (("losses", draw_losses), ("gates", draw_gates)):
        figure = draw(results)
        save(figure, study.out, name, "png", dpi=200)
        save(figure, study.out, name, "svg", metadata={"Date": None})
    write_whole(study.out / "study.md", page(results, picture_paths(plan)))
    study.say(f"{study.out / 'study.md'}, study.json; {seconds['processor_s'] / 60:.0f} minutes of processor in all")

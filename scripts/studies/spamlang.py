"""SpamLang: can a model repeat the one symbol of a sample, at growing vocabularies? One run for each width,
vocabulary, head and learning rate; of the rates each head shows its best."""

from pathlib import Path

from studies.command import ROOT, aligned
from studies.study import Study

CONFIG = ROOT / "configs/study-spamlang.yaml"
HEADS = ("vanilla", "cplm")
SAMPLES_A_STEP = 64


def _data(study: Study, exponent: int, given) -> Path:
    folder = study.out / "data" / f"v{2**exponent}"
    if not (folder / "manifest.json").exists():
        study.say(f"2^{exponent} symbols: making samples")
        study.cplm(
            "data", "make", "spamlang", "--output", folder, "--vocab-size", 2**exponent, "--first-symbol", 1,
            "--sequence-length", given.length, "--samples", SAMPLES_A_STEP * given.steps,
            "--validation-samples", given.samples, "--held-out", 2**exponent // 8,
        )  # fmt: skip
    return folder


def _overrides(given, width: int, exponent: int, head: str, rate: float, tied: bool, data: Path) -> dict:
    return {
        "model.vocab_size": 2**exponent,
        "model.hidden_size": width,
        "model.num_attention_heads": width // 16,
        "model.num_key_value_heads": width // 16,
        "model.intermediate_size": 3 * width,
        "model.initializer_range": width**-0.5,
        "model.tie_word_embeddings": str(tied).lower(),
        "model.head": head,
        "data.train": f"['{data}/train/*.h5']",
        "data.validation": f"['{data}/validation/*.h5']",
        "data.sequence_length": given.length,
        "train.steps": given.steps,
        "train.batch_tokens": SAMPLES_A_STEP * given.length,
        "optimizer.lr": rate,
        **dict(given.overrides),
    }


def _measure(study: Study, given, cell: dict, rate: float) -> dict:
    data = _data(study, cell["exponent"], given)
    arm = f"d{cell['width']}-v{cell['vocabulary']}-{cell['embeddings']}-{cell['head']}-lr{rate:g}"
    overrides = _overrides(
        given, cell["width"], cell["exponent"], cell["head"], rate, cell["embeddings"] == "tied", data
    )
    run = study.train(arm, CONFIG, overrides)
    found = study.evaluate("spamlang", arm, run, "--sequences", given.samples)
    splits = found["subjects"][0]["splits"]
    return {"arm": arm, "lr": rate, **{name: {**split["accuracy"], "greedy": split["greedy"]} for name, split in splits.items()}}


def _best(runs: list[dict]) -> dict:
    return max(runs, key=lambda run: (run["validation"]["natural"], run["held_out"]["natural"]))


def _table(cells: list[dict]) -> str:
    def number(cell, split, key):
        value = cell["best"][split].get(key)
        return None if value is None else f"{value:.4f}"

    rows = [["D", "V", "embeddings", "head", "lr", "accuracy", "never seen", "LM head alone", "going on", "never seen"]]
    for cell in cells:
        rows.append([
            cell["width"], cell["vocabulary"], cell["embeddings"], cell["head"], f"{cell['best']['lr']:g}",
            number(cell, "validation", "natural"), number(cell, "held_out", "natural"),
            number(cell, "validation", "no_copy"), number(cell, "validation", "greedy"), number(cell, "held_out", "greedy"),
        ])  # fmt: skip
    return aligned(rows)


def draw(results: dict):
    from pictures.style import GRID, new_figure, style_of

    widths = sorted({cell["width"] for cell in results["cells"]})
    figure, axes = new_figure(4.6 * len(widths), 4.4, ncols=len(widths), squeeze=False, sharey=True)
    for place, width in zip(axes[0], widths):
        lines: dict[tuple, list] = {}
        for cell in results["cells"]:
            if cell["width"] == width:
                lines.setdefault((cell["head"], cell["embeddings"]), []).append(cell)
        for index, ((head, embeddings), cells) in enumerate(sorted(lines.items(), reverse=True)):
            style = style_of(index)
            vocabulary = [cell["vocabulary"] for cell in cells]
            for split, filled in (("validation", True), ("held_out", False)):
                place.plot(
                    vocabulary, [cell["best"][split]["natural"] for cell in cells], color=style["color"],
                    marker=style["marker"], linestyle="-" if filled else ":", zorder=3, clip_on=False,
                    markerfacecolor=style["color"] if filled else "white",
                    label=f"{head}, {embeddings}: " + ("symbols of training" if filled else "never seen"),
                )  # fmt: skip
        place.set_xscale("log", base=2)
        ticks = sorted({cell["vocabulary"] for cell in results["cells"]})
        place.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        place.set_xticks([], minor=True)
        place.set_ylim(0, 1.02)
        place.set_title(f"D = {width}", fontsize=10, loc="left")
        place.set_xlabel("symbols (log scale)")
        place.grid(**GRID)
    axes[0][0].set_ylabel("share of places whose likeliest token is right")
    axes[0][0].legend(frameon=False, fontsize=8)
    return figure


def run(given, program: Path) -> None:
    settings = {
        "widths": given.widths, "exponents": given.vocabularies, "steps": given.steps, "lr": given.lr,
        "length": given.length, "samples": given.samples, "embeddings": given.embeddings, "set": given.overrides,
    }  # fmt: skip
    study = Study("spamlang", given.out, settings, program, (CONFIG,))
    cells = []
    for width in given.widths:
        for exponent in given.vocabularies:
            for embeddings in given.embeddings:
                for head in HEADS:
                    cell = {
                        "width": width, "exponent": exponent, "vocabulary": 2**exponent,
                        "embeddings": embeddings, "head": head,
                    }  # fmt: skip
                    cell["runs"] = [_measure(study, given, cell, rate) for rate in given.lr]
                    cell["best"] = _best(cell["runs"])
                    cells.append(cell)
    study.finish({"format": "cplm-study-spamlang-1", "settings": settings, "cells": cells}, _table(cells), draw)

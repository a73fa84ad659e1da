"""The page and pictures of the study of small models, from made-up results: each number stands where it
belongs, what was not reached says so, and everything can be drawn."""

import re

import pytest
from studies.small_models import make_plan
from studies.small_models_page import SECTIONS, page
from studies.small_models_results import picture_paths


def loss(mean, sd=0.0):
    return {"mean": mean, "sd": sd, "min": mean - sd, "max": mean + sd}


def pair(vanilla, cplm, seeds=1):
    return {
        "vanilla": loss(vanilla, 0.01), "cplm": loss(cplm, 0.02), "seeds": seeds,
        "difference": {"mean": cplm - vanilla, "low": cplm - vanilla - 0.05, "high": cplm - vanilla + 0.05},
        "before_cooldown": [0.46] * seeds, "at_end": [0.5] * (seeds - 1) + [None],
    }  # fmt: skip


def gate(backbone, tokens):
    return {
        "backbone": backbone, "tokens": tokens, "loss": 5.0, "loss_no_copy": 5.5, "copy_gate": 0.36, "sink_mass": 0.3,
        "copy_weight": 0.25,
    }  # fmt: skip


def bucket(model, begin, end, perplexity, copies):
    gates = {"copy_gate": 0.41, "sink_mass": 0.02, "copy_distance": 1912.7} if copies else {}
    return {"model": model, "begin": begin, "end": end, "perplexity": perplexity, **gates}


def subject(name, **more):
    return {"name": name, "modes": {"natural": {"accuracy": [1.0, 0.035]}}, **more}


@pytest.fixture
def results():
    scores = {"heads_from": {"0.3": 3, "0.4": 2, "0.5": 1}, "heads": 8, "best": {"score": 0.83}}
    losses = [{"length": length, "second_copy": {"natural": length / 100}} for length in (8, 16, 32, 63)]
    cells = [{"length": length, "depth": 0, "samples": 5, "correct": 4, "accuracy": 0.8} for length in (1024, 2048)]
    return {
        "seconds": {"wall_s": 60.0, "processor_s": 5400.0},
        "pairs": [{"backbone": name, **pair(5.1, 4.7, seeds)} for name, seeds in (("sliding", 3), ("full", 3), ("hybrid", 1))],
        "windows": [{"window": w, **pair(5.2, 4.8), "cache_bytes": {"vanilla": 1024 * w, "cplm": 2048 * w}} for w in (32, 64)],
        "gates": [gate(name, 51200 * step) for name in ("sliding", "full") for step in range(1, 21)],
        "stop_gradient": [{"arm": "vanilla", "loss": 5.0, "kept": None}, {"arm": "scores_and_gate", "loss": 4.9, "kept": 0.254}],
        "bytes": [{
            "level": "bytes", "vocab_size": 257, "bits_per_byte": {"vanilla": 2.5, "cplm": 2.4}, "gain_bits_per_byte": 0.1,
            "gain_low": 0.05, "gain_high": 0.15, "copy_weight": 0.123,
        }],
        "long_context": [bucket(m, b, e, 100.0 + b, m == "c") for m in ("v", "c") for b, e in ((0, 256), (256, 512))],
        "gradient": [
            {"model": "v", "lost": 0.9912, "isotropic_lost": 0.9922, "query": []},
            {"model": "c", "lost": 0.9926, "isotropic_lost": 0.9922,
             "query": [{"from": 1, "to": 64, "kept": {"1e-12": 1.0, "1e-3": 0.87}}]},
        ],
        "induction": {"chance": 4.844, "subjects": [
            {"name": "v", "losses": losses, "scores": scores},
            {"name": "c", "losses": losses, "scores": {**scores, "copy_head": {"score": 0.91}}},
        ]},
        "recall": {"distances": [2, 8192], "subjects": [subject("v"), subject("c")]},
        "needle": {"lengths": [1024, 2048], "subjects": [{"name": "c", "cells": cells, "mean_accuracy": 0.8}]},
    }  # fmt: skip


def test_numbers_stand_where_they_belong(results):
    names = {name for _, _, pictures in SECTIONS for name in pictures}
    text = page(results, {name: f"pictures/{name}.png" for name in names})
    for line in (
        "| sliding | 3 | 5.100 ± 0.010 | 4.700 ± 0.020 | -0.400 [-0.450, -0.350] | 46 %, 46 %, 46 % | 50 %, 50 %, not reached |",
        "| hybrid | 1 | 5.100 | 4.700 | -0.400 [-0.450, -0.350] | 46 % | not reached |",
        "| 32 | 5.200 | 4.800 | -0.400 [-0.450, -0.350] | 46 % | not reached | 32 | 64 |",
        "| full | 256,000 | 5.000 | 5.500 | 0.360 | 0.300 | 0.250 |",
        "| scores and gate | 4.900 | 25 % |",
        "| bytes | 257 | 2.5000 | 2.4000 | +0.1000 [+0.0500, +0.1500] | 0.123 |",
        "| v | 100.0 | 356.0 |  |  |  |",
        "| c | 100.0 | 356.0 | 0.410 | 0.020 | 1,913 |",
        "| c | 99.26 % | 99.22 % | 1-64: 1.00 / 0.87 |",
        "| v | 0.080 | 0.160 | 0.320 | 0.630 | 1 of 8 | 0.83 |  |",
        "| c | 100.0 | 3.5 |",
        "| c | 80 | 80 | 80.0 |",
    ):
        assert line in text.splitlines(), line
    assert "90 minutes of processor" in text
    assert set(re.findall(r"!\[([^]]+)\]\(pictures/[^)]+\.png\)", text)) == names
    for table in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({line.count("|") for line in table.splitlines()}) == 1, table


def test_both_pictures_are_drawn(results, tmp_path):
    from pictures.style import save, use_own_style
    from studies.small_models_pictures import draw_gates, draw_losses

    use_own_style()
    for name, draw in (("losses", draw_losses), ("gates", draw_gates)):
        save(draw(results), tmp_path, name, "png", dpi=100)
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_every_picture_of_the_page_is_one_of_the_studys(tmp_path):
    paths = picture_paths(make_plan(tmp_path / "runs/study", tmp_path / "data", "cpu"))
    assert set(paths) == {name for _, _, pictures in SECTIONS for name in pictures}
    assert paths["losses"] == "losses.png" and paths["sliding"] == "comparisons/sliding/compare.png"

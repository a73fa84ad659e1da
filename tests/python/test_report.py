"""cplm report: one page of a pair's curves and evaluations that needs nothing else."""

import re
import subprocess
import sys

import pytest
from eval_support import train_pair
from hf_support import ROOT, cplm

SCRIPT = ROOT / "scripts/report.py"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"), ["validation.every=20"])


def make_page(folder):
    return subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)


def test_one_page_holds_curves_evaluations_and_the_authors_figures(pair, tmp_path):
    out = tmp_path / "results <1>"
    cplm(
        "report", pair / "vanilla", pair / "cplm", "--out", out, "--threads", 1,
        "--task", "perplexity --sequences 4", "--task", "memory --lengths 64,128",
    )  # fmt: skip
    page = (out / "report.html").read_text()
    for section in ("compare", "perplexity", "memory"):
        assert f'<section id="{section}">' in page
    assert page.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r'(src|href)="(?!data:|#)', page), "needs another file"
    assert "the authors report 0.5 to 1.5 lower at 1.7B" in page
    assert (out / "perplexity.txt").read_text().splitlines()[0].split()[0] == "model"
    before = page
    assert make_page(out).returncode == 0
    assert (out / "report.html").read_text() == before


def test_results_of_other_models_are_marked(pair, tmp_path):
    out, other = tmp_path / "out", train_pair(tmp_path / "other", ["run.name=third"], heads=("cplm",))
    runs = (pair / "vanilla", pair / "cplm")
    cplm("report", *runs, "--out", out, "--threads", 1, "--task", "memory --lengths 64")
    assert "Of other models" not in (out / "report.html").read_text()
    cplm("eval", "memory", pair / "vanilla", other / "cplm", "--lengths", 64, "--out", out)
    assert make_page(out).returncode == 0
    assert "Of other models than the runs above: third." in (out / "report.html").read_text()
    twice = ("--task", "memory --lengths 64", "--task", "memory --lengths 128")
    assert "memory is given twice" in cplm("report", *runs, "--out", out, *twice, expect=2)


def test_what_is_missing_or_wrong_is_one_line(tmp_path):
    run = make_page(tmp_path)
    assert run.returncode == 1 and "holds no compare.json" in run.stderr
    (tmp_path / "compare.json").write_text("{")
    run = make_page(tmp_path)
    assert run.returncode == 1 and "cannot read" in run.stderr and len(run.stderr.splitlines()) == 1


def test_a_task_that_is_not_known_is_told_before_anything_is_done(pair, tmp_path):
    told = cplm(
        "report", pair / "vanilla", pair / "cplm", "--out", tmp_path / "out", "--task", "perplexty", expect=2
    )
    assert "did you mean perplexity?" in told
    assert not (tmp_path / "out").exists()

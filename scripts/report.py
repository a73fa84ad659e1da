#!/usr/bin/env python3
"""Makes report.html of a folder of results: what `cplm report` writes.

Takes compare.json and every TASK.json of `cplm eval` that lies there, with their tables and
pictures, and puts the authors' figures beside. One file that needs nothing else; equal input gives
equal files.
"""

import argparse
import base64
import html
import json
import os
import re
import sys
from pathlib import Path

from project_version import add_version_argument

# In the order of the page; a task that is not here comes behind.
TITLES = {
    "perplexity": "Perplexity",
    "long-context": "Long context",
    "needle": "Needle in a haystack",
    "ruler": "RULER",
    "recall": "Key-value recall",
    "copy-only": "Documents through copy keys only",
    "memory": "Memory of caches",
    "requests": "Multiple choice",
    "induction": "Induction",
    "gradient": "Gradient bottleneck",
    "spamlang": "SpamLang",
}
# What the method's authors report at 135M to 1.7B parameters (SPEC: Godey & Artzi, arXiv 2610.19247).
AUTHORS = [
    ("compare", "Tokens to reach the vanilla model's final loss, before the cooldown",
     "1.2 times fewer at 1.7B full and hybrid, 1.5 sliding; 1.25 to 1.5 at 360M; 1.5 to 1.8 at 135M"),
    ("compare", "Training throughput", "3 % lower at 1.7B"),
    ("compare", "Share of the gain that is left when the copy head sends the backbone no gradient", "about a quarter"),
    ("compare", "Gain of byte-level models, whose vocabulary is smaller than D", "none"),
    ("perplexity", "Perplexity on FinePDFs", "0.5 to 1.5 lower at 1.7B"),
    ("long-context", "Perplexity at 16k tokens, four times the training length",
     "6.4 to 7.0 against 9.6 to 11.3, or divergence"),
    ("needle", "Needle in a haystack, 1k to 64k, mean over cells", "+5 to +85 points"),
    ("ruler", "RULER", "+4.6 to +21.3 points"),
    ("memory", "Cache of the sliding CPLM that equals the full vanilla model", "12 times smaller"),
    ("copy-only", "Questions on documents read through copy keys alone (HotpotQA, fine-tuned)",
     "89 to 97 % of the accuracy kept, cache 49 times smaller"),
    ("induction", "Induction heads at T = 128, of 768", "4 against 13 to 15"),
    ("gradient", "Logit gradient lost in the LM head; kept on the CP query path",
     "over 99 %; up to 87 % at early positions"),
    ("spamlang", "SpamLang", "solved at every vocabulary size; vanilla fails at large ones"),
]  # fmt: skip

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
pre { overflow-x: auto; background: #f5f5f5; padding: .75rem 1rem; font-size: .85rem; }
img { max-width: 100%; height: auto; } figure { margin: 1rem 0; }
table { border-collapse: collapse; font-size: .95rem; } td, th { text-align: left; padding: .25rem .75rem
       .25rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }
nav a { margin-right: 1rem; } .authors, .strangers { border-left: 3px solid #0072b2; padding-left: .75rem; }
.strangers { border-color: #d55e00; }
"""


def fail(message):
    sys.exit(f"scripts/report.py: {message}")


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"cannot read {path}: {error}")


def results_in(folder):
    """Name -> JSON of compare and of every task that lies in the folder, in the order of the page."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        results = read_json(path)
        told = results.get("format", "") if isinstance(results, dict) else ""
        if path.stem == "compare" or re.fullmatch(r"cplm-eval-[a-z-]+-\d+", str(told)):
            found[path.stem] = results
    if "compare" not in found:
        fail(f"{folder}: holds no compare.json; make it by `cplm compare RUN RUN --out {folder}`")
    order = ["compare", *TITLES]
    rank = {name: place for place, name in enumerate(order)}
    return dict(sorted(found.items(), key=lambda item: (rank.get(item[0], len(order)), item[0])))


def pictures(folder, name):
    """NAME.svg and NAME-*.svg as data; names of files are no part of the page."""
    parts = []
    for path in sorted(folder.glob(f"{name}.svg")) + sorted(folder.glob(f"{name}-*.svg")):
        data = base64.b64encode(path.read_bytes()).decode()
        parts.append(
            f'<figure><img alt="{html.escape(path.stem)}" src="data:image/svg+xml;base64,{data}"></figure>'
        )
    return "\n".join(parts)


def authors_line(name):
    lines = [
        f'<p class="authors">{html.escape(what)}: the authors report {html.escape(figure)}.</p>'
        for task, what, figure in AUTHORS
        if task == name
    ]
    return "\n".join(lines)


def table_text(folder, name):
    path = folder / f"{name}.txt"
    return f"<pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>" if path.exists() else ""


def percent(reach):
    if not reach:
        return "-"
    if not reach["reached"]:
        return "not reached"
    return "-" if reach["share"] is None else f"{100 * reach['share']:.1f} %"


def arms_table(comparison):
    head = ("arm", "head", "runs", "final loss", "tokens to the baseline's loss before the cooldown",
            "at the end", "difference (95 %)")  # fmt: skip
    rows = []
    for arm in comparison["arms"]:
        loss, difference = arm["final"]["loss"], arm.get("difference")
        interval = ""
        if difference:
            interval = f"{difference['mean']:+.4f}"
            if "low" in difference:
                interval += f" [{difference['low']:+.4f}, {difference['high']:+.4f}]"
        rows.append((
            arm["name"], arm["head"], str(len(arm["runs"])), f"{float(loss['mean']):.4f}",
            percent(arm["before_cooldown"]), percent(arm["at_end"]), interval or "-",
        ))  # fmt: skip
    cells = lambda row, tag: "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)  # noqa: E731
    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in comparison["notes"])
    return f"<table><tr>{cells(head, 'th')}</tr>\n{body}</table>\n" + (f"<ul>{notes}</ul>" if notes else "")


def strangers_line(results, comparison):
    """What lies in the folder from before may be of other models."""
    names = {run["name"] for run in comparison["runs"]}
    folders = {os.path.normpath(run["dir"]) for run in comparison["runs"]}
    strangers = [
        subject["name"]
        for subject in results.get("subjects", [])
        if subject["name"] not in names and os.path.normpath(subject["path"]) not in folders
    ]
    if not strangers:
        return ""
    listed = html.escape(", ".join(strangers))
    return f'<p class="strangers">Of other models than the runs above: {listed}.</p>\n'


def section(folder, name, results, comparison):
    title = "Training" if name == "compare" else TITLES.get(name, name)
    body = arms_table(results) if name == "compare" else table_text(folder, name)
    return (
        f'<section id="{name}"><h2>{html.escape(title)}</h2>\n{authors_line(name)}\n'
        f"{strangers_line(results, comparison)}"
        f"{pictures(folder, name)}\n{body}</section>"
    )


def page(folder):
    found = results_in(folder)
    names = [arm["name"] for arm in found["compare"]["arms"]]
    title = html.escape(" against ".join(reversed(names)) if len(names) == 2 else ", ".join(names))
    links = " ".join(
        f'<a href="#{name}">{html.escape(TITLES.get(name, "Training"))}</a>' for name in found
    )
    sections = "\n".join(section(folder, name, results, found["compare"]) for name, results in found.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>{STYLE}</style></head>
<body><h1>{title}</h1>
<p>Measured by <code>cplm report</code>. Blue lines hold what the method's authors report, for models of
135M to 1.7B parameters trained on up to 200 billion tokens; smaller models need not agree.</p>
<nav>{links}</nav>
{sections}
</body></html>
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_version_argument(parser)
    parser.add_argument("folder", type=Path, help="what `cplm compare` and `cplm eval` wrote with --out")
    folder = parser.parse_args().folder
    text = page(folder)
    aside = folder / "report.html.partial"
    try:
        aside.write_text(text, encoding="utf-8")
        os.replace(aside, folder / "report.html")
    except OSError as error:
        fail(f"cannot write {folder / 'report.html'}: {error}")


if __name__ == "__main__":
    main()

"""The explain page with data of made-up texts: what the program puts into its template."""

import json
import math
import random
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "src" / "generate" / "explain.html"
MARK = "@EXPLAIN_JSON@"


def rounded(number):
    return float(f"{number:.4g}")


def ranked(chosen, number, largest):
    """Ids with probabilities, the largest first."""
    shares = [rounded(largest * 0.5**place) for place in range(number)]
    return [[chosen.randrange(300), share] for share in shares]


def prediction(chosen, index, is_vanilla):
    """Of token index + 1."""
    log_prob = rounded(-chosen.expovariate(0.7))
    if is_vanilla:
        gates = {"copy_gate": None, "sink": None, "copy_weight": None, "sources": []}
        return {"log_prob": log_prob, **gates, "lm": ranked(chosen, 5, 0.4), "cp": None,
                "mixture": ranked(chosen, 5, 0.4)}
    gate, sink = rounded(chosen.random()), rounded(chosen.random() ** 2)
    positions = chosen.sample(range(index + 1), min(index + 1, chosen.randrange(17)))
    sources = [[one, rounded(0.6 * 0.6**place)] for place, one in enumerate(positions)]
    return {"log_prob": log_prob, "copy_gate": gate, "sink": sink,
            "copy_weight": rounded(gate * (1 - sink)), "sources": sources,
            "lm": ranked(chosen, 5, 0.4), "cp": ranked(chosen, 5, 0.6), "mixture": ranked(chosen, 5, 0.5)}


def explanation(texts, prompt_tokens=4, is_vanilla=False, seed=1):
    """Data of the format cplm-explain-1 for a text of these tokens."""
    chosen = random.Random(seed)
    ids = {text: 300 + place for place, text in enumerate(dict.fromkeys(texts))}
    vocabulary = {str(one): f" word{one}" for one in range(300)}
    return {
        "format": "cplm-explain-1",
        "model": {"name": "vanilla-135m" if is_vanilla else "sliding-cplm-135m",
                  "head": "vanilla" if is_vanilla else "cplm", "backbone": "sliding", "step": 1000,
                  "mode": "natural"},
        "prompt_tokens": prompt_tokens,
        "tokens": [{"id": ids[text], "text": text} for text in texts],
        "predictions": [prediction(chosen, index, is_vanilla) for index in range(len(texts) - 1)],
        "vocabulary": vocabulary | {str(one): text for text, one in ids.items()},
    }


def words(number, seed=1):
    """Tokens of a text with sentences and paragraphs."""
    chosen = random.Random(seed)
    stems = [" the", " cat", " sat", " on", " mat", " pointer", " copies", " a", " token", " earlier",
             " model", "ing", "s", ",", " and", " of", " context", " keys"]
    ends = {17: ".", 18: "\n", 71: "\n\n"}
    return [ends.get(index % 72, chosen.choice(stems)) for index in range(number)]


def page_template():
    """As cmake/EmbedPage.cmake puts it together."""
    text = PAGE.read_text(encoding="utf-8")
    return re.sub(r"@include (\S+)@", lambda mark: (PAGE.parent / mark[1]).read_text(encoding="utf-8"), text)


def page_of(data):
    """The page as the program writes it."""
    def finite(value):
        return None if isinstance(value, float) and math.isinf(value) else value

    data = data | {
        "predictions": [one | {"log_prob": finite(one["log_prob"])} for one in data["predictions"]]
    }
    safe = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = page_template().split(MARK)
    return before + safe + after

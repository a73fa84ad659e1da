"""cplm eval needle: prompts made anew here, answers by the exported models' greedy decoding."""

import re

import pytest
from eval_support import evaluate, exported, results
from hf_support import ROOT
from text_pair import greedy_answer, tokenizer_of, train_text_pair

WORD = (1 << 64) - 1
FILLER = [
    "Morning light moves slowly over the hills.",
    "A small boat waits beside the old pier.",
    "The kettle hums while the bread cools.",
    "Someone has left a coat on the bench.",
    "Later the rain stops and the street dries.",
]


def mix64(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)


def hash_name(name):
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & WORD
    return mix64(value)


class Draws:
    """The numbers of a sample: keyed by seed, purpose and number, so that published ones stay."""

    STRIDE = 0x9E3779B97F4A7C15

    def __init__(self, seed, purpose, index):
        self.state = mix64(mix64(seed ^ hash_name(purpose)) + index * self.STRIDE & WORD)

    def below(self, bound):
        while True:
            self.state = self.state + self.STRIDE & WORD
            drawn = mix64(self.state)
            if drawn >= (1 << 64) % bound:
                return drawn % bound


def word_lists():
    text = (ROOT / "src/tasks/word_lists.cpp").read_text()
    return ["".join(re.findall('"(.*?)"', re.search(f"{name} =(.*?);", text, re.DOTALL)[1])).split()
            for name in ("kAdjectives", "kNouns")]  # fmt: skip


def prompt_of(seed, length, depth, index, sentences):
    adjectives, nouns = word_lists()
    draws = Draws(seed, f"needle {length} {depth}", index)
    adjective, noun = divmod(draws.below(len(adjectives) * len(nouns)), len(nouns))
    number = 1_000_000 + draws.below(9_000_000)
    key = f"{adjectives[adjective]}-{nouns[noun]}"
    text = [FILLER[i % 5] for i in range(sentences)]
    text.insert(depth * sentences // 100, f"The magic number of {key} is {number}.")
    header = "One magic number is hidden in the text below. Remember it, since it is asked for afterwards."
    question = f"What is the magic number of {key} in the text above?"
    return f"{header}\n{' '.join(text)}\n{question}\nThe magic number of {key} is", str(number)


def longest_prompt(tokenizer, limit, *sample):
    sentences = 0
    while len(tokenizer.encode(prompt_of(*sample, sentences + 1)[0]).ids) <= limit:
        sentences += 1
    return prompt_of(*sample, sentences)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_text_pair(tmp_path_factory.mktemp("pair"), heads=("cplm",))


def test_prompts_and_answers(pair, tmp_path):
    told = results(
        "needle", tmp_path, pair / "cplm", "--lengths", "200,300", "--depths", "0,35,100", "--samples", 2,
        "--new-tokens", 9, "--seed", 11, "--batch-tokens", 400,
    )  # fmt: skip
    [subject] = told["subjects"]
    model, tokenizer = exported(pair, "cplm"), tokenizer_of(pair)
    cells = subject["cells"]
    assert [(cell["length"], cell["depth"]) for cell in cells] == [
        (length, depth) for length in (200, 300) for depth in (0, 35, 100)
    ]
    for cell in cells:
        tokens = 0
        for index, answer in enumerate(cell["answers"]):
            prompt, number = longest_prompt(
                tokenizer, cell["length"] - 9, 11, cell["length"], cell["depth"], index
            )
            assert answer["number"] == number
            assert answer["output"] == greedy_answer(model, tokenizer, prompt, 9)
            tokens += len(tokenizer.encode(prompt).ids)
        assert cell["mean_prompt_tokens"] == tokens / 2
        assert cell["accuracy"] == sum(a["number"] in a["output"] for a in cell["answers"]) / 2
    assert subject["mean_accuracy"] == pytest.approx(sum(cell["accuracy"] for cell in cells) / 6)


def test_errors_are_one_line(pair):
    def error(*arguments):
        lines = evaluate("needle", pair / "cplm", *arguments, expect=2).strip().splitlines()
        return lines[-1]

    assert re.search("--lengths: expected at least [1-9][0-9]+, .* found 64", error("--lengths", "64"))
    assert "expected whole numbers from 0 to 100" in error("--depths", "0,101")
    assert "expected whole numbers from 1" in error("--lengths", "1k,x")

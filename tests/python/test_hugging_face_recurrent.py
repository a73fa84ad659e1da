"""Exported recurrent models in transformers: log P, caches, padding, packed texts, beams, drafts."""

import pytest
from hf_support import BUILD, cplm, load, our_scores, safetensors, torch, transformers
from recurrent_support import BACKBONES, VOCABULARY, checkpoint_of_model, random_model, weights_of
from test_hugging_face import MODES, padded, texts

pytestmark = pytest.mark.skipif(not (BUILD / "cplm").exists(), reason="needs the cplm program")
MODELS = [(backbone, head) for backbone in BACKBONES for head in ("vanilla", "cplm")]


def random_ids(rows, length, seed=2):
    return torch.randint(1, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    done = {}

    def export(backbone, head):
        if (backbone, head) not in done:
            folder = tmp_path_factory.mktemp(f"{backbone}-{head}")
            checkpoint_of_model(random_model(backbone, head), folder / "model")
            cplm("export", folder / "model", folder / "hf")
            done[backbone, head] = folder
        return done[backbone, head]

    return export


@pytest.mark.parametrize("backbone,head", MODELS)
def test_scores_equal_our_program(exported, tmp_path, backbone, head):
    folder = exported(backbone, head)
    ids = random_ids(2, 150)
    ours = our_scores(folder / "model", ids, ids, tmp_path, distributions=True)
    model = load(folder / "hf")
    for mode in MODES if head == "cplm" else ("natural",):
        model.config.inference_mode = mode
        assert torch.allclose(model(ids).logits.exp(), ours["p." + mode], rtol=0, atol=1e-10), mode


@pytest.mark.parametrize("backbone,head", MODELS)
def test_weights_come_back(exported, tmp_path, backbone, head):
    folder = exported(backbone, head)
    cplm("import", folder / "hf", tmp_path / "back")
    stored = safetensors.load_file(tmp_path / "back/model.safetensors")
    expected = safetensors.load_file(folder / "model/model.safetensors")
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], x) for name, x in expected.items())
    load(folder / "hf").save_pretrained(tmp_path / "saved")
    again = load(tmp_path / "saved")
    ids = random_ids(1, 20)
    assert torch.equal(again(ids).logits, load(folder / "hf")(ids).logits)


@pytest.mark.parametrize("backbone,head", MODELS)
def test_chunks_through_a_cache_equal_one_pass(exported, backbone, head):
    model, ids = load(exported(backbone, head) / "hf"), random_ids(2, 150)
    expected = model(ids, use_cache=False).logits
    for cache in (None, transformers.DynamicCache(config=model.config)):
        at = 0
        for count in (70, 1, 1, 66, 12):
            out = model(ids[:, at : at + count], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            assert torch.allclose(out.logits, expected[:, at : at + count], rtol=0, atol=1e-10), at
            at += count
        assert cache.get_seq_length() == 150


@pytest.mark.parametrize("backbone,head", MODELS)
def test_packed_texts_do_not_see_each_other(exported, backbone, head):
    model, ids = load(exported(backbone, head) / "hf"), random_ids(1, 90)
    positions = torch.cat([torch.arange(n) for n in (30, 3, 57)])[None]
    packed = model(ids, position_ids=positions, use_cache=False).logits
    alone = [model(part, use_cache=False).logits for part in ids.split([30, 3, 57], dim=1)]
    assert torch.allclose(packed, torch.cat(alone, dim=1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backbone,head", MODELS)
def test_generation_agrees_with_itself(exported, backbone, head):
    folder = exported(backbone, head) / "hf"
    model, assistant = load(folder), load(folder)
    with torch.no_grad():
        for weight in assistant.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))
    ids = random_ids(2, 12)
    rows = [ids[0, :9].tolist(), ids[1].tolist(), [7]]
    alone = [texts(model, padded([row], pad=3)) for row in rows]
    batch = padded(rows, pad=3)
    assert torch.equal(texts(model, batch), torch.cat(alone))
    assert torch.equal(texts(model, batch, use_cache=False), torch.cat(alone))
    beams = {"num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(texts(model, batch, **beams), texts(model, batch, use_cache=False, **beams))
    first = padded(rows[:1], pad=3)
    assert torch.equal(texts(model, first, prompt_lookup_num_tokens=3), alone[0])
    assert torch.equal(texts(model, first, assistant_model=assistant), alone[0])


def test_training_with_gradient_checkpointing_is_the_same(exported):
    gradients = []
    for checkpointing in (False, True):
        model = load(exported("mixed", "cplm") / "hf").train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        ids = random_ids(2, 70)
        model(ids, labels=ids).loss.backward()
        gradients.append([weight.grad for weight in model.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*gradients))
    assert all(gradient.norm() > 0 for gradient in gradients[0])


def test_fresh_decays_have_their_spread():
    model = type(random_model("recurrent", "vanilla"))(
        random_model("recurrent", "vanilla", linear_num_heads=9).config
    )
    for name, weight in weights_of(model).items():
        if name.endswith("A_log"):
            assert weight.max() <= torch.tensor(16.0).log()
        if name.endswith("dt_bias"):
            step = torch.nn.functional.softplus(weight.double())
            assert 0.00099 < step.min() and step.max() < 0.101

"""scripts/prepare_data.py: what becomes of text as tokens."""

import h5py
import pytest
from cplm_data.errors import PrepareError
from cplm_data.tokenizer import TextEncoder
from prepare_support import EOS, all_documents, prepared, sample_texts, write_texts
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def test_text_that_spells_a_special_token_stays_text(tmp_path):
    texts = [f"before{EOS}after", EOS, f"{EOS}{EOS} twice", "plain"]
    write_texts(tmp_path / "in", texts)
    prepared(tmp_path / "in", tmp_path / "out")
    assert all_documents(tmp_path / "out") == sorted(texts)  # checks that eos only ends documents


def byte_tokenizer(unknown=None, special=True, first_id=1):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {EOS: 0} | {token: index for index, token in enumerate(alphabet, start=first_id)}
    if unknown:
        del vocabulary["Ċ"]  # the newline
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(EOS, special=special, normalized=False)])
    if special:
        tokenizer.add_special_tokens([EOS])
    return tokenizer


def test_eos_that_is_not_marked_special_is_not_matched_either(tmp_path):
    encoder = TextEncoder(byte_tokenizer(special=False).to_str().encode(), EOS, "t")
    assert encoder.encode([EOS])[0].size == len(EOS)


def test_unknown_characters_never_become_eos(tmp_path):
    encoder = TextEncoder(byte_tokenizer(unknown=EOS).to_str().encode(), EOS, "t")
    (ids,), num_dropped = encoder.encode_and_count(["a\nb"])
    assert ids.size == 2 and num_dropped == 1


def test_a_long_document_can_be_cancelled():
    encoder = TextEncoder(byte_tokenizer().to_str().encode(), EOS, "t")
    encoder.cancel()
    with pytest.raises(PrepareError, match="cancelled"):
        encoder.encode(["a"])


def test_long_documents_in_pieces_give_the_same_tokens(monkeypatch):
    monkeypatch.setattr("cplm_data.tokenizer._PIECE_CHARACTERS", 100)
    texts = ["Some words, 12 numbers\nand\n\nlines; naïve 日本 text. " * 100, "x" * 700, "\n" * 700]
    encoder = TextEncoder(byte_tokenizer().to_str().encode(), EOS, "t")
    plain = Tokenizer.from_str(encoder.json_bytes.decode())
    assert len(encoder._pieces(texts[0])) > 40
    for text, ids in zip(texts, encoder.encode(texts), strict=True):
        assert ids.tolist() == plain.encode(text, add_special_tokens=False).ids


def test_a_given_tokenizer_is_copied_byte_for_byte(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(3)
    (tmp_path / "t.json").write_text(tokenizer.to_str(pretty=False) + "\n\n")
    write_texts(tmp_path / "in", sample_texts(4))
    prepared(tmp_path / "in", tmp_path / "out", tokenizer=("--tokenizer", tmp_path / "t.json"))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tmp_path / "t.json").read_bytes()
    assert all_documents(tmp_path / "out") == sorted(sample_texts(4))


def test_ids_above_65535_are_stored_in_32_bits(tmp_path):
    (tmp_path / "t.json").write_text(byte_tokenizer(first_id=70000).to_str())
    write_texts(tmp_path / "in", ["some text", "other text"])
    prepared(tmp_path / "in", tmp_path / "out", tokenizer=("--tokenizer", tmp_path / "t.json"))
    with h5py.File(tmp_path / "out" / "train" / "shard_00000.h5", "r") as file:
        assert file["tokens"].dtype == "<u4" and file["tokens"][0] >= 70000
    assert all_documents(tmp_path / "out") == ["other text", "some text"]


def test_digits_are_single_tokens_and_eos_is_zero(tmp_path):
    write_texts(tmp_path / "in", ["1234567 1234567 " * 50] * 3)
    prepared(
        tmp_path / "in", tmp_path / "out", "--eos", "</s>", tokenizer=("--train-tokenizer", "257")
    )
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.token_to_id("</s>") == 0
    assert tokenizer.encode("1234567").tokens == list("1234567")

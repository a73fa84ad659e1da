"""scripts/tokenizer_service.py and what it stands on: protocol, token texts, streams, conversations."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from cplm_data import chat
from cplm_data.documents import Document
from cplm_data.errors import ArgumentError
from cplm_data.tokenizer import TextEncoder, train_tokenizer
from cplm_text.decoder import TextDecoder, TextStream
from tokenizers import Tokenizer, decoders, models

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "tokenizer_service.py"
EOS = "<|endoftext|>"
TEXT = "The cat sat on the mat. Ünïcödé 日本語のテキスト 😀👩‍👧\r\n\tthe cat, the mat; naïve café\x00 end"


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder(train_tokenizer(iter([TEXT, "the cat the mat"] * 3), 280, EOS), EOS, "t")


@pytest.fixture(scope="module")
def decoder(encoder) -> TextDecoder:
    return TextDecoder(encoder.tokenizer)


def serve(path, *lines, arguments=()):
    """All answers to the lines, which end the service."""
    run = subprocess.run(
        [sys.executable, SCRIPT, *arguments, path],
        input=b"".join(line + b"\n" for line in lines),
        capture_output=True,
        timeout=60,
    )
    assert run.stderr == b""
    return [json.loads(line) for line in run.stdout.splitlines()], run.returncode


def test_one_line_in_one_line_out(tmp_path, encoder):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(encoder.json_bytes)
    text = json.dumps({"op": "encode", "text": TEXT, "special": False}).encode()
    (first, encoded, nonsense, unknown, missing, after), code = serve(
        path, text, b"\xff{", b'{"op": "eval"}', b'{"op": "decode"}', b'{"op": "id_of", "token": "a"}'
    )
    assert first == {"vocab_size": 280, "eos_id": 0}
    assert encoded == {"ids": encoder.encode([TEXT])[0].tolist()}
    assert all(set(one) == {"error", "exit_code"} for one in (nonsense, unknown, missing))
    assert after == {"id": encoder.tokenizer.token_to_id("a")}
    assert code == 0


def test_a_tokenizer_that_cannot_be_had_is_one_answer(tmp_path):
    (answer,), code = serve(tmp_path / "absent.json", b"{}")
    assert answer == {
        "error": f"{tmp_path}/absent.json: cannot be read: No such file or directory",
        "exit_code": 3,
    }
    assert code == 1


def whole_stream(decoder, ids, preceding=(), skip_special=False):
    stream = TextStream(decoder, skip_special, preceding)
    return [stream.step(token_id) for token_id in ids], stream.end()


def test_a_stream_adds_up_to_the_text_and_never_shows_half_a_character(encoder, decoder):
    ids = encoder.encode([TEXT])[0].tolist()
    steps, rest = whole_stream(decoder, ids)
    assert "".join(steps) == TEXT and rest == ""
    assert any(step == "" for step in steps)


@pytest.mark.parametrize("seed", range(20))
def test_streams_of_random_tokens_add_up_too(encoder, decoder, seed):
    chosen = random.Random(seed)
    ids = [chosen.randrange(encoder.vocab_size + 3) for _ in range(200)]
    known_runs = decoder.decode(ids, skip_special=False)
    steps, rest = whole_stream(decoder, ids)
    assert "".join(steps) + rest == known_runs


def test_bytes_of_no_text_are_passed_on_in_time(encoder, decoder):
    lone = encoder.tokenizer.token_to_id("ÿ")  # byte 0xff
    steps, rest = whole_stream(decoder, [lone] * 300)
    assert "".join(steps) + rest == "\ufffd" * 300
    assert len(rest) <= 3


def stripping_decoder() -> TextDecoder:
    """As the tokenizers of Llama 2: spaces as a mark, the first one stripped, bytes as fallback."""
    pieces = ["<unk>", "▁the", "▁cat", "s", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TextDecoder(tokenizer)


def test_spaces_that_a_decoder_strips_from_a_beginning_stay_within_a_text():
    decoder = stripping_decoder()
    the, cat, s = 1, 2, 3
    assert decoder.token_text(cat) == " cat" and decoder.token_text(s) == "s"
    assert whole_stream(decoder, [the, cat, s, the])[0] == ["the", " cat", "s", " the"]
    assert whole_stream(decoder, [the, cat], preceding=[s])[0] == [" the", " cat"]
    first_byte = 4
    sun = [first_byte + byte for byte in "日".encode()]
    assert whole_stream(decoder, [the, *sun, cat])[0] == ["the", "", "", "日", " cat"]
    broken, rest = whole_stream(decoder, [the, *sun, first_byte + 0xFF, cat])
    assert "".join(broken) + rest == "the日\ufffd cat"


def test_token_texts_show_what_each_adds(encoder, decoder):
    ids = encoder.encode([" the"])[0].tolist()
    assert "".join(map(decoder.token_text, ids)) == " the"
    assert decoder.token_text(0) == EOS
    assert decoder.token_text(encoder.tokenizer.token_to_id("ÿ")) == "\ufffd"
    assert decoder.token_text(10**9) == "\ufffd"
    for impossible in (-1, 1 << 32):
        with pytest.raises(ArgumentError, match="expected a token id"):
            decoder.token_text(impossible)


def test_a_prompt_is_tokenized_as_fine_tuning_sees_it(tmp_path, encoder):
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi\n"},
        {"role": "assistant", "content": " Hello"},
        {"role": "user", "content": "More?"},
    ]
    answered = [*turns, {"role": "assistant", "content": "Yes"}]
    trained, reason = chat.turns_of(Document("f", 1, None, messages=answered))
    assert reason is None
    *segments, answer = chat.segments_of(trained)
    expected: list[int] = []
    for segment, ids in zip(segments, encoder.encode([one.text for one in segments]), strict=True):
        expected += ids.tolist() + [0] * segment.is_counted
    assert answer == ("Yes", True)
    path = tmp_path / "tokenizer.json"
    path.write_bytes(encoder.json_bytes)
    request = {"op": "encode_chat", "messages": json.dumps(turns)}
    (_, found), _ = serve(path, json.dumps(request).encode())
    assert found == {"ids": expected}

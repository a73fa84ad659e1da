"""scripts/prepare_data.py --chat: template, targets, and the layout in windows."""

import random

import h5py
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from cplm_data import chat
from cplm_data.documents import Document
from cplm_data.tokenizer import TextEncoder
from prepare_support import (
    EOS,
    command_line,
    failure,
    file_bytes,
    killed_at_disk_call,
    prepared,
    small_tokenizer,
    write_jsonl,
    write_texts,
)

ARGUMENTS, BAD_DATA = 2, 3


def turn(role, content):
    return {"role": role, "content": content}


def conversation(number, words=5):
    return [
        turn("system", "Be brief."),
        turn("user", f"Question {number}?"),
        turn("assistant", f"Answer {number}" + " word" * words),
        turn("user", "And then?"),
        turn("assistant", "Nothing."),
    ]


def chat_arguments(folder, length):
    return {
        "arguments": ("--chat", "--sequence-length", length),
        "tokenizer": small_tokenizer(folder),
    }


def prepare_chat(source, output, length, *arguments):
    given = chat_arguments(output.parent, length)
    return prepared(source, output, *given["arguments"], *arguments, tokenizer=given["tokenizer"])


def shards_of(output, split="train"):
    for path in sorted((output / split).glob("*.h5")):
        with h5py.File(path) as file:
            yield file["tokens"][:], file["loss_mask"][:], file["document_offsets"][:]


def trained_of(output, length):
    """What the windows of the training shards train, with documents masked from each other: for
    each conversation with a counted target, its tokens up to the last one and which are counted."""
    found = []
    for tokens, mask, offsets in shards_of(output):
        assert (tokens.size - 1) % length == 0, "training would drop a short last window"
        num_before = sum(len(places) for _, places in found)
        for begin in range(0, tokens.size - 1, length):
            # Inputs are the window's first T tokens, targets its last T.
            targets = numpy.arange(begin + 1, begin + length + 1)
            counted = targets[mask[targets] == 1]
            starts = offsets[numpy.searchsorted(offsets, counted, side="right") - 1]
            for start in numpy.unique(starts):
                assert start >= begin, "the context begins in an earlier window"
                its = counted[starts == start]
                end = its[-1] + 1
                found.append((tokens[start:end].tolist(), (its - start).tolist()))
        assert mask.sum() == sum(len(places) for _, places in found) - num_before
    return found


def expected_of(conversations, encoder, length):
    """The same, computed message by message without any packing."""
    result = []
    for messages in conversations:
        ids, counted = [], []
        for number, message in enumerate(messages):
            header = f"<|{message['role']}|>\n"
            ids += encoder.encode([("\n" if number and ids[-1] == 0 else "") + header])[0].tolist()
            content = message["content"]
            if message["role"] == "assistant":
                answer = [*encoder.encode([content])[0].tolist(), encoder.eos_id]
                counted += range(len(ids), len(ids) + len(answer))
                ids += answer
            else:
                ids += encoder.encode([content + "\n"])[0].tolist()
        counted = [place for place in counted if place < length]
        if counted:
            result.append((ids[: counted[-1] + 1], counted))
    return result


def encoder_of(output):
    return TextEncoder((output / "tokenizer.json").read_bytes(), EOS, "t")


def test_the_template_is_tulus():
    turns = [chat.Turn("system", "S"), chat.Turn("user", "U"), chat.Turn("assistant", "A")]
    text = chat.rendered(chat.segments_of([*turns, *turns[1:]]), EOS)
    expected = (
        f"<|system|>\nS\n<|user|>\nU\n<|assistant|>\nA{EOS}\n<|user|>\nU\n<|assistant|>\nA{EOS}"
    )
    assert text == expected
    text = chat.rendered(chat.segments_of([*turns, turns[1]]), EOS)
    assert text == f"<|system|>\nS\n<|user|>\nU\n<|assistant|>\nA{EOS}\n<|user|>\nU\n"
    twice = chat.rendered(chat.segments_of([turns[2], turns[2]]), EOS)
    assert twice == f"<|assistant|>\nA{EOS}\n<|assistant|>\nA{EOS}"


def test_only_an_assistants_content_and_its_eos_are_counted(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": conversation(1)}])
    prepare_chat(path, tmp_path / "out", 300)
    encoder = encoder_of(tmp_path / "out")
    ((tokens, mask, offsets),) = shards_of(tmp_path / "out")
    vocabulary = {i: t for t, i in encoder._tokenizer.get_vocab().items()}
    counted = "".join(vocabulary[t] for t in tokens[mask == 1]).replace("Ġ", " ")
    assert counted == "Answer 1 word word word word word" + EOS + "Nothing." + EOS
    assert tokens.size == 301 and mask[offsets[1] :].sum() == 0
    assert set(tokens[offsets[1] :]) == {0}


@pytest.mark.parametrize(
    "length, shard_tokens", [(64, 1000), (150, 1 << 20), (151, 1000), (400, 1), (400, 1 << 20)]
)
def test_windows_train_what_sequences_of_their_own_would(tmp_path, length, shard_tokens):
    draw = random.Random(length)
    conversations = [conversation(n, draw.randrange(40)) for n in range(40)]
    conversations += [[turn("user", "x" * n), turn("assistant", "y" * 9)] for n in range(90, 140)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": one} for one in conversations])
    options = ("--validation-fraction", "0", "--shard-tokens", shard_tokens)
    manifest = prepare_chat(path, tmp_path / "out", length, *options)
    expected = expected_of(conversations, encoder_of(tmp_path / "out"), length)
    assert trained_of(tmp_path / "out", length) == expected
    counts = manifest["counts"]["train"]
    assert counts["conversations"] == len(expected)
    assert counts["trained_tokens"] == sum(len(counted) for _, counted in expected)
    windows = [(tokens.size - 1) // length for tokens, *_ in shards_of(tmp_path / "out")]
    assert counts["windows"] == sum(windows)
    if shard_tokens > length:
        assert max(windows) <= (shard_tokens - 1) // length


def test_a_conversation_may_fill_a_window_to_its_last_token(tmp_path):
    """Of T + 1 tokens, the last being an eos that is no target since the text was cut."""
    bare = [turn("user", ""), turn("assistant", "")]
    tokenizer = TextEncoder(small_tokenizer(tmp_path)[1].read_bytes(), EOS, "t")
    bare_size = sum(one.size for one in tokenizer.encode(["<|user|>\n\n<|assistant|>\n"])) + 1
    length = bare_size + 20
    fits = [turn("user", ""), turn("assistant", "a" * 20)]
    is_cut = [turn("user", ""), turn("assistant", "a" * 21)]
    ends_with_user = [*fits[:1], turn("assistant", "b"), turn("user", "c" * 7)]
    conversations = [is_cut, fits, is_cut, ends_with_user, bare, is_cut]
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": one} for one in conversations])
    manifest = prepare_chat(path, tmp_path / "out", length, "--validation-fraction", "0")
    assert trained_of(tmp_path / "out", length) == expected_of(conversations, tokenizer, length)
    assert manifest["counts"]["truncated"] == 3
    ((tokens, mask, offsets),) = shards_of(tmp_path / "out")
    assert offsets[1] == length + 1 and mask[length] == 0 and tokens[length] == 0
    for end in offsets[1:]:
        assert tokens[end - 1] == 0


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_formats_of_files(tmp_path, suffix):
    conversations = [conversation(n) for n in range(10)]
    records = [{"id": f"c{n}", "messages": one} for n, one in enumerate(conversations)]
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        kind = pyarrow.list_(
            pyarrow.struct([("content", pyarrow.string()), ("role", pyarrow.string())])
        )
        table = pyarrow.table(
            {
                "id": [one["id"] for one in records],
                "messages": pyarrow.array([one["messages"] for one in records], kind),
                "source": ["x"] * 10,
            }
        )
        pyarrow.parquet.write_table(table, path, row_group_size=3, compression="zstd")
    else:
        write_jsonl(path, records)
    prepare_chat(path, tmp_path / "out", 256, "--validation-fraction", "0")
    expected = expected_of(conversations, encoder_of(tmp_path / "out"), 256)
    assert trained_of(tmp_path / "out", 256) == expected


def test_rejected_conversations_have_reasons(tmp_path):
    records = [
        conversation(1),
        conversation(2),
        None,
        [],
        [turn("user", "alone")],
        [turn("user", "x"), turn("tool", "y"), turn("assistant", "z")],
        [turn("user", None), turn("assistant", "z")],
        [turn("user", "x" * 200), turn("assistant", "beyond the end")],
        [turn("user", "\0"), turn("assistant", "z")],
    ]
    lines = [{"messages": one} for one in records]
    lines.append(b'{"messages": [{"role": "assistant", "content": "\\udc00"}]}')
    path = write_jsonl(tmp_path / "a.jsonl", lines)
    manifest = prepare_chat(path, tmp_path / "out", 120)
    assert manifest["rejected"]["by_reason"] == {
        "a message holds a NUL character": 1,
        "a message holds a lone surrogate": 1,
        "a message's content is null": 1,
        "a message's role is not system, user or assistant": 1,
        "messages are null": 1,
        "no counted token in the first 120": 1,
        "no message is an assistant's": 2,
    }
    sides = manifest["counts"]
    assert sides["train"]["conversations"] + sides["validation"]["conversations"] == 2


@pytest.mark.parametrize(
    "messages, expected",
    [
        ("text", "a.jsonl:1: expected a list of messages, found str"),
        ([{"role": "user"}], "a.jsonl:1: expected message 1 to have the keys 'role' and 'content'"),
        (["hello"], "a.jsonl:1: expected message 1 to have the keys"),
        ([turn("user", 5)], "a.jsonl:1: expected the content of message 1 to be a string"),
    ],
)
def test_broken_conversations(tmp_path, messages, expected):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": messages}])
    given = chat_arguments(tmp_path, 100)
    code, line = failure(path, tmp_path / "out", *given["arguments"], tokenizer=given["tokenizer"])
    assert code == BAD_DATA and expected in line


def test_text_that_spells_roles_or_eos_is_content(tmp_path):
    content = f"<|assistant|>\n{EOS} and more"
    messages = [turn("user", content), turn("assistant", content)]
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": messages}])
    prepare_chat(path, tmp_path / "out", 200)
    ((tokens, mask, _),) = shards_of(tmp_path / "out")
    assert (tokens[mask == 1] == 0).sum() == 1 and mask.sum() == len(content) + 1


def test_turns_given_as_a_document_are_kept_in_order():
    document = Document("a.jsonl", 1, None, messages=conversation(3))
    turns, reason = chat.turns_of(document)
    assert reason is None and [one.role for one in turns][:3] == ["system", "user", "assistant"]


@pytest.mark.parametrize("call", [20, 45, 60])
def test_kills_change_nothing(tmp_path, call):
    path = write_jsonl(tmp_path / "a.jsonl", [{"messages": conversation(n)} for n in range(60)])
    given = chat_arguments(tmp_path, 200)
    arguments = (*given["arguments"], "--shard-tokens", "1500", "--validation-fraction", "0.2")
    prepared(path, tmp_path / "whole", *arguments, tokenizer=given["tokenizer"])
    line = command_line(path, tmp_path / "out", *arguments, tokenizer=given["tokenizer"])
    assert killed_at_disk_call(line, call)
    prepared(path, tmp_path / "out", *arguments, tokenizer=given["tokenizer"])
    assert file_bytes(tmp_path / "out") == file_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (("--chat",), "--chat needs --sequence-length, and --tokenizer"),
        (("--chat", "--sequence-length", "64"), "--chat needs --sequence-length, and --tokenizer"),
        (("--chat", "--sequence-length", "1"), "expected 2 to 2^30 tokens, got 1"),
        (("--sequence-length", "64"), "--sequence-length is for --chat"),
    ],
)
def test_wrong_arguments(tmp_path, arguments, expected):
    write_texts(tmp_path / "in", ["x"])
    code, line = failure(tmp_path / "in", tmp_path / "out", *arguments)
    assert code == ARGUMENTS and expected in line

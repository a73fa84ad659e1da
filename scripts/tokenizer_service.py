#!/usr/bin/env python3
"""A tokenizer.json at the service of another program (src/text): one line of JSON in, one out.

The first line it writes tells {"vocab_size", "eos_id"}; then each line read is one request
{"op": NAME, ...} and each line written its answer, or {"error": TEXT, "exit_code": N}. It ends when
its input does. Python and the tokenizers library are the only ones that read a tokenizer.json the
way it was meant.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from project_version import add_version_argument

_BAD_DATA = 3


class Service:
    def __init__(self, path: Path, eos: str | None) -> None:
        from cplm_data.tokenizer import TextEncoder
        from cplm_text.decoder import TextDecoder, TextStream

        self._eos = eos or "<|endoftext|>"
        self._encoder = TextEncoder(
            path.read_bytes(), self._eos, str(path), requires_eos=eos is not None
        )
        self._decoder = TextDecoder(self._encoder.tokenizer)
        self._new_stream = TextStream
        self._streams: dict[int, TextStream] = {}

    def description(self) -> dict:
        return {"vocab_size": self._encoder.vocab_size, "eos_id": self._encoder.eos_id}

    def encode(self, text: str, special: bool) -> dict:
        if special:
            return {"ids": self._encoder.encode_with_special_tokens(text)}
        return {"ids": self._encoder.encode([text])[0].tolist()}

    def encode_chat(self, messages: str) -> dict:
        from cplm_data import chat
        from cplm_data.errors import ArgumentError

        if self._encoder.eos_id is None:
            raise ArgumentError(
                f"chat: the tokenizer has no token {self._eos!r} to end an answer with; name its own"
            )
        segments = chat.prompt_segments_of(_turns_to_answer(messages))
        ids: list[int] = []
        arrays = self._encoder.encode([segment.text for segment in segments])
        for segment, array in zip(segments, arrays, strict=True):
            ids += array.tolist() + [self._encoder.eos_id] * segment.is_counted
        return {"ids": ids}

    def decode(self, ids: list[int], skip_special: bool) -> dict:
        return {"text": self._decoder.decode(ids, skip_special)}

    def token_texts(self, ids: list[int]) -> dict:
        return {"texts": [self._decoder.token_text(token_id) for token_id in ids]}

    def id_of(self, token: str) -> dict:
        return {"id": self._encoder.tokenizer.token_to_id(token)}

    def begin_stream(self, stream: int, skip_special: bool, preceding: list[int]) -> dict:
        self._streams[stream] = self._new_stream(self._decoder, skip_special, preceding)
        return {}

    def _stream(self, stream: int):
        from cplm_data.errors import PrepareError

        if stream not in self._streams:
            raise PrepareError(f"no stream {stream} was begun")
        return self._streams[stream]

    def step_stream(self, stream: int, id: int) -> dict:
        return {"text": self._stream(stream).step(id)}

    def end_stream(self, stream: int) -> dict:
        text = self._stream(stream).end()
        del self._streams[stream]
        return {"text": text}


def _turns_to_answer(messages: str) -> list:
    from cplm_data import chat
    from cplm_data.errors import BadDataError

    try:
        conversation = json.loads(messages)
    except (ValueError, RecursionError) as error:
        raise BadDataError(f"chat: expected JSON: {error}") from None
    if isinstance(conversation, dict):
        conversation = conversation.get("messages")
    turns, reason = chat.turns_of_messages(conversation, "chat")
    if reason is None and not turns:
        reason = "there is no message"
    if reason is None and turns[-1].role == "assistant":
        reason = "the last message is the assistant's: there is nothing to answer"
    if reason is not None:
        raise BadDataError(f"chat: {reason}")
    return turns


def _failure(error: Exception, exit_code: int) -> dict:
    text = " ".join(str(error).split()) or type(error).__name__
    return {"error": text, "exit_code": getattr(error, "exit_code", exit_code)}


def _opened(given: argparse.Namespace) -> tuple[Service | None, dict]:
    try:
        service = Service(given.tokenizer, given.eos)
        return service, service.description()
    except ImportError as error:
        reason = f"{sys.executable} lacks the package {error.name} ({error}); run scripts/setup"
        return None, {"error": reason, "exit_code": 1}
    except OSError as error:
        reason = f"{given.tokenizer}: cannot be read: {error.strerror or error}"
        return None, {"error": reason, "exit_code": _BAD_DATA}
    except Exception as error:  # the library raises bare Exception
        text = _failure(error, _BAD_DATA)["error"]
        reason = text if str(given.tokenizer) in text else f"{given.tokenizer}: {text}"
        return None, {"error": reason, "exit_code": _BAD_DATA}


def _answer(operations: dict[str, Callable[..., dict]], line: bytes) -> dict:
    try:
        request = json.loads(line)
        return operations[request.pop("op")](**request)
    except Exception as error:  # whatever it is, the program that asked shall know
        return _failure(error, 1)


def _serve(given: argparse.Namespace, requests, write: Callable[[dict], None]) -> int:
    service, first_answer = _opened(given)
    write(first_answer)
    if service is None:
        return 1
    operations = {
        name: getattr(service, name)
        for name in (
            "encode encode_chat decode token_texts id_of begin_stream step_stream end_stream"
        ).split()
    }
    for line in requests:
        write(_answer(operations, line))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_version_argument(parser)
    parser.add_argument("tokenizer", type=Path, help="a tokenizer.json")
    parser.add_argument(
        "--eos", help="the token that ends a document (default: <|endoftext|> where there is one)"
    )
    given = parser.parse_args()
    # What a library prints must not come between the answers: it goes to the error output.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def write(answer: dict) -> None:
        answers.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        answers.flush()

    try:
        return _serve(given, sys.stdin.buffer, write)
    except (KeyboardInterrupt, BrokenPipeError):  # nobody is there any more
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""JSON lines: one object a line with a string `text` and, where there is one, an `id`."""

import json
from collections.abc import Iterable, Iterator

from cplm_data.documents import Document
from cplm_data.errors import BadDataError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Splits at \\n; a long line is joined once, from its parts."""
    parts: list[bytes] = []
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            parts.append(end)
            yield b"".join(parts)
            parts.clear()
        parts.append(rest)
    last = b"".join(parts)
    if last:
        yield last


def _parse(line: bytes, place: str) -> dict[str, object]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at offset {error.start} of the line"
        raise BadDataError(f"{place}: not UTF-8: {byte}; convert the file") from None
    except RecursionError:
        raise BadDataError(f"{place}: invalid JSON: nested too deeply") from None
    except ValueError as error:
        raise BadDataError(f"{place}: invalid JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadDataError(
            f"{place}: expected a JSON object with a key 'text', found {type(value).__name__}"
        )
    return value


def _document(name: str, number: int, line: bytes) -> Document:
    place = f"{name}:{number}"
    value = _parse(line, place)
    if "text" not in value:
        keys = ", ".join(sorted(value)[:10]) or "none"
        raise BadDataError(f"{place}: expected a key 'text', found keys: {keys}")
    text, document_id = value["text"], value.get("id")
    if text is not None and not isinstance(text, str):
        raise BadDataError(f"{place}: expected 'text' to be a string, found {type(text).__name__}")
    if document_id is not None and (
        not isinstance(document_id, str | int) or isinstance(document_id, bool)
    ):
        kind = type(document_id).__name__
        raise BadDataError(f"{place}: expected 'id' to be a string or an integer, found {kind}")
    return Document(name, number, None if document_id is None else str(document_id), text)


def read_jsonl(name: str, blocks: Iterable[bytes]) -> Iterator[Document]:
    for number, line in enumerate(_lines(blocks), start=1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if line.strip():
            yield _document(name, number, line)

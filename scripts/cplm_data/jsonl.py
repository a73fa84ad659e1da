"""JSON lines: one object a line with a string `text` (or `messages`) and, where there is one, an
`id`. Reading cuts a file into lines; parsing them, which takes longer, is done by the workers."""

import json
import sys
from collections.abc import Iterable, Iterator

from cplm_data.documents import Document
from cplm_data.errors import BadDataError
from cplm_data.fields import Fields

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Splits after each \\n, which stays; a long line is joined once, from its parts."""
    parts: list[bytes] = []
    for block in blocks:
        *ends, rest = block.split(b"\n")
        for end in ends:
            parts.append(end)
            parts.append(b"\n")
            yield b"".join(parts)
            parts.clear()
        parts.append(rest)
    last = b"".join(parts)
    if last:
        yield last


def _parse(line: bytes, place: str, body: str) -> dict[str, object]:
    try:
        value = json.loads(line.decode())
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at offset {error.start} of the line"
        raise BadDataError(f"{place}: not UTF-8: {byte}; convert the file") from None
    except RecursionError:
        raise BadDataError(f"{place}: invalid JSON: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise BadDataError(f"{place}: invalid JSON: {error}") from None
    except ValueError:
        raise BadDataError(
            f"{place}: holds an integer of more than {sys.get_int_max_str_digits():,} digits; "
            "write it as a string"
        ) from None
    if not isinstance(value, dict):
        raise BadDataError(
            f"{place}: expected a JSON object with a key '{body}', found {type(value).__name__}"
        )
    return value


def document_of_line(name: str, number: int, line: bytes, fields: Fields) -> Document | None:
    """None for an empty line."""
    if number == 1:
        line = line.removeprefix(_BYTE_ORDER_MARK)
    if not line.strip():
        return None
    place = f"{name}:{number}"
    value = _parse(line, place, fields.body)
    names = fields.choose(value, place, "key")
    text, document_id = value.get(names.get("text")), value.get(names.get("id"))
    if text is not None and not isinstance(text, str):
        raise BadDataError(
            f"{place}: expected '{names['text']}' to be a string, found {type(text).__name__}"
        )
    if document_id is not None and (
        not isinstance(document_id, str | int) or isinstance(document_id, bool)
    ):
        kind = type(document_id).__name__
        raise BadDataError(
            f"{place}: expected '{names['id']}' to be a string or an integer, found {kind}"
        )
    others = {role: value[key] for role, key in names.items() if role not in ("id", "text")}
    return Document(name, number, None if document_id is None else str(document_id), text, **others)

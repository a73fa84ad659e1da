"""Conversations to tokens by the template of Tulu 3, with the targets that count.

<|system|>, <|user|> and <|assistant|> are plain text, each followed by a newline, the content and a
newline; an assistant's content ends with eos, then a newline unless it is the last. Counted are an
assistant's content and its eos. Each stretch between these is tokenized by itself, as generation
sees it: a prompt ends after "<|assistant|>\\n".
"""

from typing import NamedTuple

from cplm_data.documents import Document, is_encodable
from cplm_data.errors import BadDataError

ROLES = ("system", "user", "assistant")


class Turn(NamedTuple):
    role: str
    content: str


class Segment(NamedTuple):
    """A stretch of text; a counted one is an assistant's content and is followed by eos."""

    text: str
    is_counted: bool


def _turn(place: str, number: int, message: object) -> tuple[Turn | None, str | None]:
    """One message, or why the conversation is rejected."""
    if not isinstance(message, dict) or "role" not in message or "content" not in message:
        raise BadDataError(
            f"{place}: expected message {number} to have the keys 'role' and 'content'"
        )
    role, content = message["role"], message["content"]
    if role not in ROLES:
        return None, "a message's role is not system, user or assistant"
    if content is None:
        return None, "a message's content is null"
    if not isinstance(content, str):
        kind = type(content).__name__
        raise BadDataError(
            f"{place}: expected the content of message {number} to be a string, "
            f"found {kind}"
        )
    if "\0" in content:
        return None, "a message holds a NUL character"
    if not is_encodable(content):
        return None, "a message holds a lone surrogate"
    return Turn(role, content), None


def turns_of_messages(messages: object, place: str) -> tuple[list[Turn], str | None]:
    """The messages of a conversation, whoever speaks last in it, or why it is rejected."""
    if messages is None:
        return [], "messages are null"
    if not isinstance(messages, list):
        kind = type(messages).__name__
        raise BadDataError(f"{place}: expected a list of messages, found {kind}")
    turns: list[Turn] = []
    for number, message in enumerate(messages, start=1):
        turn, reason = _turn(place, number, message)
        if turn is None:
            return [], reason
        turns.append(turn)
    return turns, None


def turns_of(document: Document) -> tuple[list[Turn], str | None]:
    """The messages of a conversation to learn from, or why it is rejected."""
    turns, reason = turns_of_messages(document.messages, document.place)
    if reason is None and not any(turn.role == "assistant" for turn in turns):
        return [], "no message is an assistant's"
    return turns, reason


def segments_of(turns: list[Turn]) -> list[Segment]:
    segments: list[Segment] = []
    prompt = ""
    for turn in turns:
        prompt += f"<|{turn.role}|>\n"
        if turn.role == "assistant":
            segments += [Segment(prompt, False), Segment(turn.content, True)]
            prompt = "\n"
        else:
            prompt += turn.content + "\n"
    # After a last assistant's eos there is no newline.
    return segments if turns[-1].role == "assistant" else [*segments, Segment(prompt, False)]


def prompt_segments_of(turns: list[Turn]) -> list[Segment]:
    """A conversation that another speaker ended, up to where the assistant's answer begins."""
    *earlier, last = segments_of(turns)
    return [*earlier, Segment(last.text + "<|assistant|>\n", False)]


def rendered(segments: list[Segment], eos: str) -> str:
    return "".join(one.text + (eos if one.is_counted else "") for one in segments)

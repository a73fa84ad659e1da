"""Filters by score, language and length; each says why it rejects a document."""

import dataclasses

from cplm_data.documents import Document
from cplm_data.errors import BadDataError


@dataclasses.dataclass(frozen=True)
class Filters:
    min_score: float | None = None
    languages: tuple[str, ...] = ()
    min_language_score: float | None = None
    min_characters: int | None = None
    max_characters: int | None = None

    def roles(self) -> tuple[str, ...]:
        """The columns or keys that the filters look at."""
        needed = {
            "score": self.min_score is not None,
            "language": bool(self.languages),
            "language_score": self.min_language_score is not None,
        }
        return tuple(role for role, is_needed in needed.items() if is_needed)

    def settings(self) -> dict[str, object]:
        """Those given, as JSON gives them back."""
        given = dataclasses.asdict(self) | {"languages": list(self.languages) or None}
        return {name: value for name, value in given.items() if value is not None}

    def rejection(self, document: Document, text: str) -> str | None:
        if self.min_characters is not None and len(text) < self.min_characters:
            return f"text has fewer than {self.min_characters} characters"
        if self.max_characters is not None and len(text) > self.max_characters:
            return f"text has more than {self.max_characters} characters"
        return (
            _below(document, "score", document.score, self.min_score)
            or self._other_language(document)
            or _below(document, "language_score", document.language_score, self.min_language_score)
        )

    def _other_language(self, document: Document) -> str | None:
        language = document.language
        if not self.languages or language in self.languages:
            return None
        if language is None:
            return "language is null"
        if not isinstance(language, str):
            kind = type(language).__name__
            raise BadDataError(f"{document.place}: expected a language as a string, found {kind}")
        return f"language is not {' or '.join(self.languages)}"


def _below(document: Document, role: str, value: object, least: float | None) -> str | None:
    if least is None:
        return None
    name = role.replace("_", " ")
    numbers = value if isinstance(value, list) else [value]  # a list: a score a part, its mean
    if not numbers or None in numbers:
        return f"{name} is null"
    for number in numbers:
        if not isinstance(number, int | float) or isinstance(number, bool):
            kind = type(number).__name__
            raise BadDataError(f"{document.place}: expected a {name} as a number, found {kind}")
    try:  # written so that NaN is rejected
        is_enough = sum(numbers) / len(numbers) >= least
    except OverflowError:
        raise BadDataError(f"{document.place}: the {name} is too large for a number") from None
    return None if is_enough else f"{name} is below {least:g}"

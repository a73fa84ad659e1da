"""Which columns of a parquet file, or keys of a JSON line, hold what a document is made of.

The names are those of FineWeb-Edu and FinePDFs; --column ROLE=NAME gives others.
"""

import dataclasses
from collections.abc import Collection

from cplm_data.errors import BadDataError

# For each role the names that are looked for, the first one found is taken.
NAMES_OF_ROLES = {
    "text": ("text",),
    "messages": ("messages",),
    "id": ("id",),
    "score": ("int_score", "score", "fw_edu_scores"),
    "language": ("language", "full_doc_lid"),
    "language_score": ("language_score", "full_doc_lid_score"),
}


@dataclasses.dataclass(frozen=True)
class Fields:
    body: str  # the role that a document is made of: text or messages
    filtered: tuple[str, ...]  # roles that filters look at
    given_names: tuple[tuple[str, str], ...]  # (role, name) by --column

    def _candidates(self, role: str) -> tuple[str, ...]:
        given = dict(self.given_names).get(role)
        return NAMES_OF_ROLES[role] if given is None else (given,)

    def choose(self, available: Collection[str], place: str, kind: str) -> dict[str, str]:
        """The name of each role; kind says what a name is there: a column or a key."""
        names: dict[str, str] = {}
        for role in (self.body, "id", *self.filtered):
            candidates = self._candidates(role)
            found = next((name for name in candidates if name in available), None)
            if found is not None:
                names[role] = found
            elif role != "id" or "id" in dict(self.given_names):
                wanted = " or ".join(f"'{name}'" for name in candidates)
                use = "" if role in (self.body, "id") else f" to filter by {role.replace('_', ' ')}"
                listed = ", ".join(map(str, list(available)[:20])) or "none"
                raise BadDataError(
                    f"{place}: expected a {kind} {wanted}{use}, found {kind}s: {listed}"
                )
        return names

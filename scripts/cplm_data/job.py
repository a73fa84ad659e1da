"""What is to be prepared, as the command line says it."""

import dataclasses
from pathlib import Path

from cplm_data import shards
from cplm_data.encoding import Selection
from cplm_data.fields import Fields
from cplm_data.filters import Filters
from cplm_data.hub import HubDataset


@dataclasses.dataclass(frozen=True)
class Job:
    inputs: list[str]
    dataset: HubDataset | None
    output: Path
    tokenizer: Path | None  # or else train one:
    vocab_size: int | None
    tokenizer_bytes: int
    validation_fraction: float
    eos: str
    shard_tokens: int
    filters: Filters
    column_names: dict[str, str]  # by role
    sequence_length: int | None  # of conversations; None: plain text
    rank: int
    world: int
    num_workers: int | None
    overwrite: bool

    def selection(self) -> Selection:
        body = "text" if self.sequence_length is None else "messages"
        names = tuple(sorted(self.column_names.items()))
        return Selection(Fields(body, self.filters.roles(), names), self.filters)

    def settings(self, tokenizer_sha256: str | None) -> dict[str, object]:
        """What, beside the input, the output's bytes depend on."""
        trained = {"train_tokenizer": self.vocab_size, "tokenizer_bytes": self.tokenizer_bytes}
        chat = {"template": "tulu", "sequence_length": self.sequence_length}
        return {
            "tokenizer_sha256": tokenizer_sha256,  # null: trained on this input
            **(trained if self.vocab_size else {"train_tokenizer": None}),
            "eos": self.eos,
            "validation_fraction": self.validation_fraction,
            "shard_tokens": self.shard_tokens,
            "shard_format": shards.FORMAT_VERSION,
            "filters": self.filters.settings(),
            "columns": self.column_names,
            "chat": None if self.sequence_length is None else chat,
            "world": self.world,
        }

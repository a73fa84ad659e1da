"""The input of one machine, as often as it is read: raw batches, texts to train a tokenizer on."""

from collections.abc import Callable, Iterator

from cplm_data.documents import Rejections, Split
from cplm_data.encoding import Selection
from cplm_data.sources import Part, Place, RawBatch, Source


class Corpus:
    def __init__(self, sources: list[Source], parts: list[Part], selection: Selection) -> None:
        self.sources = sources
        self.parts = parts
        self._selection = selection
        spans = [self._span(part) for part in parts]
        self.num_bytes = max(sum(spans), 1)
        self._bytes_before = [sum(spans[:number]) for number in range(len(spans))]
        self._spans = spans

    def _span(self, part: Part) -> int:
        """Bytes of a part; of a part of a parquet file only what is known without reading it."""
        size = self.sources[part.source_index].size_bytes
        is_lines = self.sources[part.source_index].path.endswith(".jsonl")
        return part.end - part.begin if part.end is not None and is_lines else size

    def share_done(self, raw: RawBatch) -> float:
        done = self._bytes_before[raw.part_number] + raw.share_done * self._spans[raw.part_number]
        return done / self.num_bytes

    def batches(
        self,
        first_part: int = 0,
        place: Place = Place(),
        on_part: Callable[[int], None] = lambda source_index: None,
    ) -> Iterator[RawBatch]:
        for number in range(first_part, len(self.parts)):
            part = self.parts[number]
            on_part(part.source_index)
            source = self.sources[part.source_index]
            start = place if number == first_part else Place()
            yield from source.batches(part, number, self._selection.fields, start)

    def training_texts(
        self, split: Split, max_bytes: int, report: Callable[[float], None]
    ) -> Iterator[str]:
        """About max_bytes at most: of each file the first documents, in proportion to its size."""
        num_bytes = 0
        for number, part in enumerate(self.parts):
            allowed = max_bytes * (self._bytes_before[number] + self._spans[number])
            if num_bytes * self.num_bytes >= allowed:
                continue
            source = self.sources[part.source_index]
            for raw in source.batches(part, number, self._selection.fields, Place()):
                report(self.share_done(raw))
                for accepted in self._selection.texts(raw, Rejections()):
                    if not split.is_validation(accepted.key):
                        num_bytes += accepted.num_bytes
                        yield accepted.text
                    if num_bytes * self.num_bytes >= allowed:
                        break
                else:
                    continue
                break

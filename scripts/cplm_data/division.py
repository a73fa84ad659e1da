"""How several machines share one job: each reads its own contiguous part of the input's bytes.

Nothing is agreed upon: every machine computes the same borders from the files' sizes. Where a
border falls inside a file, parquet files are cut at a row group, plain jsonl files at a line;
other files belong to the machine in whose share they begin. The parts in order are the input.
"""

from cplm_data.errors import BadDataError, system_reason
from cplm_data.parquet import row_groups
from cplm_data.sources import Part, Source


def _line_at(source: Source, byte: int) -> int:
    """Where the first line begins that begins at `byte` or after it."""
    if byte == 0:
        return 0
    try:
        with open(source.path, "rb") as file:
            file.seek(byte - 1)
            file.readline()
            return min(file.tell(), source.size_bytes)
    except OSError as error:
        raise BadDataError(f"{source.name}: cannot be read: {system_reason(error)}") from None


def _row_at(groups: list[tuple[int, int]], byte: int) -> int:
    """The first row of the first row group that begins at `byte` or after it."""
    return 0 if byte == 0 else next(row for row, offset in groups if offset >= byte)


def _part(source: Source, index: int, begin: int, end: int) -> Part | None:
    """What of a source belongs to bytes [begin, end) of it."""
    if begin == 0 and end == source.size_bytes:
        return Part(index)
    if source.path.endswith(".parquet"):
        groups = row_groups(source.path, source.name)
        num_rows = groups[-1][0]
        first = _row_at(groups, begin)
        last = num_rows if end == source.size_bytes else _row_at(groups, end)
        return Part(index, first, last) if first < last else None
    if source.path.endswith(".jsonl"):
        first, last = _line_at(source, begin), _line_at(source, end)
        return Part(index, first, last) if first < last else None
    return Part(index) if begin == 0 else None


def parts_of(sources: list[Source], rank: int, world: int) -> list[Part]:
    """What this machine reads, in the input's order."""
    total = sum(source.size_bytes for source in sources)
    first, last = total * rank // world, total * (rank + 1) // world
    parts: list[Part] = []
    offset = 0
    for index, source in enumerate(sources):
        size = source.size_bytes
        begin, end = max(first - offset, 0), min(last - offset, size)
        is_empty_and_here = size == 0 and first <= offset and (offset < last or rank == world - 1)
        part = None
        if size == 0:
            part = Part(index) if is_empty_and_here else None
        elif begin < end:
            part = _part(source, index, begin, end)
        if part is not None:
            parts.append(part)
        offset += size
    return parts

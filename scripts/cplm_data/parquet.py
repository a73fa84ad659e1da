"""Parquet files with a string column `text` (or a column `messages`) and, where there is one, `id`.

FineWeb-Edu's and FinePDFs' files are such; columns that are not asked for are not read. A few rows
are decoded at a time, a page of a column is in memory, never a whole row group.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.parquet
import pyarrow.types

from cplm_data.documents import Document
from cplm_data.errors import BadDataError, one_line

if TYPE_CHECKING:
    from cplm_data.fields import Fields
    from cplm_data.sources import Source

# A web page is a few kilobytes, a PDF a hundred: a fraction of a megabyte of text.
_BATCH_ROWS = 32
# Through a buffer of this size the pages of a row group are read one after the other.
_BUFFER_BYTES = 1 << 20


def _value_type(column: pyarrow.DataType) -> pyarrow.DataType:
    return column.value_type if pyarrow.types.is_dictionary(column) else column


def _is_string(column: pyarrow.DataType) -> bool:
    kind = _value_type(column)
    return (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or pyarrow.types.is_string_view(kind)
    )


def _columns(schema: pyarrow.Schema, name: str, fields: Fields) -> dict[str, str]:
    """The column of each role."""
    columns = fields.choose(schema.names, name, "column")
    kinds = {role: schema.field(column).type for role, column in columns.items()}
    if "text" in kinds and not _is_string(kinds["text"]):
        raise BadDataError(
            f"{name}: expected column '{columns['text']}' to hold strings, found {kinds['text']}"
        )
    if "id" in kinds and not _is_string(kinds["id"]) and not pyarrow.types.is_integer(kinds["id"]):
        raise BadDataError(
            f"{name}: expected column '{columns['id']}' to hold strings or integers, "
            f"found {kinds['id']}"
        )
    return columns


def _values(column: pyarrow.Array, name: str, first_row: int) -> list[object]:
    try:
        return column.to_pylist()
    except UnicodeDecodeError:
        for offset in range(len(column)):
            try:
                column[offset].as_py()
            except UnicodeDecodeError:
                raise BadDataError(
                    f"{name} row {first_row + offset}: not UTF-8; write the file again"
                ) from None
        raise


def _documents(
    batch: pyarrow.RecordBatch, columns: dict[str, str], name: str, row: int
) -> list[Document]:
    by_role = {role: _values(batch.column(column), name, row) for role, column in columns.items()}
    ids = by_role.pop("id", None) or [None] * len(batch)
    rows = zip(*by_role.values(), strict=True)
    return [
        Document(
            name,
            row + offset,
            None if ids[offset] is None else str(ids[offset]),
            **dict(zip(by_role, values, strict=True)),
        )
        for offset, values in enumerate(rows)
    ]


def _row_groups(metadata: pyarrow.parquet.FileMetaData) -> list[tuple[int, int]]:
    groups: list[tuple[int, int]] = []
    row = 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(number) for number in range(group.num_columns)]
        offsets = [c.data_page_offset for c in columns] + [
            c.dictionary_page_offset for c in columns if c.dictionary_page_offset
        ]
        groups.append((row, min(offsets, default=0)))
        row += group.num_rows
    return [*groups, (row, 2**63)]


def row_groups(path: str, name: str) -> list[tuple[int, int]]:
    """(first row, offset in the file) of each row group, and at last (all rows, 2^63)."""
    try:
        with pyarrow.parquet.ParquetFile(path, pre_buffer=False) as file:
            return _row_groups(file.metadata)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDataError(f"{name}: damaged or no parquet file: {one_line(error)}") from None


def read_parquet(
    source: Source, fields: Fields, begin: int, end: int | None
) -> Iterator[tuple[list[Document], int, int]]:
    """Rows [begin, end), end being a row group's border: documents, their bytes, the last end."""
    row = begin
    try:
        # Without pre_buffer and threads only what is being decoded is in memory.
        with pyarrow.parquet.ParquetFile(
            source.path, pre_buffer=False, buffer_size=_BUFFER_BYTES
        ) as file:
            groups = _row_groups(file.metadata)
            last = groups[-1][0] if end is None else end
            columns = _columns(file.schema_arrow, source.name, fields)
            wanted = list(dict.fromkeys(columns.values()))
            for index, (first, _) in enumerate(groups[:-1]):
                if groups[index + 1][0] <= row or first >= last:
                    continue
                skipped = row - first
                for batch in file.iter_batches(
                    _BATCH_ROWS, row_groups=[index], columns=wanted, use_threads=False
                ):
                    taken = batch.slice(min(skipped, len(batch)))
                    skipped -= len(batch) - len(taken)
                    documents = _documents(taken, columns, source.name, row)
                    row += len(taken)
                    yield documents, taken.nbytes, last
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDataError(
            f"{source.name}: damaged or no parquet file (at row {row}): {one_line(error)}"
        ) from None

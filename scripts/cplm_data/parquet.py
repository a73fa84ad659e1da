"""Parquet files with a string column `text` and, where there is one, an `id`.

FineWeb-Edu's and FinePDFs' files are such; other columns are not read. A batch of rows is decoded
at a time.
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
    from cplm_data.sources import Source

# A web page is a few kilobytes: about a megabyte of text a batch.
_BATCH_ROWS = 256


def _value_type(column: pyarrow.DataType) -> pyarrow.DataType:
    return column.value_type if pyarrow.types.is_dictionary(column) else column


def _is_string(column: pyarrow.DataType) -> bool:
    kind = _value_type(column)
    return (
        pyarrow.types.is_string(kind)
        or pyarrow.types.is_large_string(kind)
        or pyarrow.types.is_string_view(kind)
    )


def _columns(schema: pyarrow.Schema, name: str) -> list[str]:
    if "text" not in schema.names:
        raise BadDataError(
            f"{name}: expected a column 'text', found columns: {', '.join(schema.names[:20])}"
        )
    text = schema.field("text").type
    if not _is_string(text):
        raise BadDataError(f"{name}: expected column 'text' to hold strings, found {text}")
    if "id" not in schema.names:
        return ["text"]
    kind = schema.field("id").type
    if not _is_string(kind) and not pyarrow.types.is_integer(kind):
        raise BadDataError(
            f"{name}: expected column 'id' to hold strings or integers, found {kind}"
        )
    return ["text", "id"]


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


def read_parquet(source: Source) -> Iterator[Document]:
    row = 0
    try:
        # Without pre_buffer and threads only what is being decoded is in memory.
        with pyarrow.parquet.ParquetFile(source.path, pre_buffer=False) as file:
            columns = _columns(file.schema_arrow, source.name)
            num_rows = file.metadata.num_rows
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                texts = _values(batch.column("text"), source.name, row)
                has_ids = "id" in columns
                ids = (
                    _values(batch.column("id"), source.name, row)
                    if has_ids
                    else [None] * len(texts)
                )
                for offset, (text, document_id) in enumerate(zip(texts, ids, strict=True)):
                    identity = None if document_id is None else str(document_id)
                    yield Document(source.name, row + offset, identity, text)
                row += len(texts)
                source.bytes_done = source.size_bytes * row // max(num_rows, 1)
    except (pyarrow.ArrowException, OSError) as error:
        raise BadDataError(
            f"{source.name}: damaged or no parquet file (at row {row}): {one_line(error)}"
        ) from None

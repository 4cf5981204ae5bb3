"""Reads the rows of a CSV file, each with its place; lines are bounded before they are decoded."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from gpushare_plugin.base.errors import GpushareError

Read = TypeVar("Read")

MOST_LINES = 2_000_000
"""The most lines of a file."""
MOST_BYTES = 4_096
"""The most bytes of a line."""


def read_rows(file: Path, columns: Sequence[str], read: Callable[[Mapping[str, str]], Read]) -> Iterator[Read]:
    """Yield what `read` makes of each row, given by column.

    The first line names the columns, in any order; `columns` must be among the names. Raises GpushareError with the
    line for a file that is no such CSV, and for a row of which `read` raises ValueError.
    """
    try:
        with file.open("rb") as lines:
            rows = csv.reader(_lines(file, lines), strict=True)
            try:
                names = _names(next(rows, []), columns)
                yield from (read(_by_column(names, row)) for row in rows if row)
            except csv.Error as error:
                place = f"{file}:{max(1, rows.line_num)}"
                raise GpushareError(
                    f"{place}: found no CSV, expected other quotes or ends of lines: {error}"
                ) from error
            except ValueError as error:
                raise GpushareError(f"{file}:{max(1, rows.line_num)}: {error}") from error
    except OSError as error:
        raise GpushareError(f"cannot read {file}: {error}") from error


def _lines(file: Path, lines: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file as text, without the byte order mark that some programs write first."""
    number = 0
    while line := lines.readline(MOST_BYTES + 1):
        number += 1
        if number > MOST_LINES:
            raise GpushareError(f"{file}: found more than {MOST_LINES:,} lines; simulate a part of them")
        if len(line) > MOST_BYTES:
            raise GpushareError(f"{file}:{number}: found a line of more than {MOST_BYTES:,} bytes, expected CSV")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            column = line[: error.start].count(b",") + 1
            found = f"byte 0x{line[error.start]:02x} in value {column}"
            raise GpushareError(f"{file}:{number}: found {found}, expected text in UTF-8") from error


def _names(header: Sequence[str], columns: Sequence[str]) -> list[str]:
    """Return the names of the columns; raises ValueError for a header without one of `columns`, or with one twice."""
    names = [name.strip() for name in header]
    if missing := [column for column in columns if column not in names]:
        raise ValueError(f"found no column {', '.join(missing)}, expected the names of the columns in the first line")
    if twice := [name for name, number in Counter(filter(None, names)).items() if number > 1]:
        raise ValueError(f"found the column {twice[0]} twice, expected each column once")
    return names


def _by_column(names: Sequence[str], row: Sequence[str]) -> dict[str, str]:
    if len(row) != len(names):
        raise ValueError(f"found {len(row)} values, expected {len(names)}, one for each column of the first line")
    return dict(zip(names, map(str.strip, row), strict=True))

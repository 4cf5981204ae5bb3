"""Tables of plain text for thousands of rows, in milliseconds; `observe.node.tables` lays out the few rows of one node.

Both modules print every name in full. A table too wide for a terminal leaves columns out, or has a line for each value.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Self

from gpushare_plugin.base.text import visible

_GAP = "  "


class Headed(str):
    """A line that begins with a heading, which a terminal shows in bold."""

    __slots__ = ("heading",)
    heading: str
    """The beginning of the line, to be shown in bold."""

    def __new__(cls, heading: str, rest: str = "") -> Self:
        """Begin with `heading`; `rest` follows on the same line."""
        line = super().__new__(cls, heading + rest)
        line.heading = heading
        return line


class Style(NamedTuple):
    """The style of the output."""

    width: int | None = None
    """The width of the terminal in characters; None for a pipe."""
    bold: bool = False
    """Whether the output shows headings in bold."""
    bars: bool = False
    """Whether the output shows bars."""
    utf8: bool = True
    """Whether block characters can be shown."""

    def shown(self, line: str) -> str:
        """Return a line to print, with bold as the only control sequence: cluster users may have written the text."""
        if self.bold and isinstance(line, Headed) and line.heading:
            return f"\x1b[1m{visible(line.heading)}\x1b[0m{visible(line[len(line.heading) :])}"
        return visible(line)


class Table(NamedTuple):
    """A table, made narrower step by step for a narrow terminal."""

    headers: Sequence[str]
    """The headers of the columns."""
    rows: Sequence[Sequence[str]]
    """The rows, with a cell for each header."""
    optional: Sequence[str] = ()
    """The headers of columns to leave out after shortening the headers, in this order; needs `short`."""
    short: Sequence[str] = ()
    """Shorter headers for a narrow terminal; empty if the headers cannot be shortened."""

    def lines(self, style: Style) -> Iterator[str]:
        """Yield the lines, headers first."""
        for shown in self._layouts():
            widths = [max(map(len, column)) for column in zip(shown.headers, *shown.rows, strict=True)]
            if style.width is None or sum(widths) + len(_GAP) * (len(widths) - 1) <= style.width:
                pattern = _GAP.join(f"{{:<{width}}}" for width in widths).format
                yield Headed(pattern(*shown.headers).rstrip())
                yield from (pattern(*row).rstrip() for row in shown.rows)
                return
        yield from self._replace(headers=self.short or self.headers).expanded()

    def _layouts(self) -> Iterator["Table"]:
        """Yield the full table, then narrower tables."""
        yield self
        if self.short:
            narrow = self._replace(headers=self.short)
            yield narrow
            yield from (narrow.without(self.optional[: count + 1]) for count in range(len(self.optional)))

    def without(self, left_out: Collection[str]) -> "Table":
        """Return the table without some of its columns."""
        kept = [number for number, header in enumerate(self.headers) if header not in left_out]
        return Table([self.headers[number] for number in kept], [[row[number] for number in kept] for row in self.rows])

    def expanded(self) -> Iterator[str]:
        """Yield a line for each value, and an empty line between rows."""
        width = max(map(len, self.headers))
        for number, row in enumerate(self.rows):
            if number:
                yield ""
            for header, value in zip(self.headers, row, strict=True):
                if value:
                    yield Headed(f"{header:<{width}}", f"{_GAP}{value}")

"""Tables in pieces: text with any separator, Parquet, Excel. Nothing here knows what columns mean.

A piece is a polars frame of some tens of thousands of rows, so that a file of gigabytes is encoded
in the memory of its features. Every line of a text must have as many entries as the first; what a
line lacks is an error here, where other readers fill it in.
"""

from __future__ import annotations

import codecs
import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.files import DAMAGE, DataError, opened_file

Kind = Literal["csv", "parquet", "excel"]
# How a file's name ends that is no text.
_ENDINGS: dict[str, Kind] = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "excel"),
}
# Bytes of text that are parsed at once: large enough for speed, small beside any table's features.
PIECE = 16 << 20
_ROWS = 100_000
_QUOTE, _NEWLINE, _RETURN = b'"'[0], b"\n"[0], b"\r"[0]


@dataclass(frozen=True)
class TableFormat:
    """The way in which a text is written.

    Args:
        separator: one character between entries. decimal: ``"."`` or ``","``.
        encoding: a name that Python knows. comment: what a line starts with that is none.
        header: whether the first line holds the names; else columns are numbered, from 0.

    Raises:
        DataError: what cannot be used.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    comment: str | None = None
    header: bool = True

    def __post_init__(self) -> None:
        plain = len(self.separator) == 1 and self.separator.isascii()
        if not plain or self.separator in '"\n\r.':
            raise DataError(f"separator = {self.separator!r}: one character, such as ';' or '\\t'")
        if self.decimal not in (".", ",") or self.decimal == self.separator:
            raise DataError(
                f"decimal = {self.decimal!r} with separator {self.separator!r}: decimal is '.' or "
                "',', and not the separator"
            )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            raise DataError(
                f"encoding = {self.encoding!r} is not known: such as 'utf-8', 'latin-1', 'cp1252' "
                "or 'utf-16'"
            ) from None
        if self.comment is not None and not self.comment:
            raise DataError("comment is what a comment line starts with, such as '#'")


AS_USUAL = TableFormat()


def kind_of(path: Path) -> Kind:
    """The kind of table that a file's name says it is; text where it says nothing else."""
    return _ENDINGS.get(path.suffix.lower(), "csv")


@dataclass(frozen=True)
class Table:
    """A file that is read in pieces.

    Args:
        path: the file. kind: text, Parquet or Excel. form: how a text is written.
    """

    path: Path
    kind: Kind = "csv"
    form: TableFormat = AS_USUAL

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Frames in the file's order, all with the names of its first line.

        Columns of a text are words; those of the other kinds have their own types.

        Raises:
            DataError: damaged, ragged, no names, two columns of one name, or no row.
        """
        count = 0
        frames = {"csv": self._text, "parquet": self._parquet, "excel": self._excel}[self.kind]()
        for frame in frames:
            count += len(frame)
            yield frame
        if not count:
            raise DataError.unexpected(self.path, "no line below the names", "at least one")

    def _text(self) -> Iterator[pl.DataFrame]:
        names: list[str] | None = None
        line = 0
        for piece in self._pieces_of_text():
            shape = _shape(self.path, piece, ord(self.form.separator), line)
            line += shape.lines
            if not shape.rows:
                continue
            frame = self._parsed(shape.text, shape.rows)
            if names is None:
                names = [str(number) for number in range(frame.width)]
                if self.form.header:
                    names = self._names(frame.row(0))
                    frame = frame[1:]
            if frame.width != len(names):
                raise DataError.unexpected(
                    self.path, f"{frame.width} entries in line {shape.first}", f"{len(names)}"
                )
            frame.columns = names
            yield frame
        if names is None:
            raise DataError.unexpected(self.path, "an empty file", "a table")

    def _parsed(self, piece: bytes, rows: int) -> pl.DataFrame:
        try:
            frame = pl.read_csv(
                io.BytesIO(piece),
                has_header=False,
                separator=self.form.separator,
                infer_schema=False,
                raise_if_empty=False,
            )
        except pl.exceptions.PolarsError as error:
            first = str(error).partition("\n")[0]
            raise DataError.unexpected(self.path, f"no table ({first})", "a table") from error
        if len(frame) != rows:
            raise DataError.unexpected(
                self.path, f"{len(frame)} rows in {rows} lines", "entries quoted as RFC 4180 says"
            )
        return frame

    def _names(self, first: tuple[Any, ...]) -> list[str]:
        names = [str(name or "").strip() for name in first]
        if len(set(names)) < len(names):
            raise DataError.unexpected(self.path, "two columns of one name", "different names")
        return names

    def _pieces_of_text(self) -> Iterator[bytes]:
        """The text in UTF-8, cut between lines, without comment lines."""
        rest = b""
        for piece in self._decoded():
            whole = rest + piece
            end = _last_line_end(whole)
            rest = whole[end:]
            if end:
                yield self._without_comments(whole[:end])
        if rest:
            yield self._without_comments(rest)

    def _without_comments(self, piece: bytes) -> bytes:
        if self.form.comment is None:
            return piece
        # Blank in its place: line numbers in messages stay those of the file.
        mark = self.form.comment.encode()
        lines = piece.split(b"\n")
        return b"\n".join(b"" if line.lstrip().startswith(mark) else line for line in lines)

    def _decoded(self) -> Iterator[bytes]:
        name = codecs.lookup(self.form.encoding).name
        decoder = codecs.getincrementaldecoder("utf-8-sig" if name == "utf-8" else name)()
        at = 0
        try:
            with opened_file(self.path) as file:
                held = ""
                while True:
                    block = file.read(PIECE)
                    text = held + decoder.decode(block, final=not block)
                    # The two characters of one line end may lie in two blocks.
                    held = "\r" if block and text.endswith("\r") else ""
                    text = text.removesuffix("\r") if held else text
                    if "\0" in text:
                        raise DataError.unexpected(self.path, "a zero byte", "text")
                    if text:
                        if "\r" in text:
                            text = text.replace("\r\n", "\n").replace("\r", "\n")
                        yield text.encode()
                    if not block:
                        return
                    at += len(block)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{self.path} is no {self.form.encoding.upper()} text (near byte "
                f'{at + error.start}): say encoding = "latin-1" or what it is, or save it as CSV '
                "in UTF-8"
            ) from None
        except (*DAMAGE, UnicodeError) as error:
            raise DataError.unexpected(
                self.path, f"a truncated or corrupt file ({error})", "an intact one"
            ) from error

    def _parquet(self) -> Iterator[pl.DataFrame]:
        with self._reported("Parquet"):
            scan = pl.scan_parquet(self.path, glob=False)
            self._names(tuple(scan.collect_schema().names()))
            total = int(scan.select(pl.len()).collect().item())
            for start in range(0, total, _ROWS):
                yield scan.slice(start, _ROWS).collect()

    def _excel(self) -> Iterator[pl.DataFrame]:
        with self._reported("Excel"):
            # Cells as they are: a column of an Excel sheet may mix numbers and words.
            frame = pl.read_excel(self.path, infer_schema_length=None)
        self._names(tuple(frame.columns))
        yield frame

    @contextlib.contextmanager
    def _reported(self, kind: str) -> Iterator[None]:
        try:
            yield
        except (pl.exceptions.PolarsError, *DAMAGE, ValueError) as error:
            if isinstance(error, DataError):
                raise
            first = str(error).partition("\n")[0]
            raise DataError.unexpected(
                self.path, f"no readable {kind} file ({first})", f"a {kind} file"
            ) from error
        except BaseException as error:
            if type(error).__module__.partition(".")[0] not in (
                "_fastexcel",
                "fastexcel",
                "pyo3_runtime",
            ):
                raise
            first = str(error).partition("\n")[0]
            raise DataError.unexpected(
                self.path, f"no readable {kind} file ({first})", f"a {kind} file"
            ) from None


@dataclass(frozen=True)
class _Shape:
    """A piece: all lines, filled ones, the first one's number in the file, without blank ones."""

    lines: int
    rows: int
    first: int
    text: bytes


def _outside_quotes(text: NDArray[np.uint8]) -> NDArray[np.bool_] | None:
    """True for each byte outside quotes; None: there is no quote."""
    quotes = text == _QUOTE
    if not quotes.any():
        return None
    parity: NDArray[np.uint8] = np.cumsum(quotes, dtype=np.uint8)
    return np.asarray(parity % 2 == 0)


def _last_line_end(piece: bytes) -> int:
    """Length of the lines that are whole."""
    text = np.frombuffer(piece, np.uint8)
    ends = text == _NEWLINE
    outside = _outside_quotes(text)
    if outside is not None:
        ends &= outside
    found = np.flatnonzero(ends)
    return int(found[-1]) + 1 if len(found) else 0


def _shape(path: Path, piece: bytes, separator: int, before: int) -> _Shape:
    """Check that all filled lines of a piece have as many entries.

    Raises:
        DataError: names the first line that differs, or a quote that does not end.
    """
    text = np.frombuffer(piece, np.uint8)
    outside = _outside_quotes(text)
    ends, parts = text == _NEWLINE, text == separator
    if outside is not None:
        if not outside[-1]:
            last = int(np.flatnonzero(text == _QUOTE)[-1])
            line = before + 1 + int(ends[:last].sum())
            raise DataError.unexpected(path, f"an open quote in line {line}", "one that is closed")
        ends, parts = ends & outside, parts & outside
    stops = np.flatnonzero(ends)
    if not ends[-1]:
        stops = np.append(stops, len(text))
    starts = np.concatenate([[0], stops[:-1] + 1])
    counted = np.searchsorted(np.flatnonzero(parts), stops)
    entries = np.diff(counted, prepend=0) + 1
    filled = stops > starts
    kinds = entries[filled]
    if len(kinds) and (kinds != kinds[0]).any():
        wrong = int(np.flatnonzero(filled)[int((kinds != kinds[0]).argmax())])
        raise DataError.unexpected(
            path,
            f"{entries[wrong]} entries in line {before + wrong + 1}",
            f"{kinds[0]} as before it",
        )
    first = before + 1 + int(filled.argmax()) if len(filled) else before + 1
    if not filled.all():
        blank = stops[~filled]
        piece = np.delete(text, blank[blank < len(text)]).tobytes()
    return _Shape(len(stops), int(filled.sum()), first, piece)

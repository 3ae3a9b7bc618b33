"""Files: finding, reading in pieces and caching; every error names the file."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.values.serialisation import replaced

# The error for all data that cannot be used.


class DataError(ValueError):
    """Data that is missing, damaged or unsuitable: the message names the file and what is wrong."""

    @classmethod
    def unexpected(cls, path: Path | str, found: object, expected: object) -> DataError:
        """The error that says what was found in a file and what was expected."""
        return cls(f"{path}: found {found}, expected {expected}")


def finite(
    path: Path | str, inputs: NDArray[Any], columns: list[str] | None = None, first: int = 0
) -> None:
    """Refuse NaN and infinite features; ``first`` is the number of the first row.

    Raises:
        DataError: there is one; the message names its row and column.
    """
    # One pass without a copy of the data: float32 values cannot overflow a sum in float64.
    if np.isfinite(inputs.sum(dtype=np.float64)):
        return
    row, *place = (int(index) for index in np.argwhere(~np.isfinite(inputs))[0])
    where = columns[place[0]] if columns else ", ".join(str(index + 1) for index in place)
    found = f"{inputs[(row, *place)]} in example {first + row + 1}, feature {where}"
    raise DataError.unexpected(path, found, "finite features")


# Finding data files and reading them, compressed or not; every failure names the file.


FOLDER_VARIABLE = "FORETHOUGHT_DATA"
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what a damaged compressed file raises


def data_folder(folder: Path | str | None) -> Path | None:
    """The given folder, or the one in the variable FORETHOUGHT_DATA, or None.

    Raises:
        DataError: the given one is no folder.
    """
    chosen = folder or os.environ.get(FOLDER_VARIABLE)
    found = Path(chosen).expanduser() if chosen else None
    if found is not None and folder and not found.is_dir():
        raise DataError(f"{found} is no folder: give the one with the data, or leave it out")
    return found


def find(name: str, files: Iterable[str], folder: Path | None) -> Path:
    """The first of ``files`` that exists in FOLDER/name or in FOLDER itself.

    Raises:
        DataError: no folder is known, or none of the files is there.
    """
    if folder is None:
        raise DataError(
            f"{name}: no data folder: give folder (in a job, too), --data-dir or {FOLDER_VARIABLE}"
        )
    wanted, places = tuple(files), (folder / name, folder)
    for found in (place / file for place in places for file in wanted):
        if found.exists():
            return found
    raise DataError(
        f"{name}: no {' or '.join(wanted)} in {' or '.join(map(str, places))}. "
        "forethought downloads nothing: put the data set's original files there"
    )


def resolve(path: str, folder: Path | str | None) -> Path:
    """The file that a user named: in the given folder, else in the working directory.

    Without a given folder, the one in FORETHOUGHT_DATA comes behind the working directory: a
    variable that was set for other work must not put another table in the place of one here.

    Raises:
        DataError: no such file, or no such folder.
    """
    given = Path(path).expanduser()
    if not path:
        raise DataError("no file named: write the path behind the colon, as in csv:patients.csv")
    own, here = data_folder(folder), Path()
    places = (own, here) if folder else (here, own)
    tried = [place / given for place in places if place is not None]
    found = next(filter(Path.is_file, tried), None)
    if found is None and not given.is_absolute() and not given.is_dir():
        raise DataError(
            f"no file {' or '.join(map(str, tried))} in --data-dir, [data] folder or working folder"
        )
    return found or required(given)


def required(path: Path) -> Path:
    """The path of a file. Raises DataError: it is a folder, or there is none."""
    if path.is_dir():
        raise DataError(f"{path} is a folder: give a file, such as a table, or arrays as .npz")
    if not path.is_file():
        raise DataError(f"no file {path}")
    return path


def read(path: Path, most: int = -1) -> bytes:
    """The file's content, or its first ``most`` bytes, decompressed as by :func:`opened_file`.

    Raises:
        DataError: unreadable, truncated or corrupt.
    """
    try:
        with opened_file(path) as file:
            return file.read(most)
    except (*DAMAGE, ValueError) as error:
        raise _broken(path, error, "compressed file") from error


def _broken(path: Path, error: Exception, what: str) -> DataError:
    """The error for a file that cannot be opened, or read to its end."""
    if isinstance(error, OSError) and error.strerror:
        return DataError(f"{path}: cannot be read: {error.strerror}")
    return DataError.unexpected(path, f"a truncated or corrupt {what} ({error})", "an intact one")


@contextmanager
def opened_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading bytes, decompressed if it starts like a gzip, xz or bzip2 file."""
    with path.open("rb") as file:
        start = file.peek(8)[:8]
        opener = next((found for mark, found in _OPENERS.items() if start.startswith(mark)), None)
        if opener is None:
            yield file
            return
        with opener(file, "rb") as plain:
            yield plain


# Arrays that are computed once and stored in the user's cache folder, in whole files only.


CACHE_VARIABLE = "FORETHOUGHT_CACHE"
_TRAILER = struct.Struct("<4sI")  # a mark of the end of a whole file, and a CRC-32 of the array
_MARK = b"end\n"


def cache_folder() -> Path | None:
    """The folder of cached features: FORETHOUGHT_CACHE, or the user's cache folder of the platform.

    Returns:
        None if FORETHOUGHT_CACHE is ``off``.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen and chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "forethought"


def kept_array(
    path: Path, dtype: type[Any], shape: tuple[int, ...] | None = None
) -> NDArray[Any] | None:
    """Read the array that :func:`keep_array` wrote; None if missing, damaged or a different one."""
    try:
        with path.open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
            mark, checksum = _TRAILER.unpack(file.read())  # raises for another length
    except (OSError, ValueError, EOFError, struct.error):
        return None
    if mark != _MARK or found.dtype != dtype or shape not in (None, found.shape):
        return None
    return found if zlib.crc32(found.data) == checksum else None


def keep_array(path: Path, array: NDArray[Any]) -> None:
    """Write an array next to its path, then rename the file: no reader sees a partial file.

    If the folder cannot be written, nothing is stored, and no error is raised.
    """
    with contextlib.suppress(OSError), replaced(path, 0o600) as file:
        np.lib.format.write_array(file, array, allow_pickle=False)
        file.write(_TRAILER.pack(_MARK, zlib.crc32(array.data)))


# Tables in pieces: text with any separator, Parquet, Excel. The meaning of columns is not known
# here.


Kind = Literal["csv", "parquet", "excel"]
TABLES: tuple[Kind, ...] = get_args(Kind)
# File name suffix → the format's name for :func:`forethought.data.load`.
ENDINGS = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".data"), "csv"),
    **dict.fromkeys((".svm", ".svmlight", ".libsvm"), "svmlight"),
    ".npz": "npz",
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"), "excel"),
}
# Bytes of text that are parsed at once: enough for speed, little beside a table's features.
PIECE = 16 << 20
_ROWS = 100_000
_QUOTE, _NEWLINE = b'"'[0], b"\n"[0]
_QUOTED = "entries quoted as RFC 4180 says: a quotation mark inside of one is doubled"
# From here on, a float stands for several whole numbers; narrower ones from 2 to a lower power on.
_EXACT = 2.0**53
_BITS: dict[Any, int] = {pl.Float16: 11, pl.Float32: 24}
# How a sheet's number comes where it is text.
_AS_IN_SHEETS = r"^-?(0|[1-9]\d*)(\.\d*[1-9])?$"
# What strip_chars takes away: str.strip() takes the separators of ASCII as well.
_BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f")
# What stands for the same entry → its one spelling; other words, such as 1.10 or 01, stay.
_SPELLINGS = (
    (r"^(-?\d+)\.0+$", "$1"),
    (r"^-0$", "0"),
    (r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:(\.\d*[1-9])0+|\.0+)\b", "$1$2"),
    (r"^(\d{4}-\d\d-\d\d) 00:00:00$", "$1"),
    (r"^(?i:true)$", "1"),
    (r"^(?i:false)$", "0"),
)
# Excel's first line sep=; names the separator to Excel alone: it becomes a blank line. A byte order
# mark is no part of the first name, whatever the encoding.
EXCEL = re.compile(r"\A\ufeff?sep=.(?=[\r\n])|\A\ufeff", re.IGNORECASE)


@dataclass(frozen=True)
class TableFormat:
    """The format of a text table.

    Args:
        separator: one character between entries.
        decimal: decimal separator, ``"."`` or ``","``.
        encoding: a name that Python knows.
        comment: beginning of a line that is a comment; None: there are no comments.
        header: True if the first line holds the names; else columns are numbered, from 0.

    Raises:
        DataError: a value that cannot be used.
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
                f"decimal is '.' or ',', and not the separator {self.separator!r}: {self.decimal!r}"
            )
        try:
            "".encode(self.encoding)  # raises for a codec of bytes as well, such as base64
        except (LookupError, ValueError):
            raise DataError(
                f"encoding = {self.encoding!r} is not known: such as 'utf-8', 'latin-1', 'utf-16'"
            ) from None
        if self.comment is not None and not self.comment:
            raise DataError("comment is what a comment line starts with, such as '#'")


AS_USUAL = TableFormat()
# The expected value in messages on a record without a label.
LABEL_NEEDED = 'a label; missing_label = "drop" under [data] leaves such records out'


def kind_of(path: Path) -> Kind:
    """The kind of table by the suffix of a file's name; text if the suffix is unknown."""
    found: Any = ENDINGS.get(path.suffix.lower())
    return found if found in ("parquet", "excel") else "csv"


def distinct(where: Path | str, entries: pl.Series) -> pl.Series:
    """The entries, if equal ones are the same word, such as a person's name.

    Raises:
        DataError: floats that may stand for several whole numbers.
    """
    bits = _BITS.get(type(entries.dtype), 53)
    if entries.dtype.is_float() and ((entries.abs() >= 2.0**bits) & entries.is_finite()).any():
        raise DataError(
            f"{where}: floats beyond 2^{bits} are not told apart: give {entries.name} as text"
        )
    return entries


def written(entries: pl.Series) -> pl.Series:
    """Entries as text, each in one spelling that follows from that entry alone; null stays null.

    The type of a column, and how a program writes it, follow from all of its entries: one more can
    make floats of whole numbers or numbers of truths, give decimals and times more digits, or put
    blanks before words. So there are none around a word, 7.0 is 7, true is 1, a float32 has the
    same digits in float64, the fraction of a decimal or a time ends with no zero, and a midnight is
    its day. All that compares persons or words compares them in this spelling.
    """
    if entries.dtype.is_float():
        numbers = entries.cast(pl.Float64)
        whole, single = numbers.cast(pl.Int64, strict=False), numbers.cast(pl.Float32)
        fractions = single.cast(pl.String).zip_with(single == numbers, numbers.cast(pl.String))
        return whole.cast(pl.String).zip_with(whole == numbers, fractions)
    text = entries.cast(pl.String)
    if entries.dtype.is_decimal():
        return text.str.replace(r"(\.\d*[1-9])0+$|\.0+$", "$1")
    text = text.str.strip_chars()
    for found, spelling in _SPELLINGS:
        if text.str.contains(found).any():  # replacing takes much longer than looking
            text = text.str.replace(found, spelling)
    return text


def named(where: Path | str, entries: pl.Series) -> list[str]:
    """Persons or sites in one spelling; missing ones are empty. Raises DataError: see distinct."""
    return written(distinct(where, entries)).fill_null("").to_list()


def word(entry: Any) -> str:
    """One entry as text; None is "", and True and False are "1" and "0".

    Raises:
        DataError: the entry is no word, number or time.
    """
    if isinstance(entry, str | int | np.bool_):
        return entry if isinstance(entry, str) else str(int(entry))
    one = pl.Series([entry.item() if isinstance(entry, np.generic) else entry])
    if one.dtype.is_nested() or one.dtype in (pl.Object, pl.Binary, pl.Duration):
        raise DataError(
            f"found an entry of type {type(entry).__name__}: give words, numbers or times"
        )
    return str(written(one).fill_null("")[0])


def spelled(text: str) -> str:
    """A word in the spelling of :func:`written`."""
    # Not by polars: a process that is forked after its threads have begun cannot use them.
    text = text.strip(_BLANKS)
    for found, spelling in _SPELLINGS:
        text = re.sub(found, spelling.replace("$", "\\"), text)
    return text


def one_by_one(entries: Any) -> Any:
    """Entries without a type of their own as text, unless all are words or all are floats.

    Raises:
        DataError: as of :func:`word`.
    """
    kind = getattr(entries, "dtype", np.dtype(object))
    if isinstance(entries, str) or not isinstance(entries, Iterable) or kind != np.dtype(object):
        return entries
    held = list(entries)
    if {type(one) for one in held if one is not None} in ({str}, {float}):
        return held
    return pl.Series(map(word, held), dtype=pl.String)


@dataclass(frozen=True)
class Table:
    """A table in a file, read in pieces.

    Args:
        path: the file.
        kind: text, Parquet or Excel.
        form: the format of a text.
    """

    path: Path
    kind: Kind = "csv"
    form: TableFormat = AS_USUAL

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Yield frames in the file's order, all with the names of its first line.

        The columns of a text hold strings; those of the other kinds have their own types.

        Raises:
            DataError: a damaged file, one that changes meanwhile, lines of different lengths, two
                columns of one name, or no row.
        """
        count, before = 0, self._state
        frames = {"csv": self._text, "parquet": self._parquet, "excel": self._excel}[self.kind]()
        for frame in frames:
            count += len(frame)
            yield frame
        if not count:
            raise DataError.unexpected(self.path, "no line below the names", "at least one")
        if before != self._state:
            raise DataError(
                f"{self.path} changed while it was read: read it again when it is whole"
            )

    @property
    def _state(self) -> tuple[int, int]:
        found = required(self.path).stat()
        return found.st_mtime_ns, found.st_size

    def _text(self) -> Iterator[pl.DataFrame]:
        names: list[str] | None = None
        line = 0
        for piece in self._pieces_of_text():
            separator, width = ord(self.form.separator), len(names or ())
            lines, rows, text = _shape(self.path, piece, separator, line, width)
            line += lines
            if not rows:
                continue
            frame = self._parsed(text, rows)
            if names is None:
                names = [str(number) for number in range(frame.width)]
                if self.form.header:
                    names = self._names(frame.row(0))
                    frame = frame[1:]
            frame.columns = names
            yield frame
        if names is None:
            raise DataError.unexpected(self.path, "an empty file", "a table")

    def _parsed(self, piece: bytes, rows: int) -> pl.DataFrame:
        try:
            frame = pl.read_csv(
                piece, has_header=False, separator=self.form.separator, infer_schema=False
            )
        except pl.exceptions.PolarsError as error:
            raise DataError.unexpected(self.path, "no table", _QUOTED) from error
        if len(frame) != rows:
            raise DataError.unexpected(self.path, f"{len(frame)} rows in {rows} lines", _QUOTED)
        return frame

    def _names(self, first: tuple[Any, ...]) -> list[str]:
        names = [str(name or "").strip() for name in first]
        if len(set(names)) < len(names):
            raise DataError.unexpected(self.path, "two columns of one name", "different names")
        return names

    def _pieces_of_text(self) -> Iterator[bytes]:
        """The text in UTF-8, cut between lines, without comment lines."""
        rest = b""
        for piece in self._without_comments():
            rest += piece
            text = np.frombuffer(rest, np.uint8)
            ends = np.flatnonzero((text == _NEWLINE) & _outside_quotes(text))
            if len(ends):
                yield rest[: ends[-1] + 1]
                rest = rest[ends[-1] + 1 :]
        if rest:
            yield rest

    def _without_comments(self) -> Iterator[bytes]:
        if self.form.comment is None:
            yield from self._decoded()
            return
        # Comment lines become blank, so that line numbers in messages are those of the file. What
        # is inside of quotes is no comment, and a comment's own quotes are none.
        mark, rest, inside = self.form.comment.encode(), b"", False
        blanks = b" \t".replace(self.form.separator.encode(), b"")  # not an empty first entry
        for piece in chain(self._decoded(), [b"\n"]):
            *lines, rest = (rest + piece).split(b"\n")
            for at, line in enumerate(lines):
                if not inside and line.lstrip(blanks).startswith(mark):
                    lines[at] = b""
                inside ^= lines[at].count(b'"') % 2 == 1
            yield b"".join(line + b"\n" for line in lines)

    def _decoded(self) -> Iterator[bytes]:
        name = codecs.lookup(self.form.encoding).name
        try:
            with opened_file(self.path) as file:
                text = io.TextIOWrapper(file, "utf-8-sig" if name == "utf-8" else name)
                try:
                    piece = EXCEL.sub("", text.read(PIECE))
                    while piece:
                        if "\0" in piece:
                            raise DataError.unexpected(self.path, "a zero byte", "text")
                        yield piece.encode()
                        piece = text.read(PIECE)
                except UnicodeDecodeError as error:
                    near = file.tell() - len(error.object) + error.start
                    raise DataError(
                        f"{self.path} is no {self.form.encoding.upper()} text (near byte {near}): "
                        'say encoding = "latin-1" or what it is, or save it as CSV in UTF-8'
                    ) from None
        except (*DAMAGE, UnicodeError) as error:
            raise _broken(self.path, error, "file") from error

    def _parquet(self) -> Iterator[pl.DataFrame]:
        with self._reported("Parquet"):
            scan = pl.scan_parquet(self.path, glob=False)
            self._names(tuple(scan.collect_schema().names()))
            total = int(scan.select(pl.len()).collect().item())
            for start in range(0, total, _ROWS):
                yield with_entries(scan.slice(start, _ROWS).collect())

    def _excel(self) -> Iterator[pl.DataFrame]:
        with self._reported("Excel"):
            frame = self._sheet({})
            self._names(tuple(frame.columns))
            # A sheet holds floats, whatever they look like.
            large = (one for one in frame.select(pl.col(pl.Int64)) if (one.abs() >= _EXACT).any())
            frame = frame.with_columns(one.cast(pl.Float64) for one in large)
            # Beside a word, numbers become text of nine decimals. But one record must not change
            # what others say.
            number = frame.select(pl.col(pl.String).str.contains(_AS_IN_SHEETS))
            mixed = {one.name: pl.Float64 for one in number if one.any()}
            exact = self._sheet(mixed) if mixed else frame
            frame = frame.with_columns(
                written(exact[name]).zip_with(
                    number[name] & (exact[name].abs() < _EXACT), frame[name]
                )
                for name in mixed
            ).filter(~pl.all_horizontal(pl.all().is_null()))
        yield with_entries(frame)

    def _sheet(self, kinds: dict[str, Any]) -> pl.DataFrame:
        # No type inference: a column of an Excel sheet may mix numbers and words.
        return pl.read_excel(
            self.path, infer_schema_length=None, schema_overrides=kinds, drop_empty_rows=False
        )

    @contextlib.contextmanager
    def _reported(self, kind: str) -> Iterator[None]:
        try:
            yield
        except DataError:
            raise
        except BaseException as error:
            known = isinstance(error, (pl.exceptions.PolarsError, *DAMAGE, ValueError))
            module = type(error).__module__.partition(".")[0]
            if not known and module not in ("_fastexcel", "fastexcel", "pyo3_runtime"):
                raise
            first = str(error).partition("\n")[0]
            column = re.search(r"(?:in|for) column '?([^'\n]+)", str(error))
            if kind == "Excel" and column is not None:
                first = f"column {column[1]}: write numbers from 2^63 on, and durations, as text"
            raise DataError.unexpected(
                self.path, f"no readable {kind} file ({first})", "one"
            ) from (error if known else None)


# Type of an entry that is no number, word or day → a word in its place.
_NO_ENTRY = {
    **dict.fromkeys(("list", "array"), "(lists)"),
    **dict.fromkeys(("struct", "map"), "(fields)"),
    "object": "(objects)",
    "binary": "(bytes)",
}
NO_ENTRY = frozenset(_NO_ENTRY.values())


def with_entries(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with durations in seconds, words as text, and a word for each other entry."""
    changed = []
    for name, kind in frame.schema.items():
        word = _NO_ENTRY.get(kind.base_type().__name__.lower())
        if kind == pl.Duration:
            changed.append(pl.col(name).dt.total_microseconds() / 1e6)
        elif kind in (pl.Categorical, pl.Enum):
            changed.append(pl.col(name).cast(pl.String))
        elif word is not None:
            changed.append(pl.when(pl.col(name).is_not_null()).then(pl.lit(word)).alias(name))
    return frame.with_columns(changed)


def _outside_quotes(text: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """True for each byte outside quotes, and for the mark that ends them."""
    quotes = text == _QUOTE
    return np.asarray(np.cumsum(quotes, dtype=np.uint8) & 1 == 0) if quotes.any() else ~quotes


def _shape(
    path: Path, piece: bytes, separator: int, before: int, width: int
) -> tuple[int, int, bytes]:
    """Check that all filled lines of a piece have ``width`` entries, or as many as the first (0).

    Returns:
        The number of lines, how many rows there are, and their text.

    Raises:
        DataError: a line differs, a quote does not end, or a quotation mark is stray; the message
            names the line.
    """
    text = np.frombuffer(piece, np.uint8)
    newlines, quotes, outside = text == _NEWLINE, text == _QUOTE, _outside_quotes(text)

    def line(place: np.integer[Any]) -> int:
        return before + 1 + int(np.count_nonzero(newlines[:place]))

    if not outside[-1]:
        found = f"an open quote in line {line(np.flatnonzero(quotes)[-1])}"
        raise DataError.unexpected(path, found, "one that is closed")
    marks = newlines | (text == separator)
    borders = marks & outside
    # Two records would be one where each has one mark too many: 5" disk, or "5" disk". So what
    # begins with a mark ends with one, and what does not holds no border between two.
    behind = quotes & outside & ~np.append((quotes | borders)[1:], True)
    odd, between = np.flatnonzero((marks & ~outside) | behind), np.flatnonzero(borders)
    begin = np.append(-1, between)[np.searchsorted(between, odd)] + 1
    stray = odd[quotes[begin] == behind[odd]]
    if len(stray):
        found = f"a stray quotation mark in line {line(stray[0])}"
        raise DataError.unexpected(path, found, _QUOTED)
    stops = np.flatnonzero(newlines & outside)
    if not newlines[-1]:
        stops = np.append(stops, len(text))
    starts = np.concatenate([[0], stops[:-1] + 1])
    entries = np.diff(np.searchsorted(between, stops) + 1, prepend=0)
    filled = stops > starts
    kinds = entries[filled]
    width = width or int(kinds[:1].sum())
    if (kinds != width).any():
        wrong = np.flatnonzero(filled)[(kinds != width).argmax()]
        found = f"{entries[wrong]} entries in line {line(starts[wrong])}"
        raise DataError.unexpected(path, found, f"{width} as before it")
    if not filled.all():
        blank = stops[~filled]
        piece = np.delete(text, blank[blank < len(text)]).tobytes()
    return int(np.count_nonzero(newlines)), int(filled.sum()), piece

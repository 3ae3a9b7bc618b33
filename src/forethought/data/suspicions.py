"""What a table probably is when it cannot be what it seems: the remedy for each.

Looked at on the owner's machine only; what is found goes into an error or a warning for the owner
and into no result.
"""

from __future__ import annotations

import difflib
import re
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forethought.data.error import DataError

_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_STARTS = {
    b"PK\x03\x04": "an Excel workbook or another zip archive: save its sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save its sheet as CSV (UTF-8)",
    b"PAR1": "a Parquet file: write it as CSV, or as npz",
    b"<": "a web page: save the table itself as CSV",
    b"{": "JSON: write it as CSV, or as npz",
    b"[": "JSON: write it as CSV, or as npz",
}
# Undeclared numbers are not rescaled: from about here on they drown all other features.
LARGE = 100.0
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
# Units that measurements come with; not any letters, which would take codes such as 2B for one.
_UNITS = (
    r"%|‰|€|\$|£|[kmµ]?g|[kcmµ]?m|m?l|d?l|mm ?hg|bpm|kg/m[2²]|[mg]+/dl|[mµ]?mol/l|y(ea)?rs?|days?"
)
_NUMBER_AND_MORE = re.compile(rf"[-+€$£]?\d[\d.,' ]*\s*({_UNITS})?", re.IGNORECASE)
# What people write for "missing" where there are no negative values otherwise.
_MISSING = (-9.0, -99.0, -999.0, -9999.0)


class SuspiciousDataWarning(UserWarning):
    """Data that can be used and probably should not be used as they are."""


def require_text(path: Path, content: bytes) -> str:
    """The content as UTF-8 text.

    Raises:
        DataError: some other kind of file, or another encoding; says what to save it as.
    """
    for start, kind in _STARTS.items():
        if content.lstrip()[: len(start)] == start and start in content[:64]:
            raise DataError(f"{path} is no table of comma-separated values but looks like {kind}")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is written in UTF-16: save it as CSV in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is no UTF-8 text (byte {error.start} does not fit): save it as CSV in UTF-8, "
            "which spreadsheets call 'CSV UTF-8'"
        ) from None
    if "\0" in text:
        raise DataError.unexpected(path, "a zero byte", "text")
    return text


def unknown_column(path: Path, names: list[str], wanted: str, purpose: str) -> DataError:
    """The error for a column that is not there, with what the first line looks like."""
    line = ",".join(names)
    for separator, word in _SEPARATORS.items():
        if separator in line and wanted in (part.strip() for part in line.split(separator)):
            return DataError(
                f"{path}: its entries are separated by {word}, not by commas: save it with commas "
                "(and decimal points)"
            )
    shown = ", ".join(names[:20])
    near = difflib.get_close_matches(
        wanted.strip().lower(), [name.strip().lower() for name in names], 1, 0.7
    )
    hint = ""
    if near:
        close = next(name for name in names if name.strip().lower() == near[0])
        hint = f". Did you mean {close!r}?"
    elif names[0].startswith("#") or sum(map(bool, names)) == 1:
        hint = ". The first line must hold the names: remove what is above it"
    elif any(re.fullmatch(r"[-+]?\d+(\.\d+)?", name) for name in names):
        hint = ". In a file without a line of names the columns are called by number, from 0"
    return DataError(
        f"{path}: found the columns {shown}, expected one named {wanted!r}, {purpose}{hint}"
    )


def require_words(path: Path, name: str, words: list[str]) -> None:
    """Refuse a column that would become categories and holds dates, or numbers with something.

    Args:
        words: the different entries.

    Raises:
        DataError: names the column, shows one entry, and says what to do.
    """
    if not any(words):
        raise DataError(
            f"{path}: column {name or 'without a name'} is empty: remove it (a comma at the end of "
            "each line makes one)"
        )
    if len(words) < 3:
        return
    most = len(words) / 2
    if sum(bool(_DATE.fullmatch(word)) for word in words) > most:
        raise DataError(
            f"{path}: column {name} holds dates, such as {words[-1]!r}: turn them into numbers, "
            "such as days since a fixed day, or drop the column"
        )
    if sum(bool(_NUMBER_AND_MORE.fullmatch(word)) for word in words) > most:
        raise DataError(
            f"{path}: column {name} holds numbers with something around them, such as "
            f"{words[-1]!r}: write plain numbers with a decimal point and nothing else"
        )


def require_small(path: Path, name: str, numbers: NDArray[np.float32]) -> None:
    """Refuse an undeclared column of large numbers: it would drown all others under the clipping.

    Raises:
        DataError: names the column and how to declare its range.
    """
    if not (np.abs(numbers) > LARGE).any() or not np.isfinite(numbers).all():
        return
    kinds = np.unique(numbers)
    if float(kinds[0]) in _MISSING and kinds[1] >= 0:
        code = f"{kinds[0]:g}"
        raise DataError(
            f"{path}: column {name} holds {code} and nothing else below 0: if that stands for a "
            f"missing value, say so under [data.columns]: {name} = {{range = [0, 100], missing = "
            f'"middle", codes = [{code}]}} with its true range'
        )
    raise DataError(
        f"{path}: column {name} holds numbers beyond {LARGE:g}: declare its range under "
        f"[data.columns], such as {name} = [0, 1000], so that it is scaled without a look at the "
        f'data, or {name} = "drop". forethought init {path.name} writes the whole table'
    )


def warn_of_codes(path: Path, name: str, numbers: NDArray[np.float32]) -> None:
    """Warn where a number that stands for "missing" would be taken for a measurement."""
    if not len(numbers) or float(numbers.min()) not in _MISSING:
        return
    kinds = np.unique(numbers)
    if len(kinds) > 2 and float(kinds[0]) in _MISSING and kinds[1] >= 0:
        count = int((numbers == kinds[0]).sum())
        warnings.warn(
            f"{path}: column {name} holds {kinds[0]:g} in {count} rows and nothing else below 0: "
            "if that stands for a missing value, fill or drop it beforehand",
            SuspiciousDataWarning,
            stacklevel=6,
        )

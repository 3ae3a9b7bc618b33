"""A first job file for a table or for images, made by reading them, for the owner to correct."""

from __future__ import annotations

import codecs
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data import DataError, TableFormat
from forethought.data.columns import LOOKED, MISSING_WORDS, Seen, outward, proposal
from forethought.data.dataset import is_number, label_column
from forethought.data.features import best_features, reason_for
from forethought.data.files import DAMAGE, EXCEL, Kind, Table, kind_of, opened_file, read, required
from forethought.data.sources import BROKEN, load_idx, shape_read, wanted_arrays
from forethought.data.tables import require_text, unknown_column
from forethought.jobs.job import toml_key, toml_value

# A first job file for a table, made on its owner's machine, for the owner to correct.
#
# Everything in it was taken from private records: the file says so, the job has
# ``columns_measured = true``, and a Statement names it, until the owner replaces it by declarations
# from their own knowledge. Ranges are rounded outward to 1, 2 or 5 times a power of ten.


_HEAD = """\
# Written by forethought init, which read {name} on this machine. Nothing left it.
#
# Ranges and categories below were taken from that file and rounded. That is a use of private
# records which no ε covers. Put in their place what you know without the file (what an age, a dose,
# a ward can be at all), then set columns_measured = false: from then on they are declared by you.
# A range may be generous: where the numbers lie in it is released first, and paid for out of ε,
# where records are enough for that ([training] ranges = true insists on it).
"""


def job_for(path: Path, label: str | Sequence[str] | None = None) -> str:
    """The text of a job file for a table.

    Args:
        path: CSV with any usual separator, Parquet or Excel.
        label: the column to predict, or several labels of 1 and 0; None: the last column that has
            a name and entries, with a question in the file.

    Raises:
        DataError: a damaged file, fewer than two columns, no such column, or several labels that
            are not 1 and 0.
    """
    kind, form = _form(path)
    seen: dict[str, Seen] = {}
    firsts: list[pl.DataFrame] = []
    for frame in Table(path, kind, form).pieces():
        firsts.append(frame.head(LOOKED - sum(map(len, firsts))))
        for name in frame.columns:
            seen.setdefault(name, Seen()).add(frame[name], form.decimal)
    if len(seen) < 2:
        wanted = "at least two, with commas, semicolons, tabs or vertical bars between them"
        raise DataError.unexpected(path, f"{len(seen)} columns", wanted)
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    for each in (name for name in labels if name not in seen):
        raise unknown_column(path, [*seen], each, "the label")
    filled = [name for name in seen if name and seen[name].present]
    targets = tuple(dict.fromkeys(labels)) or tuple((filled or list(seen))[-1:])
    for each in targets if len(targets) > 1 else ():
        try:
            label_column("", each, list(seen[each].words))
        except DataError:
            raise DataError(
                f"{path}: each of several labels is a column of 1 and 0, or of yes and no, and "
                f"{each} has other entries: leave it out, or give it as the only --label"
            ) from None
    question = "" if labels else "  # is this the column to predict?"
    lines = [_HEAD.format(name=_on_one_line(path.name)), "[data]"]
    lines += [f"source = {toml_value(f'{kind}:{path}')}"]
    start = pl.concat(firsts, how="vertical_relaxed")
    persons = _persons(start, {name: seen[name] for name in seen if name not in targets})
    given_away: dict[str, str] = {}
    nearly: dict[str, str] = {}
    shares: list[float] = []
    if len(targets) > 1:
        lines += [f"label = {toml_value(targets)}", 'task = "multilabel"']
    else:
        own = seen[targets[0]]
        lines.append(f"label = {toml_value(targets[0])}{question}")
        lines += [*_kind_of_target(f"{path}: the label {targets[0]}", own), *_unlabelled(own)]
        shares = _shares(own)
        lines += [f"# prevalence = {toml_value(shares)}{_PREVALENCE}"] if shares else []
        given_away, nearly = _leaks(start, targets[0], own)
    for key, value, usual, question in (
        ("separator", form.separator, ",", ""),
        ("decimal", form.decimal, ".", ""),
        ("encoding", form.encoding, "utf-8", ""),
        ("header", form.header, True, _NO_NAMES),
    ):
        if value != usual:
            lines.append(f"{key} = {toml_value(value)}{question}")
    lines += [
        f"# person = {toml_value(name)}  # values repeat: does it say whom a row is about? Then ε "
        "can protect persons, not rows: take away the first #"
        for name in persons
    ]
    lines += ["columns_measured = true", "", "[data.columns]"]
    others = {name: column for name, column in seen.items() if name not in targets}
    lines += _columns(others, persons, given_away, nearly)
    if shares and min(shares) < RARE:
        costs = [float(f"{max(shares) / share:.1g}") for share in shares]
        lines += ["", f"# [predict]{_COSTS}", f"# costs = {toml_value(costs)}"]
        lines += [f'# [training]{_LOUDER}\n# class_weights = "prevalence"']
    return "\n".join([*lines, "", "[budget]", "epsilon = 3.0", ""])


def _to_name(path: Path) -> Path:
    """The path of a file that a job, which is a text in UTF-8, can name. Raises DataError."""
    if re.search("[\ud800-\udfff]", str(required(path))):  # bytes that are no UTF-8, in Python
        raise DataError(f"{path}: a job cannot name it, for its name is no UTF-8: rename it")
    return path


def _on_one_line(words: str) -> str:
    """A comment's text: a line's end in an entry or a name would end the comment."""
    return "".join(one if one.isprintable() else " " for one in words)


def _columns(
    seen: Mapping[str, Seen],
    persons: Sequence[str],
    given_away: Mapping[str, str],
    nearly: Mapping[str, str],
) -> Iterator[str]:
    """A line for each column, with the proposed declaration and its reason."""
    dropped = True
    for name, column in seen.items():
        value, why = proposal(name, column)
        if name in persons and _PERSONS.search(name):
            value, why = "drop", "it names a person? See person under [data]"
        elif name in given_away and value != "drop":
            why = f"{given_away[name]}. Is it known before the label is? {toml_value(value)}"
            value = "drop"
        elif name in nearly and value != "drop":
            why += f"; {nearly[name]}"
        elif value == "drop":
            why += _dressed(column)
        dropped &= value == "drop"
        yield f"{toml_key(name)} = {toml_value(value)}  # {_on_one_line(why)}"
    if dropped:
        yield ALL_DROPPED


# A number or a day with marks or a unit: 97.5 %, <0.5, 1,200, 120/80, 01-JAN-2015. No code, as 2B7.
_DRESSED = re.compile(r"\W*\d(?!.*[^\W\d_]\d)", re.DOTALL)


def _dressed(seen: Seen) -> str:
    """A hint on how to write numbers and days that are written as words; "" for other words."""
    dressed = sum(count for word, count in seen.words.items() if _DRESSED.match(word))
    if not seen.several or seen.mostly(seen.numbers) or 2 * dressed < sum(seen.words.values()):
        return ""
    return "; numbers or days? Then write numbers alone, and days as 2024-01-31"


ALL_DROPPED = (
    "# Every column is dropped, so there is nothing to learn from: say of one at least what it is"
)
# A class with a smaller share is rare: the file then proposes shares and costs.
RARE = 0.1
_CASED = ". Words that differ in capitals alone are classes apart: write them alike in the file"
_NO_NAMES = "  # the first line holds numbers: if they are names, put a letter before each of them"
_PREVALENCE = "  # counted in the file: give what you know without it, and take away the first #"
_COSTS = (
    "  # a class is rare: answers that miss it are the likeliest ones. Say what a record of each\n"
    "# class costs that is taken for another, against 1, and the cheapest answer is given"
)
_LOUDER = "  # records of a rare class count for more, which clipping takes back for the most part"


def _entries(column: pl.Series, classes: Sequence[str] = ()) -> pl.Series:
    """The entries as words, null where they are missing; words in ``classes`` are never missing."""
    text = column.cast(pl.String).str.strip_chars()
    absent = text.str.to_lowercase().is_in(list(MISSING_WORDS)) & ~text.is_in(list(classes))
    return text.set(absent.fill_null(True), None)


def _shares(seen: Seen) -> list[float]:
    """The share of each class, to two digits; the largest is adjusted so that the sum is 1."""
    if seen.several or len(seen.words) < 2:
        return []
    found = [float(f"{seen.words[word] / seen.present:.2g}") for word in _classes(seen)]
    most = found.index(max(found))
    found[most] = round(1 - math.fsum(found[:most] + found[most + 1 :]), 6)
    return found


# Least numbers of rows, of rows of a class, and of rows per value, for a check of label leakage.
_ENOUGH, _OF_A_CLASS, _OF_A_VALUE = 50, 5, 5
# The file asks about a column that leaves at most the share _MISTAKES of the errors of a constant
# answer, or of the spread of a label of numbers. Numbers are divided into at most _PARTS parts of
# at least _OF_A_PART rows.
_MISTAKES, _PARTS, _OF_A_PART = 1 / 20, 64, 25


def _leaks(frame: pl.DataFrame, label: str, seen: Seen) -> tuple[dict[str, str], dict[str, str]]:
    """The columns that determine the label (label leakage), and those that nearly do.

    For the second the label is predicted by the most frequent class for each word, or in each part
    of a column of numbers; a label of numbers, by its rank correlation with the column.

    Args:
        seen: the summary of the label.

    Returns:
        Each column with the reason, and with a question.
    """
    given_away: dict[str, str] = {}
    nearly: dict[str, str] = {}
    if not seen.several and min(seen.words.values()) < _OF_A_CLASS:
        return given_away, nearly
    labels = _entries(frame[label], _classes(seen))
    left = _left_along if seen.several else _left_of_mistakes
    for name in frame.columns:
        rows = pl.DataFrame({"x": _entries(frame[name]), "y": labels}).drop_nulls()
        if name == label or len(rows) < _ENOUGH:
            continue
        if reason := _giving_away(rows, seen.several):
            given_away[name] = reason
        elif 0 < left(rows) <= _MISTAKES:
            nearly[name] = "it says the label of nearly every record: is it known before?"
    return given_away, nearly


def _giving_away(rows: pl.DataFrame, numbers: bool) -> str:
    """The reason why a column determines the label, a number if ``numbers``; empty if it does not.

    Either every value of a column, each in several rows, goes with one label only. Or, sorted by a
    column of numbers, every class is one interval, or a label of numbers only rises or only falls.
    """
    kinds = rows.unique()
    if kinds["x"].n_unique() < len(kinds):
        return ""
    if len(rows) >= _OF_A_VALUE * len(kinds):
        return "each of its values goes with one label: it gives the label away"
    along = kinds["x"].cast(pl.Float64, strict=False)
    order = kinds["y"].gather(along.arg_sort())
    if numbers:
        order = order.cast(pl.Float64, strict=False)
        follows = order.is_sorted() or order.is_sorted(descending=True)
    else:
        follows = len(order.rle()) == order.n_unique()
    follows &= not along.null_count()
    return "the label follows from where it lies: it gives the label away" if follows else ""


def _left_along(rows: pl.DataFrame) -> float:
    """The share of a label's rank variance that a column of numbers leaves: 1 − ρ² (Spearman)."""
    numbers = rows.select(pl.all().cast(pl.Float64, strict=False))
    if sum(numbers.null_count().row(0)):
        return 1.0
    (agree,) = numbers.select(pl.corr("x", "y", method="spearman")).row(0)
    return 1 - agree**2 if math.isfinite(agree) else 1.0


def _left_of_mistakes(rows: pl.DataFrame) -> float:
    """The errors of predictions from a column, over those of the most frequent class."""
    if len(rows) < _OF_A_VALUE * len(rows.unique()):
        numbers = rows["x"].cast(pl.Float64, strict=False)
        if numbers.null_count():
            return 1.0
        parts = min(_PARTS, len(rows) // _OF_A_PART)
        ends = np.unique(np.quantile(numbers, np.arange(1, parts) / parts))
        rows = rows.with_columns(x=pl.Series(np.searchsorted(ends, numbers)))
    most = rows.group_by("x", "y").len().group_by("x").agg(pl.col("len").max())
    wrong = len(rows) - int(most["len"].sum())
    usual = len(rows) - int(rows["y"].unique_counts().to_numpy().max())
    return wrong / usual if usual else 1.0


# Usual names of the column with the person of a row.
_PERSONS = re.compile(
    r"(^|[_\s])(patient|person|subject|customer|client|user|member|participant|household|family|"
    r"employee|student|pupil|policy_?holder|owner|donor|animal|case|account|card|device|name|id|"
    r"mrn|ssn)(s|_?(id|ids|nr|no|number|key|code))?$|[a-z]Id$|ID$",
    re.IGNORECASE,
)


# Usual names of columns with the time of a row: a file may be sorted by them.
_WHEN = re.compile(
    r"(^|[^a-z])(year|month|quarter|week|day|date|time|hour|period|wave|visit|round|trend)",
    re.IGNORECASE,
)


def _persons(frame: pl.DataFrame, seen: dict[str, Seen]) -> list[str]:
    """The columns that may identify the person of a row.

    A column that another one of them determines, such as a person's sex, is left out, unless its
    name is usual for persons; of two columns that determine each other, the later one is left out.
    """
    found = [name for name, column in seen.items() if _of_persons(name, column)]
    kinds = {name: frame[name].n_unique() for name in found}

    def follows(name: str, other: str) -> bool:
        if frame.select(name, other).n_unique() != kinds[other]:
            return False
        return kinds[name] < kinds[other] or found.index(other) < found.index(name)

    kept = [
        name
        for name in found
        if _PERSONS.search(name) or not any(follows(name, one) for one in found if one != name)
    ]
    return sorted(kept, key=lambda name: not _PERSONS.search(name))


def _of_persons(name: str, seen: Seen) -> bool:
    """True if a column's values repeat like those of an identifier."""
    if seen.repeats <= 1.02 or seen.text or _WHEN.search(name):
        return False
    if not (seen.several or seen.in_runs or _PERSONS.search(name)):
        return False
    if len(seen.words) < 3:  # student: yes or no
        return False
    if any(map(seen.mostly, seen.days.values())):
        return False
    if seen.step > 1 and not _PERSONS.search(name):  # multiples such as 10°, 20° are measurements
        return False
    if not seen.mostly(seen.numbers):
        return True
    # Measured numbers repeat as well, but not in consecutive rows, nor under a name for persons.
    return seen.whole and (seen.in_runs or bool(_PERSONS.search(name)))


def _unlabelled(seen: Seen) -> list[str]:
    """The key that leaves out records without a label, if there are such records."""
    if not seen.blanks:
        return []
    classes = _classes(seen)
    if seen.blanks <= {*classes}:
        return ["# Words such as none count as missing elsewhere; here they are listed as classes"]
    words = ", ".join(sorted(seen.blanks - {"", *classes}))
    why = "records without a label are left out; without this line they are refused"
    why += f". Is one of these a class: {words}? Then list it in classes" if words else ""
    return [f'missing_label = "drop"  # {why}']


def _kind_of_target(label: str, seen: Seen) -> list[str]:
    if seen.several:
        if seen.numbers < seen.present:
            raise DataError(
                f"{label} holds more than thirty different words: choose another column with "
                f"--label, or group its words into thirty at most{_dressed(seen)}"
            )
        low, high = outward(seen.low, seen.high, seen.whole)
        return ['task = "regression"', f"target_range = {toml_value([low, high])}"]
    words: list[Any] = _classes(seen)
    if len(words) < 2:
        raise DataError(
            f"{label} is the same in every record that has one: choose another with --label"
        )
    if seen.numbers == seen.present and len(words) > 2:
        low, high = outward(seen.low, seen.high, seen.whole)
        return [
            f"classes = {toml_value(words)}  # class 0 first",
            "# Is it a number to predict? Then, in place of classes: task = "
            f'"regression", target_range = {toml_value([low, high])}',
        ]
    cased = len({word.lower() for word in words}) < len(words)
    return [f"classes = {toml_value(words)}  # class 0 first{_CASED if cased else ''}"]


def _classes(seen: Seen) -> list[str]:
    # Where there is only one other word, such as yes, "none" is a class and no missing entry.
    words = [*seen.words, *(seen.blanks - {""} if len(seen.words) == 1 else ())]
    return sorted(words, key=lambda one: (0, float(one), one) if is_number(one) else (1, 0.0, one))


# What numbers look like if their commas or points separate thousands.
_THOUSANDS = re.compile(r"[1-9]\d{0,2}[.,]\d{3}")
# How files begin that are no text tables. One sign is too little: a table's name may begin with it.
_NO_TABLE = re.compile(
    rb'PK\x03\x04|\xd0\xcf\x11\xe0|PAR1|\s*(<(!|\?xml|(?i:html|table))|\{\s*"|\[\s*[\[{])'
)


def _form(path: Path) -> tuple[Kind, TableFormat]:
    """The kind of a file and its text format."""
    kind = kind_of(_to_name(path))
    if kind != "csv":
        return kind, TableFormat()
    start = read(path, 1 << 16)
    encoding = _encoding(path, start)
    text = EXCEL.sub("", start.decode(encoding, errors="ignore"))
    lines = text.lstrip("\r\n").splitlines()
    separator = max((",", ";", "\t", "|"), key=re.sub('"[^"]*"', "", "".join(lines[:1])).count)
    # Without the names, and without a last line that was cut in the middle.
    entries = "\n".join(lines[1 : -1 if len(start) == 1 << 16 else None])
    found = re.findall(r'(?<![^;\t|\n]) *"?-?(\d+[.,]\d+)"? *(?![^;\t|\n])', entries)
    commas, points = ([number for number in found if mark in number] for mark in ",.")
    # What may all separate thousands is no sign: as words, such columns are asked about.
    count = [len(of) * (not all(map(_THOUSANDS.fullmatch, of))) for of in (commas, points)]
    comma = separator != "," and count[0] > count[1]
    first = lines[0].split(separator) if lines else []
    # A first line of numbers is no header: columns are then numbered from 0.
    plain = (entry.strip().strip("\"'").replace(",", ".") for entry in first)
    header = not first or sum(map(is_number, plain)) <= len(first) / 2
    return kind, TableFormat(separator, "," if comma else ".", encoding, header=header)


def _encoding(path: Path, start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if _NO_TABLE.match(start := start.removeprefix(codecs.BOM_UTF8)):
        require_text(path, start)
    try:
        with opened_file(path) as file:
            while (piece := file.read(1 << 20)) and piece.isascii():
                pass
            (piece + file.read(3)).decode()  # with the rest of a letter that was cut
    except UnicodeDecodeError as error:
        # Behind letters that are UTF-8 it is damage: the table's own reader says where.
        return "cp1252" if error.object[: error.start].isascii() else "utf-8"
    except DAMAGE:
        pass  # the table's own reader says what is wrong with it
    return "utf-8"


# A first job file for images: the fixed features for a linear model, with the reason.
#
# Only sizes are read, from the headers of the arrays. The file does not depend on records or
# labels.


_IDX = ("-idx", ".idx")
_HEAD_IMAGES = """\
# Written by forethought init from the sizes of the arrays in {name}. No image and no label was
# read.
"""
_HEAD_IDX = """\
# Written by forethought init, which read {name} and the files that belong to it on this machine.
"""
_AXES = " Images are (N, channels, height, width); those in other order are not known for images."
# Data sets in the file format of LeCun et al. (1998) that have loaders of their own.
_ORIGINAL = ("mnist", "fashion-mnist")


def holds_arrays(path: Path) -> bool:
    """True if a file has the name of a file of arrays, or of images in the idx format."""
    name = path.name.lower()
    return path.suffix.lower() in (".npz", ".npy") or any(mark in name for mark in _IDX)


def job_for_arrays(path: Path) -> str:
    """The text of a job file for an archive of NumPy arrays, or for files in MNIST's format.

    For images of a suitable size the job names fixed features, with the reason; other arrays are
    used as they are.

    Args:
        path: ``.npz`` with ``x`` and ``y`` or ``x_train`` and ``y_train``; or training images in
            the idx format, with the three other files of the data set in the same folder.

    Raises:
        DataError: no such file, no archive, no such arrays, or a single array, without labels.
    """
    if _to_name(path).suffix.lower() == ".npz":
        return _of_archive(path)
    if path.suffix.lower() == ".npy":
        raise DataError(
            f"{path} holds one array and no labels: write both into one archive, "
            "np.savez('images.npz', x=images, y=labels), and forethought init images.npz"
        )
    return _of_idx(path)


def _of_archive(path: Path) -> str:
    found = _headers(path)
    x, y = wanted_arrays(path, found)[:2]
    inputs, targets = found[x], found[y]
    if len(inputs.shape) < 2:
        raise DataError.unexpected(f"{path}, {x}", f"shape {inputs.shape}", "(N, features, …)")
    lines = [_HEAD_IMAGES.format(name=path.name), "[data]", f"source = {toml_value(f'npz:{path}')}"]
    lines += _features(shape_read(inputs.shape, inputs.dtype))
    if len(targets.shape) == 2 and targets.shape[1] > 1:
        lines.append('task = "multilabel"')
    else:
        other = '  # or "regression"' if targets.dtype.kind == "f" else ""
        lines += [
            f'task = "classification"{other}',
            "# classes = [0, 1]  # which there are, class 0 first; left out, the labels say, and "
            "the Statement says that",
        ]
    return "\n".join([*lines, "", "[budget]", "epsilon = 3.0", ""])


def _features(shape: tuple[int, ...]) -> list[str]:
    chosen = best_features(shape)
    if chosen is None:
        kept = f"# Trained on as it is, {' × '.join(map(str, shape[1:]))} numbers a record."
        return [kept + (_AXES if len(shape) > 2 else "")]
    return [f"# Why these features: {reason_for(chosen)}.", f"features = {toml_value(chosen)}"]


def _of_idx(path: Path) -> str:
    folder = path.parent
    name = folder.name if folder.name in _ORIGINAL else "mnist"
    # The loader checks that the four files exist and fit each other.
    shape = load_idx(name, folder).train.inputs.shape
    lines = [
        _HEAD_IDX.format(name=path.name),
        "[data]",
        f"source = {toml_value(name)}  # ten classes, train-… and t10k-… in the folder",
        f"folder = {toml_value(str(folder))}",
        *_features(shape),
    ]
    return "\n".join([*lines, "", "[budget]", "epsilon = 3.0", ""])


def _headers(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays without memory, of the shapes and types in an archive's headers."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith(".npy"):
                    continue
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    shape, _, dtype = read[version](file)
                found[name.removesuffix(".npy")] = np.broadcast_to(np.empty((), dtype), shape)
    except (*BROKEN, ValueError, KeyError) as error:
        raise DataError.unexpected(
            path, f"no readable archive of plain arrays ({error})", "a .npz file without objects"
        ) from error
    return found

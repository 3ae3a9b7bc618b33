"""A first job file from a look at a table, on its owner's machine, for the owner to correct.

Whatever it writes was taken from private records: the file says so, the job carries
``columns_measured = true``, and a Statement names it, until the owner has put what they know in its
place. Ranges are rounded outward to 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forethought.data import DataError, TableFormat
from forethought.data.columns import outward, proposal
from forethought.data.reading import Kind, Table, kind_of
from forethought.data.seen import Seen
from forethought.data.suspicions import require_text
from forethought.jobs.toml import toml_key, toml_value

_HEAD = """\
# Written by forethought init, which read {name} on this machine. Nothing left it.
#
# Ranges and categories below were taken from that file and rounded. That is a use of private
# records which no ε covers. Put in their place what you know without the file (what an age, a dose,
# a ward can be at all), then set columns_measured = false: from then on they are declared by you.
"""


def job_for(path: Path, label: str | Sequence[str] | None = None) -> str:
    """The text of a job file for a table.

    Args:
        path: CSV with any usual separator, Parquet or Excel.
        label: the column to predict, or several labels of 1 and 0; none: the last column, with a
            question.

    Raises:
        DataError: damaged, or no such column.
    """
    kind, form = _form(path)
    seen: dict[str, Seen] = {}
    for frame in Table(path, kind, form).pieces():
        for name in frame.columns:
            seen.setdefault(name, Seen()).add(frame[name], form.decimal)
    if len(seen) < 2:
        raise DataError.unexpected(path, f"{len(seen)} columns", "at least two")
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    for each in labels:
        if each not in seen:
            raise DataError.unexpected(
                path, f"the columns {', '.join(seen)}", f"one named {each!r}"
            )
    targets = tuple(dict.fromkeys(labels)) or (list(seen)[-1],)
    question = "" if labels else "  # is this the column to predict?"
    lines = [_HEAD.format(name=path.name), "[data]", f"source = {toml_value(f'{kind}:{path}')}"]
    if len(targets) > 1:
        lines += [f"label = {toml_value(targets)}", 'task = "multilabel"']
    else:
        lines += [f"label = {toml_value(targets[0])}{question}", *_target(seen[targets[0]])]
    for key, value, usual in (
        ("separator", form.separator, ","),
        ("decimal", form.decimal, "."),
        ("encoding", form.encoding, "utf-8"),
    ):
        if value != usual:
            lines.append(f"{key} = {toml_value(value)}")
    lines += ["columns_measured = true", "", "[data.columns]"]
    for name, column in seen.items():
        if name not in targets:
            value, why = proposal(name, column)
            lines.append(f"{toml_key(name)} = {toml_value(value)}  # {why}")
    lines += ["", "[budget]", "epsilon = 3.0", ""]
    return "\n".join(lines)


def _target(seen: Seen) -> list[str]:
    if seen.missing:
        raise DataError(
            f"{seen.missing} records have no label: leave them out of the file, or choose another "
            "label"
        )
    if seen.several:
        if seen.numbers < seen.rows:
            raise DataError(
                "the label holds more than thirty different words: choose another column with "
                "--label"
            )
        low, high = outward(seen.low, seen.high, seen.whole)
        return ['task = "regression"', f"target_range = {toml_value([low, high])}"]
    words: list[Any] = sorted(seen.words, key=_order)
    if len(words) < 2:
        raise DataError("the label is the same in every record: choose another with --label")
    return [f"classes = {toml_value(words)}  # class 0 first"]


def _order(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)


def _form(path: Path) -> tuple[Kind, TableFormat]:
    """Which kind of file it is, and how a text is written."""
    if not path.is_file():
        raise DataError(f"no file {path}")
    kind = kind_of(path)
    if kind != "csv":
        return kind, TableFormat()
    with path.open("rb") as file:
        start = file.read(1 << 16)
    encoding = _encoding(path, start)
    lines = start.decode(encoding, errors="ignore").splitlines()[:50]
    counts: Callable[[str], int] = lambda mark: lines[0].count(mark) if lines else 0  # noqa: E731
    separator = max((",", ";", "\t", "|"), key=counts)
    fractions = re.compile(r"(^|[;\t|])\s*-?\d+,\d+\s*($|[;\t|])")
    comma = separator != "," and any(fractions.search(line) for line in lines[1:])
    return kind, TableFormat(separator, "," if comma else ".", encoding)


def _encoding(path: Path, start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if start.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"BZh")):
        return "utf-8"
    try:
        start[: start.rfind(b"\n") + 1].decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"
    require_text(path, start[: start.rfind(b"\n") + 1])
    return "utf-8"

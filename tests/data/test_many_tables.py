"""Fifty tables as people have them: each loads, or is one clear line with the remedy."""

from __future__ import annotations

import gzip
import random
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forethought.data import DataError, load
from forethought.data.tables import SuspiciousDataWarning

HEAD = "age,bmi,ward,outcome"
Row = tuple[object, ...]


def rows(count: int = 60, change: Callable[[int, Row], Row] | None = None) -> list[Row]:
    draw = random.Random(0)
    found: list[Row] = [
        (
            draw.randint(20, 90),
            round(draw.uniform(10, 40), 1),
            draw.choice("ABC"),
            draw.choice(["no", "yes"]),
        )
        for _ in range(count)
    ]
    return found if change is None else [change(index, row) for index, row in enumerate(found)]


def text(
    separator: str = ",",
    table: Sequence[Row] | None = None,
    head: str = HEAD,
    form: Callable[[object], str] = str,
) -> str:
    lines = [head.replace(",", separator)] if head else []
    lines += [separator.join(form(entry) for entry in row) for row in table or rows()]
    return "\n".join(lines) + "\n"


def with_line(number: int, change: Callable[[str], str]) -> str:
    lines = text().splitlines()
    lines[number] = change(lines[number])
    return "\n".join(lines) + "\n"


def with_bmi(entry: str) -> str:
    def change(line: str) -> str:
        parts = line.split(",")
        return ",".join([parts[0], entry, *parts[2:]])

    return with_line(5, change)


def numbers_as(kind: type, form: str) -> str:
    """The table with its whole numbers, or its fractions, written in another way."""
    return text(form=lambda entry: form.format(entry) if isinstance(entry, kind) else str(entry))


LOADS: dict[str, str | bytes] = {
    "plain": text(),
    "carriage returns and line feeds": text().replace("\n", "\r\n"),
    "carriage returns": text().replace("\n", "\r"),
    "byte order mark": b"\xef\xbb\xbf" + text().encode(),
    "everything in quotes": text(form='"{}"'.format),
    "line ends inside of quotes": text().replace("A", '"A\nB"'),
    "blank lines": text().replace("\n", "\n\n"),
    "spaces around": text(" , "),
    "a name left out": text(head="age,,ward,outcome"),
    "words of other scripts": text(
        table=rows(change=lambda i, r: (*r[:2], "Łódź🙂" if i % 2 else "B", r[3]))
    ),
    "labels in numbers": text(table=rows(change=lambda i, r: (*r[:3], i % 2))),
    "gzipped": gzip.compress(text().encode()),
    "codes of a digit and a letter": text(
        table=rows(change=lambda i, r: (*r[:2], f"{i % 3}{'AB'[i % 2]}", r[3]))
    ),
    "ordinals": text(
        table=rows(change=lambda i, r: (*r[:2], ["1st", "2nd", "3rd", "4th"][i % 4], r[3]))
    ),
    "ranges": text(
        table=rows(change=lambda i, r: (*r[:2], ["20-30", "30-40", "40-50"][i % 3], r[3]))
    ),
    "no line at the end": text().rstrip("\n"),
}
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "semicolons": (text(";"), "separated by semicolons, not by commas"),
    "tabs": (text("\t"), "separated by tabs"),
    "bars": (text("|"), "separated by vertical bars"),
    "decimal commas": (text(";", form=lambda v: str(v).replace(".", ",")), "decimal points"),
    "UTF-16": (text().encode("utf-16"), "written in UTF-16: save it as CSV in UTF-8"),
    "Latin-1": (text(head="age,bmi,wård,outcome").encode("latin-1"), "no UTF-8 text"),
    "a missing number": (with_bmi(""), "fill or drop missing entries"),
    "NA": (with_bmi("NA"), "'NA' in column bmi, example 5.*fill or drop"),
    "a question mark": (with_bmi("?"), "fill or drop"),
    "a word among numbers": (with_bmi("high"), "'high' in column bmi, example 5"),
    "infinite": (with_bmi("inf"), "found inf in example 5, feature bmi"),
    "not a number": (with_bmi("nan"), "found nan in example 5"),
    "too large": (with_bmi("1e300"), "found inf in example 5"),
    "a missing label": (with_line(5, lambda line: line.rpartition(",")[0] + ","), "no label"),
    "a comment above": ("# exported\n" + text(), "remove what is above"),
    "a title above": ("Patients 2024,,,\n" + text(), "remove what is above"),
    "a comment inside": (with_line(3, lambda line: "# x\n" + line), "1 entries in line 4"),
    "a sum below": (text() + "Total,,,\n", "'Total' in column age, example 61"),
    "a comma at the end": (text().replace("\n", ",\n"), "a comma at the end of each line"),
    "a short line": (text() + "3,4\n", "2 entries in line 62, expected 4"),
    "a long line": (text() + "3,4,A,no,5\n", "5 entries in line 62"),
    "an open quote": (text() + '3,4,"A,no\n', "an open quote in line 62"),
    "no names": (text(head=""), "called by number, from 0"),
    "nothing": ("", "an empty file"),
    "names only": (HEAD + "\n", "0 examples"),
    "one line": (HEAD + "\n1,2,A,no\n", "two or more"),
    "one class": (text(table=rows(change=lambda i, r: (*r[:3], "no"))), "only the label no"),
    "one name twice": (text(head="age,age,ward,outcome"), "two columns of one name"),
    "another spelling": (text(head="age,bmi,ward,Outcome"), "Did you mean 'Outcome'"),
    "noise": (bytes(random.Random(0).randrange(128, 256) for _ in range(4000)), "no UTF-8 text"),
    "a zero byte": (text().encode() + b"\0", "zero byte"),
    "a workbook": (b"PK\x03\x04" + bytes(200), "Excel workbook"),
    "an old workbook": (b"\xd0\xcf\x11\xe0" + bytes(200), "old Excel workbook"),
    "parquet": (b"PAR1" + bytes(200), "Parquet"),
    "a web page": ("<html><table><tr><td>1</td></tr></table></html>", "a web page"),
    "JSON": ('[{"age": 1, "outcome": "no"}]', "JSON"),
    "names of people": (
        text(table=rows(1500, lambda i, r: (f"p{i}", *r[1:]))),
        "drop a column of identifiers",
    ),
    "dates": (
        text(table=rows(change=lambda i, r: (f"2024-01-{i % 28 + 1:02d}", *r[1:]))),
        "holds dates, such as '2024-01-28'",
    ),
    "German dates": (
        text(table=rows(change=lambda i, r: (f"{i % 28 + 1}.3.2024", *r[1:]))),
        "holds dates",
    ),
    "thousands": (numbers_as(int, '"{},000"'), "numbers with something around them"),
    "per cents": (numbers_as(float, "{}%"), "numbers with something around them"),
    "units": (numbers_as(float, "{} kg"), "such as '40.0 kg'"),
    "too many labels": (text(table=rows(1100, lambda i, r: (*r[:3], f"k{i}"))), "1100 different"),
    "a large code for missing": (
        text(table=rows(change=lambda i, r: (-999 if i % 7 == 0 else r[0], *r[1:]))),
        r"codes = \[-999\]",
    ),
    "platelets": (
        text(table=rows(change=lambda i, r: (250_000 + i, *r[1:]))),
        r"beyond 100: declare its range under \[data\.columns\]",
    ),
    "half a gzip": (gzip.compress(text().encode())[:100], "truncated or corrupt"),
}


def one_file(folder: Path, content: str | bytes) -> str:
    path = folder / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return f"csv:{path}"


@pytest.mark.parametrize("name", LOADS)
def test_it_loads(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load(one_file(tmp_path, LOADS[name]), label="outcome")
    assert data.test is not None
    assert len(data.train) + len(data.test) == 60
    assert data.classes == 2


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_with_the_remedy(name: str, tmp_path: Path) -> None:
    content, message = REFUSED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match=rf"t\.csv.*{message}") as found:
            load(one_file(tmp_path, content), label="outcome")
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def test_a_code_for_missing_is_warned_of(tmp_path: Path) -> None:
    table = rows(change=lambda i, r: (-99 if i % 7 == 0 else r[0], *r[1:]))
    with pytest.warns(SuspiciousDataWarning, match="age holds -99"):
        load(one_file(tmp_path, text(table=table)), label="outcome")


def test_there_are_more_than_fifty() -> None:
    assert len(LOADS) + len(REFUSED) > 50

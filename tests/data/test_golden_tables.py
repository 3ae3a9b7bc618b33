"""Tables read before and after a change of the readers: features to the last bit, words, errors.

``python tests/data/test_golden_tables.py`` writes what is found today into golden_tables.json.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from forethought.data import DataError, Encoder, TableFormat, TableSchema, files, load

sys.path.insert(0, str(Path(__file__).parent))
from test_many_tables import LOADS, REFUSED, rows, text

GOLDEN = Path(__file__).with_name("golden_tables.json")
FILES: dict[str, str | bytes] = {
    "plain.csv": text(),
    "test.csv": "outcome,ward,bmi,age\nyes,B,12.5,20\nno,Z,30,31\n",
    "odd.csv": "outcome,ward,age\nyes,B,20\n",
    "unknown.csv": "outcome,ward,bmi,age\nperhaps,B,12.5,20\n",
    "large.csv": "outcome,ward,bmi,age\nyes,B,12.5,2000\n",
    "coded.csv": "outcome,ward,bmi,age\n" + "yes,B,12.5,-9\nno,A,2,3\nno,A,2,4\n",
    "semicolons.csv": text(";", form=lambda entry: str(entry).replace(".", ",")),
    "latin.csv": text(head="age,bmi,wård,outcome").encode("latin-1"),
    "utf16.csv": text().encode("utf-16"),
    "zipped.csv.gz": gzip.compress(text().encode(), mtime=0),
    "bare.csv": text(head=""),
    "comments.csv": "# made\n" + text().replace("\n2", "\n# x\n2") + "# end\n",
    "words.csv": "a,w,y\n"
    + "".join(f"{i % 9},{['', 'u', ' v', 'NA'][i % 4]},{i % 2}\n" for i in range(40)),
    "quoted.csv": 'a, "b",y\n' + "".join(f'{i / 8},"{i % 3}",{i % 2}\n' for i in range(40)),
    "values.csv": "a,b,y\n" + "".join(f"{i},{i * i % 7},{i / 3 - 2:.4f}\n" for i in range(50)),
    "many.csv": "a,b,y\n" + "".join(f"{i % 50},{i % 7},{i}\n" for i in range(1200)),
    "three.csv": "a,y\n" + "".join(f"{i % 50 / 7},{i % 3}\n" for i in range(60)),
    "people.csv": "who,site,a,d,y\n"
    + "".join(
        f"p{i * 7 % 23},s{i % 3},{i % 10},20{i % 20:02}-0{1 + i % 9}-11,{i % 2}\n"
        for i in range(90)
    ),
    "nobody.csv": "who,a,y\np,1,0\n,2,1\np,3,1\n",
    "holes.csv": "age,bmi,ward,seen,outcome\n"
    + "".join(
        f"{'' if i % 5 == 0 else 20 + i},{-9 if i % 7 == 0 else 15 + i / 2},"
        f"{'?' if i % 6 == 0 else 'ABC'[i % 3]},"
        f"{'' if i % 8 == 0 else f'{1 + i % 28}.{1 + i % 12}.2020'},{'yn'[i % 2]}\n"
        for i in range(80)
    ),
    "labels.csv": "a,fever,cough,rest\n"
    + "".join(f"{i % 9},{i % 2},{['no', 'Yes'][i % 3 == 0]},{'tf'[i % 2]}\n" for i in range(40)),
    "unlabelled.csv": "a,y\n1,0\n2,\n3,1\n",
    "two.csv": "a,y\n1,0\n2,1\n",
    "wide.csv": ",".join(f"c{i}" for i in range(30)) + "\n" + ",".join("1" * 30) + "\n",
}
COLUMNS = {"age": [0, 110], "bmi": [10, 80], "ward": ["A", "B", "C"]}
PEOPLE: dict[str, Any] = {"a": [0, 9], "d": "date", "site": "drop", "who": "drop"}
HOLES: dict[str, Any] = {
    "age": {"range": [0, 110], "missing": "middle"},
    "bmi": {"range": [10, 80], "missing": "category", "codes": [-9], "log": True},
    "ward": {"categories": ["A", "B"], "other": True, "missing": "category"},
    "seen": {"date": ["2015-01-01", "2024-12-31"], "format": "%d.%m.%Y", "missing": "middle"},
}
NO, CLASSES = {"label": "outcome"}, {"label": "outcome", "classes": ["no", "yes"]}
READ: dict[str, tuple[str, dict[str, Any]]] = {
    "bundled digits": ("digits", {}),
    "bundled breast cancer": ("breast-cancer", {"holdout": 0.3}),
    "plain": ("csv:plain.csv", NO),
    "zipped": ("csv:zipped.csv.gz", NO),
    "holdout": ("csv:plain.csv", {**NO, "holdout": 0.5}),
    "declared classes": ("csv:plain.csv", CLASSES),
    "declared classes the other way round": ("csv:plain.csv", {**NO, "classes": ["yes", "no"]}),
    "too few declared classes": ("csv:plain.csv", {**NO, "classes": ["no", "maybe"]}),
    "declared task": ("csv:plain.csv", {**NO, "task": "classification"}),
    "a regression on words": ("csv:plain.csv", {**NO, "task": "regression"}),
    "features": ("csv:plain.csv", {**NO, "features": 5}),
    "other features": ("csv:plain.csv", {**NO, "features": 4}),
    "split by": ("csv:people.csv", {"label": "y", "split_by": "who", "site": "d"}),
    "site": ("csv:people.csv", {"label": "y", "split_by": "d", "site": "site"}),
    "site is the label": ("csv:plain.csv", {**NO, "site": "outcome"}),
    "no such site": ("csv:plain.csv", {**NO, "site": "Ward!"}),
    "bare": ("csv:bare.csv", {"label": "3"}),
    "bare from the end": ("csv:bare.csv", {"label": "-1", "split_by": "0", "site": "2"}),
    "bare, too far": ("csv:bare.csv", {"label": "4"}),
    "a number where names are": ("csv:plain.csv", {"label": "3"}),
    "no label": ("csv:plain.csv", {}),
    "no such label": ("csv:plain.csv", {"label": "outcomes"}),
    "a test file": ("csv:plain.csv", {**NO, "test": "test.csv"}),
    "a test file of other columns": ("csv:plain.csv", {**NO, "test": "odd.csv"}),
    "a test file with an unknown label": ("csv:plain.csv", {**NO, "test": "unknown.csv"}),
    "a test file with large numbers": ("csv:plain.csv", {**NO, "test": "large.csv"}),
    "a test file with codes": ("csv:plain.csv", {**NO, "test": "coded.csv"}),
    "empty words": ("csv:words.csv", {"label": "y"}),
    "quoted names": ("csv:quoted.csv", {"label": "y"}),
    "values": ("csv:values.csv", {"label": "y"}),
    "values declared": ("csv:values.csv", {"label": "y", "task": "regression"}),
    "values as classes": ("csv:values.csv", {"label": "y", "task": "classification"}),
    "many whole numbers": ("csv:many.csv", {"label": "y"}),
    "three": ("csv:three.csv", {"label": "y"}),
    "three declared": ("csv:three.csv", {"label": "y", "classes": [2, 0, 1]}),
    "a missing label": ("csv:unlabelled.csv", {"label": "y"}),
    "two": ("csv:two.csv", {"label": "y", "holdout": 0.01}),
    "a senseless holdout": ("csv:plain.csv", {**NO, "holdout": 1.5}),
    "one line": ("csv:wide.csv", {"label": "c0"}),
    "several labels undeclared": (
        "csv:labels.csv",
        {"label": ["fever", "cough"], "task": "multilabel"},
    ),
    "no file": ("csv:none.csv", NO),
    "parquet undeclared": ("parquet:t.parquet", NO),
}
DECLARED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("csv:plain.csv", CLASSES, {"columns": COLUMNS}),
    "zipped": ("csv:zipped.csv.gz", CLASSES, {"columns": COLUMNS}),
    "measured": ("csv:plain.csv", CLASSES, {"columns": COLUMNS, "measured": True}),
    "too narrow": ("csv:plain.csv", CLASSES, {"columns": {**COLUMNS, "age": [30, 40]}}),
    "other": (
        "csv:plain.csv",
        CLASSES,
        {"columns": {**COLUMNS, "ward": {"categories": ["A"], "other": True}}},
    ),
    "a word too few": ("csv:plain.csv", CLASSES, {"columns": {**COLUMNS, "ward": ["A", "B"]}}),
    "a column too few": ("csv:plain.csv", CLASSES, {"columns": {"age": [0, 110], "ward": "drop"}}),
    "a column too many": ("csv:plain.csv", CLASSES, {"columns": {**COLUMNS, "who": [0, 1]}}),
    "no classes": ("csv:plain.csv", NO, {"columns": COLUMNS}),
    "unknown classes": ("csv:plain.csv", {**NO, "classes": ["no", "maybe"]}, {"columns": COLUMNS}),
    "features": ("csv:plain.csv", {**CLASSES, "features": 4}, {"columns": COLUMNS}),
    "a test file": (
        "csv:plain.csv",
        {**CLASSES, "test": "test.csv"},
        {"columns": {**COLUMNS, "ward": {"categories": ["A"], "other": True}}},
    ),
    "another test file": ("csv:plain.csv", {**CLASSES, "test": "odd.csv"}, {"columns": COLUMNS}),
    "semicolons": (
        "csv:semicolons.csv",
        CLASSES,
        {"columns": COLUMNS, "form": TableFormat(";", ",")},
    ),
    "latin": (
        "csv:latin.csv",
        CLASSES,
        {
            "columns": {"age": [0, 110], "bmi": "drop", "wård": ["A", "B", "C"]},
            "form": TableFormat(encoding="latin-1"),
        },
    ),
    "utf16": (
        "csv:utf16.csv",
        CLASSES,
        {"columns": COLUMNS, "form": TableFormat(encoding="utf-16")},
    ),
    "utf16 unsaid": ("csv:utf16.csv", CLASSES, {"columns": COLUMNS}),
    "comments": (
        "csv:comments.csv",
        CLASSES,
        {"columns": COLUMNS, "form": TableFormat(comment="#")},
    ),
    "bare": (
        "csv:bare.csv",
        {"label": "3", "classes": ["no", "yes"]},
        {
            "columns": {"0": [0, 110], "1": [10, 80], "2": ["A", "B", "C"]},
            "form": TableFormat(header=False),
        },
    ),
    "holes": ("csv:holes.csv", {"label": "outcome", "classes": ["y", "n"]}, {"columns": HOLES}),
    "holes refused": (
        "csv:holes.csv",
        {"label": "outcome", "classes": ["y", "n"]},
        {"columns": {**HOLES, "age": [0, 110]}},
    ),
    "holes in one word": (
        "csv:holes.csv",
        {"label": "outcome", "classes": ["y", "n"]},
        {"columns": {**HOLES, "age": [0, 110]}, "missing": "middle"},
    ),
    "another day": (
        "csv:holes.csv",
        {"label": "outcome", "classes": ["y", "n"]},
        {"columns": {**HOLES, "seen": {"date": ["2015-01-01", "2024-12-31"], "missing": "middle"}}},
    ),
    "persons": (
        "csv:people.csv",
        {"label": "y", "classes": ["0", "1"]},
        {"columns": PEOPLE, "person": "who", "records_per_person": 3},
    ),
    "nobody": (
        "csv:nobody.csv",
        {"label": "y", "classes": [0, 1]},
        {"columns": {"a": [0, 9]}, "person": "who"},
    ),
    "persons and sites": (
        "csv:people.csv",
        {"label": "y", "classes": [0, 1], "site": "site"},
        {"columns": PEOPLE, "person": "who"},
    ),
    "a person with features": (
        "csv:people.csv",
        {"label": "y", "classes": [0, 1]},
        {"columns": {**PEOPLE, "who": ["p1"]}, "person": "who"},
    ),
    "site": (
        "csv:people.csv",
        {"label": "y", "classes": [1, 0], "site": "site", "split_by": "who"},
        {"columns": PEOPLE},
    ),
    "regression": (
        "csv:values.csv",
        {"label": "y", "task": "regression"},
        {"columns": {"a": [0, 49], "b": [0, 6]}, "target_range": (-2, 10)},
    ),
    "a regression without its range": (
        "csv:values.csv",
        {"label": "y", "task": "regression"},
        {"columns": {"a": [0, 49], "b": [0, 6]}},
    ),
    "labels": (
        "csv:labels.csv",
        {"label": ["fever", "cough", "rest"], "task": "multilabel"},
        {"columns": {"a": [0, 9]}},
    ),
    "labels of numbers": (
        "csv:labels.csv",
        {"label": ["fever", "a"], "task": "multilabel"},
        {"columns": {"cough": "drop", "rest": ["t", "f"]}},
    ),
    "a missing label": (
        "csv:unlabelled.csv",
        {"label": "y", "classes": [0, 1]},
        {"columns": {"a": [0, 9]}},
    ),
    "two": (
        "csv:two.csv",
        {"label": "y", "classes": [0, 1], "holdout": 0.01},
        {"columns": {"a": [0, 9]}},
    ),
    "parquet": ("parquet:t.parquet", CLASSES, {"columns": COLUMNS}),
    "parquet by day": (
        "parquet:days.parquet",
        {"label": "y", "classes": ["0", "1"]},
        {"columns": {"day": "date", "n": {"range": [0, 9], "missing": "middle"}}},
    ),
    "excel": ("excel:t.xlsx", CLASSES, {"columns": COLUMNS}),
    "dropped": ("csv:plain.csv", CLASSES, {"columns": dict.fromkeys(COLUMNS, "drop")}),
    "nothing declared": ("csv:plain.csv", CLASSES, {"columns": {}}),
}


def digest(values: Any) -> str | None:
    """Type, shape and SHA-256 of an array's bytes; words as they are."""
    if values is None:
        return None
    if values.dtype.kind in "UO":
        values = np.array("\n".join(map(str, values)).encode())
    content = hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()[:20]
    return f"{values.dtype.kind} {values.shape} {content}"


def found_in(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """Everything that a table becomes, or the words of its refusal, and what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = outcome(source, options)
    if caught:
        found["warnings"] = [str(each.message) for each in caught]
    return found


def outcome(source: str, options: dict[str, Any]) -> dict[str, Any]:
    options = dict(options)
    try:
        if "schema" in options:
            options["schema"] = TableSchema(**options["schema"])
        data = load(source, **options)
    except (ValueError, TypeError) as error:
        kind = "DataError" if isinstance(error, DataError) else type(error).__name__
        return {"error": f"{kind}: {error}"}
    assert data.test is not None
    found = {
        "arrays": [
            digest(part)
            for part in (data.train.inputs, data.train.targets, data.test.inputs, data.test.targets)
        ],
        "classes": data.classes,
        "notes": list(data.notes),
        "caveats": [f"{caveat.code}: {caveat.detail}" for caveat in data.caveats],
        "sites, persons": [digest(data.sites), digest(data.persons), data.records_per_person],
        "norm": repr(data.feature_norm),
    }
    if data.encoder is not None:
        assert Encoder.from_dict(data.encoder.to_dict()) == data.encoder
        found["titles"] = list(data.encoder.titles)
        found["encoder"] = data.encoder.to_dict()
    return found


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, source and options of every table."""
    for name in (*LOADS, *REFUSED):
        yield f"as people have them: {name}", f"csv:{slug(name)}", NO
    for name, (source, options) in READ.items():
        yield f"undeclared: {name}", source, options
    for name, (source, options, schema) in DECLARED.items():
        yield f"declared: {name}", source, {**options, "schema": schema}


def slug(name: str) -> str:
    return f"{name.replace(' ', '_')}.csv"


def write_files(folder: Path) -> None:
    people: dict[str, str | bytes] = {slug(name): content for name, content in LOADS.items()}
    people |= {slug(name): content for name, (content, _) in REFUSED.items()}
    for name, content in (people | FILES).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    columns = list(zip(*rows(), strict=True))
    frame = pl.DataFrame(dict(zip(("age", "bmi", "ward", "outcome"), columns, strict=True)))
    frame.write_parquet(folder / "t.parquet")
    frame.write_excel(folder / "t.xlsx")
    days = pl.date_range(pl.date(2001, 1, 1), pl.date(2001, 2, 28), eager=True)
    numbers = [None if i % 9 == 0 else i % 10 for i in range(len(days))]
    labels = [i % 2 for i in range(len(days))]
    pl.DataFrame({"day": days, "n": numbers, "y": labels}).write_parquet(folder / "days.parquet")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables")
    write_files(path)
    return path


@pytest.mark.parametrize(("name", "source", "options"), list(cases()), ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("piece", [None, 300])
def test_a_table_is_what_it_was(name, source, options, piece, folder, monkeypatch):
    monkeypatch.chdir(folder)
    if piece is not None:
        monkeypatch.setattr(files, "PIECE", piece)
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[name]
    assert found_in(source, options) == expected


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        os.chdir(folder)
        found = {name: found_in(source, options) for name, source, options in cases()}
    lines = [f"{json.dumps(name)}: {json.dumps(one, default=list)}" for name, one in found.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")


if __name__ == "__main__":
    main()

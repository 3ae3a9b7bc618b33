"""A data set is known again by its records, and its persons by keyed hashes."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from forethought.data.files import Table
from forethought.ledger.identity import (
    Overlap,
    contents,
    fingerprint,
    hashes,
)

KEY, OTHER = bytes(range(32)), bytes(32)
RECORDS = st.lists(st.sampled_from([b"", b"a", b"b", b"ab", b"\x00"]), max_size=12)


@given(RECORDS, RECORDS)
def test_a_fingerprint_is_of_a_multiset(one: list[bytes], other: list[bytes]) -> None:
    same = Counter(one) == Counter(other)
    first, second = fingerprint(KEY, one), fingerprint(KEY, other)
    assert (first == second) == same
    assert fingerprint(KEY, one + other) == fingerprint(KEY, other + one)


def test_a_fingerprint_is_the_sum_of_keyed_numbers() -> None:
    """Written anew: 1,024 numbers of 16 bits from BLAKE3 under a key of the purpose."""
    context = "forethought 2026 ledger identity fingerprint"
    own = blake3(KEY, derive_key_context=context).digest()
    total = [0] * 1024
    records = [b"x", b"y", b"x"]
    for record in records:
        drawn = blake3(record, key=own).digest(length=2048)
        for place in range(1024):
            low, high = drawn[2 * place : 2 * place + 2]
            total[place] = (total[place] + low + 256 * high) % 65536
    state = b"".join(one.to_bytes(2, "little") for one in total)
    assert fingerprint(KEY, records) == blake3((3).to_bytes(16, "little") + state).hexdigest()


def test_keys_and_counts_are_parts_of_the_name() -> None:
    records = [b"x", b"y"]
    assert fingerprint(KEY, records) != fingerprint(OTHER, records)
    # 2¹⁶ equal records vanish from the sum, not from the name.
    assert len({fingerprint(KEY, [b"x"] * count) for count in (0, 65536, 2 * 65536)}) == 3
    with pytest.raises(ValueError, match="32 bytes"):
        fingerprint(b"short", records)


def test_a_stored_fingerprint_never_changes() -> None:
    """Books keep it: another sum would make every data set a stranger."""
    frame = pl.DataFrame({"n": [1, 2], "w": ["a ", None], "x": [0.5, -0.0]})
    assert contents(frame) == [
        b"1:n=n4607182418800017408;1:w=w1:a;1:x=n4602678819172646912",
        b"1:n=n4611686018427387904;1:w=-;1:x=n0",
    ]
    found = fingerprint(KEY, contents(frame))
    assert hashlib.sha256(found.encode()).hexdigest()[:16] == "e8d15fcd3a39998a"


def test_a_copy_in_another_form_is_the_same_data_set(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"age": [30, 41, 55], "dose": [0.1, 2.0, None], "ward": ["A", "B;x", "B"], "ok": [1, 0, 1]}
    )
    wanted = sorted(contents(frame))
    frame.write_csv(tmp_path / "renamed.csv")
    (read,) = Table(tmp_path / "renamed.csv").pieces()
    for copy in (frame[::-1], frame.select("ward", "ok", "dose", "age"), read):
        assert sorted(contents(copy)) == wanted
    booleans = frame.with_columns(pl.col("ok") == 1, pl.col("age").cast(pl.Float32))
    assert sorted(contents(booleans)) == wanted
    assert contents(frame, leave_out=["dose"]) != contents(frame)
    with pytest.raises(TypeError, match="frame of polars"):
        contents(frame.to_dicts())  # type: ignore[arg-type]


def test_how_exact_a_columns_type_is_does_not_matter() -> None:
    times = [datetime(2020, 1, 2, 3, 4, 5, 120000), datetime(2020, 1, 2)]
    frame = pl.DataFrame({"at": times, "x": [0.1, 2.5], "id": [2**53 + 2, 2**60]})
    wanted = contents(frame)
    words = {"at": ["2020-01-02 03:04:05.120000", "2020-01-02 00:00:00"], "x": ["0.1", "2.50"]}
    assert contents(frame.with_columns(**{n: pl.Series(w) for n, w in words.items()})) == wanted
    single = frame.with_columns(pl.col("x").cast(pl.Float32))
    for copy in (
        *(frame.with_columns(pl.col("at").cast(pl.Datetime(unit))) for unit in ("ms", "ns")),
        single,
        single.with_columns(pl.col("x").cast(pl.Float64)),
        single.with_columns(pl.col("x").cast(pl.Float64).cast(pl.String)),
        frame.with_columns(pl.col("x").cast(pl.Decimal(10, 4))),
        frame.with_columns(pl.col("id").cast(pl.Float64)),
    ):
        assert contents(copy) == wanted, copy
    of_minutes = pl.DataFrame({"d": [timedelta(minutes=1)], "l": [[1]], "b": [b"\xff"]})
    assert contents(of_minutes) == contents(of_minutes.with_columns(d=60))


def test_records_of_different_entries_have_different_bytes() -> None:
    pairs = [
        ({"a": ["x;1:b=w1:y"], "b": ["z"]}, {"a": ["x"], "b": ["y"]}),
        ({"a": [None]}, {"a": ["-"]}),
        ({"a": ["1"], "b": ["2"]}, {"a": ["2"], "b": ["1"]}),
        ({"a": ["1"]}, {"b": ["1"]}),
        ({"a": [2**53]}, {"a": [2**53 + 1]}),
        ({"a": ["n1"]}, {"a": [1]}),
    ]
    for one, other in pairs:
        assert contents(pl.DataFrame(one)) != contents(pl.DataFrame(other)), (one, other)


def test_bytes_lists_and_fields_are_compared_by_what_they_hold() -> None:
    entries = {
        "bytes": [b"", b"\x00\x12", b"\x12", b"1e1", None],
        "lists": [[], [1.5], [1.5, None], [None], None],
        "fields": [{"bytes": bytes([one]), "at": datetime(2020, 1, 1 + one)} for one in range(5)],
    }
    for found in entries.values():
        frame = pl.DataFrame({"label": [1] * 5, "image": found})
        assert len({*contents(frame)}) == 5 and contents(frame[::-1]) == contents(frame)[::-1]
    with pytest.raises(TypeError, match="objects of Python"):
        contents(pl.DataFrame({"a": pl.Series([object()], dtype=pl.Object)}))


def test_hashes_are_of_different_entries_under_a_key_of_their_kind() -> None:
    found = hashes(KEY, ["ann", "bob", "ann", "ann"])
    assert len(found) == 2 and found == sorted(found) and hashes(KEY, []) == []
    assert found == hashes(KEY, [b"bob", b"ann"])
    assert {len(one) for one in hashes(KEY, map(str, range(3000)))} == {16}
    # Neither another key nor another kind has the same hashes.
    for other in (hashes(OTHER, ["ann"]), hashes(KEY, ["ann"], "record")):
        assert not {*found} & {*other}


@pytest.mark.parametrize(
    ("one", "other", "kind", "says"),
    [
        (range(100), range(100), "same", "is 'x' under another name: all 100"),
        (range(130), range(100), "superset", "a superset of 'x': 100 of the 100 records of 'x'"),
        (range(3, 130), range(100), "superset", "97 of the 100 records of 'x' are among 127"),
        (range(50), range(100), "part", "a part of 'x': 50 of the 100"),
        (range(50, 150), range(100), "overlapping", "shares records with 'x'"),
        (range(100, 150), range(100), "disjoint", "no record with 'x'"),
    ],
)
def test_an_overlap_is_said_in_words(one: range, other: range, kind: str, says: str) -> None:
    found = Overlap(len(one), len(other), len({*one} & {*other}))
    assert found.kind == kind and says in found.words("x")


@pytest.mark.slow
def test_a_million_records_take_seconds() -> None:
    """About 5 seconds on one core of 2020; a hundred times that would be another algorithm."""
    generator = np.random.default_rng(1)
    frame = pl.DataFrame({"id": np.arange(10**6), "x": generator.normal(size=10**6)})
    start = time.process_time()
    records = contents(frame)
    found = fingerprint(KEY, records)
    known = hashes(KEY, records, "record")
    assert len(found) == 64 and len(known) == 10**6
    assert time.process_time() - start < 500

"""Dealing one data set out to clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.data import DataError, Split, load
from forethought.data.dataset import Dataset
from forethought.data.synthetic import share_of, shares, write_share


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(30, 300),
    st.integers(1, 10),
    st.sampled_from(["iid", "dirichlet:5", "power-law:0", "power-law:1.2"]),
    st.integers(0, 1000),
)
def test_every_record_goes_to_exactly_one_client(records, clients, how, seed):
    labels = rng(seed).integers(0, 3, records)
    parts = shares(labels, clients, how, rng(seed))
    assert len(parts) == clients and all(len(part) for part in parts)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(records))


def test_iid_sizes_differ_by_one_at_most_and_labels_are_mixed():
    labels = np.repeat(np.arange(10), 1000)
    parts = shares(labels, 7, "iid", rng())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for part in parts:
        # 1,428 draws: each class has a mean of 143 and deviates by less than 6 standard deviations.
        assert np.abs(np.bincount(labels[part], minlength=10) - 142.9).max() < 70


def test_small_concentration_gives_few_classes_and_a_large_one_all():
    labels = np.repeat(np.arange(10), 600)

    def spread(how: str) -> float:
        counts = [
            np.bincount(labels[p], minlength=10) / len(p) for p in shares(labels, 10, how, rng(1))
        ]
        return float(np.mean([c.max() for c in counts]))

    assert spread("dirichlet:0.05") > 0.5
    assert spread("dirichlet:1000") < 0.15


def test_power_law_sizes_follow_the_exponent():
    parts = shares(np.zeros(100_000), 10, "power-law:1.5", rng())
    sizes = np.array(list(map(len, parts)))
    expected = (1.0 + np.arange(10)) ** -1.5
    assert np.allclose(sizes / sizes.sum(), expected / expected.sum(), atol=2e-4)


def test_by_column_one_client_an_entry():
    site = np.array(["b", "a", "b", "c"])
    parts = shares(np.zeros(4), None, "column", rng(), site)
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]
    with pytest.raises(DataError, match="number of clients"):
        shares(np.zeros(4), 2, "column", rng(), site)
    with pytest.raises(DataError, match="found none"):
        shares(np.zeros(4), None, "column", rng())


def test_drawn_shares_overlap_and_are_said_to():
    parts = shares(np.zeros(1000), 25, "drawn:0.1", rng())
    assert {len(part) for part in parts} == {100}
    assert len(np.unique(np.concatenate(parts))) < 2500


@pytest.mark.parametrize(
    ("how", "clients", "words"),
    [
        ("random", 3, "unknown way"),
        ("iid:3", 3, "stands alone"),
        ("dirichlet", 3, "goes with a number above 0"),
        ("dirichlet:0", 3, "goes with a number above 0"),
        ("dirichlet:nan", 3, "goes with a number"),
        ("power-law:-1", 3, "goes with a number of at least 0"),
        ("drawn:1.5", 3, "at most 1"),
        ("iid", 11, "cannot be dealt"),
        ("iid", 0, "at least 1"),
        ("dirichlet:0.0001", 10, "without a record"),
    ],
)
def test_what_cannot_be_dealt_is_refused(how, clients, words):
    with pytest.raises(DataError, match=words):
        shares(np.arange(10) % 2, clients, how, rng())


def test_the_same_seed_deals_the_same():
    one, two = (shares(np.arange(50) % 3, 5, "dirichlet:1", rng(4)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_a_clients_folder_reads_back_as_it_was(tmp_path):
    inputs = rng().random((20, 3), dtype=np.float32)
    whole = Dataset(
        "made", Split(inputs, np.arange(20) % 2), Split(inputs[:4], np.arange(4) % 2), 2
    )
    part = shares(whole.train.targets, 4, "iid", rng())[1]
    path = write_share(share_of(whole, part), tmp_path / "client-1")
    assert path.stat().st_mode & 0o077 == 0
    back = load(f"npz:{path}")
    assert np.array_equal(back.train.inputs, inputs[part])
    assert np.array_equal(back.train.targets, (np.arange(20) % 2)[part])
    assert back.test is not None and len(back.test) == 4
    with pytest.raises(DataError, match="not overwritten"):
        write_share(share_of(whole, part), tmp_path / "client-1")


def test_a_column_of_a_table_says_who_holds_a_record(tmp_path):
    rows = [f"{i % 7},{'north' if i % 3 else 'south'},{i % 2}" for i in range(60)]
    (tmp_path / "all.csv").write_text("\n".join(["age,hospital,outcome", *rows]))
    whole = load(f"csv:{tmp_path / 'all.csv'}", label="outcome", site="hospital")
    assert whole.train.inputs.shape[1] == 1  # the hospital is no feature
    assert whole.sites is not None and len(whole.sites) == len(whole.train)
    parts = shares(whole.train.targets, None, "column", rng(), whole.sites)
    assert [len(part) for part in parts] == [
        int((whole.sites == name).sum()) for name in ("north", "south")
    ]
    assert share_of(whole, parts[0]).sites is None
    with pytest.raises(DataError, match="label's column"):
        load(f"csv:{tmp_path / 'all.csv'}", label="outcome", site="outcome")
    with pytest.raises(DataError, match="with a table"):
        load("digits", site="hospital")

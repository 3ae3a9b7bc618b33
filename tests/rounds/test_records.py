from __future__ import annotations

from collections import UserDict
from datetime import date
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from drawn import randn
from forethought.rounds.records import DatasetRecords, TensorRecords, as_records


class Words(Dataset[Any]):
    """Records with a dict of inputs, as language models have."""

    def __init__(self, noisy: bool = False) -> None:
        self.noisy = noisy

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], float]:
        tokens = torch.full((3,), index)
        shift = float(torch.rand(())) if self.noisy else 0.0
        return {"tokens": tokens, "weight": torch.tensor(index + shift, dtype=torch.float64)}, 0.5


def test_batches_are_the_picked_rows_in_the_models_precision() -> None:
    inputs = np.arange(12.0).reshape(6, 2)
    records = as_records((inputs, np.arange(6, dtype=np.uint8)), torch.float32)
    found, targets = records.take(np.array([4, 0, 4]))
    assert found.dtype == torch.float32 and targets.dtype == torch.int64
    assert found.tolist() == [[8, 9], [0, 1], [8, 9]] and targets.tolist() == [4, 0, 4]
    assert records.take(np.empty(0, dtype=np.int64)) == (None, None)


@pytest.mark.parametrize("indices", [[0, 1, 2, 3, 4, 5], [2, 3], [5], [3, 2], [1, 3], [2, 2]])
def test_runs_of_rows_are_the_rows_and_copies(indices: list[int]) -> None:
    inputs = torch.arange(24.0).reshape(12, 2)[::2]
    records = TensorRecords(inputs, torch.arange(6))
    found, targets = records.take(np.array(indices))
    assert targets.tolist() == indices and found.tolist() == [[4 * i, 4 * i + 1] for i in indices]
    assert found.is_contiguous()
    found.zero_()  # as a model that writes into its input does
    assert torch.equal(inputs, torch.arange(24.0).reshape(12, 2)[::2])


@pytest.mark.parametrize("indices", [[-1], [-2, -1], [5, 6], [6]])
def test_rows_that_are_not_there_are_refused(indices: list[int]) -> None:
    records = TensorRecords(torch.zeros(6, 2), torch.zeros(6))
    with pytest.raises(IndexError):
        records.take(np.array(indices))


def test_read_only_arrays_are_taken() -> None:
    inputs = np.ones((3, 2))
    inputs.flags.writeable = False
    assert len(as_records((inputs, [0, 1, 0]), torch.float32)) == 3


def test_datasets_may_have_structured_inputs() -> None:
    records = as_records(Words(), torch.float32)
    inputs, targets = records.take(np.array([3, 1]))
    assert inputs["tokens"].dtype == torch.int64
    assert inputs["weight"].dtype == torch.float32 and inputs["weight"].tolist() == [3, 1]
    assert targets.tolist() == [0.5, 0.5]
    assert records.take(np.empty(0, dtype=np.int64)) == (None, None)


def test_digests_know_content_and_key() -> None:
    inputs, targets = randn(5000, 3), torch.zeros(5000, dtype=torch.int64)
    digest = TensorRecords(inputs, targets).digest(b"k" * 32)
    assert digest == TensorRecords(inputs.clone(), targets).digest(b"k" * 32)
    assert digest != TensorRecords(inputs, targets).digest(b"l" * 32)
    other = inputs.clone()
    other[4999, 2] += 1e-6 + other[4999, 2].abs() * 1e-6
    assert digest != TensorRecords(other, targets).digest(b"k" * 32)
    assert DatasetRecords(Words(), torch.float32).digest(b"k" * 32) == as_records(
        Words(), torch.float32
    ).digest(b"k" * 32)


def test_records_that_change_are_refused_where_it_matters() -> None:
    with pytest.raises(ValueError, match="two different values"):
        as_records(Words(noisy=True), torch.float32).digest(b"k" * 32)


class Flipped(Dataset[Any]):
    """Every record is mirrored or not, by a coin that is tossed whenever it is read."""

    def __init__(self, seed: int) -> None:
        self.coin = np.random.default_rng(seed)

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([index + 1.0]) * (1 - 2 * int(self.coin.integers(2))), 0


@pytest.mark.parametrize("seed", range(4))
def test_a_coin_flip_in_every_record_is_found(seed: int) -> None:
    """One record, read twice, is the same every other time."""
    with pytest.raises(ValueError, match="two different values"):
        as_records(Flipped(seed), torch.float32).digest(b"k" * 32)


class Refilled(Dataset[Any]):
    """Every record is in the same memory."""

    def __init__(self, made: Any) -> None:
        self.row, self.label, self.numbers = made(2), made(()), [0, 0]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        self.row[:], self.label[...], self.numbers[:] = index, index, [index, index]
        return UserDict(x={"row": self.row}, numbers=self.numbers, label=self.label)


def first(records: list[Any]) -> Any:
    return {"x": records[0]["x"]["row"][None], "label": records[0]["label"][None]}


@pytest.mark.parametrize("made", [torch.zeros, np.zeros])
def test_a_data_set_may_refill_one_buffer(made: Any) -> None:
    """Else one record would be every record of a batch, and move its sum by as many."""
    inputs, targets = as_records(Refilled(made), torch.float32).take(np.array([2, 0, 3]))
    assert inputs["x"]["row"].tolist() == [[2, 2], [0, 0], [3, 3]] and targets.tolist() == [2, 0, 3]
    assert torch.stack(inputs["numbers"], 1).tolist() == [[2, 2], [0, 0], [3, 3]]


def test_a_data_set_may_refill_what_a_collate_passes_on() -> None:
    records = as_records(DataLoader(Refilled(torch.zeros), collate_fn=first), torch.float32)
    inputs, targets = records.take(np.array([2, 0, 3]))
    assert inputs["x"].tolist() == [[2, 2], [0, 0], [3, 3]] and targets.tolist() == [2, 0, 3]


def test_a_collate_may_refill_one_buffer_and_write_into_what_it_gets() -> None:
    buffer = torch.zeros(1, 2)

    def collate(records: list[Any]) -> Any:
        inputs, target = records[0]
        buffer.copy_(inputs.mul_(2))
        return buffer, torch.tensor([target])

    listed = [(torch.full((2,), float(number)), number) for number in range(3)]
    records = as_records(DataLoader(listed, collate_fn=collate), torch.float32)
    for _ in range(2):
        assert records.take(np.array([2, 1]))[0].tolist() == [[4, 4], [2, 2]]


def test_text_in_a_record_is_refused() -> None:
    listed = [{"x": torch.ones(2), "label": 0, "name": "a"}] * 3
    with pytest.raises(TypeError, match="encode text"):
        as_records(listed, torch.float32).take(np.array([0, 1]))


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">i2", np.longdouble])
def test_numbers_of_other_machines_are_taken(dtype: Any) -> None:
    rows = np.arange(6).reshape(3, 2).astype(dtype)
    listed = [(row, 0) for row in rows]
    for data in ((rows, np.arange(3, dtype=">i8")), listed):
        inputs, _ = as_records(data, torch.float32).take(np.array([2, 0]))
        assert inputs.tolist() == [[4, 5], [0, 1]]


def test_masked_entries_are_refused() -> None:
    rows = np.ma.masked_array(np.ones((3, 2)), mask=[[0, 1], [0, 0], [0, 0]])
    with pytest.raises(ValueError, match="masked entries"):
        as_records((rows, np.zeros(3)), torch.float32)
    with pytest.raises(ValueError, match="masked entries"):
        as_records([(row, 0) for row in rows], torch.float32).take(np.array([0]))
    assert len(as_records((rows.filled(0), np.zeros(3)), torch.float32)) == 3


def test_records_that_are_no_pairs_are_refused() -> None:
    dataset = torch.utils.data.TensorDataset(torch.zeros(3, 2))
    with pytest.raises(TypeError, match="pairs"):
        as_records(dataset, torch.float32).take(np.array([0]))


# Lists, and data sets in Arrow.


@pytest.mark.parametrize("named", [False, True])
def test_a_list_of_records_is_what_a_loader_over_it_gives(named: bool) -> None:
    rows = list(randn(7, 3))
    if named:
        listed: list[Any] = [{"x": x, "label": i % 2} for i, x in enumerate(rows)]
    else:
        listed = [(x, i % 2) for i, x in enumerate(rows)]
    own = as_records(listed, torch.float32)
    other = as_records(DataLoader(listed), torch.float32)
    assert len(own) == 7 and own.digest(b"k" * 32) == other.digest(b"k" * 32)
    inputs, targets = own.take(np.array([5, 2]))
    found = inputs["x"] if named else inputs
    assert torch.equal(found, torch.stack([rows[5], rows[2]])) and targets.tolist() == [1, 0]


def test_a_list_of_two_stays_inputs_and_targets() -> None:
    records = as_records([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [0, 1, 0]], torch.float32)
    assert len(records) == 3


def test_a_list_of_two_pairs_is_two_records_or_refused() -> None:
    rows = randn(2, 3)
    records = as_records([(rows[0], 1), (rows[1], 0)], torch.float32)
    inputs, targets = records.take(np.array([0, 1]))
    assert torch.equal(inputs, rows) and targets.tolist() == [1, 0]
    with pytest.raises(TypeError, match="two lists"):
        as_records([[1.0, 2.0], [3.0, 4.0]], torch.float32)


def test_a_collate_of_ones_own_gets_one_record_at_a_time() -> None:
    """Padding to a batch's longest record would let one record change all others' contributions."""
    seen = []

    def collate(records: list[Any]) -> Any:
        seen.append(len(records))
        inputs, targets = zip(*records, strict=True)
        return nn.utils.rnn.pad_sequence(list(inputs), batch_first=True), torch.tensor(targets)

    even = [(torch.ones(3) * i, i % 2) for i in range(4)]
    records = as_records(DataLoader(even, collate_fn=collate), torch.float32)
    inputs, targets = records.take(np.array([2, 0, 3]))
    assert set(seen) == {1} and inputs[:, 0].tolist() == [2, 0, 3] and targets.tolist() == [0, 0, 1]
    uneven = as_records(
        DataLoader([(torch.ones(1 + i), 0) for i in range(4)], collate_fn=collate), torch.float32
    )
    with pytest.raises(ValueError, match="one length"):
        uneven.take(np.array([0, 1]))


@pytest.mark.parametrize(
    "how",
    [
        {"sampler": SubsetRandomSampler([0, 2])},
        {"sampler": [0, 2]},
        {"batch_sampler": [[0], [2]]},
        {"batch_sampler": BatchSampler(SubsetRandomSampler([0, 2]), 2, False)},
        {"sampler": SubsetRandomSampler([0, 2]), "batch_size": None},
        {"sampler": WeightedRandomSampler([1.0, 2.0, 1.0, 2.0], 4)},
        {"sampler": SequentialSampler(range(2))},
        {"sampler": RandomSampler(range(2), num_samples=4)},
        {"sampler": RandomSampler(range(4), num_samples=2)},
        {"sampler": RandomSampler(range(4), replacement=True)},
        {"sampler": DistributedSampler(range(2), 1, 0)},  # type: ignore[arg-type]
        {"batch_sampler": BatchSampler(SequentialSampler(range(2)), 2, False)},
    ],
)
def test_a_sampler_of_ones_own_is_refused_as_none_would_be_used(how: Any) -> None:
    data = [(torch.ones(1) * i, 0) for i in range(4)]
    for name in ("data", "test"):
        with pytest.raises(ValueError, match=f"{name} is .*Subset"):
            as_records(DataLoader(data, **how), torch.float32, name=name)
    every = DistributedSampler(data, 2, 0)  # type: ignore[arg-type]
    for usual in ({}, {"shuffle": True}, {"batch_size": None}, {"sampler": every}):
        assert len(as_records(DataLoader(data, **usual), torch.float32)) == 4
    part = Subset(data, [0, 2])  # type: ignore[arg-type]
    assert len(as_records(DataLoader(part), torch.float32)) == 2


def test_a_loader_without_batches_gives_its_records() -> None:
    data = [(torch.ones(2) * i, i) for i in range(4)]
    inputs, targets = as_records(DataLoader(data, batch_size=None), torch.float32).take(
        np.array([1, 3])
    )
    assert inputs.tolist() == [[1, 1], [3, 3]] and targets.tolist() == [1, 3]


@pytest.mark.parametrize("own", [False, True])
def test_a_record_of_another_form_changes_no_other(own: bool) -> None:
    """Keys in another order are the same keys; other keys, types or shapes end the run."""

    def collate(records: list[Any]) -> Any:
        return {name: torch.stack([one[name] for one in records]) for name in records[0]}

    a, b, label = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), torch.tensor(1)
    first = {"a": a, "b": b, "labels": label}
    turned = {"labels": label, "b": 2 * b, "a": 2 * a}
    how = {"collate_fn": collate} if own else {}
    inputs, _ = as_records(DataLoader([first, turned], **how), torch.float32).take(np.arange(2))
    assert inputs["a"].tolist() == [[1, 2], [2, 4]] and inputs["b"].tolist() == [[3, 4], [6, 8]]
    for other in (
        {"a": a, "labels": label},
        {**first, "more": a},
        {**first, "a": a.to(torch.uint8)},
        {**first, "a": torch.ones(3)},
    ):
        odd = as_records(DataLoader([first, first, other], **how), torch.float32)
        odd.take(np.array([0, 1]))
        with pytest.raises(ValueError, match="one form"):
            odd.take(np.array([0, 2]))


def test_missing_entries_of_an_arrow_data_set_are_refused_before_it_is_read() -> None:
    """One of them would make whole numbers of its block floats."""
    datasets = pytest.importorskip("datasets")
    for column in ([1, None, 3], [[1, 2], [3, None], [5, 6]]):
        gaps = datasets.Dataset.from_dict({"x": column, "label": [0, 1, 0]})
        with pytest.raises(ValueError, match="misses entries"):
            as_records(gaps, torch.float32)
        kept = gaps.filter(lambda row: row["x"] is not None and None not in np.atleast_1d(row["x"]))
        assert len(as_records(kept, torch.float32)) == 2


@pytest.mark.parametrize(
    "column", [[date(2020, 1, 1)] * 2, [{"a": 1.0}] * 2, [b"\x89PNG"] * 2, [[date(2020, 1, 1)]] * 2]
)
def test_a_column_of_neither_numbers_nor_text_is_refused(column: list[Any]) -> None:
    """Images come as bytes or structs; left out, a model would train on the numbers beside them."""
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": [1.0, 2.0], "label": [0, 1], "more": column})
    with pytest.raises(TypeError, match=r"\(more\)"):
        as_records(whole, torch.float32)
    for rest in (whole.remove_columns("more"), whole.with_format(columns=["x", "label"])):
        assert len(as_records(rest, torch.float32)) == 2


def test_an_arrow_data_set_is_read_by_index_without_its_text() -> None:
    datasets = pytest.importorskip("datasets")
    values = randn(6, 3)
    columns = {"x": values.tolist(), "label": [0, 1] * 3, "text": list("abcdef")}
    whole = datasets.Dataset.from_dict(columns)
    inputs, targets = as_records(whole, torch.float64).take(np.array([4, 1]))
    assert inputs.dtype == torch.float64 and targets.tolist() == [0, 1]
    torch.testing.assert_close(inputs.float(), values[[4, 1]])
    with pytest.raises(TypeError, match="data\\['train'\\]"):
        as_records(datasets.DatasetDict(train=whole), torch.float32)
    named = whole.rename_column("x", "input_ids")
    taken, _ = as_records(named, torch.float32).take(np.array([0]))
    assert set(taken) == {"input_ids"}  # as a model of text takes it: by name
    changed = whole.with_transform(lambda rows: {"x": [torch.ones(2)], "label": rows["label"]})
    own, _ = as_records(changed, torch.float32).take(np.array([0, 3]))
    assert own["x"].tolist() == [[1, 1], [1, 1]]
    with pytest.raises(TypeError, match="encode text"):
        as_records(whole.select_columns(["text"]), torch.float32)
    ragged = datasets.Dataset.from_dict({"x": [[1], [1, 2]], "label": [0, 1]})
    with pytest.raises(ValueError, match="one length"):
        as_records(ragged, torch.float32).take(np.array([0, 1]))

"""Tables of accuracies are what the committed runs say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from forethought.jobs.job import Job

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    path = ROOT / "experiments" / "accuracy" / "run.py"
    spec = importlib.util.spec_from_file_location("accuracy_run", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_say_what_was_run(accuracy: ModuleType) -> None:
    full = (accuracy.FULL, accuracy.MARKS, accuracy.table())
    short = (accuracy.SHORT, accuracy.SHORT_MARKS, accuracy.short_table())
    for page, marks, expected in (full, short):
        text = page.read_text(encoding="utf-8")
        between = text.split(marks[0])[1].split(marks[1])[0]
        assert between.strip() == expected, "run experiments/accuracy/run.py --table"
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert len(words) <= 900, "the first page is for who has two minutes: move it to docs"


def test_no_run_certifies_more_than_its_job_asks(accuracy: ModuleType) -> None:
    rows = accuracy.results()
    assert rows
    for row in rows:
        assert float(row["certified"]) <= float(row["asked"]) + 5e-6  # five digits are kept
    jobs = {(accuracy.name_of(path), accuracy.settings_of(path)) for path in accuracy.jobs()}
    assert {(row["job"], row["settings"]) for row in rows} <= jobs
    assert len({(row["job"], row["seed"]) for row in rows}) == len(rows)


def test_public_constants_standardise_training_and_test_images(accuracy: ModuleType) -> None:
    section = {"source": "digits", "standardise": (0.25, 0.5)}
    job = Job(data=section, model={"name": "linear"}, budget={"epsilon": 1.0})
    plain = Job(data={"source": "digits"}).load_data()
    found = accuracy.data_of(job, None, smoke=False)
    for part, given in ((found.train, plain.train), (found.test, plain.test)):
        np.testing.assert_allclose(part.inputs, (given.inputs - 0.25) / 0.5, atol=1e-6)
        np.testing.assert_array_equal(part.targets, given.targets)
    with pytest.raises(SystemExit, match="paid for"):
        accuracy.standardised(plain, "private")

"""Jobs on tables with a basis, and with ranges that are released: from file to prediction."""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import polars as pl
import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.jobs.job import Job, JobError, JobRequest, from_file, paying, resumed
from forethought.jobs.load import load_job, require_possible
from forethought.jobs.onnx_export import write_onnx
from forethought.jobs.train import prepare, run
from forethought.ledger.book import Account
from forethought.ledger.store import create
from forethought.planning import defaults
from forethought.training.execution import Interrupted
from forethought.training.folder import RunSummary, locked, replace_file

JOB = """
[data]
source = "csv:{path}"
label = "inside"
classes = ["no", "yes"]
[data.columns]
x = [0, {high}]
y = [0, {high}]
word = ["a", "b"]
[budget]
epsilon = {epsilon}
[run]
seed = 1
noise_seed = 1
metrics = ["accuracy"]
"""


def ring(folder: Path, rows: int = 2500) -> Path:
    """A disc within a square, which no line parts from the rest; all numbers within 0 and 10."""
    draw = np.random.default_rng(0)
    x, y = draw.uniform(0, 10, (2, rows))
    inside = (x - 5) ** 2 + (y - 5) ** 2 < 16
    path = folder / "table.csv"
    pl.DataFrame(
        {
            "x": x.round(3),
            "y": y.round(3),
            "word": draw.choice(["a", "b"], rows),
            "inside": np.where(inside, "yes", "no"),
        }
    ).write_csv(path)
    return path


def request(folder: Path, high: int = 10, epsilon: float = 3.0, **training: Any) -> JobRequest:
    text = JOB.format(path=ring(folder), high=high, epsilon=epsilon)
    rows = (f"{key} = {json.dumps(value)}\n" for key, value in training.items())
    path = folder / "job.toml"
    path.write_text(text + "[training]\n" + "".join(rows))
    return from_file(path)


def accuracy(folder: Path) -> float:
    found = json.loads((folder / "results.json").read_text())["figures"]["accuracy"]["value"]
    assert isinstance(found, float)
    return found


@pytest.mark.slow
def test_the_default_finds_a_disc_and_is_stated_read_back_and_exported(tmp_path: Path) -> None:
    prepared = prepare(request(tmp_path, high=100))
    asked = prepared.plan.preparation
    assert asked is not None and asked.statistics == ("ranges", "means", "norms")
    assert asked.numbers == 2 and asked.features == 4 + 2 * 8 + 300
    folder = tmp_path / "run"
    found = run(prepared, folder)
    assert accuracy(folder) > 0.84  # a line has 0.5, and ranges ten times too wide are no matter
    assert found.statement.epsilon.upper <= 3.0
    exact = ft.epsilon(prepared.plan.mechanism, prepared.plan.delta)
    assert found.statement.epsilon.upper == exact.upper
    assert "usual ranges of the columns" in (folder / "statement.md").read_text()
    predictor = ft.load(folder)
    frame = pl.read_csv(tmp_path / "table.csv")
    own = np.mean(predictor.predict(frame) == frame["inside"].to_numpy())
    assert own > 0.84
    encoder = predictor.card.encoder
    assert encoder is not None and encoder.basis is not None
    for low, high in encoder.basis.ranges:
        assert low == -1 and high == pytest.approx(-0.8, abs=0.05)
    write_onnx(predictor, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    given = {
        "x": frame["x"].to_numpy(),
        "y": frame["y"].to_numpy(),
        "word": frame["word"].to_numpy().astype(object),
    }
    shares = session.run(["probabilities"], given)[0]
    assert np.allclose(shares, predictor.predict_proba(frame), atol=1e-4)


@pytest.mark.slow
def test_what_was_chosen_is_in_the_released_job_and_plans_the_same_again(tmp_path: Path) -> None:
    prepared = prepare(request(tmp_path))
    run(prepared, tmp_path / "run")
    text = (tmp_path / "run" / "job.toml").read_text()
    assert 'basis = "both"' in text
    again = prepare(JobRequest("again", text, Job.parse(text)))
    assert again.plan == prepared.plan
    assert load_job(resumed(tmp_path / "run")).dataset.shape == prepared.loaded.dataset.shape


def test_what_is_released_first_is_marked_before_another_process_may_enter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("rows", ft.Budget(8.0, 1e-3)), "renyi")
    marks: list[int] = []

    @contextlib.contextmanager
    def watched(folder: Path | None) -> Iterator[None]:
        with locked(folder):
            yield
            marks.extend(held.mark for held in book.reservations("rows"))
        raise KeyboardInterrupt

    monkeypatch.setattr("forethought.jobs.train.locked", watched)
    asked = request(tmp_path, rounds=2, basis="hats", ranges=True, centre=False)
    prepared = prepare(paying(asked, f"{url}#rows"))
    with pytest.raises(KeyboardInterrupt):
        run(prepared, tmp_path / "run")
    assert marks[0] >= len(prepared.plan.mechanism) - prepared.plan.rounds > 0
    book.close()


def opened_book(folder: Path) -> tuple[str, Any]:
    url = f"sqlite:///{folder / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("rows", ft.Budget(20.0, 1e-3)), "renyi")
    return f"{url}#rows", book


def stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def before(name: str, error: BaseException) -> Any:
    """A writer of files that fails in place of writing one of them."""

    def write(path: Path, content: bytes, **options: Any) -> None:
        if path.name == name:
            raise error
        replace_file(path, content, **options)

    return write


RANGES = {"rounds": 2, "basis": "hats", "ranges": True, "centre": False}


MEANS = {"rounds": 2, "basis": "none", "ranges": False, "centre": True}


@pytest.mark.thinned
@pytest.mark.parametrize("kind", ["asked", "default", "saved", "means"])
def test_a_paid_run_that_stops_while_ranges_are_released_goes_on_and_pays_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place, book = opened_book(tmp_path)
    saved = None
    if kind == "saved":
        saved = tmp_path / "plan.json"
        prepare(request(tmp_path, **{**RANGES, "rounds": 3})).plan.save(saved)
    options = {"default": {"rounds": 2}, "means": MEANS}.get(kind, RANGES)
    asked = request(tmp_path, **options)
    prepared, folder = prepare(paying(asked, place), saved_plan=saved), tmp_path / "run"
    with monkeypatch.context() as patched:
        inside = "forethought.training.run.released"  # means are released where training begins
        patched.setattr(
            inside if kind == "means" else "forethought.rounds.preparation.prepare", stop
        )
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(prepared, folder)
    found = run(prepare(resumed(folder), resume=folder), folder, resume=True)
    assert found.statement.mechanism == prepared.plan.mechanism
    (held,) = book.reservations("rows")
    assert held.status == "settled"
    book.close()


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["prepared.json", "model.json", "keys"])
@pytest.mark.parametrize("paid", [True, False])
def test_what_is_on_disk_before_a_stop_is_not_released_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, paid: bool
) -> None:
    asked, folder = request(tmp_path, **RANGES), tmp_path / "run"
    if paid:
        place, book = opened_book(tmp_path)
        asked = paying(asked, place)
        book.close()
    prepared, kept = prepare(asked), folder / "prepared.json"
    with monkeypatch.context() as patched:
        at = before(name, KeyboardInterrupt())
        patched.setattr("forethought.training.folder.replace_file", at)
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(prepared, folder)
    assert kept.is_file() or not (folder / "model.json").is_file()
    first = kept.read_text() if kept.is_file() else None
    found = run(prepare(resumed(folder), resume=folder), folder, resume=True)
    assert first in (None, kept.read_text())
    assert found.statement.mechanism == prepared.plan.mechanism


def test_a_paid_run_that_cannot_write_its_job_is_refunded_and_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, book = opened_book(tmp_path)
    asked, folder = paying(request(tmp_path, **RANGES), place), tmp_path / "run"
    with monkeypatch.context() as patched:
        at = before("job.toml", OSError(errno.ENOSPC, "No space left on device"))
        patched.setattr("forethought.training.folder.replace_file", at)
        with pytest.raises(OSError, match="No space"):
            run(prepare(asked, out=folder), folder)
    run(prepare(asked, out=folder), folder)
    assert [(one.status, one.released > 0) for one in book.reservations("rows")] == [
        ("settled", False),
        ("settled", True),
    ]
    book.close()


@pytest.mark.slow
@pytest.mark.parametrize("paid", [True, False])
def test_a_run_that_takes_the_place_of_another_does_not_go_on_with_its_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, paid: bool
) -> None:
    folder = tmp_path / "run"
    run(prepare(request(tmp_path, **RANGES)), folder)
    asked = request(tmp_path, epsilon=6.0, **{**RANGES, "rounds": 3})
    if paid:
        place, book = opened_book(tmp_path)
        asked = paying(asked, place)
        book.close()
    with monkeypatch.context() as patched:
        at = before("prepared.json", KeyboardInterrupt())
        patched.setattr("forethought.training.folder.replace_file", at)
        with pytest.raises((Interrupted, KeyboardInterrupt)):
            run(prepare(asked), folder, overwrite=True)
    assert not (folder / "prepared.json").exists() and not (folder / "model.json").exists()
    found = run(prepare(resumed(folder), resume=folder), folder, resume=True)
    assert found.plan.rounds == 3


@pytest.mark.slow
def test_a_run_that_stops_goes_on_with_the_ranges_that_it_released(tmp_path: Path) -> None:
    whole = run(prepare(request(tmp_path)), tmp_path / "whole")
    folder = tmp_path / "run"

    def stop(event: object) -> None:
        if getattr(event, "round", 0) == 3:
            raise KeyboardInterrupt

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(prepare(request(tmp_path)), folder, progress=stop)
    before = (folder / "prepared.json").read_text()
    continued = prepare(resumed(folder), resume=folder)
    found = run(continued, folder, resume=True)
    assert (folder / "prepared.json").read_text() == before
    assert found.statement.mechanism == whole.statement.mechanism
    assert accuracy(folder) > 0.85
    (folder / "prepared.json").unlink()
    with pytest.raises(ValueError, match="would be released"):
        run(prepare(resumed(folder), resume=folder), folder, resume=True)


@pytest.mark.slow
def test_a_range_that_is_much_too_wide_is_told_with_where_its_numbers_lie(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = JOB.format(path=ring(tmp_path), high=10, epsilon=3)
    job.write_text(text.replace("x = [0, 10]", "x = [0, 1000]"))
    told = CliRunner().invoke(app, ["train", str(job), "--out", str(tmp_path / "run")]).output
    words = " ".join(told.split())
    # Most of 0 to 10 in 256 parts of 0 to 1,000: the first three of them.
    least, most = re.findall(
        r"x: a number from 0 to 1000 is declared; most lie from (\S+) to (\S+),", words
    )[0]
    assert float(least) == 0 and 7 < float(most) < 20
    assert "y: a number" not in words
    assert "released first" in words and "usual ranges, means, usual norm (alone ε" in words
    page = (tmp_path / "run" / "report.html").read_text()
    assert "x: a number from 0 to 1000 is declared" in page and "y: a number" not in page
    (tmp_path / "run" / "model.json").unlink()
    assert RunSummary.load(tmp_path / "run").too_wide == ()


def test_ranges_that_are_not_released_are_spoken_of_before_anything_is_spent(
    tmp_path: Path,
) -> None:
    few = load_job(request(tmp_path, epsilon=0.05))
    assert "[training] ranges = true has it released, for 10% of the budget's μ² at most" in (
        few.advice or ""
    )
    assert load_job(request(tmp_path, epsilon=3.0)).advice is None
    for given in (True, False):
        assert load_job(request(tmp_path, epsilon=0.05, ranges=given)).advice is None
    assert load_job(request(tmp_path, epsilon=0.05, learning_rate=0.1)).advice is None


def test_a_folder_of_a_job_that_names_no_basis_is_read_without_one(tmp_path: Path) -> None:
    request(tmp_path)
    assert load_job(from_file(tmp_path / "job.toml")).dataset.shape == (320,)
    assert load_job(resumed(tmp_path)).dataset.shape == (4,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "features", "statistics"),
    [
        ({"basis": "none", "ranges": False}, 4, ("means", "norms")),
        ({"basis": "hats", "ranges": False}, 20, ("means", "norms")),
        ({"basis": "fourier"}, 304, ("ranges", "means", "norms")),
        ({"basis": "hats", "ranges": True, "centre": False}, 20, ("ranges",)),
        ({"learning_rate": 0.1}, 4, None),  # a step size for the features as they are
        ({"clip_norm": 1.0}, 4, None),
    ],
)
def test_what_is_given_is_taken(
    tmp_path: Path, training: dict[str, Any], features: int, statistics: tuple[str, ...] | None
) -> None:
    prepared = prepare(request(tmp_path, **training))
    assert prepared.loaded.dataset.shape == (features,)
    asked = prepared.plan.preparation
    assert (asked and asked.statistics) == statistics
    if training.get("centre") is False:
        run(prepared, tmp_path / "run")
        assert accuracy(tmp_path / "run") > 0.7


def test_little_signal_leaves_the_numbers_as_they_are(tmp_path: Path) -> None:
    assert prepare(request(tmp_path, epsilon=0.0002)).loaded.dataset.shape == (4,)


def test_the_rule_looks_at_sizes_alone() -> None:
    budget = ft.Budget(1.0, 1e-5)
    names = [defaults.basis_for(n, budget, 10, 10, 2)[0] for n in (50, 500, 50_000)]
    assert names == ["none", "hats", "both"]
    assert defaults.basis_for(50_000, budget, 10, 0, 2)[0] == "none"
    assert defaults.basis_for(50_000, None, 10, 10, 2)[0] == "none"
    sizes = (100, 1_500, 20_000, 2_000_000)
    none, short, few, many = (defaults.ranges_release(n, budget, 10) for n in sizes)
    assert none is None and short is not None and few is not None and many is not None
    assert (short[0], few[0], many[0]) == (16, 256, 256)
    assert many[1] > 10 * few[1] and short[1] == few[1]
    assert defaults.ranges_release(100, budget, 10, wanted=True) == short


def test_what_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    asked = request(tmp_path, ranges=True, basis="none")
    with pytest.raises(JobError, match="ranges"):
        require_possible(Job.parse(asked.text + "[federation]\nclients = 2\nrounds = 2\n"))
    unbounded = asked.text.replace("epsilon = 3.0", "").replace(
        "[training]", "[training]\nrounds = 9"
    )
    loaded = load_job(JobRequest("no budget", unbounded, Job.parse(unbounded)))
    with pytest.raises(JobError, match="needs a budget"):
        loaded.plan_request()
    plain = JOB.partition("[data.columns]")[0].format(path=tmp_path / "table.csv")
    text = plain + '[budget]\nepsilon = 1.0\n[training]\nbasis = "hats"\n'
    with pytest.raises(JobError, match="declared numbers"):
        load_job(JobRequest("bare", text, Job.parse(text)))


@pytest.mark.slow
def test_rehearsals_searches_and_phases_pay_for_no_ranges(tmp_path: Path) -> None:
    request(tmp_path)
    job, out = str(tmp_path / "job.toml"), str(tmp_path / "out")
    front = CliRunner().invoke(app, ["plan", job, "--pareto", "--json"])
    assert not front.exception, front.exception
    phased = prepare(from_file(tmp_path / "job.toml"), until=0.6)
    assert phased.plan.preparation is None
    rates = ["--learning-rate", "0.5", "--learning-rate", "1"]
    tuned = CliRunner().invoke(app, ["tune", job, *rates, "--out", out])
    assert not tuned.exception, tuned.exception

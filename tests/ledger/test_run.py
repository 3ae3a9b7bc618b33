"""A run that a book pays for: reserved before records, marked ahead of rounds, settled."""

from __future__ import annotations

import gc
import json
import os
import pickle
import shutil
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    Selection,
    selection_details,
)
from forethought.accounting.statement import StatementError, content_hash
from forethought.jobs.account import verified
from forethought.ledger import paid_run as of_run
from forethought.ledger.book import (
    Account,
    BookError,
    Charge,
    OverBudgetError,
    Reservation,
)
from forethought.ledger.identity import hashes, new_key
from forethought.ledger.paid_run import EVIDENCE, RESERVATION, Ledger, most_rounds
from forethought.ledger.store import Store, create, open_book
from forethought.training import folder as folders
from forethought.training.execution import Interrupted
from forethought.training.run import train
from forethought.training.search import tune
from forethought.values.caveats import Caveat
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Persons,
    Poisson,
    RandomAllocation,
    Rounds,
)
from forethought.values.plan import Plan

EXAMPLES, ROUNDS = 200, 30


def opened(path: Path, epsilon: float = 8.0) -> tuple[Ledger, Store]:
    url = f"sqlite:///{path / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("patients", Budget(epsilon, 1e-5)))
    return Ledger(url, "patients", "try it out"), book


def planned(noise: float = 2.0, rounds: int = ROUNDS) -> Plan:
    return Plan(Mechanism(Rounds(noise, rounds, Poisson(0.2))), EXAMPLES, 1e-6)


def records(seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    inputs = draw.normal(size=(EXAMPLES, 4)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


class Looked(torch.utils.data.Dataset[Any]):
    """Records that ask a question before each of them is read."""

    def __init__(self, look: Any) -> None:
        self._inputs, self._targets = records()
        self._look = look

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        self._look()
        return self._inputs[index], self._targets[index]


def test_a_ledger_is_named_by_texts(tmp_path: Path) -> None:
    for wrong in ((tmp_path / "books.db", "patients"), ("sqlite:///b.db", None)):
        with pytest.raises(TypeError, match="class str"):
            Ledger(*wrong)  # type: ignore[arg-type]
    one = Ledger("sqlite:///b.db", "patients", also="clinic")  # type: ignore[arg-type]
    assert one == Ledger("sqlite:///b.db", "patients", also=("clinic",))
    assert Ledger("sqlite:///b.db", "patients", also=None).also == ()  # type: ignore[arg-type]


def test_no_record_is_read_before_the_whole_plan_is_reserved(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    plan = planned()
    seen = []

    def look() -> None:
        if not seen:
            seen.append(book.reservations("patients"))

    run = train(model(), Looked(look), plan, ledger=ledger)
    ((held,),) = seen
    assert held.status == "active" and held.charge == Charge(plan.mechanism)
    (after,) = book.reservations("patients")
    assert (after.status, after.released, after.purpose) == ("settled", ROUNDS, "try it out")
    assert run.statement.caveats[-1].code != "" and "in-the-book" in {
        caveat.code for caveat in run.statement.caveats
    }


def test_a_refusal_reads_no_record_and_names_the_largest_plan_that_fits(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path, epsilon=3.0)
    read: list[int] = []
    before = book.total("patients")
    with pytest.raises(OverBudgetError, match=r"of 200 rounds") as refused:
        train(
            model(),
            Looked(lambda: read.append(1)),
            planned(2.0, 200),
            ledger=ledger,
            out=tmp_path / "run",
        )
    assert not read and book.total("patients").epsilon == before.epsilon
    assert not (tmp_path / "run").exists()
    words = str(refused.value)
    count = int(words.rpartition("of this plan ")[2].partition(" ")[0])
    mechanism = planned(2.0, 200).mechanism
    assert 0 < count < 200
    assert book.fits("patients", Charge(mechanism.first(count)))
    assert not book.fits("patients", Charge(mechanism.first(count + 1)))
    again = pickle.loads(pickle.dumps(refused.value))
    assert str(again) == words and again.epsilon_left == refused.value.epsilon_left


def test_most_rounds_is_the_last_that_fits() -> None:
    mechanism = Mechanism(Rounds(1.0, 17, FullBatch()))
    for limit in range(18):
        assert most_rounds(mechanism, lambda part, most=limit: len(part) <= most) == limit


def test_the_mark_is_in_the_book_before_a_round_is_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = opened(tmp_path)
    marks = []
    note = folders.ReleasedRounds.note

    def noted(self: Any, index: int, bound: bytes) -> int:
        marks.append((index + 1, book.reservation(1).mark))
        return note(self, index, bound)

    monkeypatch.setattr(folders.ReleasedRounds, "note", noted)
    train(model(), records(), planned(), ledger=ledger, out=tmp_path / "run")
    assert [rounds for rounds, _ in marks] == list(range(1, ROUNDS + 1))
    assert all(mark >= rounds for rounds, mark in marks)


def test_marks_run_ahead_about_once_a_second(tmp_path: Path, monkeypatch: Any) -> None:
    ledger, _ = opened(tmp_path)
    clock = [0.0]
    monkeypatch.setattr(of_run.time, "monotonic", lambda: clock[0])
    mechanism = Mechanism(Rounds(1e4, 20_000, FullBatch()))
    written = []
    with ledger.paid(mechanism) as paid:
        mark = paid.book.mark
        monkeypatch.setattr(
            paid.book,
            "mark",
            lambda n, r, **more: (written.append((clock[0], r)), mark(n, r, **more)),
        )
        for rounds in range(1, 20_001):  # 1,000 rounds a second
            clock[0] += 1e-3
            paid.ahead(rounds)
            assert written[-1][1] >= rounds
        with pytest.raises(BookError, match="not among"):
            paid.ahead(20_001)
        paid.settle()
    times = np.array([at for at, _ in written])
    assert len(written) < 2 * 20 + 15
    assert np.all(np.diff(times)[12:] > 0.5)
    assert max(r - 1000 * at for at, r in written) < 4_000


@pytest.mark.parametrize("kept", [True, False])
def test_what_failed_before_its_first_release_costs_nothing(tmp_path: Path, kept: bool) -> None:
    ledger, book = opened(tmp_path)
    mixing = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.BatchNorm1d(2))
    with pytest.raises(ValueError):
        train(
            mixing,
            records(),
            planned(),
            ledger=ledger,
            out=tmp_path / "run" if kept else None,
        )
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 0)
    assert book.total("patients").epsilon == 0
    assert not (tmp_path / "run" / RESERVATION).exists()


def stopping(at: int) -> Any:
    def progress(event: Any) -> None:
        if event.round == at:
            raise KeyboardInterrupt

    return progress


def test_a_run_without_a_folder_that_stops_is_settled_with_its_rounds(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(model(), records(), planned(), ledger=ledger, progress=stopping(7))
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 7)


def test_a_stopped_run_stays_active_and_the_same_folder_goes_on(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(model(), records(), planned(), ledger=ledger, out=out, progress=stopping(7))
    (held,) = book.reservations("patients")
    assert held.status == "active" and held.mark >= 7
    assert json.loads((out / RESERVATION).read_text())["number"] == held.number
    with pytest.raises(ValueError, match="from a ledger"):
        train(model(), records(), planned(), out=out, resume=True)
    with pytest.raises(ValueError, match="it began with"):
        other = Ledger(ledger.url, "others")
        train(model(), records(), planned(), ledger=other, out=out, resume=True)
    kept = (out / RESERVATION).read_text()
    for damaged in (
        kept[:-9],
        "[]",
        kept.replace('"url"', '"link"'),
        kept.replace(": 1,", ": 1e9,"),
    ):
        (out / RESERVATION).write_text(damaged)
        with pytest.raises(BookError, match="holds no reservation"):
            train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    (out / RESERVATION).write_text(kept)
    run = train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", ROUNDS)
    assert not (out / RESERVATION).exists()
    noted = json.loads((out / EVIDENCE).read_text())
    assert noted["reservation"] == held.number and noted["again"] == []
    assert run.statement.evidence is not None and EVIDENCE in run.statement.evidence.files
    # A finished run is read back and reserves nothing.
    train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    assert len(book.reservations("patients")) == 1


def test_an_older_copy_of_a_run_repeats_its_rounds_only_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = opened(tmp_path)
    out, copy = tmp_path / "run", tmp_path / "copy"

    def stop(event: Any) -> None:  # a checkpoint is written, so that the folder repeats nothing
        if event.round == 7:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(model(), records(), planned(), ledger=ledger, out=out, progress=stop)
    shutil.copytree(out, copy)
    run = train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MKL_CBWR", "another machine")
        with pytest.raises(folders.CheckpointError, match="instruction set changed"):
            train(model(), records(), planned(), ledger=ledger, out=copy, resume=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(np, "__version__", "1.0")
        with pytest.raises(folders.CheckpointError, match="numpy"):
            train(model(), records(), planned(), ledger=ledger, out=copy, resume=True)
    with pytest.raises(folders.CheckpointError, match="micro_batch was None"):
        options: dict[str, Any] = {"ledger": ledger, "out": copy, "resume": True}
        train(model(), records(), planned(), micro_batch=7, **options)
    again = train(model(), records(), planned(), ledger=ledger, out=copy, resume=True)
    assert torch.equal(again.model[0].weight, run.model[0].weight)  # type: ignore[index]
    assert len(book.reservations("patients")) == 1


def test_a_run_that_is_killed_while_it_clears_its_own_folder_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = opened(tmp_path)
    out, layer = tmp_path / "run", torch.nn.Linear(4, 2)
    plan = ft.plan(
        examples=EXAMPLES, budget=Budget(3, 1e-5), model=layer, feature_norm=9.0, rounds=2
    )
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(shutil, "rmtree", raising(KeyboardInterrupt()))
        train(layer, records(), plan, ledger=ledger, out=out)
    train(layer, records(), plan, ledger=ledger, out=out, resume=True)
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", len(plan.mechanism))


def test_a_kill_between_settling_and_the_statement_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = opened(tmp_path)
    out = tmp_path / "run"
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr(folders.RunFolder, "save_results", raising(OSError("disk")))
        train(model(), records(), planned(), ledger=ledger, out=out)
    assert book.reservation(1).status == "settled" and (out / RESERVATION).exists()
    run = train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    assert len(book.reservations("patients")) == 1 and run.statement.private


def raising(error: BaseException) -> Any:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


def test_a_run_whose_reservation_was_ended_does_not_go_on(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(model(), records(), planned(), ledger=ledger, out=out, progress=stopping(7))
    book.end(1, book.reservation(1).mark, "the machine is gone")
    with pytest.raises(BookError, match="over"):
        train(model(), records(), planned(), ledger=ledger, out=out, resume=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_stops_while_its_means_are_released_is_resumed_and_paid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    ledger, book = opened(tmp_path)
    out, layer = tmp_path / "run", torch.nn.Linear(4, 2)
    plan = ft.plan(
        examples=EXAMPLES, budget=Budget(3, 1e-5), model=layer, feature_norm=9.0, rounds=2
    )
    if overwrite:
        train(layer, records(), plan, out=out)
    earlier = (out / "prepared.json").read_text() if overwrite else ""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def call(**more: Any) -> Any:
        return train(layer, records(), plan, ledger=ledger, out=out, files={"a.txt": "b"}, **more)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("forethought.training.run.released", stop)
        call(overwrite=overwrite)
    with pytest.raises(folders.RunFolderExistsError, match="resume"):
        call()
    run = call(resume=True)
    assert run.statement.mechanism == plan.mechanism and (out / "a.txt").read_text() == "b"
    assert (out / "prepared.json").read_text() != earlier
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", len(plan.mechanism))


def test_a_settled_run_that_is_paused_before_its_statement_is_paid_once(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    mechanism = planned().mechanism
    killed = ledger.paid(mechanism, folder=tmp_path)
    killed.settle()
    killed.book.close()
    with ledger.paid(mechanism, folder=tmp_path, resume=True):
        pass  # Ctrl-C
    with ledger.paid(mechanism, folder=tmp_path, resume=True) as paid:
        paid.settle()
    assert len(book.reservations("patients")) == 1 and not (tmp_path / RESERVATION).exists()


def test_a_lost_answer_leaves_the_name_of_its_reservation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = shared(tmp_path)
    mechanism, reserve = planned().mechanism, Store.reserve
    for name in ("patients", "clinic"):

        def lost(self: Store, data: str, *args: Any, name: str = name, **more: Any) -> Any:
            made = reserve(self, data, *args, **more)
            if data == name:
                raise BookError("no answer")
            return made

        with monkeypatch.context() as patched, pytest.raises(BookError, match="no answer"):
            patched.setattr(Store, "reserve", lost)
            ledger.paid(mechanism, folder=tmp_path, resume=True)
    with ledger.paid(mechanism, folder=tmp_path, resume=True) as paid:
        paid.settle()
    for name in ("patients", "clinic"):
        assert [held.status for held in book.reservations(name)] == ["settled"]


def answers_lost(ledger: Ledger, mechanism: Mechanism, folder: Path) -> None:
    """Reserve and lose the book's answer, as a run does that is killed then."""
    reserve = Store.reserve

    def lost(self: Store, *args: Any, **more: Any) -> Any:
        reserve(self, *args, **more)
        raise BookError("no answer")

    with pytest.MonkeyPatch.context() as patched, pytest.raises(BookError, match="no answer"):
        patched.setattr(Store, "reserve", lost)
        ledger.paid(mechanism, folder=folder)


def test_a_run_begun_anew_after_a_lost_answer_is_paid_once(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    answers_lost(ledger, planned().mechanism, tmp_path)
    with ledger.paid(planned().mechanism, folder=tmp_path) as paid:
        paid.settle()
    assert [held.purpose for held in book.reservations("patients")] == ["try it out"]
    answers_lost(ledger, planned().mechanism, tmp_path)
    with ledger.paid(planned(3.0).mechanism, folder=tmp_path) as other:  # another plan
        assert other.number == 3


@pytest.mark.parametrize("resume", [False, True])
def test_of_copies_of_a_folder_one_goes_on_with_its_reservation(
    tmp_path: Path, resume: bool
) -> None:
    ledger, _ = opened(tmp_path)
    mechanism, out, copy = planned().mechanism, tmp_path / "run", tmp_path / "copy"
    out.mkdir()
    answers_lost(ledger, mechanism, out)
    shutil.copytree(out, copy)
    one = ledger.paid(mechanism, folder=out, resume=resume)
    if resume:
        with pytest.raises(BookError, match="no second"):
            ledger.paid(mechanism, folder=copy, resume=True)
    else:
        assert ledger.paid(mechanism, folder=copy).number != one.number


@pytest.mark.parametrize("why", ["another process", "no data"])
def test_a_copy_neither_releases_nor_returns_what_another_process_marked(
    tmp_path: Path, why: str
) -> None:
    ledger, book = opened(tmp_path)
    mechanism, out, copy = planned().mechanism, tmp_path / "run", tmp_path / "copy"
    out.mkdir()
    ledger.paid(mechanism, folder=out)
    shutil.copytree(out, copy)
    one, other = (ledger.paid(mechanism, folder=at, resume=True) for at in (out, copy))
    one.ahead(1)
    with pytest.raises(ValueError, match=why), other:
        other.ahead(1) if why == "another process" else raising(ValueError(why))()
    assert book.reservation(1).status == "active"
    with one:
        one.settle()


@pytest.mark.parametrize("what", ["release", "return"])
def test_of_copies_that_look_at_the_same_moment_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    ledger, book = opened(tmp_path)
    mechanism, out, copy = planned().mechanism, tmp_path / "run", tmp_path / "copy"
    out.mkdir()
    ledger.paid(mechanism, folder=out)
    shutil.copytree(out, copy)
    one, other = (ledger.paid(mechanism, folder=at, resume=True) for at in (out, copy))
    look = Store.reservation

    def meanwhile(self: Store, number: int) -> Reservation:
        found = look(self, number)
        monkeypatch.setattr(Store, "reservation", look)
        one.ahead(1)
        return found

    monkeypatch.setattr(Store, "reservation", meanwhile)
    if what == "release":
        with pytest.raises(BookError, match="another process"):
            other.ahead(1)
    else:
        with pytest.raises(ValueError, match="no data"), other:
            raise ValueError("no data")
    held = book.reservation(1)
    assert (held.status, held.mark) == ("active", 1)


def test_a_run_that_a_copy_overtook_releases_nothing_more(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    mechanism, out, copy = planned().mechanism, tmp_path / "run", tmp_path / "copy"
    out.mkdir()
    one = ledger.paid(mechanism, folder=out)
    one.ahead(1)
    shutil.copytree(out, copy)
    other = ledger.paid(mechanism, folder=copy, resume=True)
    other.ahead(1)  # which may have been killed before it was released
    other.ahead(2)
    with pytest.raises(BookError, match="another process"):
        one.ahead(2)
    other.ahead(ROUNDS)
    with other:
        other.settle()
    assert book.reservation(1).released == ROUNDS


@pytest.mark.slow
def test_of_an_epoch_all_rounds_are_paid_again(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    mechanism = Mechanism(Rounds(20.0, 8, RandomAllocation(4)))
    ledger.paid(mechanism, folder=tmp_path).ahead(2)
    with ledger.paid(mechanism, folder=tmp_path, resume=True) as paid:
        paid.again(1, 2)
    assert len(book.reservation(2).charge.mechanism) == 4


def test_a_copy_without_checkpoint_does_not_release_anew_what_its_run_released(
    tmp_path: Path,
) -> None:
    ledger, book = opened(tmp_path)
    plan, out, copy = planned(rounds=3), tmp_path / "run", tmp_path / "copy"
    (out / "checkpoint").mkdir(parents=True)
    ledger.paid(plan.mechanism, folder=out)  # and killed while the folder is made
    shutil.copytree(out, copy)
    train(model(), records(), plan, ledger=ledger, out=out, resume=True)
    with pytest.raises(folders.CheckpointError, match="paid for anew"):
        train(model(), records(), plan, ledger=ledger, out=copy, resume=True)
    assert [held.status for held in book.reservations("patients")] == ["settled"]


def test_a_copy_without_checkpoint_stops_at_its_runs_first_mark(tmp_path: Path) -> None:
    """Between the first and the second mark the book does not know yet that round 1 was made."""
    ledger, book = opened(tmp_path)
    plan, out, copy = planned(rounds=3), tmp_path / "run", tmp_path / "copy"
    (out / "checkpoint").mkdir(parents=True)  # and nothing in it yet
    live = ledger.paid(plan.mechanism, folder=out)
    shutil.copytree(out, copy)
    live.ahead(1)
    with pytest.raises(folders.CheckpointError, match="paid for anew"):
        train(model(), records(), plan, ledger=ledger, out=copy, resume=True)
    live.ahead(2)
    assert book.reservation(1).status == "active"


def test_a_password_is_not_in_a_folder_and_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, _ = opened(tmp_path)
    url, mechanism = ledger.url, planned().mechanism
    monkeypatch.setattr(Ledger, "book", lambda _: open_book(url, actor="me"))
    for place in (
        "postgresql://me:{}@host/db",
        "postgresql://me:an@{}@host/db",
        "postgresql://host/db?password={}&user=me&sslpassword=s3cret",
    ):
        one, two = (replace(ledger, url=place.format(word)) for word in ("s3cret", "n3w"))
        out = tmp_path / str(len(place))
        out.mkdir()
        paid = one.paid(mechanism, folder=out)
        assert "s3cret" not in (out / RESERVATION).read_text() + repr(one)
        assert two.paid(mechanism, folder=out, resume=True).number == paid.number
        with pytest.raises(BookError) as refused:
            replace(one, data="others").paid(mechanism, folder=out, resume=True)
        assert "s3cret" not in str(refused.value)


def test_what_a_book_never_takes_leaves_no_name(tmp_path: Path) -> None:
    ledger, _ = opened(tmp_path)
    for wrong in (replace(ledger, data="patient"), replace(ledger, also=("clinics",))):
        with pytest.raises(BookError, match="no account"):
            wrong.paid(planned().mechanism, folder=tmp_path, resume=True)
        assert not (tmp_path / RESERVATION).exists()
    ledger.paid(planned().mechanism, folder=tmp_path, resume=True)


def test_a_reservation_that_nothing_was_released_of_is_used_by_the_next_try(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    mechanism = planned().mechanism
    killed = ledger.paid(mechanism, folder=tmp_path)  # and never ended
    assert book.reservation(1).status == "active"
    with ledger.paid(planned(3.0).mechanism, folder=None) as other:
        other.settle(0)
    with ledger.paid(mechanism, folder=tmp_path) as paid:
        assert paid.number == killed.number
        paid.ahead(1)
        paid.settle()
    assert [one.number for one in book.reservations("patients")] == [1, 2]


def test_a_run_stops_where_its_book_was_set_back(tmp_path: Path) -> None:
    """The number of its reservation is then that of another run, which is charged once."""
    ledger, book = opened(tmp_path)
    book.close()
    before, place = tmp_path / "before.db", tmp_path / "books.db"
    shutil.copy(place, before)
    mechanism = planned().mechanism
    one = ledger.paid(mechanism, folder=tmp_path)
    one.ahead(4)
    one.book.close()
    shutil.copy(before, place)
    with ledger.paid(mechanism) as other:
        assert other.number == one.number
        other.ahead(ROUNDS)
        for going in (lambda: one.ahead(ROUNDS), one.settle):
            with pytest.raises(BookError, match="set back"):
                going()
        other.settle()
    with pytest.raises(BookError, match="set back"):  # and so after it is over
        one.settle()
    with (
        pytest.raises(BookError, match="set back"),
        ledger.paid(mechanism, folder=tmp_path, resume=True) as again,
    ):
        again.settle()
    one.book.close()


def test_what_an_earlier_process_began_is_not_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_run, "PACE", 0.0)  # a mark for each round, and no further
    ledger, book = shared(tmp_path)
    killed = ledger.paid(planned().mechanism, folder=tmp_path)
    for rounds in (1, 2, 3):
        killed.ahead(rounds)
    killed.book.close()
    with ledger.paid(planned().mechanism, folder=tmp_path, resume=True) as paid:
        with pytest.raises(BookError, match="had begun"):
            paid.settle(1)
        paid.settle(2)  # round 3 may have been stopped before its noise
    held = [book.reservation(number) for number in (1, 2)]
    assert [(one.mark, one.released) for one in held] == [(3, 2)] * 2 and not book.verify()


def people(book: Store, ledger: Ledger) -> Ledger:
    """Another account of the same book, which protects persons."""
    book.open_account(Account("people", Budget(8.0, 1e-5), unit="person"), "renyi")
    return replace(ledger, data="people")


def of_people(**options: Any) -> tuple[Any, Plan]:
    """Records of persons, two each, and a plan in which a person is one contribution."""
    whose = np.arange(EXAMPLES) // 2
    mechanism = Mechanism(Rounds(4.0, 10, Poisson(0.2)))
    plan = Plan(mechanism, EXAMPLES // 2, 1e-6, contribution=Persons(2), **options)
    return ft.data.of_persons(*records(), whose, 2), plan


def every_run(data: Any, plan: Plan, payer: Ledger) -> list[Callable[[], object]]:
    """Everything that a ledger pays for with a plan and records."""
    plan = plan.with_(budget=Budget(8.0, 1e-6))
    trials: dict[str, Any] = {"trials": TRIALS, "scoring": "public", "holdout": records(4)}
    phases: dict[str, Any] = {"accuracy": 1.0, "test": records(4), "ledger": payer}
    rule = {"next_phase": lambda progress: None}
    return [
        lambda: train(model(), data, plan, ledger=payer),
        lambda: tune(flat, data, [plan, plan], ledger=payer, **trials),
        lambda: ft.train_until(model(), data, plan, **phases),
        lambda: ft.train_until(model(), data, plan, **phases, **rule),
    ]


@pytest.mark.slow
def test_an_account_of_persons_pays_for_persons_only(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    paying = people(book, ledger)
    read: list[int] = []
    looked = Looked(lambda: read.append(1))
    data, plan = of_people()
    for unit, wrong in (
        *(("person", one) for one in every_run(looked, planned(), paying)),
        *(("record", one) for one in every_run(data, plan, ledger)),
    ):
        with pytest.raises(BookError, match=f"protects a {unit}"):
            wrong()
    assert not read and not book.reservations("people") and not book.reservations("patients")
    out = tmp_path / "run"
    run = train(model(), data, plan, ledger=paying, out=out)
    assert verified(out, ledger=ledger.url).statement == run.statement
    ft.train_until(
        model(),
        data,
        plan.with_(budget=Budget(8.0, 1e-6)),
        accuracy=1.0,
        test=records(4),
        next_phase=lambda made: None if made.done[1:] else Rounds(4.0, 5, Poisson(0.2)),
        ledger=paying,
    )
    held = book.reservations("people")
    assert [one.charge.unit for one in held] == ["person"] * 3 and not book.verify()


def test_a_series_is_of_one_unit(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    data, plan = of_people()
    both = plan.mechanism + planned().mechanism
    with people(book, ledger).paid(both, unit="person") as series:
        train(model(), data, plan, ledger=series.part(plan.mechanism))
        with pytest.raises(BookError, match="another plan"):
            train(model(), records(), planned(), ledger=series.part(planned().mechanism))
        series.settle()


def test_another_plan_does_not_go_on_with_a_reservation(tmp_path: Path) -> None:
    ledger, _ = opened(tmp_path)
    out = tmp_path
    with pytest.raises(KeyboardInterrupt), ledger.paid(planned().mechanism, folder=out) as paid:
        paid.ahead(1)
        raise KeyboardInterrupt
    with pytest.raises(BookError, match="another plan"):
        ledger.paid(planned(3.0).mechanism, folder=out, resume=True)


def test_rounds_released_again_are_paid_for_as_one_release_of_less_noise(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    plan = planned(4.0)
    with pytest.raises(KeyboardInterrupt), ledger.paid(plan.mechanism, folder=tmp_path) as paid:
        paid.ahead(5)
        raise KeyboardInterrupt
    mark = book.reservation(1).mark
    with ledger.paid(plan.mechanism, folder=tmp_path, resume=True) as paid:
        for rounds in range(3, mark + 1):
            paid.ahead(rounds)
            paid.again(rounds, 2)
        paid.settle()
    _, more = book.reservations("patients")
    assert more.status == "settled" and more.released == mark - 2
    (part,) = more.charge.mechanism
    assert part.count == mark - 2
    assert part.noise_multiplier == pytest.approx(4 / np.sqrt(2)) and (
        part.noise_multiplier <= 4 / np.sqrt(2)
    )
    assert book.reservation(1).released == ROUNDS


@pytest.mark.slow
def test_a_changed_loss_pays_for_its_rounds_again(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    out, weight = tmp_path / "run", [1.0]

    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()
            self.factor = weight[0]

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.factor * self.inner(inputs)

    with pytest.raises(KeyboardInterrupt):
        train(
            Weighted(),
            records(),
            planned(),
            ledger=ledger,
            out=out,
            checkpoint_every=100,
            progress=stopping(7),
        )
    weight[0] = 1.5
    with pytest.warns(UserWarning, match="changed since"):
        run = train(Weighted(), records(), planned(), ledger=ledger, out=out, resume=True)
    first, more = book.reservations("patients")
    assert (first.status, first.released) == ("settled", ROUNDS)
    assert more.status == "settled" and len(more.charge.mechanism) >= 7
    assert any(caveat.code == "released-again" for caveat in run.statement.caveats)
    assert verified(out, ledger=ledger.url).statement == run.statement


@pytest.mark.slow
def test_phases_that_were_not_run_return(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    parts = [Rounds(noise, 10, Poisson(0.2)) for noise in (4.0, 3.0, 2.0)]
    plan = Plan(Mechanism(*parts), EXAMPLES, 1e-6)
    done = ft.train_until(
        model(),
        records(),
        plan,
        accuracy=0.01,
        test=records(4),
        ledger=ledger,
        out=tmp_path / "run",
    )
    assert len(done.phases) == 1
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 10) and len(held.charge.mechanism) == 30
    assert verified(tmp_path / "run", ledger=ledger.url).statement == done.statement


def chosen(paying: Ledger, **options: Any) -> Any:
    """Phases that a rule chooses by results: of ever less noise."""
    plan = Plan(Mechanism(Rounds(6.0, 10, Poisson(0.2))), EXAMPLES, 1e-6)

    def rule(progress: Any) -> Rounds | None:
        return (
            Rounds(6.0 - len(progress.done), 10, Poisson(0.2)) if len(progress.done) < 3 else None
        )

    given = {"accuracy": 1.0, "test": records(4), "next_phase": rule, "ledger": paying, **options}
    return ft.train_until(model(), records(), plan.with_(budget=Budget(8.0, 1e-6)), **given)


@pytest.mark.slow
def test_phases_chosen_by_results_are_paid_one_by_one(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    done = chosen(ledger, out=tmp_path / "run")
    held = book.reservations("patients")
    assert [one.charge.mechanism.rounds for one in held] == [(p.rounds,) for p in done.phases]
    assert [(one.status, one.released) for one in held] == [("settled", 10)] * 3
    assert verified(tmp_path / "run", ledger=ledger.url).statement == done.statement
    noted = json.loads((tmp_path / "run" / EVIDENCE).read_text("utf-8"))
    assert noted["earlier"] == [1, 2] and noted["reservation"] == 3
    assert not (tmp_path / "run" / RESERVATION).exists()


@pytest.mark.slow
def test_phases_are_paid_by_every_account_that_shares_persons(tmp_path: Path) -> None:
    ledger, book = shared(tmp_path)
    out = tmp_path / "run"
    done = chosen(ledger, out=out)
    assert verified(out, ledger=ledger.url).statement == done.statement
    noted = json.loads((out / EVIDENCE).read_text("utf-8"))
    assert noted["also"] == [held.number for held in book.reservations("clinic")]
    assert len(noted["also"]) == 3
    for also in (noted["also"][::-1], noted["also"][1:]):
        found = {**noted, "also": also}
        (out / EVIDENCE).write_text(json.dumps(found))
        words = Caveat("in-the-book", of_run.in_words(found))
        others = (one for one in done.statement.caveats if one.code != "in-the-book")
        with pytest.raises(StatementError, match="another run"):
            _in_its_book(out, replace(done.statement, caveats=(*others, words)), ledger)
    book.close()


@pytest.mark.slow
def test_a_phase_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path, epsilon=0.75)
    done = chosen(ledger)
    count = len(book.reservations("patients"))
    assert 0 < count < 3 and len(done.phases) == count and "not so much left" in done.stopped
    assert len(done.statement.mechanism) == 10 * count
    with pytest.raises(OverBudgetError):
        chosen(Ledger(ledger.url, opened_small(book)))


def opened_small(book: Store) -> str:
    """An account in which no phase fits."""
    return book.open_account(Account("few", Budget(0.1, 1e-5))).data


@pytest.mark.slow
def test_phases_that_are_killed_go_on_with_their_own_reservations(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    out = tmp_path / "run"
    whole = chosen(opened_beside(book, ledger), seed=1, noise_seed=2)
    for at in (3, 14, 25):
        with pytest.raises(KeyboardInterrupt):
            chosen(
                ledger, out=out, resume=out.exists(), progress=stopping(at), seed=1, noise_seed=2
            )
    done = chosen(ledger, out=out, resume=True)
    assert [(one.status, one.released) for one in book.reservations("patients")] == (
        [("settled", 10)] * 3
    )
    for name, weight in done.model.state_dict().items():
        assert torch.equal(weight, whole.model.state_dict()[name])


def opened_beside(book: Store, ledger: Ledger) -> Ledger:
    """Another account of the same book."""
    return Ledger(ledger.url, book.open_account(Account("beside", Budget(8.0, 1e-5))).data)


@pytest.mark.slow
def test_phases_that_were_settled_before_a_kill_get_their_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = opened(tmp_path)
    plan = Plan(Mechanism(*(Rounds(s, 10, Poisson(0.2)) for s in (4.0, 3.0))), EXAMPLES, 1e-6)
    options = {"accuracy": 0.01, "test": records(4), "ledger": ledger, "out": tmp_path / "run"}
    with monkeypatch.context() as patched, pytest.raises(OSError):
        patched.setattr("forethought.training.search._finish", raising(OSError("disk")))
        ft.train_until(model(), records(), plan, **options)
    assert book.reservation(1).released == 10
    done = ft.train_until(model(), records(), plan, resume=True, **options)
    assert done.statement.private and len(book.reservations("patients")) == 1
    with ledger.paid(plan.mechanism, folder=tmp_path) as paid:
        paid.settle(10)
    (tmp_path / RESERVATION).write_text(
        json.dumps(
            {
                **{"schema": "forethought/reservation/1", "url": ledger.url, "data": "patients"},
                **{"number": 2, "run": "x", "call": "y"},
            }
        )
    )
    with (
        pytest.raises(BookError, match="over"),
        ledger.paid(plan.mechanism, folder=tmp_path, resume=True) as paid,
    ):
        paid.ahead(10)
        paid.ahead(11)


def test_a_descent_and_an_estimator_are_paid_for(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    book.open_account(Account("zero", Budget(8.0, 1e-5), adjacency="zero-out"))
    inputs, targets = records()
    ledger = Ledger(ledger.url, "zero")
    fitted = ft.estimators.PrivateLogisticRegression(
        epsilon=1.0, delta=1e-6, feature_bound=2.0, classes=[0, 1], ledger=ledger
    ).fit(inputs, targets)
    network = ft.estimators.PrivateClassifier(
        lambda features, outputs: torch.nn.Linear(features, outputs),
        epsilon=1.0,
        delta=1e-6,
        classes=[0, 1],
        epochs=2,
        ledger=ledger,
    ).fit(inputs, targets)
    held = book.reservations("zero")
    assert [one.status for one in held] == ["settled", "settled"]
    assert held[0].charge.mechanism == fitted.plan_.mechanism
    for statement in (fitted.statement_, network.statement_):
        assert any(caveat.code == "in-the-book" for caveat in statement.caveats)
    greedy = ft.estimators.PrivateLogisticRegression(
        epsilon=100.0, delta=1e-6, feature_bound=2.0, classes=[0, 1], ledger=ledger
    )
    with pytest.raises(OverBudgetError):
        greedy.fit(inputs, targets)


def test_a_statement_holds_against_its_book_and_not_against_one_set_back(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    train(model(), records(), planned(), ledger=ledger, out=tmp_path / "first")
    book.close()
    copy = tmp_path / "copy.db"
    copy.write_bytes((tmp_path / "books.db").read_bytes())
    train(model(), records(), planned(4.0), ledger=ledger, out=tmp_path / "second")
    outcome = verified(tmp_path / "second", ledger=ledger.url)
    assert "total of the data set" in outcome.checked
    assert "total of the data set" in dict(verified(tmp_path / "second").not_checked)
    with pytest.raises(StatementError, match="set back"):
        verified(tmp_path / "second", ledger=f"sqlite:///{copy}")
    verified(tmp_path / "first", ledger=f"sqlite:///{copy}")
    file = tmp_path / "second" / EVIDENCE
    file.write_text(file.read_text().replace('"epsilon": ', '"epsilon": 0'))
    with pytest.raises(StatementError):
        verified(tmp_path / "second")


def test_nothing_left_is_told_before_data_are_loaded(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path, epsilon=1.0)
    ledger.require()
    high, low = 1e4, 1e-3
    while high / low > 1 + 1e-9:
        noise = (high * low) ** 0.5
        fits = book.fits("patients", Charge(Mechanism(Rounds(noise, 1, FullBatch()))))
        high, low = (noise, low) if fits else (high, noise)
    made = book.reserve("patients", Charge(Mechanism(Rounds(high, 1, FullBatch()))))
    assert isinstance(made, Reservation)
    assert book.total("patients").left < 1e-3
    with pytest.raises(BookError, match="no account"):
        Ledger(ledger.url, "others").require()


def test_a_book_that_is_gone_stops_the_run_before_the_round(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    with ledger.paid(planned().mechanism, folder=tmp_path) as paid:
        paid.ahead(1)
        paid.book.mark = raising(BookError("the ledger does not answer"))
        with pytest.raises(BookError, match="does not answer"):
            paid.ahead(paid.marked + 1)
        with pytest.raises(BookError, match="have been released"):
            paid.settle(0)
    assert book.reservation(1).status == "active"
    assert open_book(ledger.url, actor="x").verify() == []
    assert Interrupted is not None


def looped(paying: Ledger | None, rounds: int, fail: bool = False) -> Any:
    """A loop of one's own over so many rounds, not finished."""
    net, look = model(), (lambda: None)
    plain = torch.optim.SGD(net.parameters(), 0.1)
    loader, optimizer = ft.private(net, plain, Looked(look), planned(), ledger=paying)
    for number, (inputs, targets) in enumerate(loader, 1):
        if fail and number == rounds:
            break
        torch.nn.functional.cross_entropy(net(inputs), targets).backward()
        optimizer.step()
        if number == rounds:
            break
    return optimizer


def test_a_loop_of_ones_own_is_paid_and_settles_with_its_rounds(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    optimizer = looped(ledger, 3)
    (held,) = book.reservations("patients")
    assert held.status == "active" and held.charge == Charge(planned().mechanism)
    assert held.mark >= 3
    run = optimizer.finish(tmp_path / "run")
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 3)
    assert "in-the-book" in {caveat.code for caveat in run.statement.caveats}
    verified(tmp_path / "run", ledger=ledger.url)


def test_a_loop_that_nobody_finishes_settles_when_it_is_gone(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    optimizer = looped(ledger, 2)
    del optimizer
    gc.collect()
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 2)


@pytest.mark.slow
def test_no_record_of_a_loop_is_read_before_its_plan_is_reserved(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path, epsilon=0.5)
    read: list[int] = []
    with pytest.raises(OverBudgetError):
        ft.private(model(), None, Looked(lambda: read.append(1)), planned(), ledger=ledger)
    assert not read and not book.reservations("patients")


TRIALS = NegativeBinomialTrials.of_mean(3, shape=0)


def flat() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def searched(paying: Ledger, data: Any, make: Any = flat, **options: Any) -> Any:
    """A private search of two trials' mechanisms, with held-out records of its own."""
    plans = [planned(8.0), planned(6.0)]
    given = {"trials": TRIALS, "holdout": records(4), "seed": 1, "noise_seed": 2, **options}
    return tune(make, data, plans, ledger=paying, **given)


@pytest.mark.slow
def test_a_search_is_reserved_whole_before_a_record_is_read(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    seen: list[Any] = []

    def look() -> None:
        if not seen:
            seen.extend(book.reservations("patients"))

    tuned = searched(ledger, Looked(look), out=tmp_path / "run")
    (held,) = seen
    assert held.status == "active" and held.mark == 0
    found = held.charge.selection
    assert found is not None and len(found.candidates) == 2 and found.trials == TRIALS
    assert found.score_noise == tuned.statement.accountant["score_noise"]
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 1)
    assert book.total("patients").epsilon >= tuned.statement.epsilon.lower
    assert not book.verify()
    verified(tmp_path / "run", ledger=ledger.url)


@pytest.mark.slow
def test_a_search_that_stopped_is_charged_from_its_first_trial_on(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    made: list[int] = []

    def make() -> torch.nn.Module:
        made.append(1)
        if len(made) > 1:  # the first is tried out without a record
            assert book.reservations("patients")[-1].mark == 1
            raise RuntimeError("out of memory")
        return flat()

    with pytest.raises(RuntimeError):
        searched(ledger, records(), make)
    with pytest.raises(ValueError):
        searched(ledger, records(), lambda: torch.nn.BatchNorm1d(4))
    released = [held.released for held in book.reservations("patients")]
    assert released == [1, 0]


def test_a_search_that_does_not_fit_reads_nothing(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path, epsilon=0.3)
    read: list[int] = []
    with pytest.raises(OverBudgetError, match="fewer trials"):
        searched(ledger, Looked(lambda: read.append(1)), out=tmp_path / "run")
    assert not read and not book.reservations("patients") and not (tmp_path / "run").exists()


def test_a_statement_of_another_search_is_not_in_the_book(tmp_path: Path) -> None:
    ledger, _ = opened(tmp_path)
    tuned = searched(ledger, records())
    found = tuned.statement.accountant
    own = Selection((planned(8.0).mechanism, planned(6.0).mechanism), TRIALS, found["score_noise"])
    for mechanism in own.candidates:
        other = selection_details(mechanism, own.candidates, TRIALS, own.score_noise, 1e-6)
        assert own.is_of(mechanism, other)
        assert not own.is_of(mechanism, {**other, "score_noise": own.score_noise / 2})
        assert not own.is_of(mechanism, {**other, "trials": {**other["trials"], "stopping": 0.01}})
        assert not own.is_of(mechanism, {**other, "candidates": []})
    assert not own.is_of(planned(3.0).mechanism, found)


def shared(path: Path, epsilon: float = 8.0) -> tuple[Ledger, Store]:
    """A book with a second account, of persons who are in the first one's data too."""
    ledger, book = opened(path)
    book.open_account(Account("clinic", Budget(epsilon, 1e-5)))
    return replace(ledger, also=("clinic",)), book


def test_accounts_that_share_persons_all_pay(tmp_path: Path) -> None:
    ledger, book = shared(tmp_path)
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(model(), records(), planned(), ledger=ledger, out=out, progress=stopping(7))
    marks = {
        held.data: held.mark for name in ("patients", "clinic") for held in book.reservations(name)
    }
    assert marks["patients"] == marks["clinic"] >= 7
    train(model(), records(), planned(), ledger=ledger, out=out, resume=True)
    for name in ("patients", "clinic"):
        (held,) = book.reservations(name)
        assert (held.status, held.released) == ("settled", ROUNDS)
        assert held.charge == Charge(planned().mechanism)
    assert book.total("patients").epsilon == book.total("clinic").epsilon > 0
    assert json.loads((out / EVIDENCE).read_text("utf-8"))["also"] == [2]
    verified(out, ledger=ledger.url)


def test_who_resumes_a_run_finds_all_its_reservations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, book = shared(tmp_path)
    (tmp_path / "run").mkdir()
    for user in ("ann", "bob"):
        monkeypatch.setenv("LOGNAME", user)
        paid = ledger.paid(planned().mechanism, folder=tmp_path / "run", resume=user == "bob")
        with paid:
            paid.ahead(ROUNDS)
            if user == "bob":
                paid.settle()
    for name in ("patients", "clinic"):
        (held,) = book.reservations(name)
        assert (held.status, held.released, held.by) == ("settled", ROUNDS, "ann")


def test_parts_of_a_run_may_be_paid_by_more_accounts_than_others(tmp_path: Path) -> None:
    both, _ = shared(tmp_path)
    texts = []
    for payer in (replace(both, also=()), both):
        with payer.paid(planned().mechanism) as paid:
            texts.append(paid.settle()[0])
    for order in (texts, texts[::-1]):
        assert json.loads(of_run.joined_evidence(order)[0])["also"] == [3]


@pytest.mark.slow
def test_where_one_of_them_cannot_pay_none_does(tmp_path: Path) -> None:
    ledger, book = shared(tmp_path, epsilon=0.1)
    with pytest.raises(OverBudgetError, match="'clinic'"):
        train(model(), records(), planned(), ledger=ledger, out=tmp_path / "run")
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("ended", 0) and not book.reservations("clinic")
    assert book.total("patients").epsilon == 0 and not (tmp_path / "run").exists()


def test_rounds_released_again_are_paid_by_all(tmp_path: Path) -> None:
    ledger, book = shared(tmp_path)
    with ledger.paid(planned().mechanism) as paid:
        paid.ahead(2)
        paid.again(2, 2)
        paid.settle(2)
    for name in ("patients", "clinic"):
        first, more = book.reservations(name)
        assert first.released == 2 and more.status == "settled"


def test_an_earlier_round_that_is_released_again_later_is_paid_too(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    with ledger.paid(planned().mechanism) as paid:
        paid.ahead(ROUNDS)
        for rounds, payments in ((20, 2), (21, 2), (10, 3), (12, 3), (20, 3)):
            paid.again(rounds, 2)
            assert len(book.reservations("patients")) == payments
        paid.settle()
    _, *more = book.reservations("patients")
    assert [one.released for one in more] == [ROUNDS - 19, ROUNDS - 9]


def identified(path: Path, rows: range, name: str, people: bool = False) -> tuple[Ledger, Any]:
    """A ledger for an account of the book, and what it is asked about these rows."""
    url = f"sqlite:///{path / 'books.db'}"
    if not (path / "books.db").exists():
        create(url, actor="owner").close()
        new_key(path / "key")
    book = open_book(url, actor="owner")
    if name not in {account.data for account in book.accounts()}:
        book.open_account(Account(name, Budget(8.0, 1e-5)))
    book.close()
    each = [f"row {row}".encode() for row in rows]
    whose = [f"person {row // 2}".encode() for row in rows] if people else None
    ledger = Ledger(url, name, identity=path / "key")
    return ledger, lambda paying=ledger: paying.recognise(each, whose)


def test_a_renamed_copy_and_a_superset_are_noticed(tmp_path: Path) -> None:
    first, ask = identified(tmp_path, range(100), "patients")
    ask()
    ask()  # the same data set again
    for rows, words in (
        (range(100), "under another name"),
        (range(150), "superset"),
        (range(40), "part"),
    ):
        _, other = identified(tmp_path, rows, "copy")
        with pytest.raises(BookError, match=words) as refused:
            other()
        assert "data = 'patients'" in str(refused.value) and "#copy+patients" in str(refused.value)
    _, few = identified(tmp_path, range(98, 400), "others")
    few()  # two equal rows are a coincidence
    meant, other = identified(tmp_path, range(50, 150), "copy")
    other(replace(meant, also=("patients", "others")))
    with pytest.raises(BookError, match="'copy'"):  # and now it is asked on the other side
        ask()
    ask(replace(first, also=("copy",)))
    book = open_book(first.url, actor="owner")
    kinds = [entry.kind for entry in book.entries()]
    assert kinds.count("records") == 3 and not book.verify()
    everything = json.dumps([dict(entry.values) for entry in book.entries()])
    assert "row" not in everything
    book.close()


def test_one_person_in_two_data_sets_is_enough(tmp_path: Path) -> None:
    _, ask = identified(tmp_path, range(100), "patients", people=True)
    ask()
    _, other = identified(tmp_path, range(99, 400), "clinic", people=True)
    with pytest.raises(BookError, match="of the 50"):
        other()


@pytest.mark.parametrize("people", [True, False])
def test_a_run_of_a_part_reads_nobody_else(tmp_path: Path, people: bool) -> None:
    ledger, ask = identified(tmp_path, range(100), "patients", people)
    name, kind, count = ("person", "person", 50) if people else ("row", "record", 100)
    everyone, unit = [f"{name} {n}" for n in range(count)], cast(Any, kind)
    listed = hashes((tmp_path / "key").read_bytes(), everyone, unit)
    book = open_book(ledger.url, actor="owner")
    book.add_persons("patients", "site=A", listed[:20])
    book.add_persons("patients", "site=B", listed[20:])
    for part, others in (("site=A", count - 20), ("site=B", 20), ("site=C", count)):
        with pytest.raises(BookError, match=f"{others} of the {count} {kind}s"):
            ask(replace(ledger, partition=part))
    assert "records" not in {entry.kind for entry in book.entries()}
    book.add_persons("patients", "all=1", listed)
    ask(replace(ledger, partition="all=1"))
    added = [entry.values["new"] for entry in book.entries() if entry.kind == "records"]
    assert added == [count] and not book.verify()
    book.close()


def test_without_the_key_nothing_is_recognised(tmp_path: Path) -> None:
    _, ask = identified(tmp_path, range(100), "patients")
    ask()
    other, again = identified(tmp_path, range(100), "copy")
    new_key(tmp_path / "other")
    again(replace(other, identity=tmp_path / "other"))
    again(replace(other, identity=None))
    with pytest.raises(OSError):
        new_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_plans_of_a_series_are_paid_by_one_charge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_run, "PACE", 0.0)  # a mark for each round, and no further
    ledger, book = opened(tmp_path)
    one, other = planned(4.0), planned(3.0, 10)
    runs = []
    with ledger.paid(one.mechanism + other.mechanism) as series:
        with pytest.raises(BookError, match="next plan"):
            series.part(other.mechanism)
        for at, plan in enumerate((one, other)):
            part = series.part(plan.mechanism)
            with pytest.raises(BookError, match="another plan"):
                train(model(), records(), planned(5.0), ledger=part)
            marks: list[int] = []

            def look(event: Any, to: list[int] = marks) -> None:
                to.append(book.reservation(1).mark)

            out = tmp_path / str(at)
            runs.append(train(model(), records(), plan, ledger=part, out=out, progress=look))
            assert marks[-1] >= (ROUNDS, ROUNDS + 10)[at]
            assert book.reservation(1).mark >= (ROUNDS, ROUNDS + 10)[at]
        verified(tmp_path / "0", ledger=ledger.url)
        with pytest.raises(BookError, match="next plan"):
            series.part(other.mechanism)
        with pytest.raises(BookError, match="run has begun"):  # the same rounds again, unpaid
            train(model(), records(), other, ledger=part)
        with pytest.raises(BookError, match="run has begun"):
            train(model(), records(), other, ledger=series)
        series.settle()
        with pytest.raises(BookError, match="is over"):
            series.ahead(1)
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", ROUNDS + 10)
    for at, run in enumerate(runs):
        assert verified(tmp_path / str(at), ledger=ledger.url).statement == run.statement
    noted = json.loads((tmp_path / "1" / EVIDENCE).read_text("utf-8"))
    assert noted["part"] == [ROUNDS, ROUNDS + 10]
    with pytest.raises(StatementError, match="another run"):  # the other's evidence
        (tmp_path / "1" / EVIDENCE).write_text(json.dumps({**noted, "part": [0, 10]}))
        _in_its_book(tmp_path / "1", runs[1].statement, ledger)


@pytest.mark.thinned
@pytest.mark.parametrize(
    "more", [{"again": [77]}, {"again": [1]}, {"again": [2]}, {"earlier": [1]}]
)
def test_evidence_that_names_other_payments_pays_for_nothing(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Numbers that are not in the book, of another run, or one twice, stand for no rounds."""
    ledger, book = opened(tmp_path)
    for at, noise in enumerate((6.0, 9.0)):
        train(model(), records(), planned(noise), ledger=ledger, out=tmp_path / str(at))
    dear = train(model(), records(), planned(2.0), out=tmp_path / "dear").statement
    noted = json.loads((tmp_path / "0" / EVIDENCE).read_text("utf-8"))
    for found in ({**noted, **more}, noted):
        (tmp_path / "dear" / EVIDENCE).write_text(json.dumps(found))
        words = Caveat("in-the-book", of_run.in_words(found))
        forged = replace(dear, caveats=(*dear.caveats, words))
        with pytest.raises((StatementError, BookError), match=r"another run|77"):
            _in_its_book(tmp_path / "dear", forged, ledger)
    book.close()


@pytest.mark.slow
def test_a_round_that_was_paid_again_pays_for_one_round(tmp_path: Path) -> None:
    """One round of little noise beside others of much does not cover all rounds of little noise."""
    ledger, book = opened(tmp_path)
    train(model(), records(), planned(6.0), ledger=ledger, out=tmp_path / "0")
    cheap = Mechanism(Rounds(2.0, 1, Poisson(0.2)), Rounds(9.0, ROUNDS - 1, Poisson(0.2)))
    train(model(), records(), Plan(cheap, EXAMPLES, 1e-6), ledger=ledger, out=tmp_path / "1")
    noted = json.loads((tmp_path / "0" / EVIDENCE).read_text("utf-8")) | {"again": [2]}
    half = Mechanism(Rounds(2.0, 1, Poisson(0.2)), Rounds(6.0, ROUNDS - 1, Poisson(0.2)))
    for at, mechanism in (("dear", planned(2.0).mechanism), ("paid", half)):
        made = train(model(), records(), Plan(mechanism, EXAMPLES, 1e-6), out=tmp_path / at)
        (tmp_path / at / EVIDENCE).write_text(json.dumps(noted))
        words = Caveat("in-the-book", of_run.in_words(noted))
        found = replace(made.statement, caveats=(*made.statement.caveats, words))
        refused = pytest.raises(StatementError, match="another run")
        with refused if at == "dear" else nullcontext():
            _in_its_book(tmp_path / at, found, ledger)
    book.close()


def test_a_series_that_broke_off_releases_nothing_more(tmp_path: Path) -> None:
    """Its marks ran ahead of what it is settled with."""
    ledger, book = opened(tmp_path)
    plan = planned()
    with pytest.raises(ZeroDivisionError), ledger.paid(plan.mechanism) as series:
        part = series.part(plan.mechanism)
        for number in (1, 2, 3):
            series.ahead(number)
        raise ZeroDivisionError
    assert book.reservation(1).released == 3 and book.reservation(1).mark >= 3
    with pytest.raises(BookError, match="is over"):
        part.ahead(2)
    book.close()


def test_a_reservation_pays_for_one_run(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    plan = planned()
    with ledger.paid(plan.mechanism) as paid:
        paid.paid(plan.mechanism)  # as a run does that begins
        with pytest.raises(BookError, match="run has begun"):
            train(model(), records(), plan, ledger=paid)
        with pytest.raises(BookError, match="run has begun"):
            paid.part(plan.mechanism)
    book.close()


def test_a_payment_is_for_one_release_of_its_own_statistics(tmp_path: Path) -> None:
    ledger, book = opened(tmp_path)
    inputs, targets = records()
    quiet, loud = (
        planned(4.0).with_(
            preparation=ft.Preparation(("moments",), (-4.0, 4.0), 4, noise_multiplier=noise)
        )
        for noise in (5.0, 8.0)
    )
    with ledger.paid(loud.mechanism, folder=tmp_path) as paid:
        with pytest.raises(ValueError, match="other statistics"):
            ft.prepare(quiet, (inputs, targets), paid=paid)
        prepared = ft.prepare(loud, (inputs, targets), paid=paid)
        with pytest.raises(ValueError, match="for other statistics"):
            ft.prepare(loud, (inputs, targets), paid=paid)
    with ledger.paid(loud.mechanism, folder=tmp_path, resume=True) as paid:
        with pytest.raises(ValueError, match="for other statistics"):
            ft.prepare(loud, (inputs, targets), paid=paid)
        data = prepared.apply(inputs), targets
        train(model(), data, loud, prepared=prepared, ledger=paid)
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", ROUNDS + 1)
    book.close()


def _in_its_book(folder: Path, statement: Any, ledger: Ledger) -> None:
    """A statement that rests on the changed evidence, against the book."""
    text = (folder / EVIDENCE).read_text("utf-8")
    files = {**statement.evidence.files, EVIDENCE: content_hash(text.encode())}
    made = replace(statement, evidence=replace(statement.evidence, files=files))
    (folder / "statement.json").write_text(made.to_json())
    (folder / "statement.md").write_text(made.to_markdown(), encoding="utf-8")
    verified(folder, ledger=ledger.url)

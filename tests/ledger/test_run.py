"""A run that a book pays for: reserved before records, marked ahead of rounds, settled."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import forethought as ft
from forethought.accounting.statement import StatementError
from forethought.jobs.account import verified
from forethought.ledger import run as of_run
from forethought.ledger.book import (
    Account,
    BookError,
    Charge,
    OverBudgetError,
    Reservation,
)
from forethought.ledger.paid_run import EVIDENCE, RESERVATION, Ledger, most_rounds
from forethought.ledger.store import Store, create, open_book
from forethought.training import folder as folders
from forethought.training.execution import Interrupted
from forethought.training.run import train
from forethought.values.mechanism import Budget, Mechanism, Rounds
from forethought.values.plan import Plan
from forethought.values.samplings import FullBatch, Poisson

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
            paid.book, "mark", lambda n, r: (written.append((clock[0], r)), mark(n, r))
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
    budgeted = plan.with_(budget=Budget(8.0, 1e-6))
    with pytest.raises(ValueError, match="in advance"):
        ft.train_until(
            model(),
            records(),
            budgeted,
            accuracy=0.9,
            test=records(4),
            ledger=ledger,
            next_phase=lambda progress: None,
        )


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

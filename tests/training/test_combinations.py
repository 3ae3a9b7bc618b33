"""Options of a plan in combinations that are drawn: what was released is what is stated and paid.

Each combination is refused in a sentence of the library, or it runs. Of one that runs, every round
is looked at before and after its noise; one record is replaced; the run is interrupted and resumed;
and a book pays for it.
"""

from __future__ import annotations

import math
import os
import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.accounting import exact
from forethought.jobs.account import verified
from forethought.ledger.book import Account, unit_of
from forethought.ledger.paid_run import Ledger
from forethought.ledger.store import create
from forethought.rounds.private_sum import WITNESS
from forethought.training.execution import Interrupted
from forethought.values.mechanism import Correlated, Persons

EXAMPLES, PERSONS, EACH = 40, 14, 4
OWNERS = sorted(row % PERSONS for row in range(EXAMPLES))
# None, or a default that needs no word, is there more than once, so that most combinations run.
OPTIONS: dict[str, list[Any]] = {
    "sampling": [
        *("poisson", "without-replacement", "shuffled"),
        *("random-allocation", "cyclic-poisson", "full-batch"),
    ],
    "adjacency": [None, None, "zero-out", "replace-one"],
    "clipping": ["example", "group"],
    "groups": [None, 1, 3],
    "local": [None, None, "adam", {"optimizer": "sgd", "learning_rate": 1.0}],
    "clip_rule": [None, "flat", "automatic", "per-layer", "quantile"],
    "clip_norm": [None, 0.5, 2.0],
    "final_clip_norm": [None, None, 0.2],
    "noise": ["gaussian", "gaussian", "grid", "correlated"],
    "noise_schedule": [None, None, "geometric", "linear", "forgetting"],
    "size_schedule": [None, None, "linear", "power"],
    "persons": [None, None, "contribution", "group"],
    "gradient_filter": [None, None, "low-pass", "kalman"],
    "averaging": [None, "tail", "exponential"],
    "optimizer": ["sgd", "adam", "adam-bc", "yogi"],
    "schedule": [None, "cosine", "inverse-sqrt"],
    "rounds": [2, 4, 5],
    "noise_multiplier": [2.0, 7.0],
}


def drawn(numbers: random.Random) -> dict[str, Any]:
    """Keywords of a plan, without most that contradict each other."""
    found = {name: numbers.choice(values) for name, values in OPTIONS.items()}
    persons = found.pop("persons")
    if persons is not None:
        found |= {"persons": PERSONS, "records_per_person": EACH, "person_as": persons}
    if found["clipping"] == "example" or persons == "contribution":
        found |= {"clipping": "example", "groups": None, "local": None}
    if found["noise"] == "correlated":
        courses = dict.fromkeys(("noise_schedule", "size_schedule", "gradient_filter"))
        found |= {"sampling": "cyclic-poisson", "optimizer": "adam", **courses}
    if found["sampling"] == "cyclic-poisson":
        found["parts"] = 2
    if found["sampling"] in ("shuffled", "random-allocation", "full-batch"):
        found["size_schedule"] = None
    if found["sampling"] != "full-batch":
        found["batch"] = numbers.choice([8, 13])
    for name, kind in (("averaging", ft.Averaging), ("schedule", ft.Schedule)):
        if found[name] is not None:
            found[name] = kind(found[name])
    return {name: value for name, value in found.items() if value is not None}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 30), nn.Tanh(), nn.Linear(30, 3))


def records(spoiled: int | None, persons: bool) -> Any:
    numbers = np.random.default_rng(0)
    inputs = numbers.normal(size=(EXAMPLES, 16)).astype(np.float32)
    targets = numbers.integers(0, 3, EXAMPLES)
    if spoiled is not None:  # a record, or all of its owner's
        rows = [n for n in range(EXAMPLES) if OWNERS[n] == OWNERS[spoiled]]
        rows = rows if persons else [spoiled]
        inputs[rows], targets[rows] = 1e3 * np.sign(inputs[rows]), (targets[rows] + 1) % 3
    if not persons:
        return inputs, targets
    return ft.data.of_persons(inputs, targets, OWNERS, EACH)


class Seen:
    """A witness of every round: its sum, and what was released of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, torch.Tensor, torch.Tensor]] = []

    def met(self, *_: object) -> None: ...

    def summed(self, chosen: Any, vector: torch.Tensor, count: float | None) -> None:
        self._sum = vector.clone()

    def released(self, noised: Any) -> None:
        self.rows.append((noised.round, self._sum, noised.vector.clone()))


def trained(plan: ft.Plan, data: Any, **options: Any) -> tuple[ft.Run, Seen]:
    seen = Seen()
    token = WITNESS.set(lambda rounds, secrets: seen)
    try:
        return ft.train(model(), data, plan, **options), seen
    finally:
        WITNESS.reset(token)


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=[pytest.mark.slow] * (n >= 4)) for n in range(120)]
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_released_is_what_is_stated_and_paid(number: int, tmp_path: Path) -> None:
    numbers = random.Random(number)
    options = drawn(numbers)
    try:
        plan = ft.plan(examples=EXAMPLES, delta=1e-3, **options)
    except ValueError as refused:
        assert str(refused)
        return
    persons = "persons" in options
    seeds = {"seed": 1, "noise_seed": 2, "diagnostics": numbers.random() < 0.5}
    run, seen = trained(plan, records(None, persons), **seeds)

    # As many rounds as planned, each with the noise that is accounted.
    assert len(seen.rows) == plan.rounds
    for chosen, before, after in seen.rows:
        if any(isinstance(part, Correlated) for part in plan.mechanism):
            break
        size = float((after - before).square().mean().sqrt())
        assert size == pytest.approx(chosen.noise_std, rel=6 / math.sqrt(2 * len(before)) + 0.01)

    # Whoever is protected moves the first sum by at most twice as often as they are in it.
    victim = numbers.randrange(EXAMPLES)
    _, other = trained(plan, records(victim, persons), **seeds)
    first, before, _ = seen.rows[0]
    hits = 1 if isinstance(plan.contribution, Persons) else plan.records_per_person
    hits = hits if first.groups is None else min(hits, first.groups)
    moved = float((before - other.rows[0][1]).norm())
    assert moved <= 2 * hits * first.clip_norm * (1 + 1e-6)

    # Interrupted and resumed, it ends with the same weights, and states the same.
    stop = [numbers.randrange(1, plan.rounds)]

    def interrupted(event: Any) -> None:
        if stop and event.round == stop[0]:
            stop.pop()
            os.kill(os.getpid(), signal.SIGINT)

    again: dict[str, Any] = {**seeds, "out": tmp_path / "seeded", "progress": interrupted}
    with pytest.raises(Interrupted):
        ft.train(model(), records(None, persons), plan, **again)
    resumed = ft.train(model(), records(None, persons), plan, **again, resume=True)
    for one, two in zip(run.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert resumed.statement.epsilon == run.statement.epsilon

    # Paid for and interrupted: one reservation, for no less than the statement says.
    url = f"sqlite:///{tmp_path / 'books.db'}"
    book = create(url, actor="owner")
    budget = ft.Budget(900, plan.delta)
    book.open_account(Account("all", budget, plan.mechanism.adjacency, unit_of(plan)))
    stop.append(numbers.randrange(1, plan.rounds))
    paid: dict[str, Any] = {"ledger": Ledger(url, "all"), "out": tmp_path / "paid"}
    paid["progress"] = interrupted
    with suppress(Interrupted):
        ft.train(model(), records(None, persons), plan, **paid)
    statement = ft.train(model(), records(None, persons), plan, **paid, resume=True).statement
    assert statement.epsilon == exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person)
    (held,) = book.reservations("all")
    assert (held.status, held.released) == ("settled", plan.rounds)
    assert book.total("all").epsilon >= statement.epsilon.upper * (1 - 1e-9)
    verified(tmp_path / "paid", ledger=url)

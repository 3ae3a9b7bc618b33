"""Faults: hundreds of seeds without a violation, and planted bugs that the trials must catch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import faults
from forethought.exchange.events import Commit
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.events import LAST, Weights
from trials import ViolationError
from trials.gossip import CALM, Faults, Trial, run_trials

SEEDS = 50


@pytest.mark.slow
def test_nothing_is_violated_under_faults() -> None:
    tally = run_trials(0, SEEDS)
    # The faults do happen, and work is done in spite of them: else this would say nothing.
    assert tally.crashes > SEEDS
    assert tally.releases > 10 * SEEDS
    assert tally.exchanges > 20 * SEEDS


def test_a_restored_backup_is_noticed() -> None:
    alarms: list[str] = []
    for seed in range(30):
        alarms += Trial(seed, Faults(backups=3)).run().alarms
    assert alarms.count("ledger set back") > 5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_crash_at_every_single_write(share: float) -> None:
    for seed in range(2):
        calm = Trial(seed, CALM)
        assert not calm.run().crashes
        for process in calm.processes:
            for number in range(process.storage.writes):
                faults = replace(CALM, crash_at=(process.me, number, share))
                assert Trial(seed, faults).run().crashes <= 1


class SendsFirst(AsynchronousWorker):
    """Speaks of a release before it is in the ledger."""

    __slots__ = ()

    def handle(self, event: on.Event) -> list[on.Effect]:
        effects = super().handle(event)
        if any(isinstance(effect, Commit) for effect in effects):
            effects = [on.Send(self.me ^ 1, self.own.message(0, 0)), *effects]
        return effects


class Forgets(AsynchronousWorker):
    """Does not count all that its ledger holds."""

    __slots__ = ()

    def __init__(self, gossip: Any, me: int, weights: Any, ledger: LedgerState) -> None:
        super().__init__(gossip, me, weights, ledger)
        if self.own.updates > 1:
            self.own.updates -= 1


class NeverStops(AsynchronousWorker):
    """Goes on beyond its plan."""

    __slots__ = ()

    def __init__(self, gossip: Any, me: int, weights: Any, ledger: LedgerState) -> None:
        super().__init__(gossip, me, weights, ledger)
        self.own.limit += 5


class AsksNobody(AsynchronousWorker):
    """Comes back and computes at once."""

    __slots__ = ()

    def handle(self, event: on.Event) -> list[on.Effect]:
        if isinstance(event, on.Started):
            return self._next()
        return super().handle(event)


class BelievesOne(AsynchronousWorker):
    """Comes back and asks a single neighbour."""

    __slots__ = ()

    def handle(self, event: on.Event) -> list[on.Effect]:
        effects = super().handle(event)
        if isinstance(event, on.Started) and self._return is not None and self._return.unsure:
            self._return.unsure = {min(self._return.unsure)}
        return effects


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (SendsFirst, "its ledger has"),
        (Forgets, "two contents|another content"),
        (NeverStops, "beyond its plan"),
        (AsksNobody, "set back, releases"),
        pytest.param(BelievesOne, "set back, releases", marks=pytest.mark.slow),
    ],
)
def test_a_planted_bug_is_caught(kind: type[AsynchronousWorker], words: str) -> None:
    faults = Faults(backups=3) if "set back" in words else None
    with pytest.raises(Exception, match=words):
        for seed in range(400):
            Trial(seed, faults, kind).run()


# One worker of five lies.


class OneEnds(AsynchronousWorker):
    """Ends when one neighbour says so."""

    __slots__ = ()

    def _believed(self, sender: int) -> bool:
        return True


class OthersEnd(AsynchronousWorker):
    """Ends when the count says so, however little it has done itself."""

    __slots__ = ()

    def __init__(self, gossip: Any, me: int, weights: Any, ledger: LedgerState) -> None:
        super().__init__(gossip, me, weights, ledger)
        self.own._least = 0


class TakesWhole(AsynchronousWorker):
    """Takes an answer and a last message as they are."""

    __slots__ = ()

    def _heard(self, sender: int, message: Any) -> list[on.Effect]:
        back = self._return is not None and not self._return.unsure
        effects = super()._heard(sender, message)
        if back and isinstance(message, Weights) and self.finished is None:
            self.own.held = message.vector
        return effects


class AsksOne(AsynchronousWorker):
    """Comes back and waits for the weights of one neighbour."""

    __slots__ = ()

    def _ask(self) -> list[on.Effect]:
        if self._return is not None:
            self._return.asked = 0
        return super()._ask()


class GoesOnAfterTheEnd(AsynchronousWorker):
    """Makes a release that nobody writes down when a last message comes."""

    __slots__ = ()

    def _received(self, sender: int, message: Any) -> list[on.Effect]:
        if isinstance(message, Weights) and message.base == LAST and self._pending is not None:
            self._heard(sender, message)
        return super()._received(sender, message)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (OneEnds, "ended by .* of 12 rounds"),
        (OthersEnd, "ended by .* of 12 rounds"),
        (TakesWhole, "moved to a length of|not finite"),
        (AsksOne, "never went on"),
        (GoesOnAfterTheEnd, "its ledger has"),
    ],
)
def test_a_bug_that_a_liar_finds_is_caught(kind: type[AsynchronousWorker], words: str) -> None:
    with pytest.raises(ViolationError, match=words):
        for seed in range(400):
            Trial(seed, None if seed % 4 else CALM, kind, liar=True).run()


def test_a_lie_about_a_ledger_is_told_by_the_signature_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A door that asks for no signature: one liar stops whom it likes."""
    monkeypatch.setattr(Trial, "_opened", lambda self, me, what: what)
    with pytest.raises(ViolationError, match="by a lie"):
        for seed in range(400):
            Trial(seed, CALM, liar=True).run()


@pytest.mark.slow
def test_nothing_is_violated_beside_a_liar() -> None:
    tally = run_trials(0, SEEDS, liar=True)
    assert tally.lies > 50 * SEEDS and tally.releases > 30 * SEEDS


def test_a_trial_can_be_shown_again() -> None:
    assert Trial(7).run() == Trial(7).run()
    with pytest.raises(ViolationError, match="seed "):
        for seed in range(50):
            Trial(seed, kind=NeverStops).run()


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert faults.main(["gossip", "--seeds", "3", "--json"]) == 0
    told, counts = capsys.readouterr().out.splitlines()
    assert told.startswith("3 trials without a violation")
    assert json.loads(counts)["trials"] == 3
    assert faults.main(["gossip", "--seeds", "3", "--json", "--liars"]) == 0
    told, counts = capsys.readouterr().out.splitlines()
    assert told.startswith("3 trials without a violation") and json.loads(counts)["lies"] > 10


def test_the_command_names_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    for engine, rule in (("sites", "allreduce"), ("torchrun", "asynchronous")):
        with pytest.raises(SystemExit):
            faults.main(["gossip", "--kills", "1", "--engine", engine, "--rule", rule])
        assert "torchrun carries the rule 'allreduce'" in capsys.readouterr().err

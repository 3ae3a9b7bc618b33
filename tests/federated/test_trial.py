"""Faults: hundreds of seeds without a violation, and planted bugs that the trials must catch."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import faults
from forethought.exchange import events as on
from forethought.exchange.messages import Leave, Refusal, Update
from forethought.exchange.storage import LedgerError
from forethought.federated.client import ClientMachine
from forethought.federated.server import MARK, NO_MARK, ServerMachine
from trials import ViolationError
from trials.federation import CALM, Faults, Kinds, Tally, Trial, run_trials

SEEDS = 200


def test_nothing_is_violated_under_faults() -> None:
    tally = run_trials(0, SEEDS)
    # The faults do happen: else this would say nothing.
    assert tally.crashes > SEEDS and tally.accepted > 5 * SEEDS


def test_a_restored_backup_is_noticed() -> None:
    alarms: list[str] = []
    for seed in range(150):
        alarms += Trial(seed, Faults(backups=3)).run().alarms
    assert "ledger set back" in alarms


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_crash_at_every_single_write(share: float) -> None:
    for seed in range(6):
        calm = Trial(seed, CALM)
        assert not calm.run().crashes
        for machine in (calm.server, *calm.clients):
            for number in range(machine.storage.writes):
                faults = replace(CALM, crash_at=(machine.me, number, share))
                assert Trial(seed, faults).run().crashes <= 1


def caught(kinds: Kinds, faults: Faults | None = None, seeds: int = 400, liar: bool = False) -> str:
    for seed in range(seeds):
        try:
            Trial(seed, CALM if liar and not seed % 4 else faults, kinds, liar).run()
        except (ViolationError, LedgerError) as error:
            return str(error)
    return ""


class SendsFirst(ClientMachine):
    """Sends an update before it is in the ledger."""

    __slots__ = ()

    def handle(self, event: on.Event) -> list[on.Effect]:
        return sorted(super().handle(event), key=lambda effect: isinstance(effect, on.Commit))


class Forgets(ClientMachine):
    """Does not count what its ledger holds."""

    __slots__ = ()

    def __init__(self, *agreed: Any, **own: Any) -> None:
        super().__init__(*agreed, **own)
        if self.updates > 1:
            self.updates -= 1


class NeverStops(ClientMachine):
    """Goes on beyond its plan when the server asks."""

    __slots__ = ()

    def __init__(self, *agreed: Any, **own: Any) -> None:
        super().__init__(*agreed, **own)
        self._limit += 1


class AcknowledgesFirst(ServerMachine):
    """Acknowledges before the update is in the journal."""

    def handle(self, event: on.Event) -> list[on.Effect]:
        return sorted(super().handle(event), key=lambda effect: isinstance(effect, on.Append))


class AppliesReplays(ServerMachine):
    """Does not know an update again."""

    def _update(self, client: int, update: Update, event: on.Received) -> list[on.Effect]:
        marks = self._marks[client]
        if marks is not None:
            marks[MARK * update.round : MARK * (update.round + 1)] = bytes(
                len(marks[MARK * update.round : MARK * (update.round + 1)])
            )
        return super()._update(client, update, event)


class OnlySnapshots(ServerMachine):
    """Goes on from its last snapshot, without the journal since."""

    @classmethod
    def restored(
        cls, federation: Any, weights: Any, snapshot: Any, entries: Any, average: Any = None
    ) -> Any:
        return super().restored(federation, weights, snapshot, (), average)


class Forgetful(ServerMachine):
    """Loses the last entry when it starts again."""

    @classmethod
    def restored(
        cls, federation: Any, weights: Any, snapshot: Any, entries: Any, average: Any = None
    ) -> Any:
        return super().restored(federation, weights, snapshot, list(entries)[:-1], average)


# What is planted → words of what must be said.
PLANTED = {
    "sends first": (Kinds(client=SendsFirst), "two contents"),
    "forgets": (Kinds(client=Forgets), ""),
    "never stops": (Kinds(client=NeverStops), "beyond its plan"),
    "acknowledges first": (Kinds(server=AcknowledgesFirst), "not in its journal"),
    "applies replays": (Kinds(server=AppliesReplays), ""),
    "only snapshots": (Kinds(server=OnlySnapshots), ""),
    "forgetful": (Kinds(server=Forgetful), ""),
    "unsalted noise": (Kinds(salted=False), "two models"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_caught(name: str) -> None:
    kinds, words = PLANTED[name]
    found = caught(kinds)
    assert found and words in found


# A member of five lies, or the server.


class MakesAnew(ClientMachine):
    """Computes an update again that the server refused."""

    __slots__ = ()

    def _answered(self, answer: Any) -> list[on.Effect]:
        refused = isinstance(answer, Refusal) and answer.round == self.updates - 1
        if refused and self._outgoing and not self._computing:
            self._outgoing.pop(answer.round, None)
            self.updates -= 1
            self._last = -1
            return self._next()
        return super()._answered(answer)


class AsksTheServer(ClientMachine):
    """Takes the server's word for how many updates it has made."""

    __slots__ = ()

    def _model(self, model: Any) -> list[on.Effect]:
        if not self._computing:
            self.updates = model.round
        return super()._model(model)


class AnyNorm(ServerMachine):
    """Adds whatever a member says."""

    def _reachable(self, client: int, vector: Any, square: float) -> bool:
        return True


class OneLeaves(ServerMachine):
    """Takes one member's leave for everybody's."""

    def _received(self, event: on.Received) -> list[on.Effect]:
        if not isinstance(event.message, Leave):
            return super()._received(event)
        effects: list[on.Effect] = []
        for client in range(len(self._marks)):
            leave = replace(event.message, life=1 << 60)
            effects += super()._received(on.Received(client, leave, event.now))
        return effects


class TakesAnother(ServerMachine):
    """Takes an update that has another content than before."""

    def _update(self, client: int, update: Update, event: on.Received) -> list[on.Effect]:
        marks = self._marks[client]
        if marks and len(marks) > MARK * update.round:
            marks[MARK * update.round : MARK * (update.round + 1)] = NO_MARK
        return super()._update(client, update, event)


LIED_TO = {
    "makes anew": (Kinds(client=MakesAnew), "another content|in its phases|two updates"),
    "asks the server": (Kinds(client=AsksTheServer), "another content|private rounds"),
    "any norm": (Kinds(server=AnyNorm), "moved to a length"),
    "one leaves": (Kinds(server=OneLeaves), "stopped by another one"),
    "takes another": (Kinds(server=TakesAnother), "applied twice"),
}


@pytest.mark.parametrize("name", LIED_TO)
def test_bugs_that_a_liar_finds_are_caught(name: str) -> None:
    kinds, words = LIED_TO[name]
    found = caught(kinds, liar=True)
    assert re.search(words, found), found


@pytest.mark.slow
def test_nothing_is_violated_beside_a_liar() -> None:
    tally = run_trials(0, 100, liar=True)
    assert tally.lies > 3000 and tally.accepted > 1500


def test_a_violation_names_a_seed_that_shows_it_again() -> None:
    found = caught(Kinds(client=NeverStops))
    seed = int(found.split()[1])
    with pytest.raises(ViolationError, match=f"seed {seed} "):
        Trial(seed, kinds=Kinds(client=NeverStops)).run()


def test_one_seed_is_one_trial() -> None:
    first, again = Trial(7).run(), Trial(7).run()
    assert isinstance(first, Tally) and first == again


def test_the_command_says_what_it_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert faults.main(["federation", "--seeds", "3", "--json"]) == 0
    told, counts = capsys.readouterr().out.splitlines()
    assert told.startswith("3 trials without a violation")
    assert json.loads(counts)["trials"] == 3
    assert faults.main(["federation", "--seeds", "3", "--json", "--liars"]) == 0
    told, counts = capsys.readouterr().out.splitlines()
    assert told.startswith("3 trials without a violation") and json.loads(counts)["lies"] > 10

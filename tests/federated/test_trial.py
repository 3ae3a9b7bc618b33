"""Faults: hundreds of seeds without a violation, and planted bugs that the trials must catch."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import faults
from forethought.exchange import events as on
from forethought.exchange.messages import Update
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.server import MARK, ServerMachine
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


def caught(kinds: Kinds, faults: Faults | None = None, seeds: int = 400) -> str:
    for seed in range(seeds):
        try:
            Trial(seed, faults, kinds).run()
        except ViolationError as error:
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

    def __init__(self, federation: Any, me: int, ledger: LedgerState | None = None) -> None:
        super().__init__(federation, me, ledger)
        if self.updates > 1:
            self.updates -= 1


class NeverStops(ClientMachine):
    """Goes on beyond its plan when the server asks."""

    __slots__ = ()

    def __init__(self, federation: Any, me: int, ledger: LedgerState | None = None) -> None:
        super().__init__(federation, me, ledger)
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

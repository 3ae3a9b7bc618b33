"""A server that says what it likes over masks: nothing of one client is opened, nobody stops."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forethought.exchange import events as on
from forethought.federated.secure_aggregation import client as of_client
from forethought.federated.secure_aggregation import protocol
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.server import SecureServer
from trials import ViolationError
from trials.masks import Kinds, MaskTrial, run_trials


@pytest.mark.slow
def test_nothing_is_violated_under_a_hostile_server() -> None:
    tally = run_trials(0, 150)
    assert tally.lies > 3000 and tally.attacks > 400 and tally.crashes > 20 and tally.opened > 5


class AnyRoster(SecureClient):
    """Forgets behind whose masks its sum left first."""

    def _contribute(self) -> Any:
        self._first = None
        return super()._contribute()


class MasksAgain(SecureClient):
    """Reveals shares for a sum of which it has revealed some before."""

    def _requested(self, asked: Any) -> Any:
        found = super()._requested(asked)
        if any(isinstance(one, on.Alarm) and one.code == "secure-again" for one in found):
            self._unmasked, self._participant = -1, None
            return super()._requested(asked)
        return found


class KeepsKeys(SecureClient):
    """Has one secret for all attempts."""

    def __init__(self, *agreed: Any, **own: Any) -> None:
        super().__init__(*agreed, **own)
        drawn = own["entropy"](32)
        self._entropy = lambda count: drawn[:count].ljust(count, b"x")


class GivesUp(SecureClient):
    """Ends with the first word that it refuses."""

    gone = False

    def handle(self, event: on.Event) -> Any:
        found = [] if self.gone else super().handle(event)
        self.gone |= any(isinstance(e, on.Alarm) and e.code == "secure-refused" for e in found)
        return found


class InTheClear(SecureClient):
    """Sends its update as a client without masks does, once it was asked twice."""

    def _requested(self, asked: Any) -> Any:
        said = [on.Send(-1, one) for one in (self._outgoing or {}).values()]
        return [*super()._requested(asked), *said[1:]]


class Waits(SecureServer):
    """Does not go on where a round is lost."""

    def _lost(self, now: float) -> Any:
        return []


class _Anew(protocol.Participant):
    def _on_survivors(self, message: Any) -> Any:
        self.survivors = ()
        return super()._on_survivors(message)


class _AnyKeys(protocol.Participant):
    def _on_roster(self, message: Any) -> Any:
        self._verify = None
        return super()._on_roster(message)


class _Few(protocol.Participant):
    def _on_survivors(self, message: Any) -> Any:
        kept, self.settings = self.settings, _Loose(self.settings)  # type: ignore[assignment]
        found = super()._on_survivors(message)
        self.settings = kept
        return found


class _Loose:
    threshold = 1

    def __init__(self, settings: Any) -> None:
        self.clients, self.bits = settings.clients, settings.bits


# What is planted, in the client or in one round of it → words of what must be said.
PLANTED = {
    "waits": (Waits, None, "does not end"),
    "any roster": (AnyRoster, None, "leaves the first one's set|can be opened twice"),
    "masks again": (
        MasksAgain,
        None,
        "twice|leaves the first one's set",
    ),
    "keeps keys": (KeepsKeys, None, "the same keys in two attempts"),
    "gives up": (GivesUp, None, "does not end"),
    "in the clear": (InTheClear, None, "in the clear"),
    "a second list": (SecureClient, _Anew, "twice|both secrets"),
    "keys of nobody": (SecureClient, _AnyKeys, "took keys of client"),
    "few survivors": (SecureClient, _Few, "revealed shares for"),
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, participant, words = PLANTED[name]
    if participant is not None:
        monkeypatch.setattr(of_client.protocol, "Participant", participant)
    found = ""
    for seed in range(400):
        try:
            server = kind if issubclass(kind, SecureServer) else SecureServer
            client = kind if issubclass(kind, SecureClient) else SecureClient
            MaskTrial(seed, Kinds(client, server)).run()
        except ViolationError as error:
            found = str(error)
            break
    assert re.search(words, found), found

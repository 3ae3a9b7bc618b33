"""A client under secure aggregation: the ordinary machine, whose updates are sent only masked.

The base class decides what is computed and commits it to the ledger, as without masks. Its updates
are never sent: the noised sum goes to this round's :class:`Participant`, a new one for each attempt
that the server asks for. Once shares were revealed for a version of the model, its sum is not
masked again. A client that restarts has lost its sum and so has dropped out of the round; its
ledger still counts the release.

The sum for one version is masked with one roster, or a part of it. So whatever the server sends, no
two sums that contain this client are opened for one version. To open one takes ``threshold``
clients' shares, at least threshold − colluders of them from honest clients, which reveal once per
version; two openings would take 2·(threshold − colluders) of the at most clients − colluders honest
ones in the first roster, and 2·threshold is above clients + colluders. With different rosters for
one sum, a server could average out the noise of all clients except this one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from forethought.exchange import events as on
from forethought.exchange.events import Alarm, Effect, Received, Send
from forethought.exchange.messages import SERVER, Update
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation
from forethought.federated.secure_aggregation import masking, protocol

_OF_THE_ROUND = (protocol.MaskRoster, protocol.MaskDelivery, protocol.Survivors)


class SecureClient(ClientMachine):
    """See the module.

    Args:
        federation: one with ``secure``. me, ledger, life: see :class:`ClientMachine`.
        elements: maps the number of a computed update to its noised sum in the ring.
        entropy, sign, verify: see :class:`Participant`.

    Raises:
        SecureAggregationError: the federation has no secure aggregation, or does not support it.
    """

    def __init__(
        self,
        federation: Federation,
        me: int,
        ledger: LedgerState | None = None,
        *,
        life: int = 0,
        elements: Callable[[int], masking.Ring],
        entropy: protocol.Entropy = secrets.token_bytes,
        sign: protocol.Sign | None = None,
        verify: protocol.Verify | None = None,
    ) -> None:
        super().__init__(federation, me, ledger, life=life)
        self.settings = settings_of(federation)
        self._elements, self._entropy = elements, entropy
        self._sign, self._verify = sign, verify
        self._participant: protocol.Participant | None = None
        self._request_for: protocol.MaskRequest | None = None
        # The newest computed update: its number, its model version and its sum.
        self._masking: tuple[int, int, masking.Ring] | None = None
        self._unmasked = -1
        # A version, and the first roster whose masks its sum was sent with.
        self._first: tuple[int, frozenset[int]] | None = None

    def handle(self, event: on.Event) -> list[Effect]:
        """The effects of an event."""
        message = event.message if isinstance(event, Received) else None
        if isinstance(message, protocol.MaskRequest):
            return self._requested(message)
        if isinstance(event, Received) and isinstance(message, _OF_THE_ROUND):
            return self._of_the_round(event)
        effects = [
            effect
            for effect in super().handle(event)
            if not (isinstance(effect, Send) and isinstance(effect.message, Update))
        ]
        if isinstance(event, on.Computed) and any(isinstance(e, on.Commit) for e in effects):
            self._masking = (event.round, event.base, self._elements(event.round))
            effects += self._contribute()
        if isinstance(event, on.Connected) and self._participant is not None:
            effects += self._participant.again()
        return effects

    def _requested(self, asked: protocol.MaskRequest) -> list[Effect]:
        """Begin an attempt, unless this client has revealed shares for this version."""
        current = self._participant
        if current is not None and (current.round, current.attempt) == (asked.base, asked.attempt):
            return current.again()
        if current is not None and current.survivors:
            self._unmasked = current.round
        if asked.base <= self._unmasked:
            text = f"round {asked.base} was unmasked before: its sum is not masked again"
            none = protocol.no_part(0, asked.base, asked.attempt)
            return [Alarm("secure-again", text), Send(SERVER, none)]
        held = -1 if self._masking is None else self._masking[1]
        if held != asked.base <= self._last:
            # An earlier process released this sum and held it only in memory.
            return [Send(SERVER, protocol.no_part(0, asked.base, asked.attempt))]
        before = None if current is None else current.masked_with
        if current is not None and before and (not self._first or self._first[0] != current.round):
            self._first = (current.round, before)
        self._request_for = asked
        self._participant = None
        return self._contribute()

    def _contribute(self) -> list[Effect]:
        """Give the sum to the attempt, once both exist."""
        if self._request_for is None or self._masking is None:
            return []
        number, base, elements = self._masking
        if base != self._request_for.base or self._participant is not None:
            return []
        self._participant = protocol.Participant(
            self.settings,
            self.federation.run_id,
            base,
            self.me,
            self._entropy,
            self._sign,
            self._verify,
            number=number,
            attempt=self._request_for.attempt,
            within=self._first[1] if self._first and self._first[0] == base else None,
        )
        return [*self._participant.begin(), *self._participant.contribute(elements)]

    def _of_the_round(self, event: Received) -> list[Effect]:
        if self._participant is None:
            return []  # it belongs to an attempt of an earlier process
        if event.sender != SERVER:
            return [Alarm("sender", f"a message from {event.sender}, not the server")]
        return self._participant.handle(event)


def settings_of(federation: Federation) -> masking.SecureAggregation:
    """The secure aggregation settings of a federation, checked against it.

    Raises:
        SecureAggregationError: there are none, they do not fit, or the noise changes with the
            round: a client that missed a round would add different noise.
    """
    if federation.secure is None:
        raise masking.SecureAggregationError("this federation has no secure aggregation")
    settings = masking.SecureAggregation.from_dict(federation.secure)
    settings.require(federation)
    masking.require_steady(federation)
    return settings

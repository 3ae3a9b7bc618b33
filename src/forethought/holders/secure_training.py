"""Training in memory under secure aggregation, with real masks in every round.

The server steps along sums of the cohort and never has a single client's sum. Each client's
releases are in its own transcript, lost rounds included.
"""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from forethought.exchange.messages import Vector
from forethought.exchange.storage import Storage
from forethought.federated.federation import Federation, FederationError
from forethought.federated.rules import cohort_of
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.protocol import secure_sum
from forethought.federated.secure_aggregation.shared_noise import require_room
from forethought.federated.steps import Moments, moved
from forethought.holders.trainer import Holder, SharedModel
from forethought.rounds.private_sum import Layout, PrivateRounds
from forethought.training.optimizers import IterateAverage
from forethought.values.plan import Transcript, grid, step_sizes

# The state of secure training between two rounds, from which it resumes after an interruption.
#
# An interrupted round is computed again on the same weights. If a client's sum is the same again,
# so is its noise, and nothing is released twice. A different sum is one more release, which the
# list of releases shows and the transcript counts. The masks are new, and cancel in every sum that
# the server opens.


STATE, RELEASED = "secure-state", "secure-released"
_MOMENT = "moment/"


@dataclass
class Standing:
    """The state with which the next round begins.

    Args:
        weights: of the newest model. average: the reported model, if models are averaged.
        index: number of rounds so far. version: number of new models so far.
        moments: of the server's optimizer. survivors: the clients in each round's sum so far.
        transcripts: of each client, as plain values. clip_norms: of each client's next round.
    """

    weights: Vector
    average: Vector | None = None
    index: int = 0
    version: int = 0
    moments: Moments = field(default_factory=dict)
    survivors: list[tuple[int, ...]] = field(default_factory=list)
    transcripts: list[Any] = field(default_factory=list)
    clip_norms: list[float] = field(default_factory=list)

    def save(self, storage: Storage) -> None:
        """Save the state in one atomic write."""
        plain = {name: getattr(self, name) for name in _PLAIN}
        arrays: dict[str, Any] = {
            "plain": np.frombuffer(json.dumps(plain).encode(), dtype=np.uint8),
            "weights": self.weights,
            **{_MOMENT + name: value for name, value in self.moments.items()},
        }
        if self.average is not None:
            arrays["average"] = self.average
        content = io.BytesIO()
        np.savez(content, **arrays)
        storage.replace(STATE, content.getvalue())

    @classmethod
    def load(cls, storage: Storage) -> Standing | None:
        """The saved state; None: there is none."""
        content = storage.read(STATE)
        if content is None:
            return None
        with np.load(io.BytesIO(content), allow_pickle=False) as held:
            arrays: Mapping[str, Any] = {name: held[name] for name in held.files}
        plain = json.loads(arrays["plain"].tobytes())
        plain["survivors"] = [tuple(clients) for clients in plain["survivors"]]
        moments = {
            name.removeprefix(_MOMENT): array
            for name, array in arrays.items()
            if name.startswith(_MOMENT)
        }
        return cls(arrays["weights"], arrays.get("average"), moments=moments, **plain)


class SecureReleases:
    """The possible releases of each client, in a list that only grows; see :class:`Standing`."""

    # Client and round, 8 bytes each, and the 32 bytes to which the noise is bound.
    _ENTRY = 48

    def __init__(self, storage: Storage) -> None:
        content = storage.read(RELEASED) or b""
        whole = len(content) - len(content) % self._ENTRY
        if whole != len(content):  # an incomplete last entry: killed before its noise was drawn
            storage.replace(RELEASED, content[:whole])
        self._storage = storage
        self._known: dict[bytes, set[bytes]] = {}
        for start in range(0, whole, self._ENTRY):
            entry = content[start : start + self._ENTRY]
            self._known.setdefault(entry[:16], set()).add(entry[16:])

    def note(self, client: int, index: int, bound: bytes) -> int:
        """Note a release before its noise is drawn; returns the number of releases of this round.

        Args:
            client: its place. index: of its round. bound: 32 bytes to which its noise is bound.
        """
        place = client.to_bytes(8, "little") + index.to_bytes(8, "little")
        known = self._known.setdefault(place, set())
        if bound not in known:
            self._storage.append(RELEASED, place + bound)
            known.add(bound)
        return len(known)


_PLAIN = ("index", "version", "survivors", "transcripts", "clip_norms")


class ReportedAverage:
    """The average of a federation's models; see :class:`forethought.federated.server.Average`.

    Args:
        federation: sets the kind of average. layout: of the model's tensors in a vector.
        weights: the first model, float32, shape (parameters,).
    """

    def __init__(self, federation: Federation, layout: Layout, weights: Vector) -> None:
        self._newest = torch.from_numpy(np.array(weights, dtype=np.float32))
        parts = layout.views(self._newest)
        self._layout = layout
        self._average = IterateAverage(federation.averaging, parts, federation.rounds)

    @classmethod
    def of(cls, federation: Federation, layout: Layout, weights: Vector) -> ReportedAverage | None:
        """The average that a federation reports; None: it reports its newest model."""
        return None if federation.averaging.kind == "none" else cls(federation, layout, weights)

    def update(self, version: int, weights: Vector) -> None:
        """Include the model of a version in the average."""
        self._newest.copy_(torch.from_numpy(np.array(weights)))
        self._average.update(version)

    @property
    def weights(self) -> Vector:
        """The average, float32, shape (parameters,)."""
        parts = [part.reshape(-1) for part in self._average.values.values()]
        return torch.cat(parts).numpy().astype(np.float32)

    def restore(self, weights: Vector) -> None:
        """Continue from this average."""
        flat = torch.from_numpy(np.array(weights, dtype=np.float32))
        self._average.restore(self._layout.views(flat))


# (round, sender, message) → True if it is lost; its sender then misses the rest of the round.
Lost = Callable[[int, int, Any], bool]


@dataclass(frozen=True)
class SecurelyTrained:
    """The outcome of secure training.

    Args:
        weights: of the reported model, float32, shape (parameters,).
        transcripts: the releases of each client.
        survivors: the clients in each round's sum; empty for a lost round.
    """

    weights: Vector
    transcripts: tuple[Transcript, ...]
    survivors: tuple[tuple[int, ...], ...]


def train_securely(  # noqa: PLR0915
    shared: SharedModel,
    holders: Sequence[Holder],
    federation: Federation,
    *,
    lost: Lost = lambda _round, _sender, _message: False,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
    progress: Callable[[int, int], None] | None = None,
    storage: Storage | None = None,
) -> SecurelyTrained:
    """Train a federation whose server sees only sums; ``shared`` then has the reported weights.

    Args:
        shared: the model. holders: of all clients, with the federation's plans.
        federation: with ``secure``, see :func:`~.secure_aggregation.shared_noise.secured`.
        lost: True for messages that do not arrive.
        entropy: n → n secret bytes, for keys and masks.
        progress: called with the number of rounds so far and in all.
        storage: the state is saved in it after every round, and training resumes from there.

    Raises:
        FederationError: no secure aggregation, or holders with other plans.
        SecureAggregationError: the settings do not fit the federation.
    """
    if federation.secure is None:
        raise FederationError("this federation has no secure aggregation: see secured()")
    settings = SecureAggregation.from_dict(federation.secure)
    settings.require(federation)
    require_room(federation, settings)
    members = range(len(federation.members))
    if federation.cohort is not None and any(len(p.mechanism.rounds) > 1 for p in federation.plans):
        raise SecureAggregationError(
            "clients of a cohort miss rounds, so all rounds need one noise multiplier and "
            "sampling: plan rounds of one kind, or leave the cohort out"
        )
    if [holder.plan for holder in holders] != [federation.plan(client) for client in members]:
        raise FederationError("the holders' plans are not those of the federation")
    rounds = [
        PrivateRounds(
            holder.plan.privacy,
            shared.parameters,
            holder.loss,
            holder.secrets,
            micro_batch=holder.micro_batch,
        )
        for holder in holders
    ]
    step_size = step_sizes(federation.plan(0))
    now = Standing(shared.read())
    average = ReportedAverage.of(federation, shared.layout, now.weights)
    if storage is not None and (known := _continued(storage, rounds)) is not None:
        now = known
        if average is not None and now.average is not None:
            average.restore(now.average)
    for index in range(now.index, federation.rounds):
        shared.write(now.weights)
        sums, divisors = {}, {}
        for client in cohort_of(federation, index, np.array(members)):
            with rounds[client]:
                total = rounds[client].open(len(rounds[client].transcript))
                total.add(shared.model, holders[client].records)
                noised = total.release()
            sums[client] = noised.vector.cpu().numpy()
            divisors[client] = noised.round.divisor
            step, _ = grid(noised.round.noise_std, noised.round.clip_norm, shared.layout.size)
        who: tuple[int, ...] = ()
        try:
            opened, who = secure_sum(
                settings,
                sums,
                step,
                round=index,
                run_id=federation.run_id,
                lost=partial(lost, index),
                entropy=entropy,
            )
        except SecureAggregationError:
            pass  # a lost round: the model does not change; the transcripts have its releases
        else:
            mean = opened / sum(divisors[client] for client in who)
            change = -step_size(now.version) * mean
            now.weights = moved(federation.server, now.moments, now.weights, change)
            now.version += 1
            if average is not None:
                average.update(now.version, now.weights)
                now.average = average.weights
        now.survivors.append(who)
        now.index = index + 1
        if storage is not None:
            now.transcripts = [one.transcript.to_values() for one in rounds]
            now.clip_norms = [one.clip_norm for one in rounds]
            now.save(storage)
        if progress is not None:
            progress(now.index, federation.rounds)
    weights = now.weights if average is None else average.weights
    shared.write(weights)
    return SecurelyTrained(weights, tuple(one.transcript for one in rounds), tuple(now.survivors))


def _continued(storage: Storage, rounds: Sequence[PrivateRounds]) -> Standing | None:
    """The saved state, which the clients' rounds take over; they note their releases from now on.

    None: there is none.
    """
    releases = SecureReleases(storage)
    for client, one in enumerate(rounds):
        one.note = partial(releases.note, client)
    known = Standing.load(storage)
    if known is not None:
        for one, values, norm in zip(rounds, known.transcripts, known.clip_norms, strict=True):
            one.transcript, one.clip_norm = Transcript.from_values(values), norm
    return known

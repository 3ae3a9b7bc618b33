"""A client's trainer: its private rounds on weights that others send.

**Formal guarantee.** The vector that :meth:`ClientTrainer.compute` returns is computed only from
the received weights and from noised sums of the client's own plan: it is the weights after steps of
the plan's optimizer along these sums, or one noised mean. Each round's noise is bound to the
weights on which the sum was computed and to the sum that the noise hides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from safetensors.torch import load, save

from forethought.exchange.messages import Vector
from forethought.exchange.storage import LEDGER
from forethought.federated.federation import Federation
from forethought.federated.sizes import values_of
from forethought.gossip.gossip import Gossip
from forethought.holders.simulator import HolderError, Result, Work
from forethought.rounds import private_sum
from forethought.rounds.contributions import Loss, require_images
from forethought.rounds.randomness import Indices, Secrets, Seeds
from forethought.rounds.records import Records, as_records, blank
from forethought.training.folder import KEYS, RunSecrets
from forethought.training.optimizers import (
    IterateAverage,
    descent_of,
    optimizer_state,
    restore_optimizer,
)
from forethought.training.records import warn_of_another_model
from forethought.values.mechanism import LocalRounds, Persons, Sampling, first_round
from forethought.values.plan import Plan, Transcript, step_sizes

# The header of a placeholder in a state without tensors: one zero.
_NONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


class SharedModel:
    """The model of all holders, in one process: its trained weights as one vector.

    Args:
        model: any module whose trainable parameters are float32. Buffers do not change.

    Raises:
        HolderError: parameters of another type than float32.

    Attributes:
        parameters: name → trained parameter. layout: their order in the vector.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self.layout = private_sum.Layout(self.parameters)
        wrong = {str(dtype) for dtype in self.layout.dtypes} - {"torch.float32"}
        if wrong:
            raise HolderError(f"holders exchange float32, not {wrong}: convert it by model.float()")

    @property
    def architecture(self) -> str:
        """SHA-256 of names and shapes, in hexadecimal; it must be the same for all members."""
        rows = [[n, list(s)] for n, s in zip(self.layout.names, self.layout.shapes, strict=True)]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    def records(self, data: object, *name: str) -> Records:
        """Data as records of the model's type and device; see :func:`as_records`."""
        return as_records(data, torch.float32, self.layout.device, *name)

    def read(self) -> Vector:
        """The weights, float32, shape (parameters,)."""
        with torch.no_grad():
            flat = torch.cat([p.detach().reshape(-1) for p in self.parameters.values()])
        return np.ascontiguousarray(flat.cpu().numpy(), dtype=np.float32)

    def write(self, weights: Vector) -> None:
        """Set the weights from a float32 vector, shape (parameters,)."""
        flat = torch.from_numpy(np.array(weights)).to(self.layout.device)
        with torch.no_grad():
            for name, part in self.layout.views(flat).items():
                self.parameters[name].copy_(part)


@dataclass(frozen=True)
class Holder:
    """The contribution of one client: its plan, records and secrets.

    Args:
        plan: its own. records: exactly as many as its plan says. secrets: of sampling and noise.
        loss: one value per example.
        micro_batch: number of examples whose gradients are in memory at once.
        local_rounds: private rounds in an update.
        gradients: True gives noised means (of one round each) in place of weights; "sums" gives
            noised sums: their float64 numbers, seen as float32, shape (2·parameters,).
        skips: True if rounds of the plan may be left out, by phases.
        sized: True if sample sizes are chosen from the norms of released means; they are kept then.

    Raises:
        HolderError: another number of records than the plan's.
    """

    plan: Plan
    records: Records
    loss: Loss
    secrets: Secrets = field(repr=False)
    micro_batch: int | None = None
    local_rounds: LocalRounds = 1
    gradients: bool | str = False
    skips: bool = False
    sized: bool = False

    @classmethod
    def of(
        cls,
        agreed: Federation | Gossip,
        place: int,
        records: Records,
        loss: Loss,
        secrets: Secrets,
        micro_batch: int | None = None,
    ) -> Holder:
        """The holder at a place of an agreement."""
        made = partial(cls, agreed.plan(place), records, loss, secrets, micro_batch)
        if isinstance(agreed, Gossip):
            return made(gradients=True)
        gradients, sized = agreed.exchanged == "gradients", agreed.sizes is not None
        return made(agreed.local_rounds, gradients, bool(agreed.phases), sized)

    def __post_init__(self) -> None:
        if len(self.records) != self.plan.examples:
            raise HolderError(
                f"the plan is for {self.plan.examples} examples, the data has "
                f"{len(self.records)}: the guarantee depends on it"
            )
        augmentation, kind = self.plan.augmentation, self.plan.contribution
        if augmentation is not None:
            require_images(blank(self.records)[0], augmentation, isinstance(kind, Persons))


class ReportedAverage:
    """The average of a federation's models; see :class:`forethought.federated.server.Average`.

    Args:
        federation: sets the kind of average. layout: of the model's tensors in a vector.
        weights: the first model, float32, shape (parameters,).
    """

    def __init__(self, federation: Federation, layout: private_sum.Layout, weights: Vector) -> None:
        self._newest, self._layout = torch.from_numpy(np.array(weights, np.float32)), layout
        parts = layout.views(self._newest)
        self._average = IterateAverage(federation.averaging, parts, federation.rounds)

    @classmethod
    def of(
        cls, federation: Federation, layout: private_sum.Layout, weights: Vector
    ) -> ReportedAverage | None:
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
        self._average.restore(self._layout.views(torch.from_numpy(np.array(weights, np.float32))))


class ClientTrainer:
    """Computes one client's updates, in order.

    Args:
        shared: the model; several trainers of a process may share it.
        holder: plan, records, secrets.
        state: of an earlier trainer; b"": begin anew.

    Attributes:
        shared, holder: see above.
        transcript: all computed rounds; those in the ledger count as released.
        noised: of a holder of gradients, the last noised sum; None before the first.
    """

    def __init__(self, shared: SharedModel, holder: Holder, *, state: bytes = b"") -> None:
        self.shared, self.holder = shared, holder
        self.noised: private_sum.NoisedSum | None = None
        # For an update in parts: its sum, the records of each part, and the parts' input hashes.
        self._sum: private_sum.PrivateSum | None = None
        self._dealt: list[Indices] = []
        self._met: list[bytes] = []
        warn_of_another_model(holder.plan, shared.model)
        self._step_size, parameters = step_sizes(holder.plan), shared.parameters
        self._descent = descent_of(holder.plan, parameters)
        brought = holder.plan.privacy, parameters, holder.loss, holder.secrets
        self.private = private_sum.PrivateRounds(*brought, micro_batch=holder.micro_batch)
        self.private.skips = holder.skips
        # L2 norms of the released means.
        self.norms: list[float] = []
        if state:
            self._restore(state)

    @property
    def transcript(self) -> Transcript:
        """The computed rounds, in order."""
        return self.private.transcript

    def answered(self, work: Work) -> Result | None:
        """Do a work; None: it is a part of an update, and not the last one."""
        if work.parts > 1:
            return self.compute_part(work.round, work.weights, work.part, work.parts)
        return self.compute(work.round, work.weights, work.sampling)

    def compute(self, round: int, weights: Vector, sampling: Sampling | None = None) -> Result:
        """Compute the client's update with index ``round`` on these weights.

        Args:
            weights: float32, shape (parameters,).
            sampling: of its batch; None: as planned.

        Raises:
            RoundError: the update is out of order.
        """
        return compute_together([self], [round], weights, [sampling])[0]

    def compute_part(self, round: int, weights: Vector, part: int, parts: int) -> Result | None:
        """Compute one part of an update of gradients; the last part returns it, the others None.

        Raises:
            RoundError: the part or the update is out of order.
        """
        self.shared.write(weights)
        with self.private:
            if part == 0:
                self._sum = self.private.open(round)
                self._dealt, self._met = self._sum.parts(parts), []
            total = self._sum
            if total is None or part != len(self._met):
                raise private_sum.RoundError(f"part {part} of update {round} is not the next one")
            total.add(self.shared.model, self.holder.records, self._dealt[part])
            self._met.append(total.input_hash)
            if part < parts - 1:
                return None
            self._sum = None
            found = self.finished(round, total, weights)
        return replace(found, input_hash=blake3(b"".join(self._met)).digest())

    def finished(self, round: int, total: private_sum.PrivateSum, weights: Vector) -> Result:
        """Finish an update from its first private sum, to which all records were added."""
        shared, local = self.shared, self.holder.local_rounds
        hashed, first = total.input_hash, first_round(local, round)
        end = first_round(local, round + 1)
        noised = total.release()
        if self.holder.sized:
            self.norms.append(float(noised.mean().norm()))
        if self.holder.gradients:
            self.noised = noised
            vector = np.empty(len(noised.vector), dtype=np.float32)  # without a copy in float64
            of = noised.vector.cpu().numpy(), noised.round.divisor, vector
            np.divide(*of, dtype=np.float64, casting="unsafe")
            if self.holder.gradients == "sums":
                vector = noised.vector.double().cpu().numpy().view(np.float32)
        else:
            shared.write(weights)
            self._descent.step(noised, self._step_size(first))
            for index in range(first + 1, end):
                later = self.private.open(index)
                later.add(shared.model, self.holder.records)
                self._descent.step(later.release(), self._step_size(index))
            self._descent.clear()
            vector = shared.read()
        return Result(vector, end, hashed, self.state())

    def state(self) -> bytes:
        """The state for a later trainer: transcript, clipping norm, optimizer, norms if sized."""
        tensors, values = optimizer_state(self._descent.optimizer)
        known = {"transcript": self.transcript.to_values(), "clip_norm": self.private.clip_norm}
        norms = {"norms": self.norms} if self.holder.sized else {}
        metadata = {"values": json.dumps({**known, "optimizer": values, **norms})}
        if not tensors:
            return _without_tensors(metadata)
        own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        return save(own, metadata)

    def _restore(self, state: bytes) -> None:
        tensors = load(state)
        tensors.pop("none", None)
        held = values_of(state)
        self.private.transcript = Transcript.from_values(held["transcript"])
        self.private.clip_norm = float(held["clip_norm"])
        self.norms = list(held.get("norms", ()))
        restore_optimizer(self._descent.optimizer, tensors, held["optimizer"])


def _without_tensors(metadata: dict[str, str]) -> bytes:
    """The bytes of safetensors' ``save`` for a single zero, made faster than by ``save``."""
    header = json.dumps({"__metadata__": metadata, "none": _NONE}).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + bytes(4)


def compute_together(
    trainers: Sequence[ClientTrainer],
    rounds: Sequence[int],
    weights: Vector,
    samplings: Sequence[Sampling | None],
) -> list[Result]:
    """Compute one update of each of several clients that share a model, on the same weights.

    Their first rounds share passes of the model over all their examples; each client has its own
    batch, noise and transcript.

    Args:
        weights: float32, shape (parameters,). samplings: of their batches; None: as planned.

    Raises:
        RoundError: an update is out of order.
    """
    lead = trainers[0]
    shared = lead.shared
    shared.write(weights)
    with lead.private:
        sums = [
            one.private.open(first_round(one.holder.local_rounds, round), sampling)
            for one, round, sampling in zip(trainers, rounds, samplings, strict=True)
        ]
        private_sum.add_together(sums, shared.model, [one.holder.records for one in trainers])
        return [
            one.finished(round, total, weights)
            for one, round, total in zip(trainers, rounds, sums, strict=True)
        ]


def own_secrets(folder: Path, seeds: Seeds, refusal: type[ValueError]) -> RunSecrets:
    """The secrets of a holder's part in ``folder``: drawn when it begins, kept until it ends.

    Raises:
        ValueError: of the kind ``refusal``: the part has ended.
    """
    if (folder / KEYS).exists():
        return RunSecrets.read(folder)
    if (folder / LEDGER).exists():
        raise refusal(
            f"{folder} holds a part that has ended: its secrets are wiped, its statement is there. "
            "What it released counts; for another run take another folder"
        )
    own = RunSecrets.draw(seeds)
    own.write(folder)
    return own

"""A private sum: it is opened for one round, takes contributions, and releases a noised sum once.

**Formal guarantee.** A :class:`NoisedSum` is the output of the round's Gaussian mechanism
(sampling, clipping to C, noise σC on the sum) and nothing else. With correlated noise, it is one
row of a Gaussian mechanism that consists of all rounds of its part; then only these rounds
together, or the first ones of them, have a guarantee. Only :meth:`PrivateSum.release` makes a
noised sum, at most once a round, and notes it in the transcript with the standard deviations of
its noise. Sum and noise are in float64, or on a grid. Optimizers, messages to a server and mixing
steps take noised sums and nothing else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np
import torch
from blake3 import blake3
from torch import distributed

from forethought.gradients import BatchDims
from forethought.gradients import rule as clipping_rule
from forethought.gradients.batches import together
from forethought.gradients.boundary import turns
from forethought.gradients.clipped import clipped_sums
from forethought.gradients.sharded import Shards
from forethought.gradients.sums import Sums, centred_count_below, next_clip_norm
from forethought.rounds import contributions, randomness
from forethought.rounds.records import Records, TensorRecords, content, require_size
from forethought.values.mechanism import Examples, Sampling
from forethought.values.plan import Privacy, Round, Transcript, grid

# A model's trainable parameters as one flat vector, which is summed and noised.


class Layout:
    """The place of each parameter in the flat vector.

    Args:
        parameters: name → trainable parameter, in the order of the vector.

    Raises:
        ValueError: there are no parameters, or they are on several devices.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        if not parameters:
            raise ValueError("there is no parameter with requires_grad=True: nothing to train")
        devices = {p.device for p in parameters.values()}
        if len(devices) > 1:
            raise ValueError(f"the parameters lie on several devices: {sorted(map(str, devices))}")
        self.names = tuple(parameters)
        self.shapes = tuple(p.shape for p in parameters.values())
        self.dtypes = tuple(p.dtype for p in parameters.values())
        self.device = devices.pop()
        self._lengths = [p.numel() for p in parameters.values()]
        self.size = sum(self._lengths)

    def zeros(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """A flat vector of zeros."""
        return torch.zeros(self.size, dtype=dtype, device=self.device)

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Name → the part of a flat vector, in the parameter's shape, sharing memory."""
        parts = zip(self.names, torch.split(vector, self._lengths), self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in parts}


# The clipping norm from round to round, which the quantile rule changes.
#
# Quantile rule (Andrew, Thakkar, McMahan, Ramaswamy 2021): the share of contributions within the
# norm is released with noise, and a geometric update moves the norm to the wanted quantile. Each
# contribution adds ±1/2 to the released count, so its sensitivity is half that of the sum in units
# of C. :meth:`forethought.values.plan.Clip.gradient_noise` accounts for the count's release by
# more noise on the sum.


def noised_share(
    count: float, chosen: Round, count_noise: float, generator: np.random.Generator
) -> float:
    """Noised share of contributions whose norm is at most C.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) plus noise, which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2).

    Args:
        count: Σ (1[‖g‖ ≤ C] − 1/2), see :func:`forethought.gradients.sums.centred_count_below`.
        chosen: the round; the count is divided by its public divisor, never by ``len(norms)``.
        count_noise: σ_b, standard deviation of the noise on the sum.
        generator: of the noise.
    """
    counted = randomness.noised_count(count, count_noise, 0.5, chosen.noise, generator)
    return 0.5 + counted / chosen.divisor


class RoundError(RuntimeError):
    """A private sum was used in a way that its accounting does not cover."""


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class NoisedSum:
    """The release of a round: its noised sum. Only :meth:`PrivateSum.release` makes it.

    Attributes:
        round: the round. layout: the place of each parameter in the vector.
        vector: the noised sum, float64, shape (parameters,).
        next_clip_norm: the clipping norm of the next round.
    """

    round: Round
    layout: Layout
    vector: torch.Tensor
    next_clip_norm: float

    def __init__(self, *_: object, **__: object) -> None:
        raise RoundError("a noised sum is made by PrivateSum.release(), and by nothing else")

    def __init_subclass__(cls, **_: object) -> None:
        raise RoundError("a noised sum is made by PrivateSum.release(): it has no subclasses")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoundError("send the vector of a noised sum, not the object: it cannot be copied")

    def mean(self) -> torch.Tensor:
        """The noised sum over the expected number of contributions, float64, (parameters,)."""
        return self.vector / self.round.divisor

    def gradients(self) -> dict[str, torch.Tensor]:
        """Name → the part of :meth:`mean`, in the parameter's shape and precision."""
        views = zip(self.layout.views(self.mean()).items(), self.layout.dtypes, strict=True)
        return {name: view.to(dtype) for (name, view), dtype in views}


class Witness(Protocol):
    """An observer that is shown a run's contributions and releases, to recompute its sums."""

    def met(
        self,
        total: PrivateSum,
        model: torch.nn.Module,
        records: Records,
        indices: randomness.Indices | None,
    ) -> None:
        """Called before records (None: all that are left) are added at the model's weights."""

    def summed(self, chosen: Round, vector: torch.Tensor, count: float | None) -> None:
        """Called with the complete sum and the quantile rule's count, before the noise."""

    def released(self, noised: NoisedSum) -> None:
        """Called with the released sum."""


WITNESS: ContextVar[Callable[[PrivateRounds, randomness.Secrets], Witness | None] | None] = (
    ContextVar("witness", default=None)
)
"""A function that makes the witness of every run that begins while it is set. Only an audit by the
run's owner sets it, in the run's own process: the data shown to it are as secret as the run's keys.
"""


class PrivateRounds:
    """Opens the rounds of a plan in order, each once.

    As a context manager it restores the state of torch's generator at the end.

    Args:
        privacy: the mechanism, clipping and noise of the plan.
        parameters: name → trainable parameter, as in every model that will contribute.
        loss: one value per example.
        secrets: of sampling and noise.
        micro_batch: examples whose gradients are held at once; None: the whole batch. It changes
            memory only.
        team: the processes that compute the rounds together; None: this one alone.
        batch_dims: the batch dimensions of the model, as its owner declares; an assumption.
        shards: of a sharded model, whose ``local`` are the parameters: then every process has its
            own shard of sum, noise and step.

    Raises:
        ValueError: nothing to train, a grid too coarse for so many parameters, ``batch_dims`` with
            groups, or a sharded model with groups, a grid, ``batch_dims`` or an audit.

    Attributes:
        note: function called with a round's number and the 32 bytes that its noise is bound to,
            before the noise is drawn, to write them to disk; returns the number of releases of
            this round. None: nothing is written.
        transcript: notes the releases; set it when a run continues.
        clip_norm: clipping norm of the next round; set it when a run continues.
        bound: the bytes that the noise of each round so far was bound to, if later noise depends
            on them; set it when a run continues.
        how: the computation of gradients; another loss takes effect from the next addition.
        context: further bytes that the noise is bound to, for example of changed circumstances.
        skips: True if rounds may be left out; these are never opened and release nothing.
        witness: of an audit, see :data:`WITNESS`.
    """

    note: Callable[[int, bytes], int] | None = None
    context = b""
    skips = False

    def __init__(
        self,
        privacy: Privacy,
        parameters: Mapping[str, torch.Tensor],
        loss: contributions.Loss,
        secrets: randomness.Secrets,
        *,
        micro_batch: int | None = None,
        team: Team | None = None,
        batch_dims: BatchDims | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.privacy, self.layout = privacy, Layout(parameters)
        self.transcript = Transcript()
        self.clip_norm = privacy.clip.norm
        self.team = team or Team()
        self.how = contributions.Gradients(
            loss, clipping_rule(privacy.clip), micro_batch, batch_dims, self.team.size
        )
        self._add = contributions.CONTRIBUTORS[type(privacy.contribution)]
        self._batches = randomness.Batches(randomness.Stream(secrets.sampling, "sampling"))
        self._groups = randomness.Stream(secrets.sampling, "groups")
        self._augment = randomness.Stream(secrets.sampling, "augment")
        self._parts = randomness.Stream(secrets.sampling, "parts")
        self._secret = secrets.sampling
        self.shards = shards
        # The noise that all processes draw alike, and the noise of each process's own shard.
        self._common = self._noise = randomness.BoundNoise(secrets.noise)
        if shards is not None:
            self._noise = randomness.BoundNoise(secrets.noise, shard=self.team.rank)
        self._laid_out = [self.layout.names, [tuple(shape) for shape in self.layout.shapes]]
        self._written: tuple[object, bytes] = None, b""
        # The part whose correlated noise is held; a continued run draws earlier rounds again.
        self._part: tuple[object, ...] = ()
        self.bound: list[bytes] = []
        self._remembers = privacy.mechanism.correlated
        # A forked copy of this process releases the rounds a second time, which must be counted.
        self._process, self._copies = os.getpid(), 0
        self._opened = -1
        begun = WITNESS.get()
        self.witness = None if begun is None else begun(self, secrets)
        if batch_dims is not None and not isinstance(privacy.contribution, Examples):
            raise ValueError(
                "batch_dims= goes with clipped examples: a group is a batch of its own"
            )
        if shards is not None:
            _require_sharded(privacy, batch_dims, self.witness)
        if privacy.noise == "grid":
            for part in privacy.mechanism:  # refused now, before anything is released
                sigma = privacy.clip.gradient_noise(part.noise_multiplier)
                if sigma:
                    grid(sigma * self.clip_norm, self.clip_norm, self.layout.size)
        self._generator = generator_of(self.layout.device)
        self._kept: list[torch.Tensor] = []

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoundError(
            "rounds cannot be copied or pickled: each of two would release every round, and count "
            "it once. Train the copy as a run of its own"
        )

    def __enter__(self) -> PrivateRounds:
        self._kept.append(self._generator.get_state())
        return self

    def __exit__(self, *_: object) -> None:
        with turns:  # not while another thread's model draws
            self._generator.set_state(self._kept.pop())

    def open(self, index: int, sampling: Sampling | None = None) -> PrivateSum:
        """Open the private sum of round ``index`` and draw its batch.

        Args:
            sampling: the sampling of this batch in place of the planned one; the divisor stays as
                planned. The transcript is then not that of the plan, and a filter has to allow it.

        Raises:
            RoundError: a round out of order, or opened before.
        """
        due = max(self.transcript.next, self._opened + 1)
        if index < due or (index > due and not self.skips):
            raise RoundError(
                f"round {index} cannot be opened: round {due} is next. Every round is opened once, "
                "in order; its noise must never meet two different sums"
            )
        self._opened = index
        chosen = self.privacy.round(index, self.clip_norm)
        if sampling is not None:
            chosen = replace(chosen, sampling=sampling)
        indices = self._batches(chosen)
        batch = contributions.dealt(chosen.contribution, indices, chosen, self._groups)
        if chosen.augmentation is not None:
            numbers = self._augment.at(index)
            draws = numbers.integers(0, 2**64, len(indices), dtype=np.uint64)
            batch = replace(batch, draws=draws)
        even = self.shards is not None
        return PrivateSum(self, chosen, share_of(batch, self.team, even), indices)

    def seed_model(self, index: int) -> None:
        """Seed the generator that dropout draws from with a round's own seed."""
        # Every pass of a round starts from the same seed, so that logging does not change dropout.
        purpose = "model" if self.team.leads else f"model {self.team.rank}"
        self._generator.manual_seed(randomness.seed_of(self._secret, purpose, index))

    def _contribute(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: contributions.DealtBatch,
        chosen: Round,
    ) -> torch.Tensor:
        require_size(records, chosen.examples, RoundError)
        with turns:  # threads share the generator and the objects that the model uses
            self.seed_model(chosen.index)
            return self._add(contributions.Addition(into, model, records, batch, chosen, self.how))

    def _about(self, chosen: Round) -> bytes:
        """A round without its number, the layout and the context of the run, as bytes."""
        # Within one plan the round follows from this key, which is the same for many rounds.
        key = (chosen.origin, chosen.clip_norm, chosen.sampling, self.context)
        if self._written[0] != key:
            about = (replace(chosen, index=0), self._laid_out, self.context)
            self._written = key, randomness.encoded(about)
        return self._written[1]

    def _releases(self, index: int, bound: bytes) -> int:
        """The number of releases of this round, this one included; noted before noise is drawn."""
        if os.getpid() != self._process:
            self._process, self._copies = os.getpid(), self._copies + 1
        return self._copies + (1 if self.note is None else self.note(index, bound))

    def _finish(
        self, chosen: Round, vector: torch.Tensor, norms: torch.Tensor, inputs: bytes
    ) -> NoisedSum:
        std, counted = chosen.noise_std, chosen.count_noise
        if self.shards is None:  # with shards, each process has the total sum of its own shard
            self.team.add_up(vector)
        count = None
        if counted is not None:
            together = vector.new_tensor([centred_count_below(norms, chosen.clip_norm)])
            self.team.add_up(together)
            count = float(together)
        if self.witness is not None:
            self.witness.summed(chosen, vector, count)
        # Correlated noise must hide all sums so far: the strategy matrix times the releases is that
        # matrix times the sums, plus z. So the noise is bound to the earlier sums, too.
        so_far = (chosen.index, count, inputs, self.bound[-1:])
        bound = self._noise.bind(self._about(chosen) + randomness.encoded(so_far), vector)
        if self.shards is not None:
            bound = blake3(self.team.joined(bound)).digest()
        # Written first: after the barrier every process draws noise.
        releases = self._releases(chosen.index, bound)
        self.team.require_equal(bound, "sum")
        if self._remembers:
            self.bound.append(bound)
        strategy = chosen.strategy
        if self.skips:
            self.transcript.skip(chosen.index)
        self.transcript.append(chosen, std, chosen.clip_norm, counted, strategy, releases)
        generator = self._noise.at(bound)
        if strategy is not None and std:
            if self._part != (part := (strategy, chosen.origin)):
                given = self.layout.size, strategy, self._noise, self.bound, chosen.origin
                self._part, self._correlated = part, randomness.CorrelatedNoise(*given)
            self._correlated.add_to(vector, std, chosen.index)
        elif chosen.noise == "grid":
            randomness.add_grid_noise(vector, std, chosen.clip_norm, generator)
        elif std:
            randomness.GaussianNoise().add_to(vector, std, generator)
        if counted is not None and count is not None:
            if self.shards is not None:
                generator = self._common.at(bound)
            share = noised_share(count, chosen, counted, generator)
            towards = chosen.clip.quantile, chosen.clip.quantile_rate
            self.clip_norm = next_clip_norm(chosen.clip_norm, share, *towards)
        noised = object.__new__(NoisedSum)
        for name, value in zip(
            NoisedSum.__slots__, (chosen, self.layout, vector, self.clip_norm), strict=True
        ):
            object.__setattr__(noised, name, value)
        if self.witness is not None:
            self.witness.released(noised)
        return noised


def _require_sharded(privacy: Privacy, batch_dims: BatchDims | None, witness: object) -> None:
    """Refuse plans that the processes of a sharded model cannot run, each on its own shard."""
    others = {
        "clips groups or local updates": not isinstance(privacy.contribution, Examples),
        'has noise="grid"': privacy.noise == "grid",
        "has batch_dims=": batch_dims is not None,
        "is audited": witness is not None,
    }
    for what, found in others.items():
        if found:
            raise ValueError(
                f"a run that {what} takes a whole model in every process: train it without "
                "fully_shard"
            )


class PrivateSum:
    """The secret sum of one round before its release. :meth:`PrivateRounds.open` makes it.

    Attributes:
        round: the round it was opened for.
        indices: the records of the batch, int64, shape (batch,); each process of a team adds its
            share of them.
        rounds: the :class:`PrivateRounds` that opened it.
        input_hash: 32 bytes that name the model that was added last; empty before.
    """

    def __init__(
        self,
        rounds: PrivateRounds,
        chosen: Round,
        batch: contributions.DealtBatch,
        indices: randomness.Indices,
    ) -> None:
        self.round, self.indices, self.rounds = chosen, indices, rounds
        self._batch = batch
        self._left = batch.indices
        self._norms: list[torch.Tensor] = []
        self._closed = False
        # Allocated at the first addition, because the sums of many holders are open at once.
        self._vector: torch.Tensor | None = None
        self.input_hash = self._inputs = b""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoundError("a private sum cannot be copied or pickled: it is released once")

    def add(
        self, model: torch.nn.Module, records: Records, indices: randomness.Indices | None = None
    ) -> None:
        """Add clipped contributions at the model's present weights. ``.grad`` is not changed.

        Args:
            model: a model whose trainable parameters have the layout of the rounds.
            records: all of the data.
            indices: records of the batch that were not added yet; whole groups if groups are
                clipped. None: all that are left.

        Raises:
            RoundError: the round is closed, the records were added before, the data has another
                size, or only a part of the batch for a sharded model.
            ValueError: records that are not in the batch, or a model of other parameters.
        """
        if self._closed:
            raise RoundError(f"round {self.round.index} is closed: it takes nothing more")
        self._met(input_hash(model))
        if self.rounds.witness is not None:
            self.rounds.witness.met(self, model, records, indices)
        batch = self._batch
        if indices is None and self._left is batch.indices:
            self._left = self._left[:0]
        elif self.rounds.shards is not None:
            raise RoundError("a sharded model adds its whole batch at once")
        else:
            some = self._left if indices is None else np.asarray(indices, dtype=np.int64)
            batch = contributions.part_of(self._batch, some)
            if not np.isin(some, self._left).all():
                raise RoundError("these records were added already: a record adds once a round")
            self._left = np.setdiff1d(self._left, some)
        if not len(batch.indices):
            return
        views = self.rounds.layout.views(self._so_far())
        try:
            found = self.rounds._contribute(views, model, records, batch, self.round)
        except BaseException:
            self._spoil()
            raise
        self._norms.append(found)

    def parts(self, count: int) -> list[randomness.Indices]:
        """The batch, divided at random into ``count`` parts that may be added at different weights.

        Each record's part is drawn independently of the other records. So for fixed draws a round
        is the sum of one clipped function of each record, as with one model: adding or removing a
        record changes only its own term, by at most C, and the theorems on sampled sums hold
        unchanged; over the draws they hold by joint convexity. The weights of a later part may
        depend on anything except this client's records beyond its releases (van Dijk et al.,
        Lemma B.3: they belong to the auxiliary input). Parts in order of the batch would be wrong:
        one more record would move other records, and their terms, to other parts.
        """
        dealt = self.rounds._parts.at(self.round.index).integers(0, count, len(self.indices))
        return [self.indices[dealt == part] for part in range(count)]

    def _taken(self, hashed: bytes, model: torch.nn.Module, records: Records) -> randomness.Indices:
        """The whole batch, for :func:`forethought.rounds.private_sum.add_together` to compute.

        Raises:
            RoundError: closed, or added to before, or data of another size.
        """
        if self._closed or self._left is not self._batch.indices:
            raise RoundError(f"round {self.round.index} is closed, or was added to before")
        require_size(records, self.round.examples, RoundError)
        self._met(hashed)
        if self.rounds.witness is not None:
            self.rounds.witness.met(self, model, records, None)
        self._left = self._left[:0]
        return self._batch.indices

    def _met(self, hashed: bytes) -> None:
        """Note the model that is added next; consecutive parts at the same weights count once."""
        if hashed != self.input_hash:
            self.input_hash, self._inputs = hashed, self._inputs + hashed

    def _took(self, sums: Mapping[str, torch.Tensor], norms: torch.Tensor) -> None:
        """Add the clipped sum of exactly the records of :meth:`_taken`, and note the norms.

        Only :func:`forethought.rounds.private_sum.add_together` calls it.
        """
        if self._closed:
            raise RoundError(f"round {self.round.index} is closed: it takes nothing more")
        contributions.accumulate(self.rounds.layout.views(self._so_far()), sums)
        self._norms.append(norms)

    def _spoil(self) -> None:
        """Close the round without a release, after an error that may have left a partial sum."""
        self._closed, self._vector = True, None

    def _so_far(self) -> torch.Tensor:
        if self._vector is None:
            self._vector = self.rounds.layout.zeros()
        return self._vector

    @property
    def norms(self) -> torch.Tensor:
        """Norms before clipping of the added contributions. Private: never released."""
        if not self._norms:
            empty = 0 if self._batch.member_of is None else self._batch.count
            return torch.zeros(empty, device=self.rounds.layout.device)
        return self._norms[0] if len(self._norms) == 1 else torch.cat(self._norms)

    def release(self) -> NoisedSum:
        """Add the noise and return the noised sum, once; an empty batch also releases noise.

        Raises:
            RoundError: the round is closed, or records of the batch are missing.
        """
        if self._closed:
            raise RoundError(
                f"round {self.round.index} is closed: it was released, which is accounted once, or "
                "its contributions failed"
            )
        if len(self._left):
            raise RoundError(
                f"{len(self._left)} records of the batch were not added: which ones are left out "
                "could depend on the data"
            )
        vector = self._so_far()
        self._closed, self._vector = True, None
        return self.rounds._finish(self.round, vector, self.norms, self._inputs)


def generator_of(device: torch.device) -> torch.Generator:
    """torch's default generator of a device, from which dropout draws."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def input_hash(model: torch.nn.Module) -> bytes:
    """A 32-byte hash of the trained weights and the buffers, on which contributions depend.

    For a sharded model it covers this process's shards.
    """
    # The layout of the rounds gives the length of each parameter.
    parts = [content(p) for p in model.parameters() if p.requires_grad]
    for tensor in model.buffers():
        parts += [f"{tensor.dtype}{tuple(tensor.shape)}".encode(), content(tensor)]
    return blake3(b"".join(parts)).digest()


# Private sums of several holders on one model: one pass over all their examples.
#
# Every sum keeps its own batch, clipping, noise and transcript; only the forward and backward
# passes are shared. If that is not possible, each holder's contributions are added separately.


def add_together(
    sums: Sequence[PrivateSum], model: torch.nn.Module, records: Sequence[Records]
) -> None:
    """Add every holder's whole batch to its own sum, at the model's present weights.

    Args:
        sums: one open sum of each holder, without additions. records: each holder's data.

    Raises:
        RoundError: a sum with additions, data of another size, or unequal numbers of sums and data.
    """
    if len(sums) != len(records):
        raise RoundError(f"{len(sums)} sums and the data of {len(records)} holders")
    if len(sums) == 1 or not _alike(sums, records):
        for one, own in zip(sums, records, strict=True):
            one.add(model, own)
        return
    hashed = input_hash(model)
    try:
        batches = [one._taken(hashed, model, own) for one, own in zip(sums, records, strict=True)]
        found = _computed(sums, model, records, batches)
    except BaseException:
        for one in sums:
            one._spoil()
        raise
    for one, (parts, norms) in zip(sums, found, strict=bool(found)):
        one._took(parts, norms)


@turns
def _computed(
    sums: Sequence[PrivateSum],
    model: torch.nn.Module,
    records: Sequence[Records],
    batches: Sequence[randomness.Indices],
) -> Sequence[Sums]:
    taken = [own.take(indices) for own, indices in zip(records, batches, strict=True)]
    full = [pair for pair in taken if pair[0] is not None]
    if not full:
        return ()
    lead = sums[0].rounds
    lead.seed_model(sums[0].round.index)
    inputs, targets = (torch.cat(parts) for parts in zip(*full, strict=True))
    sizes, norm = [len(indices) for indices in batches], sums[0].round.clip_norm
    blocks = together(one.rounds.how.blocks(one.round) for one in sums)
    rule, loss = lead.how.rule, lead.how.loss
    return clipped_sums(model, loss, inputs, targets, norm, sizes, clip=rule, blocks=blocks)


def _alike(sums: Sequence[PrivateSum], records: Sequence[Records]) -> bool:
    """True if one pass over all examples gives every holder exactly its own separate result.

    This holds for clipped examples in tensors of one shape, with one norm, rule and loss, and
    without augmentation, micro-batches, batch dimensions or several processes.
    """
    lead, like = sums[0].rounds, records[0]
    return isinstance(like, TensorRecords) and all(
        isinstance(one.round.contribution, Examples)
        and one.round.augmentation is None
        and one.round.clip_norm == sums[0].round.clip_norm
        and one.round.clip == sums[0].round.clip
        and one.rounds.how.loss is lead.how.loss
        and one.rounds.how.micro_batch is None
        and one.rounds.how.batch_dims is None
        and one.rounds.team.size == 1
        and one.rounds.layout.names == lead.layout.names
        and isinstance(own, TensorRecords)
        and own.inputs.shape[1:] == like.inputs.shape[1:]
        for one, own in zip(sums, records, strict=True)
    )


def share_of(
    batch: contributions.DealtBatch, team: Team, even: bool = False
) -> contributions.DealtBatch:
    """The contributions that one process of a team computes: every ``size``-th.

    Args:
        even: True to give every process the same number of records; an added one does not count.
    """
    if team.size == 1:
        return batch
    if batch.member_of is None:
        every = np.arange(team.rank, len(batch.indices), team.size)
        count, most = len(every), -(-len(batch.indices) // team.size)
        if even and count < most:
            every = np.append(every, 0)
        return batch.some(every, None, count)
    mine = batch.member_of % team.size == team.rank
    count = len(range(team.rank, batch.count, team.size))
    return batch.some(mine, batch.member_of[mine] // team.size, count)


# Processes that compute one run together, data-parallel, and agree on every release.


if distributed.is_available():
    # This module's functions keep the process group at import time as a default argument. If it is
    # imported later (as torch.func does), it keeps the group alive after its end, and gloo's
    # threads, which still run while the interpreter shuts down, sometimes abort the process.
    import torch.distributed.nn.functional

_Value = TypeVar("_Value")


class TeamError(ValueError):
    """The processes of a run do not agree; nothing more is released."""


@dataclass(frozen=True)
class Team:
    """One process by itself; see :class:`ProcessGroup` for several.

    Args:
        rank: number of this process, from 0. Process 0 keeps the run folder.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True if this process keeps the run folder and reports."""
        return self.rank == 0

    def first(self, work: Callable[[], _Value]) -> _Value:
        """Run ``work`` in process 0 only; every process gets its result, or raises its error."""
        return work()

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the processes, in place."""

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The one-dimensional tensors of all processes, concatenated."""
        return tensor

    def joined(self, found: bytes) -> bytes:
        """The bytes of all processes, concatenated; each process gives the same number of bytes."""
        return found

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, True if it is set in any process. All processes wait for each other."""
        return flags

    def require_same(self, value: object, what: str) -> None:
        """Refuse processes whose values differ, by their ``repr``.

        Raises:
            TeamError: they differ; the message names ``what`` and the process.
        """

    def require_equal(self, found: bytes, what: str) -> None:
        """Refuse processes whose bytes differ; fast enough for every round.

        Args:
            found: the same number of bytes in each process, a multiple of 4.

        Raises:
            TeamError: they differ; the message names ``what``.
        """


class ProcessGroup(Team):
    """The processes of torch's default process group, on any backend."""

    def first(self, work: Callable[[], _Value]) -> _Value:
        found: list[Any] = [None, None]
        if self.leads:
            try:
                found[0] = work()
            except Exception as error:
                found[1] = error
        distributed.broadcast_object_list(found, src=0)
        if found[1] is not None:
            raise found[1]
        return found[0]

    def add_up(self, tensor: torch.Tensor) -> None:
        distributed.all_reduce(tensor)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, tensor.cpu())
        return torch.cat(found).to(tensor.device)

    def joined(self, found: bytes) -> bytes:
        own = torch.frombuffer(bytearray(found), dtype=torch.uint8).to(_device())
        every = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(every, own)
        return b"".join(bytes(one.tolist()) for one in every)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        found = torch.tensor(flags or (False,), dtype=torch.int32, device=_device())
        distributed.all_reduce(found)
        return tuple(bool(count) for count in found[: len(flags)])

    def require_same(self, value: object, what: str) -> None:
        found: list[Any] = [None] * self.size
        digest = hashlib.sha256(repr(value).encode()).hexdigest()
        distributed.all_gather_object(found, digest)
        wrong = [rank for rank, other in enumerate(found) if other != found[0]]
        if wrong:
            raise TeamError(
                f"process {wrong[0]} has another {what} than process 0: all processes of a run "
                "need the same"
            )

    def require_equal(self, found: bytes, what: str) -> None:
        words = torch.from_numpy(np.frombuffer(found, dtype=np.uint32).astype(np.int64))
        # The largest and the smallest of every word in one message.
        extremes = torch.cat([words, -words]).to(_device())
        distributed.all_reduce(extremes, op=distributed.ReduceOp.MAX)
        if not torch.equal(extremes.cpu(), torch.cat([words, -words])):
            raise TeamError(
                f"the processes of this run have another {what} each, by a last bit at least: one "
                "noise must not meet two sums, so nothing is released. Use another backend of "
                "torch.distributed, or one process"
            )


def _device() -> str:
    """The type of device that the process group's messages need."""
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def present_team() -> Team:
    """The processes of torch's default process group; without one, this process alone."""
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            return ProcessGroup(distributed.get_rank(), size)
    return Team()

"""A private sum: opened for one round, takes contributions, releases once a noised sum.

**Formal guarantee.** A :class:`NoisedSum` is the round's Gaussian mechanism (sampling, clipping to
C, noise σC on the sum) and nothing else; where noise is correlated, it is one row of a Gaussian
mechanism that is all rounds of its part together, and only they, or a beginning of them, have a
guarantee. Only :meth:`PrivateSum.release` makes one, at most once a round, and notes it in the
transcript with the numbers that the noise was drawn with. Sum and noise are in float64, or on a
grid. Optimizers, messages to a server and mixing steps take noised sums and nothing else.
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
from forethought.rounds.records import Records, TensorRecords, content
from forethought.values.mechanism import Correlated, Examples, Sampling
from forethought.values.plan import Privacy, Round, Transcript, grid

# A model's trainable parameters laid end to end: the vector that is summed and noised.


class Layout:
    """The place of each parameter in the flat vector.

    Args:
        parameters: name → trainable parameter, in the order of the vector.

    Raises:
        ValueError: nothing to train, or parameters on several devices.
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
        """Name → the parameter's part of a flat vector, in its shape, sharing memory."""
        parts = zip(self.names, torch.split(vector, self._lengths), self.shapes, strict=True)
        return {name: piece.view(shape) for name, piece, shape in parts}


# The clipping norm from round to round, which the quantile rule moves.
#
# Quantile rule (Andrew, Thakkar, McMahan, Ramaswamy 2021): the share of contributions within the
# norm, released with noise, steers the norm geometrically to the wanted quantile. Each contribution
# adds ±1/2 to the released count, so its sensitivity is half that of the sum in units of C, and
# :meth:`forethought.values.plan.Clip.gradient_noise` takes the count's cost from the sum's noise.


def noised_share(
    count: float, chosen: Round, count_noise: float, generator: np.random.Generator
) -> float:
    """Noised share of contributions whose norm is at most C.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) plus noise, which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2).

    Args:
        count: Σ (1[‖g‖ ≤ C] − 1/2), see :func:`forethought.gradients.sums.centred_count_below`.
        chosen: the round, whose public divisor the count is divided by (never ``len(norms)``).
        count_noise: σ_b, standard deviation of the noise on the sum.
    """
    counted = randomness.noised_count(count, count_noise, 0.5, chosen.noise, generator)
    return 0.5 + counted / chosen.divisor


class RoundError(RuntimeError):
    """A private sum was used in a way that its accounting does not cover."""


class NoisedSum:
    """The release of a round: its noised sum. Made by :meth:`PrivateSum.release` only.

    Attributes:
        round: the round. layout: which parameter lies where.
        vector: the noised sum, float64, shape (parameters,).
        next_clip_norm: the norm of the next round.
    """

    __slots__ = ("layout", "next_clip_norm", "round", "vector")

    round: Round
    layout: Layout
    vector: torch.Tensor
    next_clip_norm: float

    def __init__(self, *_: object, **__: object) -> None:
        raise RoundError("a noised sum is made by PrivateSum.release(), and by nothing else")

    def __init_subclass__(cls, **_: object) -> None:
        raise RoundError("a noised sum is made by PrivateSum.release(): it has no subclasses")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a noised sum does not change")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoundError("send the vector of a noised sum, not the object: it cannot be copied")

    def mean(self) -> torch.Tensor:
        """The noised sum over the expected number of contributions, float64, (parameters,)."""
        return self.vector / self.round.divisor

    def gradients(self) -> dict[str, torch.Tensor]:
        """The mean by parameter, in the parameters' shapes and precisions."""
        views = zip(self.layout.views(self.mean()).items(), self.layout.dtypes, strict=True)
        return {name: view.to(dtype) for (name, view), dtype in views}


class Witness(Protocol):
    """Is shown what a run's sums are made of and what is released, to work them out again."""

    def met(
        self,
        total: PrivateSum,
        model: torch.nn.Module,
        records: Records,
        indices: randomness.Indices | None,
    ) -> None:
        """Records are about to be added at the model's weights; None: all that are left."""
        ...

    def summed(self, chosen: Round, vector: torch.Tensor, count: float | None) -> None:
        """The sum is complete, with the count beside it, and has no noise yet."""
        ...

    def released(self, noised: NoisedSum) -> None:
        """This is what leaves."""
        ...


WITNESS: ContextVar[Callable[[PrivateRounds, randomness.Secrets], Witness | None] | None] = (
    ContextVar("witness", default=None)
)
"""Makes the witness of every run that begins while it is set: an audit of the run's owner sets it,
in the run's own process, and what it is shown is as secret as the run's keys."""


class PrivateRounds:
    """Opens the rounds of a plan in order, each once. A context: it leaves torch's generator alone.

    Args:
        privacy: what is released.
        parameters: name → trainable parameter of every model that will contribute.
        loss: one value per example.
        secrets: of sampling and noise.
        micro_batch: examples whose gradients are held at once; None: the whole batch. It changes
            memory only.
        transcript: where releases are noted; a continued run's own.
        note: called with a round's number and what its noise is bound to, before the noise is
            drawn, for a record on disk; answers how many releases of the round that makes.
        team: the processes that compute the rounds together.
        shards: of a sharded model, whose ``local`` the parameters are: then every process has its
            own shard of sum, noise and step.
        batch_dims: where the model has its examples, as its owner declares; an assumption.

    Raises:
        ValueError: nothing to train, or a grid too coarse for so many parameters.

    Attributes:
        transcript: see above.
        clip_norm: norm of the next round; set it when a run continues.
        bound: what the noise of the rounds so far was bound to, where later noise depends on it;
            set it when a run continues.
        how: gradients are computed; another loss counts from the next round that is added to.
        context: bytes that the noise is bound to besides: what is known to have changed.
        skips: rounds may be left out: they are never opened, and release nothing.
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
        transcript: Transcript | None = None,
        team: Team | None = None,
        batch_dims: BatchDims | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.privacy, self.layout = privacy, Layout(parameters)
        self.transcript = Transcript() if transcript is None else transcript
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
        # What all processes draw alike, and what each draws for its own shard.
        self._common = self._noise = randomness.BoundNoise(secrets.noise)
        if shards is not None:
            self._noise = randomness.BoundNoise(secrets.noise, shard=self.team.rank)
        self._laid_out = [self.layout.names, [tuple(shape) for shape in self.layout.shapes]]
        self._written: tuple[object, bytes] = None, b""
        self._gaussian = randomness.GaussianNoise()
        self._correlated: randomness.CorrelatedNoise | None = None
        self.bound: list[bytes] = []
        self._remembers = any(isinstance(part, Correlated) for part in privacy.mechanism)
        # A copy of this process, which os.fork makes, releases its rounds a second time.
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
        """The private sum of round ``index``, with its batch drawn.

        Args:
            sampling: of its batch, in place of the planned one; what it is divided by stays as
                planned. Then the transcript is not the plan's: a filter has to allow it.

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
        """Set the generator that dropout draws from to a round's own beginning."""
        # Whether a round is logged must not move its dropout masks: both passes begin alike.
        purpose = "model" if self.team.leads else f"model {self.team.rank}"
        self._generator.manual_seed(randomness.seed_of(self._secret, purpose, index))

    def require_size(self, records: Records, chosen: Round) -> None:
        """Refuse data of another size than the round's. Raises RoundError."""
        if len(records) != chosen.examples:
            raise RoundError(
                f"the plan is for {chosen.examples} examples, the data has {len(records)}"
            )

    def _contribute(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: contributions.DealtBatch,
        chosen: Round,
    ) -> torch.Tensor:
        self.require_size(records, chosen)
        with turns:  # of the generator that the model draws from, and of what it touches
            self.seed_model(chosen.index)
            return self._add(contributions.Addition(into, model, records, batch, chosen, self.how))

    def _correlated_noise(self, chosen: Round) -> randomness.CorrelatedNoise | None:
        """The part's noise up to this round, drawn again where a run goes on."""
        strategy, first = chosen.strategy, chosen.origin
        if strategy is None:
            return None
        kept = self._correlated
        if kept is None or (kept.strategy, kept.first) != (strategy, first):
            kept = randomness.CorrelatedNoise(
                self.layout.size, strategy, self._noise, self.bound, first
            )
            self._correlated = kept
        return kept

    def _about(self, chosen: Round) -> bytes:
        """All of a round but its number, with the layout and the context of the run."""
        # Of one plan it follows from these, and is the same for many rounds.
        key = (chosen.origin, chosen.clip_norm, chosen.sampling, self.context)
        if self._written[0] != key:
            about = (replace(chosen, index=0), self._laid_out, self.context)
            self._written = key, randomness.encoded(about)
        return self._written[1]

    def _releases(self, index: int, bound: bytes) -> int:
        """The number of releases of this round with this one; on disk before its noise is."""
        if os.getpid() != self._process:
            self._process, self._copies = os.getpid(), self._copies + 1
        return self._copies + (1 if self.note is None else self.note(index, bound))

    def _finish(
        self, chosen: Round, vector: torch.Tensor, norms: torch.Tensor, inputs: bytes
    ) -> NoisedSum:
        std, counted = chosen.noise_std, chosen.count_noise
        if self.shards is None:  # else each process has the sum of all in its own shard
            self.team.add_up(vector)
        count = None
        if counted is not None:
            together = vector.new_tensor([centred_count_below(norms, chosen.clip_norm)])
            self.team.add_up(together)
            count = float(together)
        if self.witness is not None:
            self.witness.summed(chosen, vector, count)
        # Correlated noise hides the sums so far: C times what was released is C times them, plus z.
        so_far = (chosen.index, count, inputs, self.bound[-1:])
        bound = self._noise.bind(self._about(chosen) + randomness.encoded(so_far), vector)
        if self.shards is not None:
            bound = blake3(self.team.joined(bound)).digest()
        # Written down first: behind the barrier every process draws noise.
        releases = self._releases(chosen.index, bound)
        self.team.require_equal(bound, "sum")
        if self._remembers:
            self.bound.append(bound)
        correlated = self._correlated_noise(chosen)
        drawn = None if correlated is None else correlated.strategy
        if self.skips:
            self.transcript.skip(chosen.index)
        self.transcript.append(chosen, std, chosen.clip_norm, counted, drawn, releases)
        generator = self._noise.at(bound)
        if correlated is not None and std:
            correlated.add_to(vector, std, chosen.index)
        elif chosen.noise == "grid":
            randomness.add_grid_noise(vector, std, chosen.clip_norm, generator)
        elif std:
            self._gaussian.add_to(vector, std, generator)
        if counted is not None and count is not None:
            if self.shards is not None:
                generator = self._common.at(bound)
            share = noised_share(count, chosen, counted, generator)
            towards = chosen.clip.quantile, chosen.clip.quantile_rate
            self.clip_norm = next_clip_norm(chosen.clip_norm, share, *towards)
        noised = object.__new__(NoisedSum)
        values = (self.layout, self.clip_norm, chosen, vector)
        for name, value in zip(NoisedSum.__slots__, values, strict=True):
            object.__setattr__(noised, name, value)
        if self.witness is not None:
            self.witness.released(noised)
        return noised


def _require_sharded(privacy: Privacy, batch_dims: BatchDims | None, witness: object) -> None:
    """Refuse what the processes of a sharded model cannot do in step, each on its own shard."""
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
    """The sum of one round, while it is secret. Opened by :meth:`PrivateRounds.open`.

    Attributes:
        round: the round it was opened for.
        indices: the records of its batch, int64, shape (batch,); of which a process of a team
            adds its share.
        rounds: what opened it.
        input_hash: names the model that was added last.
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
        # Made when something is added: a thousand holders' sums are open at once.
        self._vector: torch.Tensor | None = None
        self.input_hash = self._inputs = b""

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise RoundError("a private sum cannot be copied or pickled: it is released once")

    def add(
        self, model: torch.nn.Module, records: Records, indices: randomness.Indices | None = None
    ) -> None:
        """Add clipped contributions at the model's present weights. ``.grad`` is never touched.

        Args:
            model: its trainable parameters have the layout of the rounds.
            records: all of the data.
            indices: some of the batch's records that were not added yet; whole groups where
                groups are clipped. None: all that are left.

        Raises:
            RoundError: released already, or records that were added before.
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
        """The batch, dealt into parts that may be added at different weights.

        Each record is in a part of its own draw, whatever else is in the batch. So with all draws
        given, a round is the sum of one clipped function of each record, as it is at one model: a
        record more or less changes its own term and no other, by at most C, and the theorems on
        sampled sums hold as they are; over the draws, by joint convexity. What a later part's
        weights are may depend on anything but this client's records beyond what it has released
        (van Dijk et al., Lemma B.3: they belong to the auxiliary input). In order of the batch a
        record more would move the others to other parts, and their terms with them.
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
        self.rounds.require_size(records, self.round)
        self._met(hashed)
        if self.rounds.witness is not None:
            self.rounds.witness.met(self, model, records, None)
        self._left = self._left[:0]
        return self._batch.indices

    def _met(self, hashed: bytes) -> None:
        """Note the model that is added next; parts at one model's weights are one question."""
        if hashed != self.input_hash:
            self.input_hash, self._inputs = hashed, self._inputs + hashed

    def _took(self, sums: Mapping[str, torch.Tensor], norms: torch.Tensor) -> None:
        """The result of :meth:`_taken`: the clipped sum of exactly these records, and the norms.

        Only :func:`forethought.rounds.private_sum.add_together` calls it.
        """
        if self._closed:
            raise RoundError(f"round {self.round.index} is closed: it takes nothing more")
        contributions.accumulate(self.rounds.layout.views(self._so_far()), sums)
        self._norms.append(norms)

    def _spoil(self) -> None:
        """Close the round: a part may have been added, and nothing may come of it."""
        self._closed, self._vector = True, None

    def _so_far(self) -> torch.Tensor:
        if self._vector is None:
            self._vector = self.rounds.layout.zeros()
        return self._vector

    @property
    def norms(self) -> torch.Tensor:
        """Norms before clipping of what was added. Private: for the operator, never released."""
        if not self._norms:
            empty = 0 if self._batch.member_of is None else self._batch.count
            return torch.zeros(empty, device=self.rounds.layout.device)
        return self._norms[0] if len(self._norms) == 1 else torch.cat(self._norms)

    def release(self) -> NoisedSum:
        """Add the noise and hand the sum over, once; an empty batch releases noise all the same.

        Raises:
            RoundError: released before, or records of the batch are missing.
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
    """torch's own generator of a device, which dropout and the like draw from."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


def input_hash(model: torch.nn.Module) -> bytes:
    """32 bytes that name the trained weights and the buffers: what contributions depend on."""
    # How long each parameter is says the layout of the rounds.
    # Of a sharded model it names this process's shards.
    parts = [content(p) for p in model.parameters() if p.requires_grad]
    for tensor in model.buffers():
        parts += [f"{tensor.dtype}{tuple(tensor.shape)}".encode(), content(tensor)]
    return blake3(b"".join(parts)).digest()


# Private sums of several holders on one model: one pass over all their examples.
#
# Every sum keeps its own batch, clipping, noise and transcript; only the forward and backward
# passes are shared. Where that cannot be, each holder's contributions are added by themselves.


def add_together(
    sums: Sequence[PrivateSum], model: torch.nn.Module, records: Sequence[Records]
) -> None:
    """Add every holder's whole batch to its own sum, at the model's present weights.

    Args:
        sums: one of each holder, none of them added to. records: each holder's data.

    Raises:
        RoundError: a sum that was added to before, or data of another size.
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
    """True if one pass gives every holder exactly what it would compute by itself.

    All batches are then computed by this process alone, at once, in the plain form.
    """
    lead = sums[0].rounds
    return all(
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
        and own.inputs.shape[1:] == _inputs(records[0])
        for one, own in zip(sums, records, strict=True)
    )


def _inputs(records: Records) -> torch.Size | None:
    return records.inputs.shape[1:] if isinstance(records, TensorRecords) else None


def share_of(
    batch: contributions.DealtBatch, team: Team, even: bool = False
) -> contributions.DealtBatch:
    """The contributions that one process of a team computes: every ``size``-th.

    Args:
        even: every process gets as many records; the last one of some does not count.
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
    # Its functions keep the group of the moment of import as their default. Imported later (as
    # torch.func does) it holds the group beyond its end, and gloo's threads, still running while
    # the interpreter shuts down, now and then abort the process.
    import torch.distributed.nn.functional

_Value = TypeVar("_Value")


class TeamError(ValueError):
    """The processes of a run do not agree; nothing more is released."""


@dataclass(frozen=True)
class Team:
    """One process by itself; see :class:`ProcessGroup` for several.

    Args:
        rank: which process this is, from 0. The first one keeps the run folder.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True if this process keeps the folder and reports."""
        return self.rank == 0

    def first(self, work: Callable[[], _Value]) -> _Value:
        """The result of ``work`` in the first process, or the error that it raises there, for
        all."""
        return work()

    def add_up(self, tensor: torch.Tensor) -> None:
        """Replace a tensor by its sum over the processes, in place."""

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """The processes' one-dimensional tensors end to end."""
        return tensor

    def joined(self, found: bytes) -> bytes:
        """The processes' bytes, as many each, end to end."""
        return found

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether it is set in any process. All wait for each other."""
        return flags

    def require_same(self, value: object, what: str) -> None:
        """Refuse processes that differ.

        Raises:
            TeamError: says in what.
        """

    def require_equal(self, found: bytes, what: str) -> None:
        """Refuse processes whose bytes (as many, a multiple of 4) differ; quick, for every round.

        Raises:
            TeamError: says of what they are.
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
        value: _Value = found[0]
        return value

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
    """The device on which the process group's messages have to be."""
    return "cuda" if distributed.get_backend() == "nccl" else "cpu"


def present_team() -> Team:
    """The processes of torch's default process group where there is one, or this one alone."""
    if distributed.is_available() and distributed.is_initialized():
        size = distributed.get_world_size()
        if size > 1:
            return ProcessGroup(distributed.get_rank(), size)
    return Team()

"""A slow second computation of a round, from the plan, the secrets and the records.

It shares no code with training: it implements the specification of docs/training.md and
docs/gradients.md a second time, one record at a time, with plain autograd in double precision, and
uses only plain values of other modules. :mod:`forethought.auditing.replay` compares its results
with the releases of a run.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from randomgen import AESCounter
from torch import Tensor, nn
from torch.nn import functional as F

from forethought.values import mechanism
from forethought.values.plan import Clip, Privacy, Round, Statistics

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# r: the share of C that is reserved for rounding; half of it is for the sum of a round.
CHARGE = 5 * 2.0**-9
# A run's norm may be overestimated by this share, which only shortens a contribution.
LOOSE = 2.0**-7
# Relative perturbation of a precision's numbers, to measure the effect of rounding on a
# contribution: 64 units in the last place. Twice the measured effect is allowed.
NUDGE = {torch.float32: 2.0**-18, torch.float64: 2.0**-47}
NUDGES = 2
# The most numbers of contributions that are kept, for comparisons along each contribution.
KEPT = 1 << 26


class ReplayError(ValueError):
    """The reference cannot compute a run; the message says why, and may say what to do."""


class Reference:
    """The specification of a run's rounds: batches, groups, seeds and noise.

    Args:
        privacy: the mechanism, clipping and noise of the plan.
        secrets: of sampling and noise, 32 bytes each.
        names, shapes: of the trained parameters, in order.

    Raises:
        ReplayError: a plan of a kind that cannot be replayed.
    """

    def __init__(
        self,
        privacy: Privacy,
        secrets: tuple[bytes, bytes],
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
    ) -> None:
        if privacy.noise != "gaussian":
            raise ReplayError(
                "noise='grid' is drawn in whole numbers, which is not replayed: replay the plan "
                "with noise='gaussian'"
            )
        self.privacy, self._sampling, self._noise = privacy, *secrets
        self.names, self.shapes = tuple(names), [tuple(shape) for shape in shapes]
        self.size = sum(math.prod(shape) for shape in self.shapes)

    def round(self, index: int, clip_norm: float) -> Round:
        """The plan's terms of a round.

        Args:
            clip_norm: the round's norm by the quantile rule; other rules define it in the plan.
        """
        privacy, clip = self.privacy, self.privacy.clip
        origin = 0
        for part in privacy.mechanism:
            if index < origin + part.count:
                break
            origin += part.count
        sigma = part.noise_multiplier
        if clip.count_noise is not None and sigma:
            sigma = (sigma**-2 - (2 * clip.count_noise) ** -2) ** -0.5
        if clip.rule != "quantile":
            clip_norm, last = clip.norm, len(privacy.mechanism) - 1
            if clip.final is not None and last:
                clip_norm *= math.pow(clip.final / clip.norm, index / last)
        batch = part.sampling.expected_batch(privacy.examples)
        return Round(
            index,
            origin,
            privacy.examples,
            part.sampling,
            privacy.contribution,
            clip,
            clip_norm,
            sigma,
            part.noise_multiplier,
            privacy.noise,
            float(privacy.contribution.groups or batch),
            part.strategy if isinstance(part, mechanism.Correlated) else None,
            part.groups,
            privacy.augmentation,
        )

    # --- the stream

    def _at(self, purpose: str, counter: int, secret: bytes | None = None) -> np.random.Generator:
        secret = self._sampling if secret is None else secret
        key = hashlib.blake2b(purpose.encode(), key=secret, digest_size=16).digest()
        return np.random.Generator(
            AESCounter(key=int.from_bytes(key, "little"), counter=counter % 2**128)
        )

    def batch(self, one: Round) -> Indices:
        """The records that the sampling draws from the stream, in their order."""
        sampling, count = one.sampling, one.examples
        here = self._at("sampling", one.index << 64)
        epoch, turn = divmod(one.index - one.origin, sampling.rounds_per_epoch)
        began = self._at("sampling", (one.origin + epoch * sampling.rounds_per_epoch) << 64)
        match sampling:
            case mechanism.Poisson():
                return _coins(count, sampling.rate, here)
            case mechanism.WithoutReplacement():
                return here.choice(count, sampling.batch, replace=False, shuffle=False)
            case mechanism.Shuffled():
                order = began.permutation(count)
                return order[turn * sampling.batch : (turn + 1) * sampling.batch]
            case mechanism.RandomAllocation():
                return np.flatnonzero(began.integers(sampling.rounds, size=count) == turn)
            case mechanism.CyclicPoisson():
                dealt = self._at("sampling", (2**63 + one.origin) << 64)
                part = np.flatnonzero(dealt.integers(sampling.parts, size=count) == turn)
                return part[_coins(len(part), sampling.rate, here)]
            case mechanism.FullBatch():
                return np.arange(count)
            case _:
                raise ReplayError(f"{sampling!r} is not replayed")

    def members(self, one: Round, batch: Indices) -> list[Indices]:
        """The places in the batch of each contribution's records."""
        groups = one.contribution.groups
        if groups is None:
            return [np.array([place]) for place in range(len(batch))]
        dealt = self._at("groups", one.index << 64).integers(groups, size=len(batch))
        return [np.flatnonzero(dealt == group) for group in range(groups)]

    def draws(self, one: Round, size: int) -> list[int]:
        """One random number for each record of the batch, from which its altered copies follow."""
        numbers = self._at("augment", one.index << 64)
        return [int(n) for n in numbers.integers(0, 2**64, size, dtype=np.uint64)]

    # --- the noise

    def bound(
        self,
        one: Round,
        count: float | None,
        inputs: bytes,
        before: list[bytes],
        context: bytes,
        total: Array,
    ) -> bytes:
        """The 32 bytes that a round's noise is bound to."""
        laid_out = (self.names, self.shapes)
        about = plain((replace(one, index=0), laid_out, context))
        about += plain((one.index, count, inputs, before))
        key = hashlib.blake2b(b"bound noise", key=self._noise, digest_size=32).digest()
        return blake3(about.encode() + total.tobytes(), key=key).digest()

    def numbers(self, bound: bytes, more: int = 0) -> Array:
        """The standard normal numbers for ``bound``, and ``more`` numbers after them."""
        start = int.from_bytes(bound[:12], "little") << 32
        return self._at("noise", start, self._noise).standard_normal(self.size + more)

    def correlated(self, one: Round, bounds: Mapping[int, bytes]) -> Array:
        """(C⁻¹z)_t of a part, from the bytes that its rounds up to this one were bound to."""
        assert one.strategy is not None
        column = one.strategy.column(one.index - one.origin + 1)
        rows: list[Array] = []
        for index in range(one.origin, one.index + 1):
            row = self.numbers(bounds[index])
            for lag, earlier in enumerate(reversed(rows), 1):
                if column[lag]:
                    row = row - column[lag] * earlier
            rows.append(row)
        return rows[-1]

    def next_norm(self, one: Round, count: float, bound: bytes) -> float:
        """The quantile rule's norm of the next round, from this round's count."""
        clip = one.clip
        assert clip.count_noise is not None
        noised = count + clip.count_noise * float(self.numbers(bound, 1)[-1])
        share = min(1.0, max(0.0, 0.5 + noised / one.divisor))
        return one.clip_norm * math.exp(-clip.quantile_rate * (share - clip.quantile))

    def seeds(self, one: Round) -> list[int]:
        """A seed for each group's own algorithm."""
        content = b"model" + one.index.to_bytes(8, "little")
        digest = hashlib.blake2b(content, key=self._sampling, digest_size=8).digest()
        source = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        groups = one.contribution.groups or 0
        return [int(seed) for seed in torch.randint(2**62, (groups,), generator=source)]


def _coins(count: int, rate: float, source: np.random.Generator) -> Indices:
    """A Poisson sample at ``rate``: first its size, by fair bits; then its records."""
    mantissa, exponent = math.frexp(rate)
    left, many = -exponent, count
    while left > 0 and many:
        at_once = 1 if many > 1 << 14 else min(left, 8)
        words = many // 64 + 1
        raw = [int(word) for word in source.bit_generator.random_raw(words * at_once)]
        heads = 2**many - 1
        for flip in range(at_once):
            row = raw[flip * words : (flip + 1) * words]
            heads &= sum(word << (64 * place) for place, word in enumerate(row))
        many, left = heads.bit_count(), left - at_once
    if exponent <= 0:
        many = sum(number < mantissa for number in source.random(many).tolist())
    return source.choice(count, many, replace=False, shuffle=False)


def plain(value: Any) -> str:
    """A value as the text that noise is bound to; two values have one text exactly if equal."""
    if is_dataclass(value) and not isinstance(value, type):
        held = "".join(plain(getattr(value, field.name)) for field in fields(value))
        return f"{type(value).__qualname__}({held}"
    if isinstance(value, list | tuple):
        return f"({len(value)}:{''.join(plain(part) for part in value)}"
    if isinstance(value, str | bytes):
        return f"{type(value).__name__}{len(value)}:{value!r}"
    if value is None:
        return "-"
    number = float(value)
    return f"#{(number + 0.0).hex()};" if number == value else f"#{value};"


def inputs_of(model: nn.Module) -> bytes:
    """The 32-byte hash of the model at which contributions were computed."""
    state = b""
    for parameter in model.parameters():
        state += _content(parameter) if parameter.requires_grad else b""
    for tensor in model.buffers():
        state += f"{tensor.dtype}{tuple(tensor.shape)}".encode() + _content(tensor)
    return blake3(state).digest()


def _content(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


# --- contributions


@dataclass
class ReferenceSum:
    """A round's sum of clipped contributions.

    Attributes:
        middle: the sum with every contribution as long as clipping allows, (parameters,).
        reach: the most by which a sum in the model's own precision may differ from it by rounding,
            (parameters,).
        shorter: the most by which overestimated norms may shorten the sum of absolute entries,
            (parameters,).
        rows: the contributions, (contributions, parameters); None: too many to keep.
        loose: the share by which each of them may be shorter, (contributions,).
        norms: (least, most) of each norm before clipping; not finite: the contribution is zero.
    """

    middle: Array
    reach: Array
    shorter: Array
    rows: Array | None
    norms: list[tuple[float, float]]
    loose: Array = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Part:
    """Records that were added at one model.

    Args:
        model: a copy at the weights of the addition. loss: one value for each record.
        indices: the records; None: all records of the batch.
        dims: the model's batch dimensions (``inputs``, ``outputs``); None: dimension 0.
    """

    model: nn.Module
    loss: Any
    indices: Indices | None = None
    dims: Any = None


def summed(
    reference: Reference,
    one: Round,
    batch: Indices,
    parts: Sequence[Part],
    records: Any,
    nudges: int = NUDGES,
) -> ReferenceSum:
    """The sum of all contributions, each computed by itself and clipped.

    Raises:
        ReplayError: a model that draws random numbers or has an unsupported precision, or a loss
            with several values for one record.
    """
    members = reference.members(one, batch)
    draws = None if one.augmentation is None else reference.draws(one, len(batch))
    seeds = reference.seeds(one) if isinstance(one.contribution, mechanism.LocalUpdates) else None
    keep = len(members) * reference.size <= KEPT
    # A compensated sum, with twice the digits: rounding errors are added up, too.
    total, lost = np.zeros(reference.size), np.zeros(reference.size)
    reach, shorter = np.zeros(reference.size), np.zeros(reference.size)
    rows: list[Array] = []
    loose: list[float] = []
    norms: list[tuple[float, float]] = []
    for part in parts:
        wanted = None if part.indices is None else set(part.indices.tolist())
        looks: list[_Look] | None = None
        for group, places in enumerate(members):
            if wanted is not None and not (set(batch[places].tolist()) <= wanted):
                continue
            if not len(places):
                norms.append((0.0, 0.0))
                continue
            if seeds is not None:
                places = places[np.argsort(batch[places], kind="stable")]
            own = [
                _taken(records, int(batch[p]), one, None if draws is None else draws[p])
                for p in places
            ]
            seed = 0 if seeds is None else seeds[group]
            if looks is None:
                looks = _looks(part, one, own, seed, nudges)
            vectors = [look(own, seed) for look in looks]
            clipped = [clip(vector, reference, one) for vector in vectors]
            first, _, factor = clipped[0]
            away = np.zeros(reference.size)
            for other, _, _ in clipped[1:]:
                np.maximum(away, np.abs(other - first), out=away)
            reach += 2 * away
            if factor < 1:
                shorter += LOOSE * np.abs(first)
            new = total + first
            back = new - total
            lost += (total - (new - back)) + (first - back)
            total = new
            lengths = [length for _, length, _ in clipped]
            least, most = min(lengths), max(lengths)
            spread = 2 * (most - least) + 2.0**-20 * most if math.isfinite(most) else 0.0
            norms.append((least - spread, (most + spread) * (1 + LOOSE)))
            if keep:
                rows.append(first)
                loose.append(LOOSE if factor < 1 else 0.0)
    kept = np.array(rows).reshape(len(rows), reference.size) if keep else None
    return ReferenceSum(total + lost, reach, shorter, kept, norms, np.array(loose))


def clip(vector: Array, reference: Reference, one: Round) -> tuple[Array, float, float]:
    """The clipped contribution, its norm before clipping, and its factor.

    The factor is 0 for the rules "per-layer" and "automatic", and if the norm is not finite.
    """
    rule, bound = one.clip, one.clip_norm * (1 - CHARGE)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.linalg.norm(vector))
    if not math.isfinite(norm):
        return np.zeros_like(vector), math.inf, 0.0
    if norm == 0:
        return vector, 0.0, 1.0
    if rule.rule == "per-layer":
        return _by_layer(vector, reference, rule, bound), norm, 0.0
    factor = min(1.0, bound / norm)
    if rule.rule == "automatic":
        return vector * (bound / (norm + rule.gamma)), norm, 0.0
    return vector * factor, norm, factor


def _by_layer(vector: Array, reference: Reference, rule: Clip, bound: float) -> Array:
    shares = dict(rule.shares or ())
    found, start = vector.copy(), 0
    for name, shape in zip(reference.names, reference.shapes, strict=True):
        piece = found[start : start + math.prod(shape)]
        start += math.prod(shape)
        limit = bound * (shares[name] if shares else len(reference.names) ** -0.5)
        norm = float(np.linalg.norm(piece))
        if norm > limit:
            piece *= limit / norm
    return found


# --- gradients

Record = tuple[Any, Any]


def _taken(records: Any, index: int, one: Round, draw: int | None) -> list[Record]:
    """A record, or its altered copies, each as a batch of one record."""
    inputs, targets = records.take(np.array([index]))
    how = one.augmentation
    if how is None or draw is None:
        return [(inputs, targets)]
    images = inputs[0] if isinstance(one.contribution, mechanism.Persons) else inputs
    numbers = _uniform(draw, how.copies * len(images))
    found = []
    for _ in range(how.copies):
        altered = torch.stack([_altered(image, next(numbers), how) for image in images])
        found.append((altered.view(inputs.shape), targets))
    return found


def _moved(tree: Any, there: Any, back: Any) -> Any:
    """Tensors with dimension ``back`` moved to ``there``; one of the two is 0."""
    if isinstance(tree, Tensor):
        return tree.movedim(back, there)
    dims, found = there or back, {}
    pairs = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    for key, value in pairs:
        each = dims if isinstance(dims, int) else dims[key]
        found[key] = _moved(value, each if there else 0, 0 if there else each)
    return found if isinstance(tree, Mapping) else tuple(found.values())


def _uniform(draw: int, count: int) -> Iterator[list[float]]:
    """Eight numbers in [0, 1) for each image, by SplitMix64 from a record's own number."""
    state, mask = draw, 2**64 - 1
    for _ in range(count):
        numbers = []
        for _ in range(8):
            state = (state + 0x9E3779B97F4A7C15) & mask
            mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
            mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
            numbers.append(((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53)
        yield numbers


def _altered(image: Tensor, numbers: list[float], how: mechanism.Augmentation) -> Tensor:
    """An altered copy of an image (channels, height, width), by its own eight numbers."""
    height, width = image.shape[-2:]
    far = 0
    if "shift" in how.kinds:
        far = max(1, min(height, width) // 8) if how.pixels is None else how.pixels

    def along(side: int, moved: float, turned: bool) -> list[int]:
        offset, places = int(moved * (2 * far + 1)) - far, []
        for place in range(side):
            at = place + offset
            at = -1 - at if at < 0 else 2 * side - 1 - at if at >= side else at
            places.append(side - 1 - at if turned else at)
        return places

    down = along(height, numbers[2], "flip" in how.kinds and numbers[1] < 0.5)
    across = along(width, numbers[3], "mirror" in how.kinds and numbers[0] < 0.5)
    image = image[:, down][:, :, across]
    if "crop" not in how.kinds:
        return image
    share = how.least + (1 - how.least) * numbers[4]
    found = image.double()
    for axis, side, place in ((1, height, numbers[5]), (2, width, numbers[6])):
        middle = (2 * place - 1) * (1 - share)
        at = middle + share * ((2 * torch.arange(side, dtype=torch.float64) + 1) / side - 1)
        at = (((at + 1) * side - 1) / 2).clamp(0, side - 1)
        low = at.floor().long().clamp(max=side - 1)
        high, weight = (low + 1).clamp(max=side - 1), at - low
        weight = weight.view([-1 if dim == axis else 1 for dim in range(3)])
        below, above = found.index_select(axis, low), found.index_select(axis, high)
        found = below * (1 - weight) + above * weight
    return found.to(image.dtype)


class _Look:
    """One way to compute a contribution: in float64, in the model's precision, or perturbed.

    Args:
        dtype: precision of the computation; None: the model's own.
        nudge: relative perturbation of weights, buffers and inputs, up or down.
        seed: of the signs of the perturbation.
    """

    def __init__(
        self, part: Part, one: Round, dtype: torch.dtype | None, nudge: float = 0.0, seed: int = 0
    ) -> None:
        self._kind, self._loss, self._dims = one.contribution, part.loss, part.dims
        self._dtype, self._nudge, self._seed = dtype, nudge, seed
        self.model = copy.deepcopy(part.model).to("cpu", dtype)
        self._signs = np.random.default_rng(seed)
        with torch.no_grad():
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                self._move(tensor)
        self._buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}

    def _move(self, tensor: Tensor) -> None:
        if self._nudge and tensor.is_floating_point():
            signs = self._signs.integers(2, size=tuple(tensor.shape)) * 2.0 - 1
            tensor.mul_(1 + self._nudge * torch.as_tensor(signs, dtype=tensor.dtype))

    def __call__(self, own: Sequence[Sequence[Record]], seed: int) -> Array:
        """The contribution, before clipping, of these records with their copies, (parameters,)."""
        self._signs = np.random.default_rng(self._seed + 1)
        if isinstance(self._kind, Statistics):
            vector = own[0][0][0]
            if not isinstance(vector, Tensor):  # its ones are listed, by their places
                return np.bincount(vector.places[0], minlength=vector.size) * vector.known[0].item()
            return np.asarray(vector, dtype=np.float64).reshape(-1)
        ready = [[self._record(*copy) for copy in copies] for copies in own]
        if isinstance(self._kind, mechanism.LocalUpdates) and not self._kind.local.is_gradient:
            return self._local(self._kind.local, ready, seed)
        slopes = self._mean(self.model, ready)
        return np.concatenate([slope.double().numpy().reshape(-1) for slope in slopes])

    def _record(self, inputs: Any, targets: Any) -> Record:
        def ready(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            dtype = self._dtype if leaf.is_floating_point() else None
            return leaf.detach().to("cpu", dtype, copy=True)

        inputs = torch.utils._pytree.tree_map(ready, inputs)
        for leaf in torch.utils._pytree.tree_leaves(inputs):
            if isinstance(leaf, Tensor):
                self._move(leaf)
        return inputs, torch.utils._pytree.tree_map(ready, targets)

    def _mean(self, model: nn.Module, own: Sequence[Sequence[Record]]) -> list[Tensor]:
        """The mean over records of the mean gradient over each record's copies."""
        trained = [p for p in model.parameters() if p.requires_grad]
        mean = [torch.zeros_like(parameter) for parameter in trained]
        for copies in own:
            for inputs, targets in copies:
                slopes = self._slopes(model, trained, inputs, targets)
                for into, slope in zip(mean, slopes, strict=True):
                    into.add_(slope, alpha=1 / (len(own) * len(copies)))
        return mean

    def _slopes(
        self, model: nn.Module, trained: list[Any], inputs: Any, targets: Any
    ) -> Sequence[Tensor]:
        if isinstance(self._kind, mechanism.LinearExamples):
            slope = model.slope(inputs @ model.weight.detach(), targets)  # type: ignore[operator]
            return [torch.outer(inputs.reshape(-1), slope.detach().reshape(-1)).view_as(trained[0])]
        with torch.enable_grad():
            value = self._value(model, inputs, targets)
            slopes = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(self._buffers[name])
        return [slope.detach().to_dense() for slope in slopes]

    def _value(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        if isinstance(self._kind, mechanism.Persons):
            return self._of_a_person(model, inputs[0], targets[0])
        if self._dims is not None:
            inputs = _moved(inputs, self._dims.inputs, 0)
        if isinstance(inputs, Mapping):
            outputs = model(**inputs)
        elif isinstance(inputs, tuple | list):
            outputs = model(*inputs)
        else:
            outputs = model(inputs)
        if self._dims is not None:
            outputs = _moved(outputs, 0, self._dims.outputs)
        values: Tensor = self._loss(outputs, targets)
        if values.numel() != 1:
            raise ReplayError("the loss gives several values for one record: it is not replayed")
        return values.sum()

    def _of_a_person(self, model: Any, rows: Tensor, targets: Tensor) -> Tensor:
        """The mean loss over a person's rows, one by one, without the empty places."""
        inner, loss = model.model, getattr(self._loss, "loss", None)
        labels = not targets.is_floating_point()
        there = targets != -100 if labels else targets[..., -1] > 0
        while there.dim() > 1:
            there = there[..., 0]
        values = []
        for place in torch.nonzero(there).reshape(-1).tolist():
            outputs, wanted = inner(rows[place : place + 1]), targets[place : place + 1]
            if loss is not None:
                wanted = wanted if labels else wanted[..., :-1]
                if self._loss.ndim == 1 and not labels:
                    wanted = wanted.squeeze(-1)
                values.append(loss(outputs, wanted).sum())
            elif labels:
                values.append(F.cross_entropy(outputs, wanted, reduction="sum"))
            else:
                values.append((outputs.reshape(-1) - wanted[..., 0]).square().sum())
        if not values:  # a person without rows has the gradient zero
            return inner(torch.zeros_like(rows[:1])).sum() * 0
        return torch.stack(values).sum() / len(values)

    def _local(self, local: mechanism.Local, own: Sequence[Sequence[Record]], seed: int) -> Array:
        """The weight change of a group's local algorithm, with the opposite sign."""
        model = copy.deepcopy(self.model)
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        before = {name: p.detach().clone() for name, p in trained.items()}
        records = [copies[0] for copies in own]
        if local.function is not None:
            pair = tuple(
                torch.utils._pytree.tree_map(lambda *leaves: torch.cat(leaves), *side)
                for side in zip(*records, strict=True)
            )
            moved = mechanism.imported(local.function)(copy.deepcopy(model), pair)
            parts = [-moved[name] for name in trained]
        else:
            kind = mechanism.INNER[local.optimizer]
            options: dict[str, Any] = {**kind.preset, **dict(local.options)}
            optimizer = getattr(torch.optim, kind.home)(
                list(trained.values()), lr=local.learning_rate, **options
            )
            source = torch.Generator().manual_seed(seed)
            size = len(records)
            for _ in range(local.passes):
                order = [torch.arange(size)]
                if local.step is not None and local.step < size:
                    order = list(torch.randperm(size, generator=source).split(local.step))  # type: ignore[no-untyped-call]
                for some in order:
                    slopes = self._mean(model, [[records[at]] for at in some.tolist()])
                    for parameter, slope in zip(trained.values(), slopes, strict=True):
                        parameter.grad = slope
                    optimizer.step()
            parts = [before[name] - p.detach() for name, p in trained.items()]
        return np.concatenate([part.double().numpy().reshape(-1) for part in parts])


def _looks(
    part: Part, one: Round, own: Sequence[Sequence[Record]], seed: int, nudges: int
) -> list[_Look]:
    """The exact computation first, then those that show the effect of rounding."""
    if isinstance(one.contribution, Statistics):
        return [_Look(part, one, None)]
    precisions = {p.dtype for p in part.model.parameters() if p.requires_grad}
    if len(precisions) != 1 or not precisions <= set(NUDGE):
        raise ReplayError(
            f"weights of {', '.join(sorted(map(str, precisions)))} are not replayed: float32 or "
            "float64 are"
        )
    (precision,) = precisions
    plainly = _Look(part, one, None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = plainly(own, seed)
        torch.manual_seed(2)
        again = plainly(own, seed)
    if not np.array_equal(first, again, equal_nan=True):
        raise ReplayError(
            "the model draws random numbers (dropout and the like), which are others for one "
            "record than for many: replay it with model.eval(), or without them"
        )
    exact: torch.dtype | None = torch.float64
    try:
        _Look(part, one, exact)(own, seed)
    except (RuntimeError, TypeError):  # the model makes its own float32 tensors
        exact = None
    looks = [_Look(part, one, exact)]
    if precision != torch.float64 and exact is not None:
        looks.append(plainly)
    for turn in range(nudges):
        for sign in (1.0, -1.0):
            looks.append(_Look(part, one, exact, sign * NUDGE[precision], 1000 + turn))
    return looks

"""Release the statistics that a plan pays for, and prepare the data with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from forethought.gradients.sums import Ones
from forethought.rounds.contributions import STATISTIC, no_loss, unclipped
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import MappedRecords, Records, as_records, require_size
from forethought.values.checks import reals
from forethought.values.mechanism import FullBatch, Mechanism, Rounds
from forethought.values.plan import (
    LIKELY,
    NAMES,
    REACH,
    WITHIN,
    Clip,
    Paid,
    Preparation,
    Privacy,
    Statistic,
    Statistics,
    Transcript,
)
from forethought.values.serialisation import Stored, build, plain

# The vector of each record in a private statistic, a function of that record alone.


def features_of(inputs: Tensor, count: int) -> Tensor:
    """Inputs as (records, features, values of a feature), float64; a channel has several values.

    Raises:
        ValueError: inputs of another number of features or channels.
    """
    if inputs.dim() < 2 or inputs.shape[1] != count:
        raise ValueError(
            f"the preparation is for {count} features or channels, the inputs have shape "
            f"{tuple(inputs.shape)}: dimension 1 holds them"
        )
    return inputs.double().reshape(len(inputs), count, -1)


def unit(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Values scaled so that the bounds become −1 and 1; values beyond are clipped to them."""
    low, high = bounds
    return ((values - low) * (2 / (high - low)) - 1).clamp(-1, 1)


class Vectors(MappedRecords):
    """Records whose inputs are the vectors of a statistic.

    Args:
        records: the private records.
        preparation: the declared preparation. statistic: one of its statistics.
        centre: for norms: the released means, from which the distances of records are taken.
    """

    def __init__(
        self,
        records: Records,
        preparation: Preparation,
        statistic: Statistic,
        centre: tuple[float, ...] = (),
    ) -> None:
        super().__init__(records)
        self._asked, self._statistic, self._centre = preparation, statistic, centre

    def _mapped(self, inputs: Tensor, targets: Tensor) -> tuple[Any, Any]:
        if self._statistic == "ranges":
            return self._places(inputs), targets
        return self.of(inputs, targets).cpu(), targets

    def _places(self, inputs: Tensor) -> Ones:
        """The places of a record's numbers in halves, quarters, … down to the bins, as Ones."""
        asked = self._asked
        values = features_of(inputs.flatten(1), asked.numbers or 0).squeeze(2).cpu()
        bins = ((unit(values, (-1.0, 1.0)) + 1) * (asked.bins / 2)).clamp(0, asked.bins - 1)
        missing = values.isnan()
        bins = bins.masked_fill(missing, 0).long()
        sizes = [asked.bins // step for step in asked.steps]
        levels, first = [], 0
        for step, size in zip(asked.steps, sizes, strict=True):
            levels.append(bins.div(step, rounding_mode="floor") + first)
            first += size
        places = torch.stack(levels, 2) + first * torch.arange(values.shape[1]).view(-1, 1)
        known = torch.where(missing.any(1), torch.nan, 1.0).double()
        return Ones(places.flatten(1), first * values.shape[1], known)

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The records' vectors, shape (records, length), float64; NaN for a feature that is NaN.

        Raises:
            ValueError: inputs or targets of another form than declared.
        """
        asked = self._asked
        if self._statistic == "classes":
            if targets.is_floating_point() or targets.dim() != 1:
                raise ValueError("class counts need one whole number a record as its target")
            return (targets.cpu().unsqueeze(1) == torch.arange(asked.classes or 0)).double()
        if self._statistic in ("means", "norms"):
            flat = features_of(inputs.flatten(1), asked.features or 0).squeeze(2)
            assert asked.reach is not None
            if self._statistic == "means":
                # A record of zeros stays so; a record that is not finite adds zero to the sum.
                share: Tensor = (asked.reach / flat.norm(dim=1, keepdim=True)).clamp(max=1)
                return flat if bool((share == 1).all()) else flat * share
            centre = torch.tensor(self._centre, dtype=torch.float64, device=flat.device)
            left: Tensor = (flat - centre).norm(dim=1, keepdim=True)
            left = left * (REACH / asked.reach / LIKELY)
            limit = math.log(WITHIN)
            # The clamp also covers a record at the centre, whose logarithm is −∞.
            return left.log().clamp(-limit, limit)
        values = features_of(inputs, asked.features or 0)
        scaled = unit(values, asked.bounds or (-1.0, 1.0))
        if self._statistic == "moments":
            return torch.cat([scaled.mean(2), scaled.square().mean(2)], 1)
        bins = ((scaled + 1) * (asked.bins / 2)).floor().clamp(0, asked.bins - 1)
        missing = values.isnan().any(2)
        found = torch.stack([(bins == at).double().mean(2) for at in range(asked.bins)], 2)
        found[missing] = torch.nan
        return found.flatten(1)


# Constants for the preparation of inputs from noised sums: post-processing, which costs no privacy.


Range = tuple[float, float]
# The smallest standard deviation that is divided by, in units of half the declared range.
LEAST_DEVIATION = 0.01
# Assumed variance, between tables, of the logarithm of a centred record's norm.
SPREAD = 0.2


@dataclass(frozen=True)
class InputConstants:
    """The constants of prepared inputs: (x − shift)/scale, clipped to the limits.

    Args:
        shift, scale: one number for each feature; empty if features stay as they are.
        limits: (low, high) of the prepared values; None: no limits.
        shares: of the classes, summing to 1; empty if classes were not counted.
        ranges: the usual range of each number of a table, inside [−1, 1]; empty: not released.
    """

    shift: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None
    shares: tuple[float, ...] = ()
    ranges: tuple[Range, ...] = ()
    LATER: ClassVar[tuple[str, ...]] = ("ranges",)

    def apply(self, inputs: Any) -> Tensor:
        """Prepared inputs, in their own precision; dimension 1 holds the features or channels."""
        tensor = torch.as_tensor(inputs)
        if not self.shift:
            return tensor
        shape = (1, -1, *(1,) * (tensor.dim() - 2))
        both = (torch.tensor(part, dtype=torch.float64) for part in (self.shift, self.scale))
        shift, scale = (part.view(shape) for part in both)
        found = (tensor.double() - shift) / scale
        if self.limits is not None:
            found = found.clamp(*self.limits)
        return found.to(tensor.dtype if tensor.is_floating_point() else torch.float32)


def moments(asked: Preparation, means: Tensor) -> InputConstants:
    """Means and standard deviations from noised means of x and x², kept within the bounds."""
    first, second = means.view(2, -1)
    first = first.clamp(-1, 1)
    variance = (second.clamp(0, 1) - first.square()).clamp(min=LEAST_DEVIATION**2)
    assert asked.bounds is not None
    low, high = asked.bounds
    half = (high - low) / 2
    shift = low + half * (first + 1)
    return InputConstants(tuple(shift.tolist()), tuple((half * variance.sqrt()).tolist()))


def centre(asked: Preparation, means: Tensor, examples: int) -> InputConstants:
    """Shrunken means, and the scale at which a usual record gets the declared norm.

    Before the data are seen, a mean with a norm up to that of a usual record, R =
    reach/:data:`REACH`, is equally likely in every direction. With noise of variance v in each of d
    features, the best linear estimate is R²/(R² + d v) times the released means m. If m is not much
    longer than noise alone, a smaller factor is used: 1 − (d − 2) v/‖m‖² (James and Stein 1961).
    """
    assert asked.reach and asked.features and asked.becomes
    usual = asked.reach / REACH
    noise = asked.sigma("means") * asked.reach / examples
    trust = usual**2 / (usual**2 + asked.features * noise**2)
    length = float(means.square().sum())
    if length > 0:
        trust = max(0.0, min(trust, 1 - (asked.features - 2) * noise**2 / length))
    scale = usual / asked.becomes
    return InputConstants(tuple((trust * means).tolist()), (scale,) * asked.features)


def rescaled(
    asked: Preparation, centred: InputConstants, norm: float, examples: int
) -> InputConstants:
    """The same means, and the scale at which records of the released norm get the declared norm.

    Before the data are seen, the logarithm of a usual record's norm, divided by :data:`LIKELY`
    times the declared one, has mean 0 and variance :data:`SPREAD`. The best linear estimate from a
    release with noise of variance v is SPREAD/(SPREAD + v) times the release.

    Args:
        norm: the noised mean of that logarithm over the ``examples``.
    """
    noise = asked.sigma("norms") * asked.norm("norms") / examples
    limit = math.log(WITHIN)
    believed = min(limit, max(-limit, SPREAD / (SPREAD + noise**2) * norm))
    factor = LIKELY * math.exp(believed)
    return replace(centred, scale=tuple(factor * scale for scale in centred.scale))


def quantiles(asked: Preparation, means: Tensor) -> InputConstants:
    """The range of each feature without its tails, from noised histograms; it becomes [0, 1]."""
    assert asked.bounds is not None
    low, high = asked.bounds
    shares = means.view(asked.features or 0, asked.bins).clamp(min=0)
    below = shares.cumsum(1) / shares.sum(1, keepdim=True).clamp(min=1e-300)
    first = (below < asked.tails).sum(1).clamp(max=asked.bins - 1)
    last = (below < 1 - asked.tails).sum(1).clamp(max=asked.bins - 1)
    width = (high - low) / asked.bins
    start = low + width * first.double()
    scale = width * (last + 1 - first).clamp(min=1).double()
    return InputConstants(tuple(start.tolist()), tuple(scale.tolist()), (0.0, 1.0))


# A half counts as holding records if its share exceeds so many standard deviations of the noise.
CLEAR = 2.5
# If the noise exceeds the share LOUD of the records, a range is used only if it is NARROWER times
# narrower than declared: the part that a smaller cut removes might be a tail of the data.
LOUD, NARROWER = 0.03, 8


def usual_ranges(asked: Preparation, means: Tensor, examples: int) -> tuple[Range, ...]:
    """The usual range of each number of a table, from the noised shares of halves, quarters, ….

    Each end is found by bisection: in the outer half if that clearly holds records, else in the
    inner half, until neither does. The skipped parts hold at most about the share ``tails`` of the
    records, and records that the noise hides.
    """
    noise = asked.sigma("ranges") * asked.norm("ranges") / examples
    clear = asked.tails / len(asked.steps) + CLEAR * noise
    sizes = [asked.bins // step for step in asked.steps]
    width, ranges = 2 / asked.bins, []
    for row in means.view(asked.numbers or 0, -1):
        levels = row.split(sizes)
        low = _passed_over([level > clear for level in levels])
        high = _passed_over([level.flip(0) > clear for level in levels])
        left = asked.bins - low - high
        inside = 0 < left * (NARROWER if noise > LOUD else 1) <= asked.bins
        ranges.append((-1 + width * low, 1 - width * high) if inside else (-1.0, 1.0))
    return tuple(ranges)


def _passed_over(holds: list[Tensor]) -> int:
    """The number of bins before the first ones that hold records.

    Args:
        holds: for each level, the nodes that hold records, booleans.
    """
    at, bins = 0, len(holds[-1])
    for level in holds:
        outer, inner = level[2 * at], level[2 * at + 1]
        if not outer and not inner:
            return at * (2 * bins // len(level))
        at = 2 * at + (0 if outer else 1)
    return at


def shares(means: Tensor) -> tuple[float, ...]:
    """Shares of the classes from noised means: none is negative, and they sum to 1."""
    counted = means.clamp(min=0)
    total = float(counted.sum())
    if not total > 0:
        return tuple([1 / len(counted)] * len(counted))
    return tuple((counted / total).tolist())


# **Formal guarantee.** Each statistic is one private sum over all records (:mod:`rounds`): the sum
# of the records' own vectors, whose norms are bounded as declared, with Gaussian noise. Its release
# is noted in a transcript under its own name. The constants follow from the noised sums. The
# statement of a run of the plan covers these releases as its first rounds.


class Paying(Protocol):
    """A plan that may pay for a preparation."""

    @property
    def privacy(self) -> Privacy: ...


@dataclass(frozen=True)
class Prepared(Stored):
    """The released constants that prepare inputs; they are public, and released once.

    Args:
        preparation: the declared preparation. examples: number of records.
        constants: the constants of the preparation.
        seeded: True if a person chose the seed of the noise; then there is no guarantee.
        transcript: the releases.
    """

    SCHEMA: ClassVar[str] = "forethought/prepared/1"
    CALLED: ClassVar[str] = "prepared data's constants"

    preparation: Preparation
    examples: int
    constants: InputConstants
    seeded: bool
    transcript: Transcript

    def apply(self, inputs: Any) -> Tensor:
        """Prepared inputs, for training, held-out and new records alike."""
        return self.constants.apply(inputs)

    @property
    def shares(self) -> tuple[float, ...]:
        """Noised shares of the classes; empty if they were not counted."""
        return self.constants.shares

    @property
    def whole(self) -> bool:
        """True if all statistics of the preparation have been released."""
        return len(self.transcript) == len(self.preparation.statistics)

    def _values(self) -> dict[str, Any]:
        return {
            "preparation": plain(self.preparation),
            "examples": self.examples,
            "constants": plain(self.constants),
            "seeded": self.seeded,
            "transcript": self.transcript.to_values(),
        }

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Prepared:
        given = values["constants"].items()
        found = {name: tuple(one) if isinstance(one, list) else one for name, one in given}
        found["ranges"] = tuple(map(tuple, found.get("ranges", ())))
        found |= {"shift": reals("shift", found.get("shift", ()))}
        found |= {"scale": reals("scale", found.get("scale", ()), above=0)}
        asked, constants = build(Preparation, values["preparation"]), build(InputConstants, found)
        if {len(constants.shift), len(constants.scale)} not in ({0}, {asked.features}):
            raise ValueError(f"shift and scale must have one number for each of {asked.features}")
        transcript = Transcript.from_values(values["transcript"])
        return cls(asked, values["examples"], constants, values["seeded"], transcript)


def prepare(
    plan: Paying, data: Any, *, seeds: Seeds | None = None, paid: Paid | None = None
) -> Prepared:
    """Release the statistics that a plan has a budget for.

    Args:
        plan: a plan made with ``preparation=``.
        data: (inputs, targets), as for :func:`forethought.train`, not prepared yet; dimension 1 of
            the inputs holds features or channels.
        seeds: a person's seeds of the noise; then nothing is guaranteed. None: the operating
            system's entropy.
        paid: the run's reservation, if a ledger pays: ``ft.Ledger(…).paid(plan.mechanism)``. Enter
            it with ``with`` around this call and the training, which takes it as ``ledger=``.

    Returns:
        The constants and the transcript of their releases. Give ``train`` the inputs that
        :meth:`Prepared.apply` returns, and this value as ``prepared=``.

    Raises:
        ValueError: a plan without preparation, data of another form or size than declared, or a
            reservation for other statistics, or that has paid for a release already.
    """
    asked = plan.privacy.preparation
    if paid is not None and asked is not None:
        own = Mechanism(*asked.parts(), adjacency=plan.privacy.mechanism.adjacency)
        if paid.begun or paid.mechanism.first(len(own)) != own:
            raise ValueError(
                "this reservation is for other statistics, or has paid for a release of these, "
                "which may have been made: use what that returned (Prepared.load, if it was "
                "saved), or reserve anew with ft.Ledger(…).paid(plan.mechanism)"
            )
        paid.ahead(len(own))
    return released(plan, as_records(data, torch.float64), seeds)


def released(
    plan: Paying, records: Records, seeds: Seeds | None = None, after: Prepared | None = None
) -> Prepared:
    """:func:`prepare` for records in the form that training reads.

    Ranges of a table are released by a call of their own, from records whose inputs are the
    numbers. The table is then encoded again with these ranges, and a second call releases the other
    statistics from the encoded records.

    Args:
        after: the result of the first call, if ranges are released already.

    Raises:
        ValueError: a plan without preparation, or records of another form or number than declared.
    """
    privacy = plan.privacy
    asked, examples = privacy.preparation, privacy.examples
    if asked is None:
        raise ValueError("the plan has no preparation: make it with forethought.plan(preparation=)")
    require_size(records, examples)
    transcript, constants, seeds = Transcript(), InputConstants(), seeds or Seeds()
    if after is not None:
        transcript.extend(after.transcript)
        constants = after.constants
    for place, statistic in enumerate(asked.statistics):
        if place < len(transcript):
            continue
        rounds = _rounds(privacy, asked, statistic, seeds.part(place))
        total = rounds.open(0)
        total.add(torch.nn.Module(), Vectors(records, asked, statistic, constants.shift))
        means = total.release().mean()
        transcript.extend(rounds.transcript)
        constants = _with(constants, asked, statistic, means, examples)
        if statistic == "ranges":
            break
    seeded = seeds.noise is not None or (after is not None and after.seeded)
    return Prepared(asked, examples, constants, seeded, transcript)


def _rounds(of: Privacy, asked: Preparation, statistic: Any, seeds: Seeds) -> PrivateRounds:
    part = Rounds(asked.sigma(statistic), 1, FullBatch())
    mechanism = Mechanism(part, adjacency=of.mechanism.adjacency)
    clip, kind = Clip(unclipped(asked.norm(statistic))), Statistics(NAMES[statistic])
    privacy = Privacy(mechanism, of.examples, of.delta, clip, kind, of.noise)
    layout = {STATISTIC: torch.zeros(asked.length(statistic), dtype=torch.float64)}
    return PrivateRounds(privacy, layout, no_loss, Secrets.draw(seeds))


def _with(
    known: InputConstants, asked: Preparation, statistic: Statistic, means: Tensor, examples: int
) -> InputConstants:
    """The constants after the release of one more statistic, given as noised means."""
    match statistic:
        case "ranges":
            return replace(known, ranges=usual_ranges(asked, means, examples))
        case "classes":
            return replace(known, shares=shares(means))
        case "means":
            found = centre(asked, means, examples)
        case "norms":
            found = rescaled(asked, known, float(means), examples)
        case "moments":
            found = moments(asked, means)
        case "quantiles":
            found = quantiles(asked, means)
    return replace(found, ranges=known.ranges, shares=known.shares)


# Checks that the released preparation is the one that the plan accounts for.


def require_prepared(plan: Paying, prepared: Prepared | None, begun: bool = False) -> None:
    """Refuse a run whose first releases are not those that its plan accounts for.

    Args:
        begun: True to accept one that is incomplete, if the run itself can release the rest.

    Raises:
        ValueError: only one of the two has a preparation, or they differ; or the release is
            incomplete, or has another transcript than the plan accounts for.
    """
    privacy = plan.privacy
    if prepared is None:
        if privacy.preparation is not None:
            raise ValueError(
                "the plan pays for a preparation of the data: release it with prepared = "
                "forethought.prepare(plan, data), apply it to the inputs, and give prepared="
            )
        return
    if (privacy.preparation, privacy.examples) != (prepared.preparation, prepared.examples):
        raise ValueError(
            "prepared= is not what the plan pays for: its releases would be in no ε. Make the plan "
            "with forethought.plan(preparation=...) first, and prepare with that plan"
        )
    if not prepared.whole and not (begun and prepared.preparation.becomes is not None):
        raise ValueError("prepared= has not all that the plan pays for: the run releases the rest")
    paid = Mechanism(*prepared.preparation.parts(), adjacency=privacy.mechanism.adjacency)
    prepared.transcript.require(paid.first(len(prepared.transcript)))


def require_unprepared(plan: Paying, what: str) -> None:
    """Refuse a plan with a preparation, for a caller that accounts for training only.

    Args:
        what: the caller's name for the message, such as ``"train_until"``.

    Raises:
        ValueError: the plan has a preparation.
    """
    if plan.privacy.preparation is not None:
        raise ValueError(
            f"{what} accounts for its runs only, and this plan pays for a preparation of the data "
            "before them: standardise with public constants, and plan without preparation="
        )


def with_preparation(prepared: Prepared | None, transcript: Transcript) -> Transcript:
    """All releases of a run, those of the preparation first."""
    if prepared is None:
        return transcript
    whole = Transcript()
    whole.extend(prepared.transcript)
    whole.extend(transcript)
    return whole

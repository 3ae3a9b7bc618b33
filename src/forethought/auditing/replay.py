"""Replay: a comparison of a run's rounds with a slow reference, number by number, without chance.

A run's owner has its secrets while it runs. So an audit can see every sum before its noise, compute
it again (:mod:`forethought.auditing.reference`) and compare three things. The batch must be the one
that the sampling draws from the stream. The sum must equal the reference's sum of clipped
contributions, along every coordinate and every contribution, within the charge for rounding. The
release must be that sum plus the noise that is bound to it, up to the rounding of the addition.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.auditing import reference
from forethought.auditing.canaries import evenly, holding, scaled, with_parts
from forethought.auditing.verdict import Finding
from forethought.rounds.private_sum import WITNESS, NoisedSum, PrivateRounds, PrivateSum
from forethought.rounds.randomness import Secrets
from forethought.training.run import train
from forethought.values.plan import Plan, Round

Array = NDArray[np.float64]

# Number of perturbations for the final decision, if a few did not explain a difference: the loss
# may have a kink between two of them.
MANY_NUDGES = 8
# Number of made-up records, if no model and data are given.
RECORDS = 400
# Comparisons whose result is equal or not equal, and the words for both results.
_EQUAL = ("numbers of a round", "batch", "count below the clipping norm", "a round run again")
_ENDS = {True: "equal", False: "not equal"}
SECRET = (
    "the replay saw sums without noise and the run's secrets, in memory only: what it measured is "
    "for the operator, not for publication"
)
UNIT = 2.0**-53
RELATIVE = "of what rounding allows"


@dataclass
class ComparedRound:
    """One comparison of one round.

    Args:
        name: the compared property.
        off: the difference, in what rounding allows; at most 1 is allowed.
        reason: the sentence for the reader if it is larger.
    """

    name: str
    off: float
    reason: str = ""

    @property
    def violated(self) -> bool:
        """True if the difference is larger than 1, or NaN."""
        return not self.off <= 1


@dataclass
class Replay:
    """The outcome of replaying.

    Args:
        rounds: numbers of the rounds to replay; None: all.

    Attributes:
        compared: all comparisons, in order. replayed: number of replayed rounds.
        refusals: the reasons for which rounds could not be replayed.
    """

    rounds: Collection[int] | None = None
    compared: list[ComparedRound] = field(default_factory=list)
    replayed: int = 0
    refusals: list[str] = field(default_factory=list)
    _bounds: dict[bytes, dict[int, bytes]] = field(default_factory=dict)
    _releases: dict[tuple[bytes, int], tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def refuted(self) -> bool:
        """True if any comparison failed."""
        return any(one.violated for one in self.compared)

    def findings(self) -> list[Finding]:
        """One finding for each kind of comparison, with its worst result, in order."""
        found: dict[str, ComparedRound] = {}
        for one in self.compared:
            worst = found.get(one.name, one)
            found[one.name] = max(worst, one, key=lambda each: (each.violated, each.off))
        return [
            Finding(
                "replay",
                name,
                f"{one.off:.3g} {RELATIVE}" if 0 < one.off < math.inf else _ENDS[one.off == 0],
                "equal" if name in _EQUAL else f"1 {RELATIVE}",
                one.reason,
                violated=one.violated,
            )
            for name, one in found.items()
        ]

    def begin(self, rounds: PrivateRounds, secrets: Secrets) -> _Witness | None:
        """The witness of a run that begins; None if the run cannot be replayed."""
        try:
            return _Witness(self, rounds, secrets)
        except reference.ReplayError as error:
            self.refuse(str(error))
            return None

    def refuse(self, reason: str) -> None:
        """Note a reason for which rounds could not be replayed, once."""
        if reason not in self.refusals:
            self.refusals.append(reason)


@contextmanager
def replaying(rounds: Collection[int] | None = None) -> Iterator[Replay]:
    """A context that replays rounds of every run that begins inside, in the run's own process.

    The replay does not change the run: weights, releases and statement are equal to the last bit.
    The data shown to the replay are as secret as the run's keys, and are kept in memory only.

    Args:
        rounds: numbers of the rounds to replay; None: all.
    """
    replay = Replay(rounds)
    with holding(WITNESS, replay.begin):
        yield replay


class _Witness:
    """The :class:`forethought.rounds.private_sum.Witness` that replays one run."""

    def __init__(self, replay: Replay, rounds: PrivateRounds, secrets: Secrets) -> None:
        self._replay, self._rounds = replay, rounds
        self._reference = reference.Reference(
            rounds.privacy,
            (secrets.sampling, secrets.noise),
            rounds.layout.names,
            rounds.layout.shapes,
        )
        # The bytes that this replay bound the noise of each round to, also across a resumed run.
        self._bounds = replay._bounds.setdefault(secrets.noise, {})
        self._key = secrets.noise
        self._correlated = rounds.privacy.mechanism.correlated
        self._parts: list[reference.Part] = []
        self._inputs = b""
        self._indices: Any = None
        self._records: Any = None
        self._sum: Array | None = None
        self._count: float | None = None
        self._copied = True

    def _wanted(self, index: int) -> bool:
        rounds = self._replay.rounds
        return rounds is None or index in rounds

    def met(self, total: PrivateSum, model: Any, records: Any, indices: Any) -> None:
        """Keep a copy of the model, and the records to be added."""
        if self._sum is not None:
            self._parts, self._inputs, self._sum = [], b"", None
        wanted = self._wanted(total.round.index)
        if wanted or self._correlated:
            name = reference.inputs_of(model)
            if not self._inputs.endswith(name):
                self._inputs += name
        if wanted:
            some = None if indices is None else np.asarray(indices, dtype=np.int64)
            self._indices, self._records = total.indices.copy(), records
            try:
                copied, dims = copy.deepcopy(model), self._rounds.how.batch_dims
                self._parts.append(reference.Part(copied, self._rounds.how.loss, some, dims))
            except Exception as error:  # copying a user's model may raise any error
                self._replay.refuse(f"the model cannot be copied: {error}")
                self._copied = False

    def summed(self, chosen: Round, vector: torch.Tensor, count: float | None) -> None:
        """Keep the sum and the count."""
        if self._sum is not None:  # nothing was added to this round
            self._parts, self._inputs = [], b""
        self._sum, self._count = vector.detach().cpu().numpy().copy(), count

    def released(self, noised: NoisedSum) -> None:
        """Compute the round again, and compare."""
        index = noised.round.index
        assert self._sum is not None
        one = self._reference.round(index, noised.round.clip_norm)
        if not self._wanted(index) and not self._correlated:
            return
        for place, earlier in enumerate(self._rounds.bound[:index]):
            self._bounds.setdefault(place, earlier)
        before = [self._bounds[index - 1]] if self._correlated and index else []
        context = self._rounds.context
        bound = self._reference.bound(one, self._count, self._inputs, before, context, self._sum)
        self._bounds[index] = bound
        if not self._wanted(index) or not self._copied:
            return
        try:
            with torch.random.fork_rng(devices=[]):
                self._compare(one, noised, bound)
        except reference.ReplayError as error:
            self._replay.refuse(str(error))
        except Exception as error:  # an error of the reference must not stop the run
            what = f"{type(error).__name__}: {error}"
            self._replay.refuse(f"the reference could not compute a round: {what}")
        else:
            self._replay.replayed += 1

    def _say(self, name: str, off: float | bool, reason: str) -> None:
        """Note a comparison, by its difference, or by True if both sides are equal."""
        if isinstance(off, bool):
            off = 0.0 if off else math.inf
        self._replay.compared.append(ComparedRound(name, off, reason))

    def _compare(self, one: Round, noised: NoisedSum, bound: bytes) -> None:
        where = f"round {one.index}"
        reason = f"In {where} sampling, clip norm, noise or divisor are not what the plan says."
        self._say("numbers of a round", bool(noised.round == one), reason)
        batch = self._reference.batch(one)
        seen = self._indices if self._parts else batch[:0]  # nothing was added to this round
        equal = np.array_equal(batch, seen)
        missing = len(np.setdiff1d(batch, seen))
        more = len(seen) - len(batch) + missing
        reason = (
            f"The batch of {where} is not what its sampling draws from the stream: {more} "
            f"records are too many and {missing} are missing."
        )
        self._say("batch", equal, reason)
        self._sums(one, batch, equal, where)
        self._noises(one, noised, bound, where)
        release = noised.vector.detach().cpu().numpy().tobytes()
        kept = self._replay._releases.setdefault((self._key, one.index), (bound, release))
        if kept[1] is not release:
            reason = (
                f"{where.capitalize()} was run again and released with other noise on the same "
                "sum: averaging both undoes a part of the protection."
            )
            same = kept == (bound, release) or kept[0] != bound
            self._say("a round run again", same, reason)

    def _sums(self, one: Round, batch: Any, equal: bool, where: str) -> None:
        assert self._sum is not None
        for nudges in (reference.NUDGES, MANY_NUDGES):
            found = reference.summed(
                self._reference, one, batch, self._parts, self._records, nudges
            )
            off = apart(self._sum, found, one.clip_norm)
            if off <= 1 or not equal:
                break
        reason = (
            f"In {where} release less noise is not the sum of the batch's contributions, each "
            f"clipped to C: it is off by {off:.3g} times what rounding allows."
        )
        self._say("release less noise", off, reason)
        if self._count is not None:
            norms = found.norms
            least = sum(most <= one.clip_norm or not math.isfinite(most) for _, most in norms)
            most = sum(low <= one.clip_norm or not math.isfinite(low) for low, _ in norms)
            counted = self._count + len(norms) / 2
            reason = (
                f"In {where} {counted:g} contributions were counted as short, where "
                f"{least:g} to {most:g} are."
            )
            self._say("count below the clipping norm", bool(least <= counted <= most), reason)

    def _noises(self, one: Round, noised: NoisedSum, bound: bytes, where: str) -> None:
        total = self._sum
        assert total is not None
        released = noised.vector.detach().cpu().numpy()
        std = one.noise_multiplier * one.clip_norm
        room = 4 * UNIT
        if one.strategy is None:
            noise = std * self._reference.numbers(bound)
        else:
            noise = std * self._reference.correlated(one, self._bounds)
            room *= 2.0**8 * (one.index - one.origin + 1)  # rounding grows with the recursion
        sizes = np.abs(total) + np.abs(noise)
        if one.strategy is not None:
            sizes += np.abs(noise).max(initial=0.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.abs(released - (total + noise)) / (room * sizes)
        off = float(np.max(np.where(released == total + noise, 0.0, ratios), initial=0.0))
        wrong = int(np.sum(~(ratios <= 1) & (released != total + noise)))
        reason = (
            f"The noise of {where} is not the noise that belongs to its sum: {wrong:,} of "
            f"{len(total):,} numbers differ."
        )
        self._say("noise, bit for bit", off, reason)
        if self._count is not None:
            wanted = self._reference.next_norm(one, self._count, bound)
            gap = abs(noised.next_clip_norm - wanted) / (2.0**-40 * wanted)
            reason = (
                f"After {where} the clipping norm moves to {noised.next_clip_norm:.6g} where "
                f"the noised count moves it to {wanted:.6g}."
            )
            self._say("noise on the count, by the next norm", gap, reason)


def apart(total: Array, found: reference.ReferenceSum, clip_norm: float) -> float:
    """The largest distance of a sum from the reference's, relative to the allowed distance.

    It is measured along every coordinate, along the sum itself, and along every contribution. The
    allowed distance is half of the charge r·C for the sum's own rounding (docs/gradients.md), plus
    the effect of rounding on the contributions, plus, in one direction only, the shortening by
    norms that are overestimated.
    """
    half = reference.CHARGE / 2 * clip_norm
    gap = total - found.middle
    if not np.isfinite(gap).all():
        return math.inf
    worst = float(np.max(np.abs(gap) / (half + found.reach + found.shorter), initial=0.0))
    if found.rows is None or not len(found.rows):
        return worst
    lengths = np.linalg.norm(found.rows, axis=1)
    ways = found.rows[lengths > 0] / lengths[lengths > 0, None]
    size = float(np.linalg.norm(found.middle))
    if size:
        ways = np.vstack([ways, found.middle / size])
    moved = ways @ gap
    along = ways @ (found.rows * found.loose[:, None]).T
    room = half + np.abs(ways) @ found.reach
    up = room + np.maximum(-along, 0).sum(1)
    down = room + np.maximum(along, 0).sum(1)
    return max(worst, float(np.max(np.where(moved > 0, moved / up, -moved / down), initial=0.0)))


class _PowerCut(Exception):  # noqa: N818 (an event that is simulated, not an error)
    pass


def interrupted(
    train: Callable[[bool, Callable[[Any], None]], object], rounds: int, *, resumed: bool = False
) -> None:
    """Run a few rounds of a run, and stop it without an end, as by a power cut.

    A run that is not resumed is also stopped one round earlier, and then resumed; the rounds after
    its last checkpoint run a second time.

    Args:
        train: function of (resume, progress callback) that starts the run, in the same folder.
        rounds: number of rounds to run.
        resumed: True if the run is already a continued one, which is stopped once.
    """
    stops = [(rounds, resumed)]
    if rounds > 1 and not resumed:
        stops = [(rounds - 1, False), (rounds, True)]
    for stop, again in stops:
        began: list[int] = []

        def cut(event: Any, stop: int = stop, began: list[int] = began) -> None:
            began.append(event.round)
            if event.round >= (began[0] - 1 + stop if resumed else stop):
                raise _PowerCut

        with suppress(_PowerCut):
            train(again, cut)


def replayed(
    plan: Plan,
    model: torch.nn.Module | None = None,
    data: Any = None,
    loss: Any = None,
    *,
    resumed: bool = True,
) -> Replay:
    """Replay short runs of a plan: about an epoch, or three rounds, of each part, on few records.

    Args:
        model: the user's model; it is copied. data: the records, as training takes them. Without
            both, a small model is trained on made-up records.
        loss: one value for each record.
        resumed: True to replay a second run, in micro-batches, with a stop and a resume.
    """
    planted = model is None
    if planted and plan.local is not None and plan.local.function is not None:
        return Replay(refusals=["the local algorithm is your own: give model and data, too"])
    if model is None:
        source = np.random.default_rng(0)
        rows = torch.from_numpy(source.standard_normal((min(plan.examples, RECORDS), 6)))
        rows[::2] *= 100 * plan.clip.norm  # gradients far above any norm; others may be below it
        layers = torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
        model, data = torch.nn.Sequential(*layers), (rows.float(), torch.arange(len(rows)) % 3)
    examples = len(torch.utils._pytree.tree_leaves(data)[0])
    parts = []
    for part in evenly(list(plan.mechanism)):
        sampling = scaled(part.sampling, plan.examples, examples)
        most = min(part.count, max(3, sampling.rounds_per_epoch + 2))
        parts.append(replace(part, sampling=sampling, count=most))
    short = with_parts(plan, parts, examples)
    if not planted:
        short = short.with_(clip=plan.clip)
    options: dict[str, Any] = {"loss": loss, "diagnostics": False, "log_every": short.rounds}
    with replaying() as found:
        train(copy.deepcopy(model), data, short, **options)
    if resumed and found.replayed:
        with tempfile.TemporaryDirectory() as folder, replaying() as again:
            interrupted(
                lambda resume, progress: train(
                    copy.deepcopy(model),
                    data,
                    short,
                    out=Path(folder) / "run",
                    checkpoint_every=max(1, short.rounds // 2),
                    micro_batch=5,
                    resume=resume,
                    progress=progress,
                    **options,
                ),
                short.rounds,
            )
        found.compared += again.compared
        found.replayed += again.replayed
    return found

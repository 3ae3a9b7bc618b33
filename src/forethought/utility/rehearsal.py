"""A rehearsal: the same plan, end to end, on data that nobody has to protect.

Every repeat draws training and test records of the plan's size from a public or synthetic source,
builds a fresh model and runs :func:`forethought.train` with the very plan: same mechanism, same
number of records, same noise. What comes out is a prediction of accuracy before any private record
is touched. It is as good as the source resembles the private data. No statistic of the source says
how good; what is known is how far rehearsals were off on pairs of data sets in a declared relation
(:mod:`forethought.utility.resemblance`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.stats import t as student
from torch import nn

from forethought.assumed import is_linear
from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.synthetic import like
from forethought.mechanism import one_of, real, whole
from forethought.plans import Plan
from forethought.rounds.losses import Loss
from forethought.serialisation import Stored, plain
from forethought.training.run import train
from forethought.utility.resemblance import (
    HELD,
    HELD_BY_NETWORKS,
    RELATIONS,
    SCORES,
    Relation,
    scores_of,
    widened,
)

REHEARSAL_SCHEMA = "forethought/rehearsal/3"

PublicProxy = Dataset | Callable[[int], Dataset]

COVERS = (
    "one more run of this plan on records drawn like the rehearsal's: which records are in the "
    "training and test part, initial weights, sampling and noise"
)
RESEMBLANCE = {
    "same source": "other records of the same population, drawn alike",
    "same task": "the same columns and classes, of another group, place or device",
    "same shape": "as many features and classes, and another task",
    "synthetic": "made by forethought, with nothing of the private data but their shape",
}
KNOWS_NOTHING = (
    "Nothing is known of how near the private data's accuracy will be: anywhere between chance and "
    "100 %."
)
_DERIVED = ("predicted", "interval", "run_interval", "baseline")
SHARED_POOL = "repeats draw from one pool of records, so they differ less than fresh draws would"


def _upgrade_second(values: dict[str, Any]) -> dict[str, Any]:
    # Version 2 did not say which model was rehearsed: intervals of networks are the wider ones.
    return {**values, "schema": REHEARSAL_SCHEMA, "linear": False}


def _upgrade_first(values: dict[str, Any]) -> dict[str, Any]:
    # Version 1 knew one interval, that of a further run on the same data, and no relation.
    known = {name: value for name, value in values.items() if name != "not_covered"}
    run = values.get("interval")
    return {
        **known,
        "schema": REHEARSAL_SCHEMA,
        "run_interval": run,
        "interval": [0, 1],
        "relation": None,
        "linear": False,
    }


@dataclass(frozen=True)
class Rehearsal(Stored):
    """What a plan achieved on a public proxy, and the accuracy it predicts.

    Args:
        accuracies: of each repeat on its test records, in [0, 1].
        baselines: of each repeat: accuracy of always saying the test part's most frequent class.
        level: chance with which the intervals are meant to hold the next run.
        source: what was rehearsed on.
        train_examples, test_examples: records in each repeat.
        distinct: share of different records in a training part; below 1 when the source was too
            small and records had to be drawn more than once.
        one_pool: whether all repeats drew from the same records.
        plan: what was run.
        relation: how the source stands to the private data, as declared; None: nobody said.
        linear: whether the model is one linear layer.
    """

    SCHEMA: ClassVar[str] = REHEARSAL_SCHEMA
    CALLED: ClassVar[str] = "rehearsal"
    UPGRADES: ClassVar[Mapping[str, Any]] = {
        "forethought/rehearsal/1": _upgrade_first,
        "forethought/rehearsal/2": _upgrade_second,
    }

    accuracies: tuple[float, ...]
    baselines: tuple[float, ...]
    level: float
    source: str
    train_examples: int
    test_examples: int
    distinct: float
    one_pool: bool
    plan: Plan
    relation: Relation | None = None
    linear: bool = False

    @property
    def predicted(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def baseline(self) -> float:
        """Mean accuracy of always saying the most frequent class."""
        return statistics.fmean(self.baselines)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the private run's accuracy will be, with a chance of about ``level``.

        :attr:`run_interval`, widened by as much as rehearsals were off on other pairs of data sets
        in the same relation; (0, 1) where nothing is known of that.
        """
        return self._widened() or (0.0, 1.0)

    def _widened(self) -> tuple[float, float] | None:
        return widened(self.run_interval, self.relation, self.level, linear=self.linear)

    @property
    def run_interval(self) -> tuple[float, float]:
        """Student's prediction interval for one further run on such data, within [0, 1].

        mean ± t · s · √(1 + 1/n) with n repeats of standard deviation s, exact when accuracies are
        normal and independent. The s of few repeats may be small by chance: no test part of m
        records leaves less than √(p(1 − p)/m) at accuracy p, so that much is taken at least.
        :data:`COVERS` says what it is about.
        """
        n = len(self.accuracies)
        mean = self.predicted
        least = math.sqrt(mean * (1 - mean) / self.test_examples)
        spread = max(statistics.stdev(self.accuracies), least) * math.sqrt(1 + 1 / n)
        half = float(student.ppf((1 + self.level) / 2, n - 1)) * spread
        return max(0.0, self.predicted - half), min(1.0, self.predicted + half)

    def text(self) -> str:
        """The rehearsal in sentences."""
        low, high = self.run_interval
        sentences = [
            f"Rehearsed {len(self.accuracies)} times on {self.source}: {self.train_examples:,} "
            f"records each, tested on {self.test_examples:,}.",
            f"Reached {self.predicted:.1%}; always saying the most frequent class gives "
            f"{self.baseline:.1%}.",
            f"On such data {self.level:.0%} of runs are between {low:.1%} and {high:.1%}: "
            f"{COVERS}.",
        ]
        if self.relation is None or self._widened() is None:
            sentences.append(self._knows_nothing())
        else:
            low, high = self.interval
            sentences.append(
                f"On the private data: {low:.1%} to {high:.1%}, as wide as it takes to hold "
                f"{self.level:.0%} of {self._pairs()} other pairs of data sets in this relation "
                f"({self.relation}: {RESEMBLANCE[self.relation]}). {self._measured(self.relation)} "
                "Pairs unlike those may be further off."
            )
        if self.one_pool:
            sentences.append(f"Note: {SHARED_POOL}.")
        if self.distinct < 1:
            sentences.append(
                f"The source is smaller than the plan's data: only {self.distinct:.0%} of the "
                "records of a training part are different ones, so the prediction is pessimistic "
                "where more data would help."
            )
        return "\n".join(sentences)

    def _pairs(self) -> int:
        return len(scores_of(self.relation, self.linear))

    def _measured(self, relation: Relation) -> str:
        held, of = (HELD if self.linear else HELD_BY_NETWORKS)[relation]
        model = "a linear model" if self.linear else "a small perceptron"
        return (
            f"With {model} such intervals of 90 % held {held} of {of} pairs of data sets that were "
            "not calibrated on."
        )

    def _knows_nothing(self) -> str:
        if self.relation == "synthetic":
            return (
                f"{KNOWS_NOTHING} Synthetic data tell whether the plan trains at all, and how much "
                "its noise moves the result."
            )
        if self.relation is None:
            known = ", ".join(f'"{name}"' for name in SCORES)
            return f"{KNOWS_NOTHING} Say how the rehearsal's data stand to them: {known}."
        if self.relation not in SCORES:
            return (
                f"{KNOWS_NOTHING} Sets that share no more than their shape differ too much: on "
                "other pairs of such sets rehearsals were off by 17 points at the median, and by "
                "up to 51. Rehearse on other records of the same population or task."
            )
        return f"{KNOWS_NOTHING} {self._pairs()} pairs are too few for a level of {self.level:g}."

    def _values(self) -> dict[str, Any]:
        derived = {name: plain(getattr(self, name)) for name in _DERIVED}
        return {**derived, "covers": COVERS, **super()._values()}

    @classmethod
    def _keys(cls) -> set[str]:
        return {*super()._keys(), *_DERIVED, "covers"}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Rehearsal:
        known = {name: values[name] for name in super()._keys()}
        known["plan"] = Plan.from_dict(known["plan"])
        for name in ("accuracies", "baselines"):
            known[name] = tuple(known[name])
        return cls(**known)


def rehearse(
    plan: Plan,
    model_builder: Callable[[], nn.Module],
    data: PublicProxy,
    *,
    repeats: int = 10,
    test_examples: int | None = None,
    level: float = 0.9,
    relation: Relation | None = None,
    loss: Loss | None = None,
    micro_batch: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Rehearsal:
    """Run a plan end to end on public or synthetic data and predict the accuracy it will reach.

    Args:
        plan: what will be run on the private data.
        model_builder: a freshly initialised model of the private task, from torch's global
            generator, which is seeded for each repeat and left as it was.
        data: a public proxy of the private data's shape: a pool of records, train and test part
            together, from which every repeat draws ``plan.examples`` training records and, apart
            from them, its test records; or a function from a seed to a data set that has exactly
            ``plan.examples`` training records, such as :func:`synthetic` returns.
        repeats: runs, at least 2. Their cost is that of the real run each.
        test_examples: size of the test part drawn from a pool. Default: the pool's test part's
            size, or a fifth of the pool without one.
        level: of the intervals, between 0 and 1.
        relation: how ``data`` stand to the private data: ``"same source"``, ``"same task"``,
            ``"same shape"`` or ``"synthetic"``, see :data:`RESEMBLANCE`. Without it, and of
            the last two, nothing is said of the private data. Default: ``"synthetic"`` where
            :func:`synthetic` made ``data``.
        loss, micro_batch, device: as for :func:`forethought.train`.
        seed: the whole rehearsal is reproducible; nothing in it needs secrecy.
        progress: called with (repeats done, repeats).

    Raises:
        ValueError: the pool is too small to test on, a generated set has another size, the targets
            are no classes, or the model does not fit the data. TypeError: an argument of the
            wrong kind.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a forethought.Plan, not {type(plan).__name__}")
    if not isinstance(data, Dataset) and not callable(data):
        raise TypeError(
            f"data must be a forethought.data.Dataset or a function from a seed to one, not "
            f"{type(data).__name__}"
        )
    repeats = whole("repeats", repeats, least=2)
    relation = getattr(data, "relation", None) if relation is None else relation
    if relation is not None:
        one_of("relation", relation, RELATIONS)
    level = real("level", level, above=0, below=1)
    drawn = _draws(data, plan.examples, test_examples, seed)
    accuracies, baselines = [], []
    for repeat in range(repeats):
        train_part, test_part, distinct, name = drawn(repeat)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_mixed(seed, repeat))
            model = model_builder()
        _check_fit(model, train_part, test_part)
        run = train(
            model,
            (train_part.inputs, train_part.targets),
            plan,
            loss=loss,
            test=(test_part.inputs, test_part.targets),
            micro_batch=micro_batch,
            device=device,
            seed=_mixed(seed, repeat),
            noise_seed=_mixed(seed, repeat),
            log_every=plan.rounds,
            diagnostics=False,
        )
        if run.accuracy is None:
            raise ValueError("the run measured no accuracy: a rehearsal needs a classifier")
        accuracies.append(float(run.accuracy))
        baselines.append(float(np.bincount(test_part.targets).max() / len(test_part)))
        if progress is not None:
            progress(repeat + 1, repeats)
    return Rehearsal(
        tuple(accuracies),
        tuple(baselines),
        level,
        name,
        len(train_part),
        len(test_part),
        distinct,
        isinstance(data, Dataset),
        plan,
        relation,
        is_linear(model),
    )


@dataclass(frozen=True)
class SyntheticSource:
    """From a seed to another task of one shape; see :func:`forethought.data.synthetic.like`."""

    shape: tuple[int, ...]
    classes: int
    examples: int
    noise: float = 1.0
    relation: ClassVar[Relation] = "synthetic"

    def __call__(self, seed: int) -> Dataset:
        return like(self.shape, self.classes, self.examples, noise=self.noise, seed=seed)


def synthetic(
    shape: tuple[int, ...], classes: int, examples: int, *, noise: float = 1.0
) -> SyntheticSource:
    """A source of synthetic data for :func:`rehearse`: every seed is another task of this shape.

    Args:
        shape, classes, examples, noise: see :func:`forethought.data.synthetic.like`.
    """
    return SyntheticSource(shape, classes, examples, noise)


DrawRecords = Callable[[int], tuple[Split, Split, float, str]]


def _draws(data: PublicProxy, examples: int, test_examples: int | None, seed: int) -> DrawRecords:
    """From a repeat's number to training part, test part, share of distinct records, name."""
    if not isinstance(data, Dataset):
        if test_examples is not None:
            raise ValueError("generated data has its own test part: leave test_examples out")

        def generate(repeat: int) -> tuple[Split, Split, float, str]:
            made = data(_mixed(seed, repeat))
            if len(made.train) != examples or made.test is None or not len(made.test):
                tested = 0 if made.test is None else len(made.test)
                raise ValueError(
                    f"the function made {len(made.train)} training and {tested} test records: the "
                    f"plan is for {examples}, and a rehearsal needs some to test on"
                )
            return made.train, made.test, 1.0, made.name

        return generate
    parts = [data.train] if data.test is None else [data.train, data.test]
    inputs = np.concatenate([part.inputs for part in parts])
    targets = np.concatenate([part.targets for part in parts])
    size = len(targets)
    default = max(1, size // 5) if data.test is None else len(data.test)
    tested = whole("test_examples", default if test_examples is None else test_examples)
    if tested >= size:
        raise ValueError(
            f"{data.name} has {size} records: {tested} to test on leave none to train on. Choose "
            "a smaller test_examples, or a larger source"
        )

    # Test parts are apart as long as the pool lasts, and training parts, too, where it is large:
    # records that repeats share would hide how much the next ones differ.
    apart = size >= 2 * (examples + tested)
    each = examples + tested if apart else tested

    def draw(repeat: int) -> tuple[Split, Split, float, str]:
        cycle, place = divmod(repeat, size // each)
        order = np.roll(np.random.default_rng([seed, cycle]).permutation(size), -place * each)
        held, rest = order[:tested], order[tested:]
        random = np.random.default_rng([seed, cycle, repeat])
        if not apart:
            rest = random.permutation(rest)
        chosen = rest[:examples] if examples <= len(rest) else random.choice(rest, examples)
        distinct = len(np.unique(chosen)) / examples
        return (
            Split(inputs[chosen], targets[chosen]),
            Split(inputs[held], targets[held]),
            distinct,
            data.name,
        )

    return draw


def _mixed(seed: int, repeat: int) -> int:
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])


def _check_fit(model: nn.Module, train_part: Split, test_part: Split) -> None:
    targets = np.concatenate([train_part.targets, test_part.targets])
    if not np.issubdtype(targets.dtype, np.integer):
        raise ValueError("the targets are no classes: a rehearsal predicts accuracy")
    first = next(model.parameters())
    example = torch.from_numpy(train_part.inputs[:1]).to(first.device, first.dtype)
    try:
        with torch.no_grad():
            outputs = model(example)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"the model does not take the rehearsal's inputs of shape "
            f"{train_part.inputs.shape[1:]}: rehearse on data of the private data's shape ({error})"
        ) from error
    width = outputs.shape[-1] if outputs.ndim > 1 else 1
    if width > 1 and int(targets.max()) >= width:
        raise ValueError(
            f"the rehearsal's data has a class {int(targets.max())}, the model only {width} "
            "outputs: rehearse on data with the private data's classes"
        )

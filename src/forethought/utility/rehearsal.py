"""A rehearsal: the same plan, end to end, on data that nobody has to protect."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn

from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.synthetic import like
from forethought.gradients.boundary import turns
from forethought.rounds.contributions import Loss
from forethought.training.run import train
from forethought.values.checks import one_of, real, whole
from forethought.values.plan import Plan
from forethought.values.serialisation import Stored, plain
from forethought.values.use import is_linear

# How far a rehearsal may be off because the private data are not the public ones.
#
# No statistic of the public data says that. What can be said is how far rehearsals were off on
# other pairs of a public and a private set in the same *relation*: split conformal prediction, in
# the form that widens an interval (Romano, Patterson and Candès 2019, "Conformalized Quantile
# Regression"), with scores E = max(g(low) − g(achieved), g(achieved) − g(high)) and g(p) = ln((p +
# κ)/(1 − p + κ)), so that a point near 100 % counts more than one near 50 %.
#
# Pairs that share a data set resemble each other: what is independent are data sets. So the
# quantile is hierarchical (Lee, Barber and Willett 2023, "Distribution-free inference with
# hierarchical data", Theorem 1): of K data sets with N_k pairs each, Q is the smallest score at
# which the weights 1/((K + 1) N_k) of the scores up to it sum to the level, and [g⁻¹(g(low) − Q),
# g⁻¹(g(high) + Q)] holds the accuracy of a pair of one more data set with a chance of at least the
# level, *if* that data set is like those (exchangeable with them). An interval is never made
# narrower than the run's.


Relation = Literal["same source", "same task", "same shape", "synthetic"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
# Kinds of networks that are told apart; HELD has those that rehearsals were measured with.
Network = Literal["perceptron", "convolutional"]
NETWORKS: tuple[Network, ...] = get_args(Network)
# Of classes and of values; how each is printed, and what says the same to every record.
Measure = Literal["accuracy", "R²"]
_FORMS = {"accuracy": ".1%", "R²": ".3f"}
_SAYING = {"accuracy": "the most frequent class", "R²": "the mean"}
Scores = Mapping[str, Sequence[float]]
# The pairs were rehearsed with a run's interval of this level, from so many repeats.
LEVEL, REPEATS = 0.9, 6
_KAPPA = 0.005

# Scores of 120 pairs a relation of twelve data sets, of linear models and of a perceptron of 32
# units, by `python experiments/defaults/rehearsals.py --constants`, from rehearsals.jsonl beside
# it; pairs.py there says how pairs are made. "synthetic" and "same shape" have none: calibrated
# like the others', their intervals held 36 of 60 and 49 of 58 pairs of other data sets.
SCORES: dict[str, dict[str, Scores]] = json.loads(
    Path(__file__).with_name("resemblance.json").read_text(encoding="utf-8")
)
_LAYERS: dict[frozenset[str], Network] = {
    frozenset({"Linear"}): "perceptron",
    frozenset({"Linear", "Conv2d"}): "convolutional",
    frozenset({"Conv2d"}): "convolutional",
}


def network_of(model: Any) -> Network | None:
    """The kind of network that a torch module is, of those that are told apart.

    Returns:
        By the layers that have weights: None for a linear model, and for one with other layers than
        linear ones and convolutions.
    """
    if is_linear(model):
        return None
    weighed = {type(m).__name__ for m in model.modules() if list(m.parameters(recurse=False))}
    return _LAYERS.get(frozenset(weighed))


def _odds(share: float) -> float:
    return math.log((share + _KAPPA) / (1 - share + _KAPPA))


def _share(odds: float) -> float:
    found = (1 + 2 * _KAPPA) / (1 + math.exp(-odds)) - _KAPPA
    return min(1.0, max(0.0, found))


def score(interval: tuple[float, float], achieved: float) -> float:
    """The distance, in log-odds, of an accuracy from an interval; negative inside it."""
    low, high = map(_odds, interval)
    return max(low - _odds(achieved), _odds(achieved) - high)


def scores_of(relation: Relation | None, model: str | None) -> Scores:
    """Scores of the pairs that are calibrated on, by data set; none where nothing is known.

    Args:
        model: "linear", or which of :data:`NETWORKS`; None: another.
    """
    if relation is None or model is None or relation not in HELD.get(model, {}):
        return {}
    return SCORES[model][relation]


def quantile(scores: Scores, level: float) -> float | None:
    """The score Q that one more data set's pair has at most, with a chance of ``level``.

    Returns:
        None where there are too few data sets, K of them, for the level: above K/(K + 1).
    """
    sets = len(scores) + 1
    weighed = sorted((one, 1 / (sets * len(of))) for of in scores.values() for one in of)
    summed = 0.0
    for one, weight in weighed:
        summed += weight
        if summed >= level - 1e-9:
            return one
    return None


def calibrated(
    interval: tuple[float, float], scores: Scores, level: float
) -> tuple[float, float] | None:
    """An interval moved outward, or inward, by the quantile of other pairs' scores.

    Args:
        interval: of a further run on the public data, of :data:`LEVEL`.

    Returns:
        Shares in [0, 1]; None where there are too few data sets for the level.
    """
    extra = quantile(scores, level)
    if extra is None:
        return None
    low, high = _odds(interval[0]) - extra, _odds(interval[1]) + extra
    if low > high:  # pairs agreed more than their repeats did
        low = high = (low + high) / 2
    return _share(low), _share(high)


# How many fresh pairs' intervals of 90 % held what was achieved, of how many: pairs of data sets
# that nothing is calibrated on. From experiments/defaults/rehearsals.md; fresh_pairs.py there has
# the rule and the pairs, written down before any of them was run.
HELD: dict[str, dict[Relation, tuple[int, int]]] = {
    "linear": {"same source": (65, 66), "same task": (65, 66)},
    "perceptron": {"same source": (64, 66), "same task": (64, 66)},
}


# The records that a rehearsal's repeats train and test on: from a pool, or drawn for each.


PublicProxy = Dataset | Callable[[int], Dataset]


@dataclass(frozen=True)
class SyntheticSource:
    """From a seed to another task of one shape; see :func:`forethought.data.synthetic.like`."""

    shape: tuple[int, ...]
    classes: int | None
    examples: int
    noise: float = 1.0
    relation: ClassVar[Relation] = "synthetic"

    def __call__(self, seed: int) -> Dataset:
        return like(self.shape, self.classes, self.examples, noise=self.noise, seed=seed)


def synthetic(
    shape: tuple[int, ...], classes: int | None, examples: int, *, noise: float = 1.0
) -> SyntheticSource:
    """A source of synthetic data for :func:`rehearse`: every seed is another task of this shape.

    Args:
        shape, classes, examples, noise: see :func:`forethought.data.synthetic.like`.
    """
    return SyntheticSource(shape, classes, examples, noise)


DrawRecords = Callable[[int], tuple[Split, Split, float, str]]


def draws(data: PublicProxy, examples: int, test_examples: int | None, seed: int) -> DrawRecords:
    """From a repeat's number to training part, test part, share of distinct records, name.

    Raises:
        ValueError: a pool too small to test on, or a function that makes another size.
    """
    if not isinstance(data, Dataset):
        if test_examples is not None:
            raise ValueError("generated data has its own test part: leave test_examples out")

        def generate(repeat: int) -> tuple[Split, Split, float, str]:
            made = data(mixed(seed, repeat))
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


def mixed(seed: int, repeat: int) -> int:
    """A seed of its own for each repeat."""
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])


# Every repeat draws training and test records of the plan's size from a public or synthetic source,
# builds a fresh model and runs :func:`forethought.train` with the very plan: same mechanism, same
# number of records, same noise. What comes out is a prediction of accuracy before any private
# record is touched. It is as good as the source resembles the private data. No statistic of the
# source says how good; what is known is how far rehearsals were off on pairs of data sets in a
# declared relation (:mod:`forethought.utility.rehearsal`).


REHEARSAL_SCHEMA = "forethought/rehearsal/4"

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


_CALLED = {"linear": "linear models", "perceptron": "a small perceptron"}


@dataclass(frozen=True)
class Rehearsal(Stored):
    """The results of a plan on a public proxy, and the accuracy that it predicts.

    Args:
        accuracies: of each repeat on its test records, in [0, 1]; of a regression R², at most 1.
        baselines: of each repeat: accuracy of always saying the test part's most frequent class;
            of a regression 0, which saying the mean has.
        level: chance with which the intervals are meant to hold the next run.
        source: what was rehearsed on.
        train_examples, test_examples: records in each repeat.
        distinct: share of different records in a training part; below 1 when the source was too
            small and records had to be drawn more than once.
        one_pool: whether all repeats drew from the same records.
        plan: what was run.
        relation: how the source stands to the private data, as declared; None: nobody said.
        linear: whether the model is one linear layer.
        network: which kind of network it is: ``"perceptron"``, with weights in linear layers only,
            or ``"convolutional"``, in convolutions and such; None: linear, or another kind.
        measure: ``"accuracy"``, or ``"R²"`` of a regression.
    """

    LATER: ClassVar[tuple[str, ...]] = ("measure",)
    SCHEMA: ClassVar[str] = REHEARSAL_SCHEMA
    CALLED: ClassVar[str] = "rehearsal"

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
    network: Network | None = None
    measure: Measure = "accuracy"

    def __post_init__(self) -> None:
        one_of("measure", self.measure, get_args(Measure))
        if self.network is not None:
            one_of("network", self.network, NETWORKS)

    @property
    def predicted(self) -> float:
        """Mean accuracy, or R²."""
        return statistics.fmean(self.accuracies)

    @property
    def baseline(self) -> float:
        """Mean accuracy of always saying the most frequent class; R² of always saying the mean."""
        return statistics.fmean(self.baselines)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the private run's accuracy, with a chance of at least ``level``.

        That is so if the private and the public data set stand to each other as those of the pairs
        do that it is calibrated on (:mod:`forethought.utility.rehearsal`): :attr:`run_interval`,
        widened by as much as rehearsals were off there. (0, 1) where nothing is known, as of R².
        """
        return self._widened() or (0.0, 1.0)

    def _widened(self) -> tuple[float, float] | None:
        if self.measure == "R²":  # of which no pair was rehearsed
            return None
        # Pairs were rehearsed so often and at one level: their scores are about such intervals.
        base = self._run_interval(LEVEL, min(len(self.accuracies), REPEATS))
        found = calibrated(base, scores_of(self.relation, self._model), self.level)
        if found is None:
            return None
        low, high = self.run_interval
        return min(low, found[0]), max(high, found[1])

    @property
    def _model(self) -> str | None:
        return "linear" if self.linear else self.network

    @property
    def run_interval(self) -> tuple[float, float]:
        """Student's prediction interval for one further run on such data, within [0, 1] (R²: ≤ 1).

        mean ± t · s · √(1 + 1/n) with n repeats of standard deviation s, exact when accuracies are
        normal and independent. The s of few repeats may be small by chance: no test part of m
        records leaves less than √(p(1 − p)/m) at accuracy p, so that much is taken at least.
        :data:`COVERS` says what it is about.
        """
        return self._run_interval(self.level, len(self.accuracies))

    def _run_interval(self, level: float, repeats: int) -> tuple[float, float]:
        mean, share = self.predicted, self.measure == "accuracy"
        least = math.sqrt(mean * (1 - mean) / self.test_examples) if share else 0.0
        spread = max(statistics.stdev(self.accuracies), least) * math.sqrt(1 + 1 / repeats)
        half = float(stdtrit(repeats - 1, (1 + level) / 2)) * spread
        return max(0.0 if share else -math.inf, mean - half), min(1.0, mean + half)

    @property
    def saying(self) -> str:
        """The answer to every record that the baseline gives, in words."""
        return _SAYING[self.measure]

    @property
    def form(self) -> str:
        """The format of a printed figure: in percent, or R² to three places."""
        return _FORMS[self.measure]

    def shown(self, figure: float) -> str:
        """A figure as it is printed."""
        return format(figure, self.form)

    def text(self) -> str:
        """The rehearsal in sentences."""
        low, high = map(self.shown, self.run_interval)
        of = "" if self.measure == "accuracy" else f"{self.measure} "
        sentences = [
            f"Rehearsed {len(self.accuracies)} times on {self.source}: {self.train_examples:,} "
            f"records each, tested on {self.test_examples:,}.",
            f"Reached {of}{self.shown(self.predicted)}; always saying {self.saying} gives "
            f"{self.shown(self.baseline)}.",
            f"On such data {self.level:.0%} of runs are between {low} and {high}: {COVERS}.",
        ]
        if self._widened() is None:
            sentences.append(self._knows_nothing())
        else:
            low, high = map(self.shown, self.interval)
            sentences.append(f"On the private data: {low} to {high}. {self._promise()}")
        if self.one_pool:
            sentences.append(f"Note: {SHARED_POOL}.")
        if self.distinct < 1:
            sentences.append(
                f"The source is smaller than the plan's data: only {self.distinct:.0%} of the "
                "records of a training part are different ones, so the prediction is pessimistic "
                "where more data would help."
            )
        return "\n".join(sentences)

    def _promise(self) -> str:
        """The worth of an interval that is offered."""
        if self.relation is None or self._model is None:
            raise RuntimeError("an interval is offered of a relation and a kind of model")
        sets = len(scores_of(self.relation, self._model))
        held, of = HELD[self._model][self.relation]
        return (
            f"So wide it holds with a chance of {self.level:.0%} or more if this pair of data sets "
            f"is like those of {sets} public data sets ({self.relation}: "
            f"{RESEMBLANCE[self.relation]}). With {_CALLED[self._model]} such intervals of 90 % "
            f"held {held} of {of} fresh pairs of data sets. Pairs unlike those may be further off."
        )

    def _knows_nothing(self) -> str:
        if self.measure == "R²":
            return "Nothing is known of how near the private data's R² will be."
        if self.relation == "synthetic":
            return (
                f"{KNOWS_NOTHING} Synthetic data tell whether the plan trains at all, and how much "
                "its noise moves the result."
            )
        if self.relation is None:
            known = ", ".join(f'"{name}"' for name in HELD["linear"])
            return f"{KNOWS_NOTHING} Say how the rehearsal's data stand to them: {known}."
        if self.relation not in HELD["linear"]:
            return (
                f"{KNOWS_NOTHING} Sets that share no more than their shape differ too much: on "
                "other pairs of such sets rehearsals were off by 10 points at the median, and by "
                "up to 51. Rehearse on other records of the same population or task."
            )
        sets = len(scores_of(self.relation, self._model))
        if sets:
            return f"{KNOWS_NOTHING} {sets} data sets are too few for a level of {self.level:g}."
        known = " and ".join(_CALLED[name] for name in HELD if self.relation in HELD[name])
        return f"{KNOWS_NOTHING} Rehearsals were measured with {known}: not with this model."

    def _values(self) -> dict[str, Any]:
        derived = {name: plain(getattr(self, name)) for name in _DERIVED}
        return {**derived, "covers": COVERS, **super()._values()}

    @classmethod
    def _keys(cls) -> set[str]:
        return {*super()._keys(), *_DERIVED, "covers"}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Rehearsal:
        known = {name: values[name] for name in super()._keys() if name in values}
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
    """Run a plan end to end on public or synthetic data: the accuracy, or R², that it will reach.

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
            ``"same shape"`` or ``"synthetic"``, see :data:`RESEMBLANCE`. Without it, of the last
            two, and of networks that are no perceptrons, nothing is said of the private data.
            Default: ``"synthetic"`` where
            :func:`synthetic` made ``data``.
        loss, micro_batch, device: as for :func:`forethought.train`.
        seed: the whole rehearsal is reproducible; nothing in it needs secrecy.
        progress: called with (repeats done, repeats).

    Raises:
        ValueError: the pool is too small to test on, a generated set has another size, the model
            does not fit the data, or its run measures no accuracy. TypeError: an argument of the
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
    drawn = draws(data, plan.examples, test_examples, seed)
    accuracies, baselines = [], []
    measure: Measure = "accuracy"
    for repeat in range(repeats):
        train_part, test_part, distinct, name = drawn(repeat)
        with turns, torch.random.fork_rng(devices=[]):
            torch.manual_seed(mixed(seed, repeat))
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
            seed=mixed(seed, repeat),
            noise_seed=mixed(seed, repeat),
            log_every=plan.rounds,
            diagnostics=False,
        )
        if not np.issubdtype(test_part.targets.dtype, np.integer):
            measure = "R²"
            accuracies.append(_r_squared(run.model, test_part))
            baselines.append(0.0)
        elif run.accuracy is None:
            raise ValueError("the run measured no accuracy: a rehearsal needs a classifier")
        else:
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
        network_of(model),
        measure,
    )


def _r_squared(model: nn.Module, test: Split) -> float:
    from sklearn.metrics import r2_score  # slow to load, and classes need none of it

    first = next(model.parameters())
    with torch.no_grad():
        outputs = model(torch.from_numpy(test.inputs).to(first.device, first.dtype))
    return float(r2_score(test.targets, outputs.cpu().numpy().reshape(test.targets.shape)))


def _check_fit(model: nn.Module, train_part: Split, test_part: Split) -> None:
    targets = np.concatenate([train_part.targets, test_part.targets])
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
    values = not np.issubdtype(targets.dtype, np.integer)
    if values and outputs.numel() != train_part.targets[:1].size:
        raise ValueError(
            "the rehearsal's targets are values to regress on, and the model has "
            f"{width} outputs: rehearse on data of the private data's kind"
        )
    if width > 1 and not values and int(targets.max()) >= width:
        raise ValueError(
            f"the rehearsal's data has a class {int(targets.max())}, the model only {width} "
            "outputs: rehearse on data with the private data's classes"
        )

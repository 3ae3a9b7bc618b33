"""A rehearsal: a run of the same plan on public or synthetic data, which predicts its accuracy."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from scipy.special import stdtrit
from torch import nn

from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.synthetic import like
from forethought.rounds.contributions import Loss
from forethought.training.metrics import outputs_of
from forethought.training.run import train
from forethought.utility.perturbing import initial
from forethought.values.checks import function, instance, one_of, real, whole
from forethought.values.plan import Plan
from forethought.values.serialisation import Readers, Stored, plain
from forethought.values.use import is_linear

# The error of a rehearsal that is due to the difference of private and public data.
#
# No statistic of the public data shows it. It is estimated from the errors of rehearsals on other
# pairs of a public and a private set in the same *relation*, by split conformal prediction in the
# form that widens an interval (Romano, Patterson and Candès 2019, "Conformalized Quantile
# Regression"), with scores E = max(g(low) − g(achieved), g(achieved) − g(high)) and g(p) = ln((p +
# κ)/(1 − p + κ)), so that a point near 100 % counts more than one near 50 %.
#
# Pairs of the same data set are dependent; only data sets are independent. So the quantile is
# hierarchical (Lee, Barber and Willett 2023, "Distribution-free inference with hierarchical data",
# Theorem 1): of K data sets with N_k pairs each, Q is the smallest score at which the weights
# 1/((K + 1) N_k) of the scores up to it sum to the level. [g⁻¹(g(low) − Q), g⁻¹(g(high) + Q)] then
# contains the accuracy of a pair of one more data set with at least the level's probability, *if*
# that data set is exchangeable with them. The final interval is never narrower than the run's.


Relation = Literal["same source", "same task", "same shape", "synthetic"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
# Kinds of networks that are distinguished; HELD has those with measured rehearsals.
Network = Literal["perceptron", "convolutional"]
NETWORKS: tuple[Network, ...] = get_args(Network)
# Measures of classification and of regression; the format of each, and its constant baseline.
Measure = Literal["accuracy", "R²"]
_FORMS = {"accuracy": ".1%", "R²": ".3f"}
_SAYING = {"accuracy": "the most frequent class", "R²": "the mean"}
Scores = Mapping[str, Sequence[float]]
# Level and number of repeats of the run intervals of the calibration pairs.
LEVEL, REPEATS = 0.9, 6
_KAPPA = 0.005

# Scores of 120 pairs of twelve data sets for each relation, of linear models and of a perceptron
# with 32 units, by `python experiments/defaults/rehearsals.py --constants`, from rehearsals.jsonl
# beside it; pairs.py there makes the pairs. "synthetic" and "same shape" have none: their intervals
# by the same calibration contained only 36 of 60 and 49 of 58 pairs of other data sets.
SCORES: dict[str, dict[str, Scores]] = json.loads(
    Path(__file__).with_name("resemblance.json").read_text(encoding="utf-8")
)
_LAYERS: dict[frozenset[str], Network] = {
    frozenset({"Linear"}): "perceptron",
    frozenset({"Linear", "Conv2d"}): "convolutional",
    frozenset({"Conv2d"}): "convolutional",
}


def network_of(model: Any) -> Network | None:
    """The kind of network of a torch module, by its layers with weights.

    Returns:
        None for a linear model, and for a model with other layers than linear and convolutions.
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
    """Data set → scores of its calibration pairs; empty if there are none.

    Args:
        relation: the declared relation of public and private data; None if not declared.
        model: "linear", or one of :data:`NETWORKS`; None for any other model.
    """
    if relation is None or model is None or relation not in HELD.get(model, {}):
        return {}
    return SCORES[model][relation]


def quantile(scores: Scores, level: float) -> float | None:
    """The score Q that a pair of one more data set exceeds with probability at most 1 − ``level``.

    Returns:
        None if there are too few data sets: with K of them, ``level`` above K/(K + 1).
    """
    sets = len(scores) + 1
    weighed = sorted((one, 1 / (sets * len(of))) for of in scores.values() for one in of)
    summed = accumulate(weight for _, weight in weighed)
    found = (one for (one, _), share in zip(weighed, summed, strict=True) if share >= level - 1e-9)
    return next(found, None)


def calibrated(
    interval: tuple[float, float], scores: Scores, level: float
) -> tuple[float, float] | None:
    """An interval widened (or narrowed) by the quantile of other pairs' scores.

    Args:
        interval: the interval of level :data:`LEVEL` for a further run on the public data.
        scores: data set → scores, as of :func:`scores_of`.
        level: level of the result.

    Returns:
        The ends in [0, 1]; None if there are too few data sets for the level.
    """
    extra = quantile(scores, level)
    if extra is None:
        return None
    low, high = _odds(interval[0]) - extra, _odds(interval[1]) + extra
    if low > high:  # the pairs' errors were smaller than the spread of their repeats
        low = high = (low + high) / 2
    return _share(low), _share(high)


# (number of 90 % intervals that contained the achieved accuracy, number of pairs), on fresh pairs
# of data sets that are not used for calibration. From experiments/defaults/rehearsals.md;
# fresh_pairs.py there has the rule and the pairs, which were fixed before the first run.
HELD: dict[str, dict[Relation, tuple[int, int]]] = {
    "linear": {"same source": (65, 66), "same task": (65, 66)},
    "perceptron": {"same source": (64, 66), "same task": (64, 66)},
}


# The training and test records of a rehearsal's repeats: from a pool, or generated for each repeat.


PublicProxy = Dataset | Callable[[int], Dataset]


@dataclass(frozen=True)
class SyntheticSource:
    """A source for :func:`rehearse`: every seed gives a new task of this shape.

    Args:
        shape, classes, examples: see :func:`forethought.data.synthetic.like`.
    """

    shape: tuple[int, ...]
    classes: int | None
    examples: int
    relation: ClassVar[Relation] = "synthetic"

    def __call__(self, seed: int) -> Dataset:
        return like(self.shape, self.classes, self.examples, seed=seed)


DrawRecords = Callable[[int], tuple[Split, Split, float, str]]


def draws(data: PublicProxy, examples: int, test_examples: int | None, seed: int) -> DrawRecords:
    """A function repeat → (training part, test part, share of distinct records, name).

    Raises:
        ValueError: the pool is too small, or generated data come with ``test_examples``. The
            returned function raises it if generated data have another size or no test part.
    """
    if callable(data):
        if test_examples is not None:
            raise ValueError("generated data has its own test part: leave test_examples out")

        def generate(repeat: int) -> tuple[Split, Split, float, str]:
            made = _data_set(data(mixed(seed, repeat)))
            if len(made.train) != examples or made.test is None or not len(made.test):
                tested = 0 if made.test is None else len(made.test)
                raise ValueError(
                    f"the function made {len(made.train)} training and {tested} test records: the "
                    f"plan is for {examples}, and a rehearsal needs some to test on"
                )
            return made.train, made.test, 1.0, made.name

        return generate
    pool = _data_set(data)
    parts = [pool.train] if pool.test is None else [pool.train, pool.test]
    inputs = np.concatenate([part.inputs for part in parts])
    whole_pool = Split(inputs, np.concatenate([part.targets for part in parts]))
    size = len(whole_pool)
    default = max(1, size // 5) if pool.test is None else len(pool.test)
    tested = whole("test_examples", default if test_examples is None else test_examples)
    if tested >= size:
        raise ValueError(f"{tested} of {size} records to test on leave none to train on")

    # Test parts of different repeats are disjoint as long as the pool allows, and training parts
    # too if it is large: shared records would make the repeats differ too little.
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
        return whole_pool.at(chosen), whole_pool.at(held), distinct, pool.name

    return draw


def _data_set(made: Any) -> Dataset:
    if not all(hasattr(made, part) for part in ("train", "test", "name")):
        kind = type(made).__name__
        raise TypeError(f"data must be a forethought.data.Dataset or a function, not {kind}")
    return made


def mixed(seed: int, repeat: int) -> int:
    """A seed of its own for each repeat."""
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0])


# Every repeat draws training and test records of the plan's size from a public or synthetic source,
# builds a fresh model and runs :func:`forethought.train` with the same plan: same mechanism, same
# number of records, same noise. The result is a prediction of accuracy before any private record is
# read. Its quality depends on the resemblance of source and private data, which no statistic of the
# source shows; the errors of rehearsals on pairs of data sets in a declared relation estimate it.


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
_UNLIKE: dict[Relation, str] = {
    "synthetic": "Synthetic data tell whether the plan trains at all, and how far noise moves it",
    "same shape": (
        "On other pairs that share no more than their shape rehearsals were off by 10 points at "
        "the median, and by up to 51: rehearse on other records of the same population or task"
    ),
}
_DERIVED = ("predicted", "interval", "run_interval", "baseline")
SHARED_POOL = "repeats draw from one pool of records, so they differ less than fresh draws would"


_CALLED = {"linear": "linear models", "perceptron": "a small perceptron"}


@dataclass(frozen=True)
class Rehearsal(Stored):
    """The results of a plan on a public proxy, and the accuracy that it predicts.

    Args:
        accuracies: accuracy of each repeat on its test records, in [0, 1]; R² of a regression, at
            most 1.
        baselines: for each repeat the accuracy of always predicting the test part's most frequent
            class; 0 for a regression, which is R² of the mean.
        level: intended probability with which an interval contains the next run's figure.
        source: name of the public or synthetic data.
        train_examples, test_examples: numbers of records in each repeat.
        distinct: share of different records in a training part; below 1 if the source was too small
            and records were drawn more than once.
        one_pool: True if all repeats drew from the same pool of records.
        plan: the plan of the runs.
        relation: the declared relation of the source to the private data; None if not declared.
        linear: True if the model is one linear layer.
        network: the kind of network: ``"perceptron"``, with weights in linear layers only, or
            ``"convolutional"``, with weights in convolutions too; None: linear, or another kind.
        measure: ``"accuracy"``, or ``"R²"`` of a regression.

    Raises:
        ValueError: an unknown measure or kind of network.
    """

    LATER: ClassVar[tuple[str, ...]] = ("measure",)
    SCHEMA: ClassVar[str] = "forethought/rehearsal/4"
    CALLED: ClassVar[str] = "rehearsal"
    PARTS: ClassVar[Readers] = {"plan": Plan.from_dict, "accuracies": tuple, "baselines": tuple}

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
        """Mean accuracy of always predicting the most frequent class; 0 for R²."""
        return statistics.fmean(self.baselines)

    @property
    def interval(self) -> tuple[float, float]:
        """An interval that contains the private run's accuracy with probability at least ``level``.

        This holds if the pair of private and public data is exchangeable with the calibration
        pairs (see :func:`calibrated`). It is :attr:`run_interval`, widened by the errors of
        rehearsals on those pairs; (0, 1) if there are no such pairs, as for R².
        """
        return self._widened() or (0.0, 1.0)

    def _widened(self) -> tuple[float, float] | None:
        if self.measure == "R²":  # there are no calibration pairs for R²
            return None
        # The scores of the calibration pairs are of intervals of this level and number of repeats.
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

        mean ± t · s · √(1 + 1/n) with n repeats of standard deviation s, exact if accuracies are
        normal and independent. The s of few repeats may be small by chance, so it is at least
        √(p(1 − p)/m), the standard deviation of accuracy p on a test part of m records.
        :data:`COVERS` lists the sources of variation that it covers.
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
        """The baseline's constant prediction, in words."""
        return _SAYING[self.measure]

    @property
    def form(self) -> str:
        """The format of a printed figure: percent for accuracy, three decimal places for R²."""
        return _FORMS[self.measure]

    def shown(self, figure: float) -> str:
        """A figure as text in :attr:`form`."""
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
                f"The source is smaller than the plan's data: only {self.distinct:.0%} of a "
                "training part's records differ, which is pessimistic where more would help."
            )
        return "\n".join(sentences)

    def _promise(self) -> str:
        """Sentences on the reliability of :attr:`interval`."""
        assert self.relation is not None and self._model is not None
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
        if self.relation is None:
            known = ", ".join(f'"{name}"' for name in HELD["linear"])
            return f"{KNOWS_NOTHING} Say how the rehearsal's data stand to them: {known}."
        if self.relation in _UNLIKE:
            return f"{KNOWS_NOTHING} {_UNLIKE[self.relation]}."
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
        return super()._restore({name: values[name] for name in super()._keys()})


def rehearse(
    plan: Plan,
    model_builder: nn.Module | Callable[[], nn.Module],
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
    """Run a plan on public or synthetic data to predict the accuracy, or R², that it will reach.

    Args:
        plan: the plan for the private data.
        model_builder: a function that returns a freshly initialised model of the private task. It
            draws from torch's global generator, which is seeded for each repeat and then restored.
            A module is copied, and every repeat begins with its weights.
        data: a public proxy of the private data's shape: a pool of records, train and test part
            together, from which every repeat draws ``plan.examples`` training records and disjoint
            test records; or a function from a seed to a data set with exactly ``plan.examples``
            training records, such as :func:`synthetic` returns.
        repeats: number of runs, at least 2. Each costs as much as the real run.
        test_examples: size of the test part drawn from a pool. Default: the size of the pool's test
            part, or a fifth of the pool without one.
        level: level of the intervals, between 0 and 1.
        relation: relation of ``data`` to the private data: ``"same source"``, ``"same task"``,
            ``"same shape"`` or ``"synthetic"``, see :data:`RESEMBLANCE`. Without it, for the last
            two, and for other models than linear ones and perceptrons, nothing is predicted for the
            private data. Default: ``"synthetic"`` if :func:`synthetic` made ``data``.
        loss, micro_batch, device: as for :func:`forethought.train`.
        seed: makes the whole rehearsal reproducible; its random numbers need not be secret.
        progress: called as progress(repeats done, repeats).

    Raises:
        ValueError: the pool is too small, a generated set has another size, records have several
            labels, test targets do not vary, the model does not fit the data, or its run measures
            no accuracy.
        TypeError: an argument is of the wrong kind.
    """
    plan = instance("plan", plan, Plan)
    function("progress", progress)
    repeats, seed = whole("repeats", repeats, least=2), whole("seed", seed, least=0)
    relation = getattr(data, "relation", None) if relation is None else relation
    if relation is not None:
        one_of("relation", relation, RELATIONS)
    level = real("level", level, above=0, below=1)
    drawn = draws(data, plan.examples, test_examples, seed)
    accuracies, baselines = [], []
    measure: Measure = "accuracy"
    for repeat in range(repeats):
        train_part, test_part, distinct, name = drawn(repeat)
        model = initial(model_builder, mixed(seed, repeat))
        _check_fit(train_part, test_part)
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
        not callable(data),
        plan,
        relation,
        is_linear(model),
        network_of(model),
        measure,
    )


def _r_squared(model: nn.Module, test: Split) -> float:
    from sklearn.metrics import r2_score  # slow to load, and classes need none of it

    found = outputs_of(model, test.inputs).reshape(test.targets.shape)
    if not np.isfinite(found).all():
        raise ValueError("the rehearsed model's outputs are not finite: take a smaller step size")
    return float(r2_score(test.targets, found))


def _check_fit(train_part: Split, test_part: Split) -> None:
    if train_part.targets[:1].size > 1:
        raise ValueError("a rehearsal needs one label a record: rehearse each label by itself")
    values = not np.issubdtype(test_part.targets.dtype, np.integer)
    if values and test_part.targets.min() == test_part.targets.max():
        raise ValueError("all test targets are one number, of which there is no R²: take others")

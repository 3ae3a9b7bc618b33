"""The typed request for a plan: the known facts and the goals of a private run."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import lambertw

from forethought.accounting import exact
from forethought.accounting.exact import calibrate, noise_multiplier
from forethought.accounting.interval import warn_if_hollow
from forethought.options import Keywords, NoiseScheduleName, SizeScheduleName, table
from forethought.planning import defaults
from forethought.values import use
from forethought.values.caveats import Caveat, caveats, chosen_but
from forethought.values.checks import real, settle, suggestion, whole, without_none
from forethought.values.mechanism import (
    SAMPLINGS,
    Adjacency,
    Augmentation,
    Budget,
    Correlated,
    CyclicPoisson,
    Local,
    Mechanism,
    Poisson,
    Rounds,
    Sampling,
)
from forethought.values.plan import LEAST_NOISE, Plan, Preparation
from forethought.values.strategies import Strategy

if TYPE_CHECKING:
    from forethought.keywords import PlanKeywords

# The noise that the weights of a network tolerate, measured on synthetic inputs before planning.
#
# A network is no linear model: noise of standard deviation s in all weights moves its scores by
# about s^D where D layers amplify one another, and by less where pooling averages. As for a linear
# model, the relevant effect is that on the scores of one input relative to another's. So the
# network itself is measured. Copies with noise in their weights are run on synthetic inputs of the
# data's shape, and s is chosen such that their scores move by :data:`SPREAD`, without the movement
# that all inputs share. Bounded units (tanh, sigmoid) tolerate less: noise that reaches the ends of
# their range erases the signal that they carry. Such networks are recognised by scores that grow
# only in proportion to large noise; they get :data:`BOUNDED_SPREAD`. The best spread differs from
# data set to data set; both constants minimise the worst loss against the best spread on the
# development sets (experiments/defaults/network_paths.py).
#
# Tables come in any units, and two layers tolerate half the noise where features are four times as
# large: where a table's owner declared a norm, the synthetic inputs lie :data:`RADIUS` times it
# from their mean. Only that norm and the shape of a record are used, no data. Like all of planning,
# this runs without importing torch.


SPREAD, BOUNDED_SPREAD = 1.8, 1.2
# The distance of a table's records from their mean over the norm that their owner declared. It is
# 0.2 to 1 on the development sets, where paths for one half come nearest to the best.
RADIUS = 0.5
# Larger models are not copied and tried.
MOST_PARAMETERS = 2_000_000
_INPUTS, _DRAWS = 32, 4
# In the networks that were tried the norm is 2.5 to 5.5 times the fourth root of the number of
# weights, as theory has it for two layers. Normalisation layers hide noise from the scores, so a
# result far above is not trusted.
_USUAL = 6.0
# The range of log standard deviations of the noise that is searched, and the precision.
_LEAST, _MOST, _STEP = math.log(1e-4), math.log(10.0), 0.02


def noise_borne(model: Any, shape: tuple[int, ...], radius: float | None = None) -> float | None:
    """The norm of the noise that a network's weights tolerate, to two digits.

    Args:
        model: a torch module; it is copied, not changed.
        shape: of one record: (features,) or (channels, height, width) of floating-point numbers.
        radius: usual distance of a table's records from their mean, see :func:`table_radius`; not
            used for images, which have pixels in [0, 1]. None: unknown, features are of order one.

    Returns:
        None where the network cannot be tried, or the result is not trusted.
    """
    from forethought.data import synthetic  # imports polars, which other planning does not need

    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if len(shape) not in (1, 3) or not 0 < trained <= MOST_PARAMETERS:
        return None
    try:
        records: NDArray[np.float32] = synthetic.like(shape, 10, _INPUTS, seed=0).train.inputs
        found = _solved(_spread_of(copy.deepcopy(model).eval(), records))
        if found is None or found > _USUAL * trained**-0.25:
            return None
        if radius is not None and len(shape) == 1:
            usual = math.sqrt(float(records.var(0, dtype=np.float64, ddof=1).sum()))
            scaled = records * np.float32(radius / usual)
            found = _solved(_spread_of(copy.deepcopy(model).eval(), scaled))
    except Exception:  # a user's model may raise anything on inputs that it was not made for
        return None
    return None if found is None else float(f"{found * math.sqrt(trained):.2g}")


def table_radius(feature_norm: float | None) -> float | None:
    """The usual distance of records from their mean: :data:`RADIUS` times the declared norm.

    Args:
        feature_norm: declared usual norm of a record's features; None: unknown.
    """
    return None if feature_norm is None else RADIUS * feature_norm


def _solved(spread: Callable[[float], float]) -> float | None:
    """The standard deviation of the noise at which the scores move by the tolerated spread."""
    # After bounded units twice the noise doubles the scores; layers that amplify give a power.
    large, larger = spread(_MOST - math.log(2)), spread(_MOST)
    if not large > 0:
        return None  # one score for every input
    bounded = larger < 2**1.5 * large
    wanted = math.log(BOUNDED_SPREAD if bounded else SPREAD)

    def excess(size: float) -> float:
        moved = spread(size)
        return math.log(max(moved, 1e-30)) - wanted if moved < 1e30 else 70.0

    if excess(_LEAST) > 0 or excess(_MOST) < 0:
        return None
    return math.exp(float(brentq(excess, _LEAST, _MOST, xtol=_STEP)))


def _spread_of(model: Any, records: NDArray[np.float32]) -> Callable[[float], float]:
    """A function: log standard deviation of the noise → root mean square movement of the scores.

    The movement that all inputs share is subtracted.
    """
    weights = [p for p in model.parameters() if p.requires_grad]
    for p in model.parameters():
        p.requires_grad_(requires_grad=False)
    start = [p.clone() for p in weights]
    inputs = weights[0].new_tensor(records)
    before = model(inputs).flatten(1)

    def spread(size: float) -> float:
        total = 0.0
        for draw in range(_DRAWS):
            random = np.random.default_rng(draw)
            for p, first in zip(weights, start, strict=True):
                noise = random.standard_normal(tuple(p.shape), dtype=np.float32)
                p.copy_(first + math.exp(size) * p.new_tensor(noise))
            moved = model(inputs).flatten(1) - before
            total += float(moved.double().var(0).mean())
        return math.sqrt(total / _DRAWS) if math.isfinite(total) else math.inf

    return spread


# The facts that ``data=``, ``model=`` and ``shape=`` of :func:`forethought.plan` stand for.


def _sizes(shape: object) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(
            f"shape must be the sizes of one record, such as (20,) or (1, 28, 28), not {shape!r}"
        )
    return tuple(whole("each size in shape", size) for size in shape)


def opened(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords with ``data``, ``model`` and ``shape`` replaced by the facts they stand for.

    Raises:
        PlanError: a fact is given by a keyword of its own as well. TypeError: ``data`` is no
            Dataset, or ``model`` no torch module.
    """
    found = dict(keywords)
    data, model = found.pop("data", None), found.pop("model", None)
    shape = found.pop("shape", getattr(data, "shape", None))
    if data is not None:
        if "examples" in found:
            raise PlanError("data= says how many examples there are: drop examples=")
        if not hasattr(data, "train") or not hasattr(data, "caveats"):
            raise TypeError(
                f"data must be a forethought.data.Dataset, not {type(data).__name__}: for arrays "
                "give examples=len(targets)"
            )
        found["examples"] = len(data.train)
        if getattr(data, "persons", None) is not None:
            if {"persons", "records_per_person"} & set(found):
                raise PlanError(
                    "data= says whose each row is: drop persons= and records_per_person="
                )
            found["persons"] = len(set(data.persons))
            found["records_per_person"] = data.records_per_person
        found["not_covered"] = (*data.caveats, *caveats(found.get("not_covered", ())))
    if model is not None:
        if "parameters" in found:
            raise PlanError("model= says how many parameters are trained: drop parameters=")
        model = use.module_of(model)
        found["parameters"] = use.trained_parameters(model)
        if found.get("feature_norm") is None and use.is_linear(model):
            found["feature_norm"] = getattr(data, "feature_norm", None)
            found["feature_norm_known"] = True
            if getattr(data, "fixed_features", None) is not None:
                found.setdefault("image_features", True)
        found.setdefault("squared_error", getattr(data, "classes", ()) is None)
        if shape is not None and not use.is_linear(model):
            radius = table_radius(getattr(data, "feature_norm", None))
            found.setdefault("noise_borne", noise_borne(model, _sizes(shape), radius))
        found.setdefault("untried", not use.is_linear(model) and found.get("noise_borne") is None)
        layer = use.linear_layer(model)
        if layer is not None:
            found.setdefault("features", layer.in_features)
    return found


# The known facts and the goals of a private run: one typed value for planning, fronts and searches.


MOST_RELEASES = 1_000_000_000


# Appendix D of van Dijk et al. 2022 keeps each group with probability 1/2. A record then takes part
# with probability kept · rate, and the round on a neighbouring data set is otherwise the same: its
# privacy curve is the subsampled one at distance 2 (Balle, Barthe and Gaboardi 2018, Theorem 2).
NO_FILTER = (
    "a probabilistic filter of groups is not offered: keeping each group with probability p of a "
    "batch at rate q amplifies as batches at rate p·q do, has a larger ε, since what is left out "
    "is no longer the same in both directions, and throws away the updates it computed. Use "
    "sampling='poisson' with batch= p times as large"
)


def local_of(given: Local | str | Mapping[str, Any] | None) -> Local | None:
    """The algorithm inside a group, from a Local, a name or a mapping of its fields.

    A name is an optimizer's or a ``"module:function"``. For an optimizer's name the planner
    chooses one pass in steps of ``defaults.INNER_STEP`` records at its usual step size.

    Raises:
        PlanError: another value. ValueError, TypeError: fields outside their range.
    """
    if given is None or isinstance(given, Local):
        return given
    if isinstance(given, str):
        if ":" in given:
            return Local(function=given)
        return Local(given, step=defaults.INNER_STEP)
    if isinstance(given, Mapping):
        known = [field.name for field in fields(Local)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise PlanError(
                f"local has no {', '.join(map(repr, unknown))}; it takes {', '.join(known)}"
            )
        return Local(**given)
    raise PlanError(
        f"local must be a forethought.Local or the name of an inner optimizer, not {given!r}"
    )


@dataclass(frozen=True, kw_only=True)
class PlanRequest(Keywords):
    """The known facts and the goals of a private run. The planner chooses the fields that are None.

    The fields are those of :class:`~forethought.options.Keywords`; :func:`forethought.plan`
    explains each.

    Raises:
        PlanError: fields that contradict each other; the message names those to drop.
        TypeError, ValueError: a field outside its range.
    """

    def __post_init__(self) -> None:
        settle(self, local=local_of(self.local))
        settle(self, augment=Augmentation.of(self.augment, self.augmentations))
        settle(self, augmentations=None)  # ``augment`` includes it now
        settle(self, not_covered=caveats(self.not_covered))
        settle(self, gradient_filter=use.GradientFilter.of(self.gradient_filter))
        for name, option in table().items():
            settle(self, **{name: option.checked(getattr(self, name))})
        if self.budget is not None:
            real("delta", self.budget.delta, **table()["delta"].range)
        self._require_possible_persons()
        self._require_possible_batches()
        self._require_possible_course()
        if self.local is not None and self.clipping != "group":
            raise PlanError(
                "local= runs an algorithm inside groups: add clipping='group', or drop local="
            )
        if self.noise == "correlated" and self.sampling != "cyclic-poisson":
            raise PlanError(
                "noise='correlated' goes with sampling='cyclic-poisson' and parts=, so that it is "
                "known how far apart a record's turns are; parts= as many as rounds: each record "
                "once"
            )
        if self.budget is not None and self.delta not in (None, self.budget.delta):
            raise PlanError("delta is given twice: drop delta=, the budget has its own")
        if self.epochs is not None and self.rounds is not None:
            raise PlanError("epochs and rounds both fix the length: drop one of them")
        if 0 < (self.noise_multiplier or 0) < LEAST_NOISE:
            raise PlanError(
                f"noise_multiplier {self.noise_multiplier:g} is next to nothing: it protects "
                f"nobody. Give at least {LEAST_NOISE:g}, or 0 to say that there is no noise"
            )

    def _require_possible_batches(self) -> None:
        batch = self.batch
        if (self.sampling == "cyclic-poisson") != (self.parts is not None):
            raise PlanError(
                "parts= goes with sampling='cyclic-poisson', which needs it: into how many parts "
                "the records are dealt, of which one has its turn in each round"
            )
        if self.sampling == "full-batch" and batch not in (None, self.examples):
            raise PlanError(f"full-batch sampling takes all {self.examples} examples: drop batch=")
        most, of = (self.examples, "data set") if batch is None else (batch, "batch")
        if self.clipping == "group" and (self.groups or 1) > most:
            raise PlanError(
                f"{self.groups} groups are more than the {most} records of a {of}: choose fewer, "
                "or a larger batch="
            )
        if batch is not None and batch > self.examples:
            raise PlanError(
                f"batch {batch} is larger than the data ({self.examples} examples): choose "
                f"at most {self.examples}"
            )

    def _require_possible_course(self) -> None:
        if self.noise_fall is not None and self.noise_schedule == "constant":
            raise PlanError('noise_fall= goes with noise_schedule="geometric" or another')
        if self.size_growth is not None and self.size_schedule not in ("linear", "geometric"):
            raise PlanError('size_growth= goes with size_schedule="linear" or "geometric"')
        if self.size_power is not None and self.size_schedule != "power":
            raise PlanError('size_power= goes with size_schedule="power"')
        schedule = self.schedule or use.Schedule()
        if schedule.kind in ("constant", "drops") and schedule.unit != "rounds":
            raise PlanError(
                f"the schedule {schedule.kind!r} counts no time: drop its unit (schedule_unit)"
            )
        one_size = SAMPLINGS[self.sampling].one_size
        if self.size_schedule != "constant" and one_size is not None:
            raise PlanError(one_size)
        if self.course.varies and self.noise == "correlated":
            raise PlanError(
                "correlated noise is of one size, in samples of one size: drop noise_schedule= and "
                "size_schedule="
            )

    def _require_possible_persons(self) -> None:
        count, each = self.persons, self.records_per_person
        if self.person_as == "contribution" and self.clipping != "example":
            raise PlanError(
                "person_as='contribution' clips one contribution a person: drop clipping='group'"
            )
        if count is not None and not count <= self.examples <= count * each:
            raise PlanError(
                f"{count} persons with 1 to {each} records each (records_per_person) cannot have "
                f"{self.examples} records in all (examples)"
            )

    @classmethod
    def of(
        cls, request: PlanRequest | None = None, /, **keywords: Unpack[PlanKeywords]
    ) -> PlanRequest:
        """A request from the keywords of :func:`forethought.plan`, or with its fields replaced.

        Raises:
            TypeError: no request, an unknown keyword (the message names the most similar one), or
                no ``examples``.
            PlanError, ValueError: as for the class.
        """
        if isinstance(request, cls):
            return request.with_(**keywords)
        if request is not None:
            told = "give values by keyword, such as examples=… or data=…"
            raise TypeError(f"{type(request).__name__} is no PlanRequest: {told}")
        given = opened(keywords)
        if "filter" in given:
            raise PlanError(NO_FILTER)
        for name in given:
            if name not in table():
                hint = suggestion(name, table(), "{}=")
                if name == "epsilon":
                    pair = f"{given[name]!r}, {given.get('delta') or 'delta'!s}"
                    hint = f"give budget=forethought.Budget({pair})"
                raise TypeError(f"forethought.plan has no keyword {name!r}; {hint}")
        if "examples" not in given:
            raise TypeError(
                "examples= is missing: how many records will be trained on (or data=, a Dataset)"
            )
        return cls(**given)

    def with_(self, **changes: Any) -> PlanRequest:
        """A copy with the named fields replaced; ``data`` and ``model`` as in :meth:`of`."""
        return replace(self, **opened(changes))

    @property
    def weights(self) -> int:
        """The number of trained parameters, or the planner's guess where it is not given."""
        return defaults.PARAMETERS if self.parameters is None else self.parameters

    @property
    def size(self) -> int:
        """The number of weights for the rules: a quarter where they tolerate twice the noise."""
        borne = self.noise_borne or defaults.NOISE
        if self.squared_error and self.feature_norm is None:
            borne *= defaults.OF_VALUES
        return max(1, round(self.weights * (defaults.NOISE / borne) ** 2))

    @property
    def assumed(self) -> use.Assumed | None:
        """The model that step size or batch are chosen for; None: the planner chooses neither."""
        to_length = self.budget is not None and self.noise_multiplier is None
        free_batch = self.batch is None and self.parts is None and self.sampling != "full-batch"
        kind = use.kind_of(self.optimizer)
        planned = kind.descends or kind.divides is not None
        chosen = ["step size"] if self.learning_rate is None and planned else []
        if to_length and free_batch and (self.epochs is None or self.divided is not None):
            chosen.append("batch")
        if not chosen:
            return None
        return use.Assumed(self.weights, self.feature_norm, self.parameters is None, tuple(chosen))

    @property
    def divided(self) -> defaults.Trained | None:
        """The network whose long steps are divided into more rounds.

        None: nothing says that the model is a network, or the planner does not choose its steps.
        """
        chosen = self.learning_rate is None and use.kind_of(self.optimizer).descends
        network = self.untried or self.noise_borne is not None
        return self.trained if chosen and network and self.clipping == "example" else None

    @property
    def classes(self) -> int:
        """The number of outputs of a linear model, at least 2; 2 where sizes are not known."""
        if self.features is None or self.parameters is None:
            return 2
        return max(2, round(self.parameters / (self.features + 1)))

    @property
    def score_rule(self) -> defaults.ScoreRule:
        """The rule for path length and clipping of a linear model, from the noise in its scores."""
        released = self.preparation is not None and "norms" in self.preparation.statistics
        known = self.examples, self.budget, self.classes, self.features, self.image_features
        return defaults.score_rule(*known, released=released)

    @property
    def usual_norm(self) -> float | None:
        """The usual norm of the features that a linear model trains on; None: unknown."""
        centred = self.preparation is not None and "means" in self.preparation.statistics
        return self.preparation.becomes if self.preparation and centred else self.feature_norm

    @property
    def trained(self) -> defaults.Trained:
        """The facts about the model that the planner's rules use."""
        share = defaults.OF_VALUES if self.squared_error else 1.0
        return defaults.Trained(self.size, self.usual_norm, share * self.score_rule.noise)

    @property
    def by_scores(self) -> bool:
        """True if clipping follows from the noise in a linear model's scores.

        The step size that the planner chooses then follows from that noise, too.
        """
        asked = self.learning_rate is None or self.centre is True
        chosen = self.feature_norm is not None and asked
        rows = self.persons is None and self.records_per_person == 1
        return (
            chosen and rows and use.kind_of(self.optimizer).descends and self.clipping == "example"
        )

    @property
    def protected(self) -> int:
        """The number of examples that the budget protects together."""
        return 1 if self.person_as == "contribution" else self.records_per_person

    @property
    def timed(self) -> bool:
        """True if the length of the run (rounds or epochs) is given."""
        return self.rounds is not None or self.epochs is not None

    def settled_delta(self) -> float:
        """The δ of the budget, the given one, or the default.

        Warns:
            UserWarning: δ is above 1/examples, which allows publishing a random record.
        """
        default = defaults.default_delta(self.examples)
        delta = default if self.delta is None else real("delta", self.delta, above=0, below=1)
        if self.budget is not None:
            delta = self.budget.delta
        if delta > 1 / self.examples:
            warn_if_hollow(delta, self.examples)
        return delta

    def chosen_by(self) -> Caveat | str:
        """The caveat on the choice of the plan's numbers, for the Statement.

        The planner looks at no data. Numbers from the user are "as declared": only the user knows
        whether the private data were looked at.
        """
        if self.hyperparameters is not None:
            return self.hyperparameters
        return chosen_but(
            name.replace("_", " ")
            for name, option in table().items()
            if option.row.choice
            and getattr(self, name) != option.default
            and not (name == "feature_norm" and self.feature_norm_known)
        )

    def sampling_of(self, batch: int) -> Sampling:
        """The sampling of batches of expected size ``batch``.

        Raises:
            PlanError: such batches do not exist.
        """
        try:
            return SAMPLINGS[self.sampling].sized(batch, self.examples, self.parts)
        except ValueError as error:
            raise PlanError(str(error)) from None

    def length_of(self, batch: int) -> int:
        """The number of rounds in the given length with batches of this size.

        Raises:
            PlanError: no length is given, or it is shorter than half a batch.
        """
        if self.rounds is not None:
            return self.rounds
        if self.epochs is None:
            raise PlanError("the length is missing: add epochs= or rounds=")
        wanted = self.epochs * self.examples / batch
        if wanted < 0.5:
            raise PlanError(
                f"{self.epochs:g} epochs of {self.examples} examples are less than one batch of "
                f"{batch}: at least {batch / self.examples:.3g} epochs are needed, or a batch of "
                f"at most {max(1, math.floor(self.epochs * self.examples))}"
            )
        if SAMPLINGS[self.sampling].redealt:  # its epochs have a whole number of rounds
            wanted = self.epochs * self.sampling_of(batch).rounds_per_epoch
        return whole("rounds", max(1, round(wanted)), most=MOST_RELEASES)

    @property
    def neighbouring(self) -> Adjacency:
        """The given adjacency, or the usual one of the sampling."""
        return self.adjacency or SAMPLINGS[self.sampling].usual_adjacency

    @property
    def course(self) -> Course:
        """The change of sample sizes and noise over the run."""
        fall, growth, power = self.noise_fall, self.size_growth, self.size_power
        given: dict[str, Any] = without_none({"fall": fall, "growth": growth, "power": power})
        return Course(noise=self.noise_schedule, sizes=self.size_schedule, **given)

    @property
    def momentum(self) -> float:
        """The momentum of SGD, given or by default; 0 for other optimizers."""
        kind = use.kind_of(self.optimizer)
        if not kind.descends:
            return 0.0
        return use.momentum_of(dict(kind.options) if self.options is None else self.options)

    def strategy(self, batch: int, rounds: int) -> Strategy | None:
        """The best strategy of correlated noise for ``rounds`` rounds; None: independent noise."""
        sampling = self.sampling_of(batch)
        if self.noise != "correlated" or not isinstance(sampling, CyclicPoisson):
            return None
        sampled = sampling.rate < 1
        return defaults.best(rounds, sampling.parts, self.momentum, sampled=sampled)[0]

    def mechanism(self, noise_multiplier: float, batch: int, rounds: int) -> Mechanism:
        """The mechanism of the preparation's releases and then rounds of this request's kind.

        Args:
            noise_multiplier: σ; where noise changes over the run, σ in its middle.
            batch: expected batch size; where sizes change, their mean. rounds: their number.

        Raises:
            PlanError: a changing sample size exceeds the data.
        """
        strategy, given = self.strategy(batch, rounds), (noise_multiplier, rounds)
        equal = Rounds(*given, self.sampling_of(batch), self.clipping)
        if strategy is not None:
            equal = Correlated(*given, equal.sampling, self.clipping, strategy)
        parts, groups = self.course.parts(equal, self.examples), self.groups
        if self.clipping == "group" and groups is None:
            # Where sample sizes change, the smallest one must be enough for all groups.
            least = min(part.sampling.expected_batch(self.examples) for part in parts)
            groups = 1 if self.local is None else max(1, round(least / defaults.GROUP))
        parts = tuple(replace(part, groups=groups) for part in parts)
        training = Mechanism(*parts, adjacency=self.neighbouring)
        return training if self.preparation is None else self.preparation.before(training)


# The change of sample sizes and noise over a run, and the least noise that keeps a budget.


class PlanError(ValueError):
    """A request that no plan fulfils: over- or under-determined, or out of reach."""


# Noise that falls (or grows) over a run of subsampled rounds.
#
# The noise of late rounds stays in the weights; later rounds remove a part of the noise of early
# ones. Let w_t be the share of round t's noise variance that is left at the end, and w_T/w_1 =
# fall⁴:
#
# - "forgetting" minimises Σ w_t σ_t² at a given Σ c(σ_t). For Poisson rounds the central limit
#   theorem (Bu et al. 2020) has c ∝ e^(1/σ²) − 1; the optimum is w_t σ_t⁴ = ν e^(1/σ_t²), that is
#   1/σ_t² = 2W(√(w_t/ν)/2) with Lambert's W. For full batches c ∝ 1/σ², and σ_t ∝ w_t^(−1/4).
# - "geometric" takes σ_t ∝ w_t^(−1/4) for every sampling; "linear" a straight line, scaled to the
#   middle's noise, with the same ratio of first to last noise.
#
# "Adaptive Hyperparameter Selection for Differentially Private Gradient Descent" leaves subsampled
# gradients open: by its ratio, with costs that add in μ², the best noise is infinite. So the number
# of rounds is fixed here and the shape is solved for. Both are chosen before the run, without data.
# The exact accountant calibrates the scale, so that only the shape depends on the approximation.


FALL = 2.0


def noise_at(
    name: NoiseScheduleName, fall: float, place: float, middle: float, optimal: bool = True
) -> float:
    """The noise multiplier at one time of the run.

    Args:
        name: the shape. fall: the fourth root of w_T/w_1, above 0; below 1 the noise grows.
        place: share of the run that is over, in (0, 1).
        middle: the noise multiplier in the middle of the run; the result is monotone in it.
        optimal: whether "forgetting" uses the costs of a sampled round, not of a full batch.
    """
    if name == "constant" or middle == 0:
        return middle
    if name == "linear":
        return middle * (fall + (1 - fall) * place) / (fall + (1 - fall) * 0.5)
    # √w_t, 1 in the middle of the run.
    root = math.exp(2 * (place - 0.5) * math.log(fall))
    if name == "geometric" or not optimal:
        return middle / math.sqrt(root)
    # W(y) for y = √(w_t/ν)/2 = √w_t h e^h, with ν from σ in the middle. It is computed from log y,
    # since h is large where noise is small and y would overflow.
    half = 1 / (2 * middle**2)
    log = math.log(root) + math.log(half) + half
    if log < 500:  # Wright's ω of log y has other last bits, and agreements compare plans exactly
        return 1 / math.sqrt(2 * float(lambertw(math.exp(log)).real))
    w = log
    for _ in range(6):  # Newton steps for w + ln w = log
        w -= (w + math.log(w) - log) / (1 + 1 / w)
    return 1 / math.sqrt(2 * w)


# The change of sample size and noise over a run: fixed in the plan before anything is released.
#
# Growing samples, s_i ≈ q N i^p, are those of van Dijk et al., "Proactive DP", Section 3.2, and of
# the asynchronous framework of the same authors (Appendix A), where early rounds are short so that
# a model is exchanged often while it changes fast. A course is a step function of at most
# :data:`STEPS` stages, so that accounting stays fast; each stage has the mean of its sizes.


STEPS = 12
GROWTH, POWER = 4.0, 0.5


@dataclass(frozen=True)
class Course:
    """The change of sample sizes and noise over a run; by default rounds are equal.

    Args:
        noise, fall: shape of the noise and its first value over its last, below 1 where it grows.
        sizes: shape of the sample sizes. growth: for "linear" and "geometric": last size over the
            first, below 1 where samples shrink. power: for "power": p of s_i ∝ i^p, above −1.
        multiple: size and noise change only at multiples of this number of rounds.
    """

    noise: NoiseScheduleName = "constant"
    fall: float = FALL
    sizes: SizeScheduleName = "constant"
    growth: float = GROWTH
    power: float = POWER
    multiple: int = 1

    @property
    def varies(self) -> bool:
        """True if any round differs from another."""
        return self.noise != "constant" or self.sizes != "constant"

    def relative_sizes(self, edges: list[int]) -> list[float]:
        """The size of every stage over the mean size of the run.

        Args:
            edges: the number of rounds before each stage, then the number of all rounds.
        """
        counts = [high - low for low, high in pairwise(edges)]
        middles = [(low + high) / 2 for low, high in pairwise(edges)]
        first, last = middles[0], middles[-1]
        places = [0.0 if last == first else (at - first) / (last - first) for at in middles]
        if self.sizes == "linear":
            sizes = [1 + (self.growth - 1) * place for place in places]
        elif self.sizes == "geometric":
            sizes = [math.exp(place * math.log(self.growth)) for place in places]
        elif self.sizes == "power":
            # The mean of i^p over a stage, by the integral.
            p = self.power + 1
            ends = [(edge / edges[-1]) ** p for edge in edges]
            sizes = [(b - a) / n for (a, b), n in zip(pairwise(ends), counts, strict=True)]
        else:
            return [1.0] * len(counts)
        mean = math.fsum(c * s for c, s in zip(counts, sizes, strict=True)) / edges[-1]
        return [size / mean for size in sizes]

    def edges(self, rounds: Rounds) -> list[int]:
        """The first rounds of the stages, then the number of all rounds.

        Stages begin with an epoch, and at multiples of :attr:`multiple`.

        Raises:
            PlanError: fewer than two such intervals in the run.
        """
        together = math.lcm(self.multiple, rounds.sampling.rounds_per_epoch)
        updates = rounds.count // together
        if updates < 2 <= rounds.count and together > 1:
            raise PlanError(
                f"sizes and noise can change every {together:,} rounds only, and the run has "
                f"{rounds.count:,}: plan at least {2 * together:,}, or drop the schedule"
            )
        steps = max(1, min(STEPS, updates))
        # Rounds that are left over belong to the last stage.
        return [*(round(updates * k / steps) * together for k in range(steps)), rounds.count]

    def parts(self, equal: Rounds, examples: int) -> tuple[Rounds, ...]:
        """The rounds of this course that replace as many equal ones.

        Args:
            equal: rounds with the mean sample size and the noise of the middle of the run.
            examples: number of records.

        Raises:
            PlanError: a sample size above the data, or a sampling whose sizes cannot change.
        """
        if not self.varies:
            return (equal,)
        edges = self.edges(equal)
        optimal = equal.sampling.hides(equal.sampling.rounds_per_epoch)
        found = []
        for (low, high), size in zip(pairwise(edges), self.relative_sizes(edges), strict=True):
            place = (low + high) / (2 * equal.count)
            sigma = noise_at(self.noise, self.fall, place, equal.noise_multiplier, optimal)
            sampling = equal.sampling if size == 1 else scaled(equal.sampling, size, examples)
            part = replace(equal, noise_multiplier=sigma, count=high - low, sampling=sampling)
            found.append(part)
        return tuple(found)

    def room(self, rounds: Rounds, examples: int) -> float:
        """The largest mean sample size for which every sample fits into the data.

        Where sizes change it is 3 % smaller, since a run of another length has other stages.
        """
        if self.sizes == "constant":
            return float(examples)
        pool = rounds.sampling.pool(examples)
        return 0.97 * pool / max(self.relative_sizes(self.edges(rounds)))


def scaled(sampling: Sampling, factor: float, examples: int) -> Sampling:
    """The same kind of sampling with sample sizes multiplied by ``factor``.

    Raises:
        PlanError: a sample size above the data, or a sampling whose sizes cannot change.
    """
    size = factor * sampling.expected_batch(examples)
    if sampling.one_size is not None:
        raise PlanError(sampling.one_size)
    pool = sampling.pool(examples)
    if size > pool + 0.5:
        raise PlanError(
            f"the largest sample would be {size / pool:.3g} times the data it is drawn from: give "
            "a growth nearer to 1, or a smaller batch"
        )
    return sampling.resized(size, examples)


def explain_course(
    course: Course, mechanism: Mechanism, examples: int, why: dict[str, str]
) -> None:
    """Add the change of sample sizes and noise to a plan's reasons, ``why``."""
    first, last = mechanism.rounds[0], mechanism.rounds[-1]
    if course.sizes != "constant":
        small, large = (part.sampling.expected_batch(examples) for part in (first, last))
        rule = {"linear": "linearly", "geometric": "geometrically"}.get(
            course.sizes, f"as i^{course.power:g}"
        )
        why["sample sizes"] = (
            f"{'grow' if large >= small else 'shrink'} {rule} from {small:,.4g} to {large:,.4g} in "
            f"{len(mechanism.rounds)} stages, as asked; in all they use as many records as equal "
            "samples of the batch would"
        )
    if course.noise != "constant":
        high, low = first.noise_multiplier, last.noise_multiplier
        moves = (
            "falls over the run, since early noise is forgotten"
            if high >= low
            else ("grows over the run, as asked")
        )
        why["noise"] += f". It {moves}: {course.noise}, from {high:.4g} to {low:.4g}"


# The least noise with which a whole mechanism, its preparation included, keeps a budget.


def keeps(mechanism: Mechanism, budget: Budget, group: int = 1) -> bool:
    """True if the certified ε of a mechanism, for ``group`` records together, is in the budget."""
    return exact.epsilon(mechanism, budget.delta, group).upper <= budget.epsilon


def noise_of(equal: Rounds, adjacency: Adjacency, budget: Budget, group: int) -> float:
    """The least noise multiplier with which these rounds alone keep the budget.

    Args:
        equal: sampling, number, clipping, groups and strategy of the rounds.
        group: number of records that the budget protects together.
    """
    strategy = equal.strategy if isinstance(equal, Correlated) else None
    given = equal.sampling, equal.count, equal.clipping, adjacency, strategy, group
    alone = noise_multiplier(budget, *given, warn=False)
    if equal.groups is None or group == 1:
        return alone

    # Several records of a person are in at most so many groups, which costs less.
    def make(sigma: float) -> Mechanism:
        return Mechanism(replace(equal, noise_multiplier=sigma), adjacency=adjacency)

    return least_noise(make, budget, alone, group)


def least_noise(
    make: Callable[[float], Mechanism],
    budget: Budget,
    near: float,
    group: int = 1,
    ahead: Preparation | None = None,
) -> float:
    """The least noise multiplier that keeps the budget.

    Args:
        make: noise multiplier → mechanism; ε falls with the noise multiplier.
        near: a guess, such as the noise of equal rounds, or without a preparation.
        group: number of records that the budget protects together.
        ahead: the preparation, which is released before; None: none, or ``make`` includes it.

    Raises:
        PlanError: no noise near the guess keeps the budget, for example since other releases, such
            as a preparation, leave nothing of it.
    """

    def whole_run(value: float) -> Mechanism:
        return make(value) if ahead is None else ahead.before(make(value))

    high = near
    while not keeps(whole_run(high), budget, group):
        high *= 2
        if high > 1e3 * near:
            raise PlanError(
                f"even a noise multiplier of {high:.3g} does not keep ε = {budget.epsilon:g} at "
                f"δ = {budget.delta:.3g}: give a larger budget, or less that is "
                "released beside these rounds (such as a preparation with more noise)"
            )
    low = high / 2
    while high <= near and keeps(whole_run(low), budget, group):
        high, low = low, low / 2
        if high < 1e-6 * near:  # the budget is so large that hardly any noise is needed
            return high
    return calibrate(whole_run, budget, (low, high), group=group, warn=False)


# Sample sizes of a federation's client that grow from update to update.
#
# The asynchronous framework of van Dijk et al., Appendix A, lets a client's sample sizes {s_i}
# grow: early rounds are short, so that a model is exchanged often while it changes fast. All rounds
# have the least noise that keeps the same budget.


def growing(plan: Plan, growth: float, multiple: int = 1) -> Plan:
    """A plan of the same length, examples and budget whose sample sizes grow linearly.

    Args:
        plan: of equal rounds, by Poisson sampling, with a budget.
        growth: the last size over the first, at least 1.
        multiple: sizes change only at multiples of this number of rounds.

    Raises:
        PlanError: another sampling, rounds that differ already, no budget, or a sample size above
            the data.
        ValueError, TypeError: ``growth`` or ``multiple`` outside its range.
    """
    growth = real("growth", growth, least=1)
    if growth == 1:
        return plan
    equal, *others = plan.privacy.mechanism.rounds
    if others:
        raise PlanError(
            "growth= makes sizes grow from one update to the next, and the plan's rounds differ "
            "already: drop growth=, or size_schedule= and noise_schedule="
        )
    if not isinstance(equal.sampling, Poisson) or plan.budget is None:
        raise PlanError("growing sample sizes need Poisson sampling and a budget to calibrate for")
    course = Course(sizes="linear", growth=growth, multiple=whole("multiple", multiple))

    def training(sigma: float) -> Mechanism:
        parts = course.parts(replace(equal, noise_multiplier=sigma), plan.examples)
        return Mechanism(*parts, adjacency=plan.mechanism.adjacency)

    group, near = plan.records_per_person, equal.noise_multiplier
    sigma = least_noise(training, plan.budget, near, group, plan.preparation)
    why: dict[str, str] = {}
    explain_course(course, training(sigma), plan.examples, why)
    reasons = (*plan.reasons, *why.items())
    return plan.remade(mechanism=training(sigma), reasons=reasons)

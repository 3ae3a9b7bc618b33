"""Measure a utility graph: train without noise at every clipping norm, perturb, evaluate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils._pytree import tree_map
from torch.utils.data import Subset

from forethought.data.dataset import PersonRows
from forethought.gradients import batches
from forethought.gradients.boundary import trained_of, turns
from forethought.models.networks import TemperedSigmoid
from forethought.planning.defaults import default_delta
from forethought.rounds.contributions import Loss, correct
from forethought.rounds.records import as_records
from forethought.training.metrics import Event
from forethought.training.records import opened
from forethought.training.run import train
from forethought.utility.graph import SOURCES, Source, UtilityGraph, increasing
from forethought.values.checks import function, one_of, optional, real, whole
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, ClipRule, Plan
from forethought.values.use import Averaging, Optimizer, Schedule

if TYPE_CHECKING:
    from forethought.utility.keywords import GraphKeywords

# Many copies of one model with different weights, evaluated side by side on the same inputs.
#
# In a loop, thousands of perturbed copies spend most of their time in small convolutions and
# poolings. Here K copies are one network with K times the channels. Images have shape (B, K·C, H,
# W) with channels last, so that convolutions run in K groups, and pooling and activations run along
# contiguous channels. Flat features have shape (K, B, D), and linear layers are batched matrix
# products. The first layer reads the inputs once for all copies. For LeNet-5 this is five times
# faster than a loop, while a vmap over the weights is slower than a loop.


class _UnsupportedError(Exception):
    """A layer has no rule here, or none for its position."""


class _Values(NamedTuple):
    """Activations of K copies.

    Args:
        kind: ``"shared"``: the same for all copies, (B, …); ``"planes"``: (B, K·C, H, W), with the
            channels of each copy together; ``"rows"``: (K, B, D).
        tensor: the activations.
    """

    kind: Literal["shared", "planes", "rows"]
    tensor: Tensor


Stack = Callable[[Tensor], Tensor]
_Rule = Callable[[Any, _Values, Stack, int], _Values]


def _elementwise(layer: nn.Module, values: _Values, stack: Stack, copies: int) -> _Values:
    return _Values(values.kind, layer(values.tensor))


def _pooling(layer: nn.Module, values: _Values, stack: Stack, copies: int) -> _Values:
    if values.tensor.ndim != 4:
        raise _UnsupportedError
    return _Values(values.kind, layer(values.tensor))


def _flatten(layer: nn.Flatten, values: _Values, stack: Stack, copies: int) -> _Values:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise _UnsupportedError
    if values.kind == "planes":
        size, channels, height, width = values.tensor.shape
        apart = values.tensor.view(size, copies, channels // copies, height, width)
        return _Values("rows", apart.transpose(0, 1).reshape(copies, size, -1))
    return values if values.kind == "rows" else _Values("shared", values.tensor.flatten(1))


def _linear(layer: nn.Linear, values: _Values, stack: Stack, copies: int) -> _Values:
    weight = stack(layer.weight)
    if values.kind == "shared" and values.tensor.ndim == 2:
        joint = values.tensor @ weight.flatten(0, 1).T
        out = joint.view(len(joint), copies, -1).transpose(0, 1)
    elif values.kind == "rows":
        out = values.tensor @ weight.transpose(1, 2)
    else:
        raise _UnsupportedError
    return _Values("rows", out if layer.bias is None else out + stack(layer.bias).unsqueeze(1))


def _convolution(layer: nn.Conv2d, values: _Values, stack: Stack, copies: int) -> _Values:
    shared = values.kind == "shared"
    if values.tensor.ndim != 4 or layer.padding_mode != "zeros" or (shared and layer.groups > 1):
        raise _UnsupportedError
    weight = stack(layer.weight).flatten(0, 1).to(memory_format=torch.channels_last)
    bias = None if layer.bias is None else stack(layer.bias).flatten()
    inputs = values.tensor.to(memory_format=torch.channels_last)
    groups = 1 if shared else copies * layer.groups
    out = F.conv2d(inputs, weight, bias, layer.stride, layer.padding, layer.dilation, groups)
    return _Values("planes", out)


_ACTIVATIONS = nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.LeakyReLU, nn.Softplus
_UNCHANGED = nn.Identity, nn.Dropout, nn.Dropout2d  # in evaluation mode
# Rules by exact type, since a subclass may override forward.
RULES: dict[type[nn.Module], _Rule] = {
    **dict.fromkeys((*_ACTIVATIONS, TemperedSigmoid, *_UNCHANGED), _elementwise),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _pooling),
    nn.Flatten: _flatten,
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
}


class PerturbedCopies:
    """A sequential model ready to run as K copies in evaluation mode; see :func:`side_by_side`.

    Attributes:
        peak: the largest number of activations of one copy for one example in one layer.
    """

    def __init__(self, model: nn.Sequential, sample: Tensor) -> None:
        self._layers = _layers(model)
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.peak = sample[:1].numel()
        copies = [{name: k * p.detach() for name, p in model.named_parameters()} for k in (1, 0.5)]
        found = self({name: torch.stack([c[name] for c in copies]) for name in copies[0]}, sample)
        for outputs, one in zip(found, copies, strict=True):
            own = functional_call(model, one, (sample,))
            if not torch.allclose(outputs, own, rtol=1e-3, atol=1e-4):
                raise _UnsupportedError

    def __call__(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Outputs of every copy.

        Args:
            weights: parameter name → (K, *shape); parameters left out are the model's own.
            inputs: (B, …).

        Returns:
            (K, B, outputs).
        """
        copies = len(next(iter(weights.values())))

        def stack(parameter: Tensor) -> Tensor:
            own = weights.get(self._names[id(parameter)])
            return parameter.detach().expand(copies, *parameter.shape) if own is None else own

        values = _Values("shared", inputs)
        for layer, rule in self._layers:
            values = rule(layer, values, stack, copies)
            count = values.tensor.numel() // (len(inputs) or 1)
            per_copy = count if values.kind == "shared" else count // copies
            self.peak = max(self.peak, per_copy)
        if values.kind != "rows":
            raise _UnsupportedError
        return values.tensor


def side_by_side(model: nn.Module, sample: Tensor) -> PerturbedCopies | None:
    """The model as copies side by side; None if the model is not supported.

    Sequential models of linear and convolutional layers, pooling and element-wise activations are
    supported. The outputs on ``sample`` are compared with the model's own before the first use.

    Args:
        model: the model in evaluation mode.
        sample: a few inputs, (B, …), for the comparison.
    """
    if type(model) is not nn.Sequential:
        return None
    try:
        with torch.no_grad():
            return PerturbedCopies(model, sample)
    except _UnsupportedError:
        return None


def _layers(model: nn.Sequential) -> list[tuple[nn.Module, _Rule]]:
    found: list[tuple[nn.Module, _Rule]] = []
    for layer in model:
        if layer._forward_hooks or layer._forward_pre_hooks:
            raise _UnsupportedError
        if type(layer) is nn.Sequential:
            found += _layers(layer)
        elif type(layer) in RULES:
            found.append((layer, RULES[type(layer)]))
        else:
            raise _UnsupportedError
    return found


# van Dijk et al., "Proactive DP", Sections 3.3 and 4.1. Training without noise discloses its data,
# so the caller declares the kind of data (see :func:`utility_graph`).


# Without a test set, F is measured on this share of the data, which is not trained on.
HELD_BACK = 0.2
# Most copies side by side; most activations of all copies in a layer, so that they stay in the
# processor's cache; most weights of all copies.
MOST_COPIES, CACHED_VALUES, STACKED_WEIGHTS = 16, 2**19, 2**26
# On an accelerator the same limit bounds memory only.
DEVICE_VALUES = 2**28
LOOP_EXAMPLES = 512

ScoreOutputs = Callable[[Any, Any], float]
NoiseScaleName = Literal["weights", "round", "holders-round", "run"]


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    """The training, perturbation and measurement of the models of a utility graph.

    Args:
        draws: number of perturbations per pair.
        batch, epochs, rounds: expected batch size and length of each training; 5 epochs if neither
            length is given.
        optimizer, schedule: those of each training, the same for every C; SGD with step size 0.1
            and momentum 0.9 by default. With a fixed step size a small C converges slowly, which
            bounds C from below.
        clip_rule: ``"flat"``, ``"automatic"`` or ``"per-layer"``.
        noise_scale: the noise on the weights has standard deviation noise_scale · C σ. A number, or
            a name: ``"weights"`` is 1, C σ on the weights; ``"round"`` is η₀ = step size/batch, the
            noise of one round of a plan; ``"holders-round"`` is √holders · η₀, the noise of one
            round of several holders whose noised sums are added; ``"run"`` is √rounds · η₀, the
            noise of all rounds of plain steps if no later step reduces it.
        holders: number of holders for ``"holders-round"``.
        test_examples: number of examples, drawn by the seed, on which F is measured; None: all.
        stop_at: each training ends after the first pass with at least this F, so that F(w + n) is
            not compared with a fully trained model (the paper's footnote 9); None: no early end.
        seed: seed of the batches and draws, and of weights that ``model()`` initialises.

    Raises:
        ValueError, TypeError: a field is out of range, or both epochs and rounds are given.
    """

    draws: int = 20
    batch: int = 128
    epochs: float | None = None
    rounds: int | None = None
    optimizer: Optimizer | None = None
    schedule: Schedule | None = None
    clip_rule: ClipRule = "flat"
    noise_scale: float | NoiseScaleName = 1.0
    holders: int = 1
    test_examples: int | None = 2000
    stop_at: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        whole("draws", self.draws)
        whole("seed", self.seed, least=0)
        if isinstance(self.noise_scale, str):
            one_of("noise_scale", self.noise_scale, get_args(NoiseScaleName))
        else:
            real("noise_scale", self.noise_scale, above=0)
        if whole("holders", self.holders) > 1 and self.noise_scale != "holders-round":
            raise ValueError('holders= goes with noise_scale="holders-round": add that, or drop it')
        one_of("clip_rule", self.clip_rule, ("flat", "automatic", "per-layer"))
        optional(whole, "test_examples", self.test_examples)
        optional(real, "stop_at", self.stop_at, above=0, most=1)
        if self.rounds is not None and self.epochs is not None:
            raise ValueError("epochs and rounds both fix the length: drop one of them")

    def scale(self, plan: Plan) -> float:
        """The noise scale as a number, for the plan of a training."""
        of_round = plan.optimizer.learning_rate / self.batch
        named: dict[object, float] = {
            "weights": 1.0,
            "round": of_round,
            "holders-round": math.sqrt(self.holders) * of_round,
            "run": math.sqrt(plan.rounds) * of_round,
        }
        return float(named.get(self.noise_scale, self.noise_scale))

    def plan(self, examples: int, clip_norm: float) -> Plan:
        """The plan of the training without noise at one clip norm."""
        batch = whole("batch", self.batch, most=examples)
        rounds = self.rounds
        if rounds is None:
            passes = real("epochs", 5 if self.epochs is None else self.epochs, above=0)
            rounds = max(1, round(passes * examples / batch))
        return Plan(
            mechanism=Mechanism(Rounds(0.0, rounds, Poisson(batch / examples))),
            examples=examples,
            delta=default_delta(examples),
            clip=Clip(clip_norm, self.clip_rule),
            optimizer=self.optimizer or Optimizer(),
            schedule=self.schedule or Schedule(),
            averaging=Averaging("none"),
        )


def utility_graph(
    model: nn.Module | Callable[[], nn.Module],
    data: object,
    *,
    source: Source,
    clip_norms: Sequence[float],
    noise_multipliers: Sequence[float],
    test: object | None = None,
    leaks: Literal["accept"] | None = None,
    loss: Loss | None = None,
    score: ScoreOutputs | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: Unpack[GraphKeywords],
) -> UtilityGraph:
    """Measure a model's accuracy under noise at each clipping norm, on data that costs no privacy.

    For every C the model is trained from the same initial weights on the same batches, with
    contributions clipped to C and no noise. The final weights w are perturbed by n = noise_scale ·
    C · σ · z with z ~ N(0, I), and F(w + n) is measured on fixed examples. Draw number d uses the
    same z at every C and σ, so that curves are comparable; the draws are independent.

    Args:
        model: a module (left unchanged), or a function that makes one (called once).
        data: training data, as for :func:`forethought.train`; a Dataset brings its test part.
        source: the kind of ``data`` and ``test``: ``"public"``, ``"synthetic"``, ``"released"``
            (private data whose owners released it for this), or ``"private"``.
        clip_norms, noise_multipliers: the grid of C and σ; any order.
        test: data on which F is measured; default: a fifth of ``data``, which is not trained on.
        leaks: ``"accept"`` allows private data. The graph's ``not_covered`` then names the leak,
            and so does the Statement of a plan made from it.
        loss: ``loss(outputs, targets)`` → one value per example; see :func:`forethought.train`.
        score: ``score(outputs, targets)`` → F in [0, 1], more is better. Default: accuracy of
            labels, where an example with a non-finite output counts as wrong.
        progress: called as progress(done, total) after every training and every draw.
        settings: fields of :class:`GraphSettings` as keywords: draws, batch, epochs, rounds,
            optimizer, schedule, clip_rule, noise_scale, holders, test_examples, stop_at, seed.

    Raises:
        ValueError: private data without ``leaks="accept"``, or an argument is out of range.
        TypeError: an argument is of another type.
    """
    one_of("source", source, SOURCES)
    if leaks not in (None, "accept"):
        raise ValueError(f"leaks must be 'accept' or left out, not {leaks!r}")
    if source == "private" and leaks is None:
        raise ValueError(
            "a utility graph trains without noise, and what that shows of private data is in no ε: "
            "use public or synthetic data (forethought.data.synthetic), or ft.tune, which accounts "
            "for it. leaks='accept' goes on, and the Statement says that it is not covered"
        )
    norms = increasing("clip_norms", clip_norms)
    sigmas = increasing("noise_multipliers", noise_multipliers)
    chosen = GraphSettings(**settings)
    # Unlike a callback, a class makes sense here if calling it makes a number.
    function("score", None if isinstance(score, type) else score)
    function("progress", progress)
    draws, seed = chosen.draws, chosen.seed
    begun = initial(model, seed)
    first = next(iter(trained_of(begun, "train").values()))
    data, test, _ = opened(data, test)
    if isinstance(data, PersonRows):
        raise ValueError("a utility graph works on rows, not on persons: give inputs and targets")
    records = as_records(data, first.dtype, first.device)
    if test is None:
        data, test = _hold_back(data, len(records), seed)
        records = as_records(data, first.dtype, first.device)
    tested = as_records(test, first.dtype, first.device, "test")
    rows = np.arange(len(tested))
    if chosen.test_examples is not None and chosen.test_examples < len(tested):
        rows = np.sort(_generator(seed, "test").choice(rows, chosen.test_examples, replace=False))
    plan = chosen.plan(len(records), norms[0])
    scale, measure = chosen.scale(plan), score or accuracy_of
    noiseless = np.empty(len(norms))
    accuracy = np.empty((len(norms), len(sigmas), draws))
    done, total = 0, len(norms) * (1 + draws)
    for row, norm in enumerate(norms):
        trained = copy.deepcopy(begun)
        own = plan.with_(clip=replace(plan.clip, norm=norm))
        least, seen = chosen.stop_at, (*tested.take(rows), measure)
        stopping = None if least is None else _stopping(trained, seen, least, own)
        with suppress(_ReachedError):
            train(trained, data, own, loss=loss, seed=seed, diagnostics=False, progress=stopping)
        perturbed = Perturbed(trained, *seen)
        noiseless[row] = perturbed.scores([0.0], 0, seed)[0]
        deviations = [scale * norm * sigma for sigma in sigmas]
        for draw in range(draws + 1):
            if draw:
                accuracy[row, :, draw - 1] = perturbed.scores(deviations, draw, seed)
            done += 1
            if progress is not None:
                progress(done, total)
    return UtilityGraph(norms, sigmas, noiseless, accuracy, source, len(rows), plan, scale, seed)


class _ReachedError(Exception):
    """Ends a training that has reached ``stop_at``."""


def _stopping(
    model: nn.Module, tested: tuple[Any, Any, ScoreOutputs], least: float, plan: Plan
) -> Callable[[Event], None]:
    """A progress callback: ends a training after the first pass with F of at least ``least``."""
    every = max(1, round(plan.examples / plan.batch))

    def look(event: Event) -> None:
        if event.round % every == 0:
            seen = Perturbed(copy.deepcopy(model), *tested)
            if seen.scores([0.0], 0, 0)[0] >= least:
                raise _ReachedError

    return look


class Perturbed:
    """A trained model for measurements with noise on its weights.

    Args:
        model: the model; it is put into evaluation mode, and its weights are overwritten.
        inputs, targets: the data on which F is measured.
        score: F, a function of outputs and targets.
    """

    def __init__(self, model: nn.Module, inputs: Any, targets: Any, score: ScoreOutputs) -> None:
        self._model = model.eval()
        self._inputs, self._targets, self._score = inputs, targets, score
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        self.stacked: PerturbedCopies | None = None
        if isinstance(inputs, Tensor):
            self.stacked = side_by_side(model, inputs[:8])

    def scores(self, deviations: Sequence[float], draw: int, seed: int) -> list[float]:
        """F at each standard deviation, with the same direction of noise for all of them.

        Raises:
            TypeError, ValueError: F is no number in [0, 1].
        """
        random = torch.Generator().manual_seed(int(_generator(seed, "draw", draw).integers(2**63)))
        directions = {
            name: torch.randn(weights.shape, generator=random).to(weights)
            for name, weights in self._weights.items()
        }
        with torch.no_grad():
            if self.stacked is None:
                return [self._one(deviation, directions) for deviation in deviations]
            size = sum(weights.numel() for weights in self._weights.values())
            most = max(1, min(MOST_COPIES, STACKED_WEIGHTS // size))
            pieces = np.array_split(np.asarray(deviations), -(-len(deviations) // most))
            return [f for piece in pieces for f in self._many(self.stacked, piece, directions)]

    def _one(self, deviation: float, directions: Mapping[str, Tensor]) -> float:
        for name, parameter in self._parameters.items():
            parameter.copy_(self._weights[name] + deviation * directions[name])
        size = batches.batch_size(self._inputs, self._targets)
        device = next(iter(self._weights.values())).device
        pieces = torch.split(torch.arange(size, device=device), LOOP_EXAMPLES)
        found = [batches.call(self._model, batches.select(self._inputs, piece)) for piece in pieces]
        return self._scored(torch.cat(found))

    def _scored(self, outputs: Any) -> float:
        found = self._score(outputs, self._targets)
        return real("score", int(found) if isinstance(found, bool) else found, least=0, most=1)

    def _many(
        self,
        stacked: PerturbedCopies,
        deviations: NDArray[np.float64],
        directions: Mapping[str, Tensor],
    ) -> list[float]:
        copies = len(deviations)
        weights = {}
        for name, own in self._weights.items():
            factor = torch.from_numpy(deviations).to(own).view(copies, *[1] * own.ndim)
            weights[name] = own + factor * directions[name]
        values = CACHED_VALUES if self._inputs.device.type == "cpu" else DEVICE_VALUES
        pieces = torch.split(self._inputs, max(1, values // (copies * stacked.peak)))
        outputs = torch.cat([stacked(weights, piece) for piece in pieces], dim=1)
        return list(map(self._scored, outputs))


def accuracy_of(outputs: Any, targets: Any) -> float:
    hits = correct(outputs, targets)
    if hits is None:
        raise ValueError(
            "F is accuracy, which needs outputs (examples, classes) and whole labels (examples,): "
            "give score=, a function of outputs and targets"
        )
    finite = torch.isfinite(outputs).all(1)
    if not bool(finite.all()):
        hits = correct(outputs[finite], targets[finite]) or 0
    return hits / len(targets)


def _generator(seed: int, purpose: Literal["holdout", "test", "draw"], index: int = 0) -> Any:
    return np.random.default_rng([seed, ("holdout", "test", "draw").index(purpose), index])


def initial(model: object, seed: int | None, *sizes: int) -> nn.Module:
    """A copy of a module, or the module that a function makes of the sizes.

    Args:
        model: a module, or a function of the sizes that makes one.
        seed: of the weights that the function draws; None: they are drawn as torch stands.

    Raises:
        TypeError: neither a module nor a function that makes one.
    """
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    if not callable(model):
        kind = type(model).__name__
        raise TypeError(f"the model must be a torch module or a function of one, not {kind}")
    # Only a seed changes the state of the process, for which others must wait.
    with nullcontext() if seed is None else turns, torch.random.fork_rng([], seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        made = model(*sizes)
    if not isinstance(made, nn.Module):
        raise TypeError(f"the function made {type(made).__name__}, not a torch module")
    return made


def _hold_back(data: Any, size: int, seed: int) -> list[object]:
    """Split data at random into a training part and a held-back part."""
    order, count = _generator(seed, "holdout").permutation(size), round(HELD_BACK * size)
    if not 0 < count < size:
        raise ValueError(f"{size} examples are too few to hold some back: give test=")
    if not hasattr(data, "__getitem__"):
        raise TypeError(f"data must have parts, to hold one back, not {type(data).__name__}")
    return [_rows(data, np.sort(part)) for part in (order[count:], order[:count])]


def _rows(data: Any, rows: NDArray[np.int64]) -> object:
    if not isinstance(data, Mapping) and not (isinstance(data, tuple | list) and len(data) == 2):
        return Subset(data, rows.tolist())
    return tree_map(
        lambda part: part[rows] if isinstance(part, Tensor) else np.asarray(part)[rows],
        data,
        is_leaf=lambda part: isinstance(part, list) and part is not data,
    )

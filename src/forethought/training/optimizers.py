"""From released sums to weights: optimizers, schedules, filters, averages; at no privacy cost."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from forethought.gradients.boundary import cut_like
from forethought.rounds.private_sum import Layout, NoisedSum
from forethought.training.folder import fingerprint
from forethought.values.checks import real, suggestion
from forethought.values.plan import Plan, Round
from forethought.values.use import OPTIMIZERS, Averaging, GradientFilter, Optimizer

# Averages of the iterates: post-processing of released values, so they cost no privacy.


class IterateAverage:
    """A running average of parameters, in constant memory; its state can be saved and restored.

    Args:
        averaging: the kind of average. ``exponential`` moves by 1 − min(decay, (1 + t)/(10 + t))
            towards iterate t = 1, 2, …, so that early iterates have little weight in a short run;
            ``tail`` is the plain mean of the last ⌈fraction·rounds⌉ iterates.
        parameters: name → parameter, whose iterates are averaged.
        rounds: length of the run.
    """

    def __init__(
        self, averaging: Averaging, parameters: Mapping[str, torch.Tensor], rounds: int
    ) -> None:
        self._averaging = averaging
        self._parameters = dict(parameters)
        self._start = rounds - math.ceil(averaging.fraction * rounds)
        averaged = {} if averaging.kind == "none" else self._parameters
        # At least float32: in 16 bits a small step towards an iterate would round to none.
        self._average = {
            name: value.detach().to(torch.promote_types(value.dtype, torch.float32), copy=True)
            for name, value in averaged.items()
        }
        self._pairs = [(self._average[name], self._parameters[name]) for name in self._average]

    def update(self, done: int) -> None:
        """Add the parameters as they are after ``done`` rounds to the average."""
        if self._averaging.kind == "exponential":
            weight = 1 - min(self._averaging.decay, (1 + done) / (10 + done))
        else:
            # Before the tail begins the average is the iterate itself.
            weight = 1 / max(1, done - self._start)
        for average, parameter in self._pairs:
            average.lerp_(parameter.detach().to(average.dtype), weight)

    @property
    def values(self) -> dict[str, torch.Tensor]:
        """Name → averaged parameter, in its own dtype (the parameter itself without averaging)."""
        return {n: self._average.get(n, p).detach().to(p) for n, p in self._parameters.items()}

    @torch.no_grad()
    def hand_over(self) -> None:
        """Copy the averaged values into the parameters."""
        for average, parameter in self._pairs:
            parameter.copy_(average)

    def state(self) -> dict[str, torch.Tensor]:
        """The state for a checkpoint, name → average."""
        return self._average

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of :meth:`state`."""
        for name, average in self._average.items():
            average.copy_(state[name])


def _moving(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Any, Any, torch.Tensor, Any]]:
    """Yield each parameter that has a gradient: its group, itself, the gradient and its state."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield group, parameter, parameter.grad, optimizer.state[parameter]


def _require_betas(name: str, betas: tuple[float, float]) -> None:
    if not all(0 <= beta < 1 for beta in betas):
        raise ValueError(f"betas of {name} must be two numbers in [0, 1), not {betas!r}")


# Adam without the noise in its second moment: DP-AdamBC (Tang, Shpilevskiy and Lécuyer 2023).
#
# Noise of variance φ on a gradient adds φ to the expected second moment. Where the noise is larger
# than the gradient, Adam then divides every coordinate by the same number, and becomes gradient
# descent with momentum. The variance is public, so subtracting it is post-processing.


# Lower bound of the estimated second moment, whose square root is the divisor; like Adam's eps.
_LEAST = 1e-16


class AdamBC(torch.optim.Optimizer):
    """Steps along m̂/√max(v̂ − φ̂, floor), with φ̂ the noise's own share of v̂ (their Algorithm 1).

    φ̂ averages the noise variance over rounds with the weights of v̂, so that E[v̂ − φ̂] is the
    second moment of the gradients without noise, for any schedule of the noise.

    Args:
        params: as for torch's optimizers.
        lr: step size.
        betas: decay rates of the two moments, each in [0, 1).
        floor: γ′ of the paper, in squared units of the gradient. None: the standard deviation of
            v̂ in a coordinate with only independent noise: √2 φ̂ in the first round and
            φ̂√(2(1 − β₂)/(1 + β₂)) later on.
    """

    noise_variance: float | None = None

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        floor: float | None = None,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr of adam-bc must be at least 0, not {lr!r}")
        _require_betas("adam-bc", betas)
        if floor is not None and not 0 < floor < math.inf:
            raise ValueError(f"floor of adam-bc must be a number above 0, not {floor!r}")
        super().__init__(params, {"lr": lr, "betas": betas, "floor": floor})

    def expect_noise(self, variance: float) -> None:
        """Set the variance of the noise on every coordinate of the next step's gradients."""
        self.noise_variance = variance

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step along the parameters' gradients; a closure is not called.

        Raises:
            RuntimeError: :meth:`expect_noise` was not called since the last step.
        """
        if self.noise_variance is None:
            raise RuntimeError(
                "adam-bc needs the noise's variance, which private rounds know: use it in a plan"
            )
        variance, self.noise_variance = self.noise_variance, None
        for group, parameter, gradient, state in _moving(self):
            first, second = group["betas"]
            if not state:
                state["mean"], state["square"] = (torch.zeros_like(parameter) for _ in range(2))
                state["steps"], state["noise"], state["spread"] = 0, 0.0, 0.0
            state["steps"] += 1
            state["mean"].lerp_(gradient, 1 - first)
            state["square"].lerp_(gradient.square(), 1 - second)
            state["noise"] += (1 - second) * (variance - state["noise"])
            state["spread"] *= second**2
            state["spread"] += ((1 - second) * variance) ** 2
            begun, settled = (1 - beta ** state["steps"] for beta in (first, second))
            floor = group["floor"]
            if floor is None:
                floor = math.sqrt(2 * state["spread"]) / settled
            without = (state["square"] - state["noise"]) / settled
            root = without.clamp_(min=max(floor, _LEAST)).sqrt_()
            parameter.addcdiv_(state["mean"], root, value=-group["lr"] / begun)


# Yogi (Zaheer, Reddi, Sachan, Kale and Kumar 2018, Algorithm 2), which torch.optim lacks.
#
# As an outer optimizer of local updates it is FedYogi (Reddi et al. 2021, Algorithm 2).


class Yogi(torch.optim.Optimizer):
    """Adam with a second moment that changes by the sign of a difference, so that it never jumps.

    Args:
        params: as for torch's optimizers.
        lr: step size.
        betas: decay rates of the two moments, each in [0, 1).
        eps: added to the root of the second moment (τ of FedYogi).
        initial: initial value of the second moment.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
        initial: float = 1e-6,
    ) -> None:
        for name, value in (("lr", lr), ("eps", eps), ("initial", initial)):
            if not value >= 0:
                raise ValueError(f"{name} of yogi must be at least 0, not {value!r}")
        _require_betas("yogi", betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "initial": initial})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Make one step along the parameters' gradients; a closure is not called."""
        for group, parameter, gradient, state in _moving(self):
            first, second = group["betas"]
            if not state:
                state["mean"] = torch.zeros_like(parameter)
                state["square"] = torch.full_like(parameter, group["initial"])
            square = gradient.square()
            state["mean"].lerp_(gradient, 1 - first)
            towards = torch.sign(state["square"] - square)
            state["square"].addcmul_(towards, square, value=second - 1)
            root = state["square"].sqrt().add_(group["eps"])
            parameter.addcdiv_(state["mean"], root, value=-group["lr"])


# Torch optimizers by name. Their use of a noised mean is post-processing, which costs no privacy.


# Torch's own that :func:`require_steps` refuses.
_REFUSED = {"lbfgs": "torch.optim:LBFGS", "sparseadam": "torch.optim:SparseAdam"}

# Name → class: torch's own optimizers, and those that forethought adds.
NAMES: dict[str, str] = {
    name.lower(): f"torch.optim:{name}"
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind)
    and issubclass(kind, torch.optim.Optimizer)
    and kind is not torch.optim.Optimizer
    and name.lower() not in _REFUSED
} | {name: kind.home for name, kind in OPTIMIZERS.items()}


def make_optimizer(
    optimizer: Optimizer, parameters: Iterable[torch.nn.Parameter]
) -> torch.optim.Optimizer:
    """Make the torch optimizer that a plan names.

    Raises:
        ValueError: an unknown name (the message suggests the nearest), an option that it does not
            take, or an optimizer that evaluates the loss inside its step.
    """
    kind = _find(optimizer.name)
    require_steps(kind)
    options, taken = dict(optimizer.options), inspect.signature(kind.__init__).parameters
    known = set(taken) - {"self", "params", "lr"}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    unknown = sorted(set(options) - known)
    if unknown and not takes_any:
        raise ValueError(
            f"optimizer {optimizer.name!r} has no option {', '.join(map(repr, unknown))}; "
            f"it takes {', '.join(sorted(known))}"
        )
    try:
        return kind(parameters, lr=optimizer.learning_rate, **options)  # type: ignore[call-arg]
    except (TypeError, ValueError) as error:
        raise ValueError(f"optimizer {optimizer.name!r}: {error}") from error


def require_steps(kind: type[torch.optim.Optimizer]) -> None:
    """Refuse an optimizer that cannot step along a noised mean.

    Raises:
        ValueError: its step evaluates the loss, or takes sparse gradients only.
    """
    closure = inspect.signature(kind.step).parameters.get("closure")
    required = closure is not None and closure.default is inspect.Parameter.empty
    if required or issubclass(kind, torch.optim.LBFGS):
        raise ValueError(
            f"{kind.__name__} evaluates the loss inside its step, without noise: use SGD or Adam"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise ValueError(f"{kind.__name__} takes sparse gradients, and noise is dense: use Adam")


def _find(name: str) -> type[torch.optim.Optimizer]:
    if ":" not in name:
        if found := (NAMES | _REFUSED).get(name.lower()):
            return _find(found)
        raise ValueError(
            f"unknown optimizer {name!r} (your own is named 'module:Class'): "
            f"{suggestion(name.lower(), sorted(NAMES))}"
        )
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"optimizer {name!r} cannot be loaded: {error}") from error
    if not (inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)):
        raise ValueError(f"optimizer {name!r} is not a subclass of torch.optim.Optimizer")
    return kind


# Filters of noised means: they use earlier rounds to reduce the noise.
#
# A filter reads noised means, their public noise variance and its own state, so its output is
# post-processing. Each filter computes the variance of the noise in its output, for optimizers that
# subtract it (:class:`AdamBC`).


Tensors = dict[str, torch.Tensor]


class LowPass:
    """A Butterworth low-pass filter, divided by its response to ones: DOPPLER's Algorithm 1.

    m_t = −Σ a_τ m_{t−τ} + Σ b_τ g_{t−τ}; c_t is the same for ones; the output is m_t/c_t. The
    coefficients come from the bilinear transform of 1/(1 + s/ω) and of 1/(1 + √2 s/ω + s²/ω²),
    whose delay at frequency 0 is 1/ω and √2/ω rounds.

    Args:
        delay: at frequency 0, in rounds, at least 0.5.
        order: 1 or 2.
    """

    def __init__(self, delay: float, order: int) -> None:
        if order == 1:
            w = 0.5 / delay
            b, a = [w / (1 + w)] * 2, [(w - 1) / (1 + w)]
        else:
            w, root = math.sqrt(0.5) / delay, math.sqrt(2)
            whole = 1 + root * w + w * w
            b = [w * w / whole, 2 * w * w / whole, w * w / whole]
            a = [2 * (w * w - 1) / whole, (1 - root * w + w * w) / whole]
        self._a, self._b, self._order = a, b, order
        self._ones = [0.0] * order, [0.0] * order  # past values of c and of ones, the latest first
        self._past: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []  # past m and g likewise
        # Covariance of the noise in (m_{t−1}, …, g_{t−1}, …), the same for each coordinate.
        self._spread = np.zeros((2 * order, 2 * order))

    def ahead(self, variance: float) -> float:
        """The factor of :meth:`Kalman.ahead`: 0, since gradients are taken at the weights."""
        return 0.0

    def filtered(self, mean: torch.Tensor, variance: float) -> tuple[torch.Tensor, float]:
        """The filtered mean of the next round, and the variance of the noise that is left in it."""
        c, ones = self._ones
        answer = self._next(c, ones, 1.0)
        moments, means = self._past
        out = self._b[0] * mean
        for b, earlier in zip(self._b[1:], means, strict=False):
            out.add_(earlier, alpha=b)
        for a, earlier in zip(self._a, moments, strict=False):
            out.add_(earlier, alpha=-a)
        self._past = [out, *moments][: self._order], [mean.clone(), *means][: self._order]
        self._ones = [answer, *c][: self._order], [1.0, *ones][: self._order]
        return out / answer, self._noise(variance) / answer**2

    def _next(self, moments: list[float], means: list[float], value: float) -> float:
        earlier = math.fsum(b * g for b, g in zip(self._b[1:], means, strict=True))
        back = math.fsum(a * m for a, m in zip(self._a, moments, strict=True))
        return self._b[0] * value + earlier - back

    def _noise(self, variance: float) -> float:
        """Variance of the noise in m_t; also updates the covariance by a round."""
        n = self._order
        row = np.array([*(-a for a in self._a), *self._b[1:]])
        move = np.zeros((2 * n, 2 * n))
        move[0] = row
        enters = np.zeros(2 * n)
        enters[0], enters[n] = self._b[0], 1.0
        if n == 2:
            move[1, 0] = move[3, 2] = 1.0
        self._spread = move @ self._spread @ move.T + variance * np.outer(enters, enters)
        return float(self._spread[0, 0])

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """The state for a checkpoint: tensors, and JSON values."""
        named, (c, ones) = zip(("moment", "mean"), self._past, strict=True), self._ones
        tensors = {f"{name}{at}": value for name, past in named for at, value in enumerate(past)}
        return tensors, {"answers": c, "ones": ones, "spread": self._spread.tolist()}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""

        def past(name: str) -> list[torch.Tensor]:
            return [tensors[f"{name}{at}"] for at in range(2) if f"{name}{at}" in tensors]

        self._past = past("moment"), past("mean")
        self._ones = list(values["answers"]), list(values["ones"])
        self._spread = np.array(values["spread"])


class Kalman:
    """An estimate that moves towards each round's mean by the gain of a Kalman filter: DiSK.

    The gradient is modelled as a random walk, observed with noise of known variance φ_t. With P the
    variance of the estimate before a round, κ = P/(P + φ_t), then P ← (1 − κ)P + q. The walk's
    variance q is chosen so that κ converges to 1/(1 + delay) under the noise of the first round
    that has any. The change of the gradient with the weights is not treated as random: the gradient
    is taken at x_t + γ(x_t − x_{t−1}) with γ = (1 − κ)/κ, which is to first order the prediction
    with the Hessian and its correction (Zhang et al. 2025, Section 3).

    Args:
        delay: in rounds, once the gain has converged.
    """

    def __init__(self, delay: float) -> None:
        self._settled = 1 / (1 + delay)
        self._before = 0.0  # P
        self._walk = 0.0  # q; 0: no round had noise yet, so that every mean is taken as it is
        self._estimate: torch.Tensor | None = None
        self._left = 0.0  # variance of the noise in the estimate

    def _gain(self, variance: float) -> float:
        return self._before / (self._before + variance) if self._walk else 1.0

    def ahead(self, variance: float) -> float:
        """The factor γ: the next gradient is taken at x_t + γ(x_t − x_{t−1}).

        Args:
            variance: variance of the noise on the next mean.
        """
        gain = self._gain(variance)
        return (1 - gain) / gain

    def filtered(self, mean: torch.Tensor, variance: float) -> tuple[torch.Tensor, float]:
        """The filtered mean of the next round, and the variance of the noise that is left in it."""
        gain = self._gain(variance)
        self._walk = self._walk or variance * self._settled**2 / (1 - self._settled)
        self._before = gain * variance + self._walk  # κφ = (1 − κ)P
        estimate = self._estimate
        self._estimate = mean.clone() if estimate is None else estimate.lerp(mean, gain)
        self._left = (1 - gain) ** 2 * self._left + gain**2 * variance
        return self._estimate.clone(), self._left

    def state(self) -> tuple[Tensors, dict[str, Any]]:
        """The state for a checkpoint: tensors, and JSON values."""
        tensors = {} if self._estimate is None else {"estimate": self._estimate}
        return tensors, {"before": self._before, "walk": self._walk, "left": self._left}

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state`."""
        self._estimate = tensors.get("estimate")
        self._before, self._walk = values["before"], values["walk"]
        self._left = values["left"]


MeanFilter = LowPass | Kalman


def make_filter(how: GradientFilter | None, rounds: int) -> MeanFilter | None:
    """The filter of a run of ``rounds`` rounds; None if the plan has none."""
    if how is None:
        return None
    delay = how.rounds_late(rounds)
    return Kalman(delay) if how.kind == "kalman" else LowPass(delay, how.order)


# From noised sums to optimizer steps: this code accepts nothing that is not noised.


class Descent:
    """Steps an optimizer along noised means, in memory that does not grow with the rounds.

    Args:
        parameters: name → trainable parameter, in the order of the noised sums.
        optimizer: an optimizer over the same parameters. If it has ``expect_noise(variance)``, it
            is told the variance of a mean's noise, independent between rounds, before each step.
        through: the filter of noised means before the optimizer; None: no filter.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        through: MeanFilter | None = None,
    ) -> None:
        self.parameters, self.optimizer, self._filter = dict(parameters), optimizer, through
        self._last: dict[str, torch.Tensor] = {}  # the weights before the last step
        self._kept: tuple[Layout, torch.Tensor, dict[str, torch.Tensor]] | None = None

    def step(self, noised: NoisedSum, step_size: float | None) -> None:
        """Step along a noised mean.

        Args:
            step_size: the optimizer's learning rate; None keeps its own.

        Raises:
            TypeError: anything but a noised sum. ValueError: a sum about other parameters.
        """
        if not isinstance(noised, NoisedSum):
            raise TypeError(f"a step needs a PrivateSum's NoisedSum, not {type(noised).__name__}")
        if noised.layout.names != tuple(self.parameters):
            raise ValueError("a noised sum about other parameters than the optimizer's")
        whole = noised.round.divisor
        mean, variance = noised.vector / whole, noised.round.noise_std**2 / whole**2
        if self._filter is not None:
            mean, variance = self._filter.filtered(mean, variance)
            self._last = {name: p.detach().clone() for name, p in self.parameters.items()}
        for name, part in self._mean(mean, noised.layout).items():
            self.parameters[name].grad = cut_like(part, self.parameters[name])
        if step_size is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = step_size
        if hasattr(self.optimizer, "expect_noise"):
            self.optimizer.expect_noise(variance)
        self.optimizer.step()

    @contextmanager
    def ahead(self, coming: Round) -> Iterator[None]:
        """Move the weights to where the filter needs a round's gradients, then back."""
        steps = 0.0 if self._filter is None else self._filter.ahead(coming.mean_variance)
        if not steps or not self._last:
            yield
            return
        here = {name: p.detach().clone() for name, p in self.parameters.items()}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.add_(here[name] - self._last[name], alpha=steps)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(here[name])

    def filter_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The filter's state for a checkpoint: tensors, and JSON values."""
        if self._filter is None:
            return {}, {}
        tensors, values = self._filter.state()
        return tensors | {f"last/{name}": part for name, part in self._last.items()}, values

    def restore_filter(
        self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]
    ) -> None:
        """The inverse of :meth:`filter_state`."""
        if self._filter is None:
            return
        device = next(iter(self.parameters.values())).device
        own = {name: part.to(device) for name, part in tensors.items()}
        self._last = {n: own.pop(f"last/{n}") for n in self.parameters if f"last/{n}" in own}
        self._filter.restore(own, values)

    def _mean(self, mean: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
        # If all parameters have one dtype, one buffer for all of them is used again.
        if len(set(layout.dtypes)) > 1:
            views = layout.views(mean)
            return {name: view.to(self.parameters[name].dtype) for name, view in views.items()}
        if self._kept is None or self._kept[0] is not layout:
            flat = layout.zeros(layout.dtypes[0])
            self._kept = (layout, flat, layout.views(flat))
        self._kept[1].copy_(mean)
        return self._kept[2]

    def clear(self) -> None:
        """Remove the gradients from the parameters; only the weights stay changed."""
        for parameter in self.parameters.values():
            parameter.grad = None


def descent_of(
    plan: Plan,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer | None = None,
) -> Descent:
    """The descent along a plan's noised sums.

    Args:
        optimizer: used instead of the plan's own; None: the plan's.

    Raises:
        ValueError: an unknown optimizer; a step size or clip norm that single precision does not
            hold; or an optimizer that needs independent noise in a plan with correlated noise.
    """
    real("learning_rate", plan.optimizer.learning_rate, most=1e30)
    real("clip_norm", plan.clip.norm, most=1e30)
    own = make_optimizer(plan.optimizer, parameters.values()) if optimizer is None else optimizer
    if hasattr(own, "expect_noise") and plan.privacy.mechanism.correlated:
        raise ValueError("the optimizer counts on independent noise: take another one")
    return Descent(parameters, own, make_filter(plan.gradient_filter, plan.rounds))


# What a checkpoint holds of an optimizer: numbers, words and tensors of its state, named by the
# parameter's number, and of its groups, and the numbers and words among its own attributes.


_PLAIN = (bool, int, float, str, type(None))
_GROUP, _OWN = "group", "own"


def optimizer_state(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimizer's state, groups and own numbers, as tensors and JSON values.

    Raises:
        TypeError: the state has a value that is neither.
    """
    every: dict[str, Any] = {}
    for at, state in optimizer.state_dict()["state"].items():
        # State that is of no parameter, under a name of its own, has no place.
        for name, value in state.items() if isinstance(at, int) else [(at, state)]:
            if not isinstance(at, int) or not isinstance(value, (torch.Tensor, *_PLAIN)):
                raise _not_stored(optimizer, name, value)
            every[f"{at}/{name}"] = value
    every |= {key: value for key, value in _rest_of(optimizer) if _fits(key, value)}
    tensors = {key: value for key, value in every.items() if isinstance(value, torch.Tensor)}
    return tensors, {key: value for key, value in every.items() if key not in tensors}


def _rest_of(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    """(key, value) of what an optimizer holds in its groups and attributes of its own."""
    for at, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name not in ("params", "lr"):  # step sizes follow from the plan
                yield f"{_GROUP}{at}/{name}", value
    for name, value in vars(optimizer).items():
        if name not in _of_torch():
            yield f"{_OWN}/{name}", value


@cache
def _of_torch() -> frozenset[str]:
    """The attributes that every optimizer has."""
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)])))


def _drawn(value: Any) -> Any:
    """A generator's state, which moves as it draws; any other value itself."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    return str(value.bit_generator.state) if isinstance(value, np.random.Generator) else value


def _fits(key: str, value: Any) -> bool:
    # A tensor among the attributes may be a weight, or share its memory.
    return isinstance(value, _PLAIN if key.startswith(_OWN) else (torch.Tensor, *_PLAIN))


def _not_stored(optimizer: torch.optim.Optimizer, name: str, value: Any) -> TypeError:
    return TypeError(
        f"{type(optimizer).__name__} keeps {name!r} as {type(value).__name__}, which cannot be "
        "stored in a checkpoint: keep it as numbers and tensors in state[parameter] or in the "
        "parameter groups, use another optimizer, or train without out="
    )


def require_stored(how: Optimizer, parameters: Iterable[torch.Tensor]) -> None:
    """Refuse an optimizer that no checkpoint could continue, by steps of it on copies.

    Raises:
        TypeError: the step changes something that a checkpoint does not hold.
    """
    weights = [p.detach() for p in parameters]
    copies = [torch.nn.Parameter(weight.clone()) for weight in weights]
    tried = make_optimizer(how, copies)

    def others() -> dict[str, tuple[bytes, Any]]:
        held = (pair for pair in _rest_of(tried) if not _fits(*pair))
        return {key: (fingerprint(_drawn(value)), value) for key, value in held}

    before = others()
    for copy in copies:
        copy.grad = torch.ones_like(copy)
    if hasattr(tried, "expect_noise"):
        tried.expect_noise(1.0)
    # A class of the user's may do something at every few steps only, such as slow weights.
    known = type(tried).__module__.startswith(("torch.", "forethought."))
    with torch.random.fork_rng(devices=[]):
        for _ in range(1 if known else 12):
            tried.step()
    optimizer_state(tried)
    with torch.no_grad():  # an attribute may hold the weights themselves
        for copy, weight in zip(copies, weights, strict=True):
            copy.copy_(weight)
    for key, (found, value) in others().items():
        if key not in before or before[key][0] != found:
            raise _not_stored(tried, key.partition("/")[2], value)


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]
) -> None:
    """The inverse of :func:`optimizer_state`."""
    state: dict[int, dict[str, Any]] = {}
    groups = optimizer.state_dict()["param_groups"]
    for key, value in (*tensors.items(), *values.items()):
        owner, _, name = key.partition("/")
        if owner == _OWN:
            setattr(optimizer, name, value)
        elif owner.startswith(_GROUP):
            group = groups[int(owner.removeprefix(_GROUP))]
            at = group.get(name)
            group[name] = value.to(at.device) if isinstance(at, torch.Tensor) else value
        else:
            state.setdefault(int(owner), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    # Torch moves each tensor to the parameter's device, and casts it, which would lose bits.
    every = [p for group in optimizer.param_groups for p in group["params"]]
    for index, held in state.items():
        own = optimizer.state[every[index]]
        for name, value in held.items():
            if isinstance(value, torch.Tensor):
                own[name] = value.to(own[name].device)

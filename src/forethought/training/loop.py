"""The rounds of a Plan in order, and all state that changes from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from forethought.accounting import exact
from forethought.gradients.trees import call
from forethought.plans import Plan, expected_batch
from forethought.rounds.clip_norm import clip_norm
from forethought.rounds.private_step import Groups, PrivateStep, Release
from forethought.rounds.randomness import Secrets, Stream
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices, Sampler, assign_groups, sampler
from forethought.training.averaging import IterateAverage
from forethought.training.checkpoint import (
    Checkpoint,
    ReleasedRounds,
    optimizer_state,
    restore_optimizer,
)
from forethought.training.metrics import Metrics, evaluate, from_values, to_values
from forethought.training.step_sizes import examples_before, step_sizes

# A batch's loss is shown from at most so many of its records: one more forward pass when logged.
SHOWN_RECORDS = 256


@dataclass(frozen=True)
class Part:
    """Equal rounds of a plan, ready to run.

    Args:
        first, end: numbers of the first round and of the one after the last.
        draw: the sampler.
        noise: noise multiplier of the gradient's sum.
        divisor: what the sum is divided by.
    """

    first: int
    end: int
    draw: Sampler
    noise: float
    divisor: float


def parts(plan: Plan, stream: Stream) -> list[Part]:
    """The plan's mechanism as parts to run.

    A group's update is already a mean over its records, so group sums are divided by the number
    of groups; sums over examples by the expected batch size. Both are public.
    """
    found, first = [], 0
    for rounds in plan.mechanism:
        divisor = plan.groups or expected_batch(rounds.sampling, plan.examples)
        found.append(
            Part(
                first,
                first + rounds.count,
                sampler(rounds.sampling, plan.examples, stream, first),
                plan.clip.gradient_noise(rounds.noise_multiplier),
                float(divisor),
            )
        )
        first += rounds.count
    return found


def epsilon_at(plan: Plan, rounds: Sequence[int], total: float) -> dict[int, float]:
    """Certified upper end of ε after each of some numbers of rounds, at the plan's δ.

    Args:
        total: that of the whole plan. It bounds every prefix, which is a part of what was released.
    """
    noisy, found = 0, dict.fromkeys(rounds, math.inf)
    for part in plan.mechanism:
        if part.noise_multiplier == 0:
            break
        noisy += part.count
    # A round without noise gives no guarantee from there on.
    finite = [count for count in rounds if count <= noisy]
    if finite:
        curve = exact.epsilon_curve(plan.mechanism, plan.delta, finite)
        for count, interval in zip(finite, curve, strict=True):
            found[count] = min(interval.upper, total)
    if plan.rounds in found:
        found[plan.rounds] = total
    return found


class Loop:
    """Runs a plan's rounds.

    Args:
        plan, records, test: what to run, on what, measured on what.
        step: computes one round.
        secrets: keys of sampling and noise.
        log_every: rounds between rows of the history; the last round always has one.
        diagnostics: whether to look at private batches for the operator.
        epsilon: certified upper end of the whole plan's ε.
    """

    def __init__(
        self,
        plan: Plan,
        records: Records,
        test: Records | None,
        step: PrivateStep,
        secrets: Secrets,
        log_every: int,
        diagnostics: bool,
        epsilon: float,
    ) -> None:
        self.plan, self.step, self.done = plan, step, 0
        self.history: list[Metrics] = []
        self.average = IterateAverage(plan.averaging, step.parameters, plan.rounds)
        self._records, self._test, self._diagnostics = records, test, diagnostics
        self._sampling = Stream(secrets.sampling, "sampling")
        self._groups = Stream(secrets.sampling, "groups")
        self._model = Stream(secrets.sampling, "model")
        self._noise = Stream(secrets.noise, "noise")
        self._clip_norm = clip_norm(plan.clip)
        self._step_size = step_sizes(plan)
        self._examples = examples_before(plan)
        logged = [*range(log_every, plan.rounds, log_every), plan.rounds]
        self._epsilon = epsilon_at(plan, logged, epsilon)
        device = next(iter(step.parameters.values())).device
        self._non_finite = torch.zeros((), dtype=torch.int64, device=device)
        # Dropout and the like draw from torch's own generator of the model's device.
        self.torch_generator = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.default_generator
        )

    def rounds(self, released: ReleasedRounds | None) -> Iterator[int]:
        """Compute what is left; yields the number of rounds done after each."""
        for part in parts(self.plan, self._sampling):
            for index in range(max(part.first, self.done), part.end):
                if released is not None:
                    released.advance(index + 1)
                self._round(part, index)
                self.done = index + 1
                yield self.done

    def _round(self, part: Part, index: int) -> None:
        indices = part.draw(index)
        groups = self._assign(indices, index)
        bound = self._clip_norm.value
        logged = index + 1 in self._epsilon
        loss = None
        if logged and self._diagnostics:
            self._seed_model(index)
            loss = self._batch_loss(indices)
        self._seed_model(index)
        release = Release(bound, part.noise * bound, part.divisor)
        norms = self.step.sum_contributions(self._records, indices, release, groups)
        noise = self._noise.at(index)
        step_size = self._step_size(index)
        self.step.update(release, step_size, noise)
        self._clip_norm.follow(norms, part.divisor, noise)
        self.average.update(index + 1)
        if self._diagnostics:
            self._non_finite += (norms < math.inf).logical_not_().sum()  # not a number included
        if logged:
            self._log(index + 1, step_size, bound, loss, norms)

    def _seed_model(self, index: int) -> None:
        # Whether a round is logged must not move its dropout masks: both passes begin alike.
        self.torch_generator.manual_seed(int(self._model.at(index).bit_generator.random_raw()) >> 1)

    def _assign(self, indices: Indices, index: int) -> Groups | None:
        count = self.plan.groups
        if count is None:
            return None
        return Groups(assign_groups(len(indices), count, self._groups.at(index)), count)

    def _batch_loss(self, indices: Indices) -> float | None:
        if not len(indices):
            return None
        inputs, targets = self._records.take(indices[:SHOWN_RECORDS])
        with torch.no_grad():
            return float(self.step.loss(call(self.step.model, inputs), targets).double().mean())

    def _log(
        self,
        done: int,
        step_size: float,
        bound: float,
        loss: float | None,
        norms: torch.Tensor,
    ) -> None:
        test_loss, accuracy = None, None
        if self._test is not None:
            test_loss, accuracy = evaluate(
                self.step.model, self.average.values, self.step.loss, self._test
            )
        clipped, non_finite = None, None
        if self._diagnostics:
            clipped = float((norms > bound).double().mean()) if len(norms) else None
            non_finite = int(self._non_finite)
        epoch = self._examples(done) / self.plan.examples
        self.history.append(
            Metrics(
                done,
                epoch,
                step_size,
                bound,
                self._epsilon[done],
                test_loss,
                accuracy,
                loss,
                clipped,
                non_finite,
            )
        )

    def checkpoint(self) -> Checkpoint:
        """Everything that changes from round to round."""
        tensors, values = optimizer_state(self.step.optimizer)
        return Checkpoint(
            self.done,
            {
                # Cloned where tied: the format refuses shared memory.
                **{f"model/{k}": v for k, v in _untied(self.step.model.state_dict()).items()},
                **{f"average/{k}": v for k, v in self.average.state().items()},
                **{f"optimizer/{k}": v for k, v in tensors.items()},
            },
            {
                "optimizer": values,
                "history": to_values(self.history),
                "clip_norm": self._clip_norm.value,
                "non_finite": int(self._non_finite),
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """The inverse of :meth:`checkpoint`."""
        owned: dict[str, dict[str, torch.Tensor]] = {"model": {}, "average": {}, "optimizer": {}}
        for key, tensor in saved.tensors.items():
            owner, _, name = key.partition("/")
            owned[owner][name] = tensor
        self.step.model.load_state_dict(owned["model"])
        self.average.restore(owned["average"])
        restore_optimizer(self.step.optimizer, owned["optimizer"], saved.values["optimizer"])
        self.history = from_values(saved.values["history"])
        self._clip_norm.value = saved.values["clip_norm"]
        self._non_finite.fill_(saved.values["non_finite"])
        self.done = saved.round


def _untied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    own = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return own

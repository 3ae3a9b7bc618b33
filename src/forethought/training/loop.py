"""The rounds of a Plan in order, and all state that changes from one to the next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forethought.accounting import exact
from forethought.accounting.accountants import ACCOUNTANTS
from forethought.accounting.statement import Statement
from forethought.gradients import BatchDims
from forethought.gradients.batches import call
from forethought.gradients.clipped import outputs_in_front, placed
from forethought.rounds.losses import Loss
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices
from forethought.rounds.transcript import Transcript
from forethought.rounds.undisturbed import undisturbed
from forethought.training.descent import Descent, IterateAverage
from forethought.training.folder import Checkpoint, optimizer_state, restore_optimizer
from forethought.training.metrics import Metrics, evaluate, from_values, mixing_layers, to_values
from forethought.training.step_sizes import step_sizes
from forethought.turns import turns
from forethought.values.plan import Plan

# A batch's loss is shown from at most so many of its records: one more forward pass when logged.
SHOWN_RECORDS = 256


def epsilon_at(statement: Statement, rounds: Sequence[int]) -> dict[int, float]:
    """Certified upper end of ε after each of some numbers of rounds, as the statement accounts.

    Args:
        statement: of the whole plan. Its ε bounds every prefix, a part of what was released.
    """
    total, mechanism = statement.epsilon.upper, statement.mechanism
    composed = ACCOUNTANTS[statement.accountant["kind"]].composed
    found = dict.fromkeys(rounds, math.inf if composed else total)
    if composed is None:
        return found
    noisy = 0
    for part in mechanism:
        if part.noise_multiplier == 0:
            break
        noisy += part.count
    # A round without noise gives no guarantee from there on.
    finite = [count for count in rounds if count <= noisy]
    if finite:
        curve = exact.epsilon_curve(composed(mechanism), statement.delta, finite, statement.group)
        for count, interval in zip(finite, curve, strict=True):
            found[count] = min(interval.upper, total)
    if len(mechanism) in found:
        found[len(mechanism)] = total
    return found


class Loop:
    """Runs a plan's rounds.

    Args:
        plan, records, test: what to run, on what, measured on what.
        model: the model.
        rounds: opens the plan's private rounds.
        descent: steps along their noised sums.
        loss: one value per example.
        log_every: rounds between rows of the history; the last round always has one.
        diagnostics: whether to look at private batches for the operator.
        statement: of the whole plan.
        dims: where the model has its examples, where its owner declares it.

    Attributes:
        public_inputs: records whose statistics batch normalisation uses in evaluation.
    """

    public_inputs: Any = None

    def __init__(
        self,
        plan: Plan,
        records: Records,
        test: Records | None,
        model: torch.nn.Module,
        rounds: PrivateRounds,
        descent: Descent,
        loss: Loss,
        log_every: int,
        diagnostics: bool,
        statement: Statement,
        dims: BatchDims | None = None,
    ) -> None:
        self.plan, self.model, self.done = plan, model, 0
        self.private, self.descent, self._loss = rounds, descent, loss
        self.history: list[Metrics] = []
        self.average = IterateAverage(plan.averaging, descent.parameters, plan.rounds)
        self._dims = dims
        self._records, self._test, self._diagnostics = records, test, diagnostics
        self._step_size = step_sizes(plan)
        logged = [*range(log_every, plan.rounds, log_every), plan.rounds]
        # What was released before the first round counts from the start.
        first = len(plan.mechanism) - plan.rounds
        spent = epsilon_at(statement, [first + count for count in logged])
        self._epsilon = {count: spent[first + count] for count in logged}
        # Counted here since the last time that all processes added up, and by all before.
        self._own_non_finite = torch.zeros((), dtype=torch.int64, device=rounds.layout.device)
        self._non_finite = 0
        self._slowed, self._last_accuracy = 1.0, 0.0  # of the schedule "drops"

    def rounds(self) -> Iterator[int]:
        """Compute what is left; yields the number of rounds done after each."""
        while self.done < self.plan.rounds:
            self._round(self.done)
            self.done += 1
            yield self.done

    def _round(self, index: int) -> None:
        total = self.private.open(index)
        logged = index + 1 in self._epsilon
        loss = None
        if logged and self._diagnostics:
            with turns:
                self.private.seed_model(index)
                loss = self._batch_loss(total.indices)
        with self.descent.ahead(total.round):
            total.add(self.model, self._records)
        noised = total.release()
        step_size = self._step_size(index) * self._slowed
        self.descent.step(noised, step_size)
        self.average.update(index + 1)
        if self.plan.schedule.kind == "drops":
            self._slow_down(index + 1)
        if self._diagnostics:
            # Not a number counts too.
            self._own_non_finite += (total.norms < math.inf).logical_not_().sum()
        if logged:
            norms = self.private.team.gathered(total.norms) if self._diagnostics else total.norms
            self._log(index + 1, step_size, noised.round.clip_norm, loss, norms)

    def _slow_down(self, done: int) -> None:
        """Smaller steps after an epoch in which accuracy on public records fell."""
        before = self.plan.privacy.examples_before(done - 1) // self.plan.examples
        if self._test is None or self.plan.privacy.examples_before(done) < self.plan.examples * (
            before + 1
        ):
            return
        accuracy = self._evaluated(self._test)[1] or 0.0
        if accuracy < self._last_accuracy:
            self._slowed *= self.plan.schedule.decay
        self._last_accuracy = accuracy

    def _evaluated(self, records: Records) -> tuple[float, float | None]:
        return evaluate(
            self.model,
            self.average.values,
            self._loss,
            records,
            self._dims,
            self.public_inputs,
        )

    def _batch_loss(self, indices: Indices) -> float | None:
        if len(indices) < 1 + bool(mixing_layers(self.model)):
            return None
        inputs, targets = self._records.take(indices[:SHOWN_RECORDS])
        with undisturbed(self.model, self._loss), torch.no_grad():
            outputs = call(self.model, placed(inputs, self._dims))
            outputs = outputs_in_front(outputs, self._dims)
            return float(self._loss(outputs, targets).double().mean())

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
            test_loss, accuracy = self._evaluated(self._test)
        clipped, non_finite = None, None
        if self._diagnostics:
            clipped = float((norms > bound).double().mean()) if len(norms) else None
            self.add_up()
            non_finite = self._non_finite
        epoch = self.plan.privacy.examples_before(done) / self.plan.examples
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

    def add_up(self) -> None:
        """Join what the processes of a run counted apart; all of them call it together."""
        self.private.team.add_up(self._own_non_finite)
        self._non_finite += int(self._own_non_finite)
        self._own_non_finite.zero_()

    def checkpoint(self) -> Checkpoint:
        """Everything that changes from round to round, as of the last :meth:`add_up`."""
        tensors, values = optimizer_state(self.descent.optimizer)
        filtered, filter_values = self.descent.filter_state()
        return Checkpoint(
            self.done,
            {
                # Cloned where tied: the format refuses shared memory.
                **{f"model/{k}": v for k, v in _untied(self.model.state_dict()).items()},
                **{f"average/{k}": v for k, v in self.average.state().items()},
                **{f"optimizer/{k}": v for k, v in tensors.items()},
                **{f"filter/{k}": v for k, v in filtered.items()},
                "noise/bound": torch.tensor(list(b"".join(self.private.bound)), dtype=torch.uint8),
            },
            {
                "optimizer": values,
                "filter": filter_values,
                "history": to_values(self.history),
                "clip_norm": self.private.clip_norm,
                "transcript": self.private.transcript.to_values(),
                "non_finite": self._non_finite,
                "slowed": [self._slowed, self._last_accuracy],
            },
        )

    def restore(self, saved: Checkpoint) -> None:
        """The inverse of :meth:`checkpoint`."""
        owners = ("model", "average", "optimizer", "filter", "noise")
        owned: dict[str, dict[str, torch.Tensor]] = {owner: {} for owner in owners}
        for key, tensor in saved.tensors.items():
            owner, _, name = key.partition("/")
            owned[owner][name] = tensor
        self.model.load_state_dict(owned["model"])
        self.average.restore(owned["average"])
        restore_optimizer(self.descent.optimizer, owned["optimizer"], saved.values["optimizer"])
        self.descent.restore_filter(owned["filter"], saved.values.get("filter", {}))
        self.history = from_values(saved.values["history"])
        self.private.clip_norm = saved.values["clip_norm"]
        self.private.transcript = Transcript.from_values(saved.values["transcript"])
        bound = owned["noise"]["bound"].numpy().tobytes()
        self.private.bound = [bound[at : at + 32] for at in range(0, len(bound), 32)]
        self._non_finite = saved.values["non_finite"]
        self._slowed, self._last_accuracy = saved.values.get("slowed", (1.0, 0.0))
        self.done = saved.round


def _untied(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    own = {}
    for name, tensor in state.items():
        storage = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return own

"""A training loop of one's own whose steps are the rounds of a plan.

The loop gets batches that hold nothing (:mod:`.deferred`): it *says* what the loss is, and
``optimizer.step()`` opens the round, draws its records, computes the loss of each by itself,
clips, adds noise and steps along what was released. So the loop can be anything, and what is
released is the plan's mechanism all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Unpack

import numpy as np
import torch
from blake3 import blake3

from forethought.accounting.statement import About, Statement, account
from forethought.rounds.contributions import Loss, check_loss, cross_entropy
from forethought.rounds.preparation import require_prepared
from forethought.rounds.private_sum import PrivateRounds, RoundError
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, blank, content
from forethought.training.deferred import (
    ArrangedRecords,
    Deferred,
    Gate,
    Leaf,
    cast_as_called,
    stated,
)
from forethought.training.descent import IterateAverage, descent_of, needs_closure
from forethought.training.execution import Execution, ShortForms, alone, settled
from forethought.training.folder import OF_TORCH, RunFolder, locked, remember, trained_before
from forethought.training.records import (
    arranged,
    declared,
    opened,
    placed_records,
    require_fit,
    uncentred,
    warn_of_another_model,
    with_caveats,
)
from forethought.training.run import TIME_AND_MEMORY, Run, randomness
from forethought.values.caveats import Caveat
from forethought.values.contributions import Persons
from forethought.values.plan import Plan, step_sizes
from forethought.values.use import Averaging

OWN_LOOP = Caveat("own-loop")
FINISHED = "the run is finished"


class OwnLoop(NamedTuple):
    """The result of :func:`private`."""

    loader: PrivateLoader
    optimizer: PrivateOptimizer


def private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    data: object,
    plan: Plan,
    *,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    **short: Unpack[ShortForms],
) -> OwnLoop:
    """Make an ordinary training loop private: its loader and its optimizer.

    The loader's batches hold nothing; model and loss functions take them, and what comes out holds
    nothing either. ``loss.backward()`` notes the loss, one value per example, and
    ``optimizer.step()`` runs the next round of the plan with it. Everything else in the loop
    (schedulers, evaluation, printing) works as it did.

    Args:
        model: as for :func:`forethought.train`; its class is a subclass of its own until the end.
        optimizer: any of torch's, over exactly the model's trainable parameters, with step sizes
            of its own (schedulers included). None: the plan's own optimizer, step sizes and
            averaging, as in :func:`forethought.train`.
        data: as for :func:`forethought.train`; or a DataLoader, of which the data set and the
            ``collate_fn`` are used: batches are drawn as the plan says.
        plan: what is released.
        execution: ``device=`` and ``micro_batch=`` count here. seeds, short: as for
            :func:`forethought.train`.

    Returns:
        ``(loader, optimizer)``. ``optimizer.finish()`` at the end gives the Run with its Statement.

    Raises:
        ValueError, TypeError: an argument that does not fit, before any private step.
    """
    alone("forethought.private")
    execution, seeds = settled(execution, seeds, **short)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a forethought.Plan, not {type(plan).__name__}")
    plan = uncentred(plan)
    require_prepared(plan, None)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch module, not {type(model).__name__}")
    given = data
    data, _, found = opened(data, None)
    plan = with_caveats(plan, found)
    if isinstance(plan.contribution, Persons):
        raise ValueError(
            "this plan takes all rows of a person as one record, and a loop states a loss for "
            'rows: make the plan with person_as="group", or use forethought.train'
        )
    records = placed_records(model, arranged(data, plan).data, plan, execution.device)
    if optimizer is None:  # whose step size is the plan's
        warn_of_another_model(plan, model, given)
    rounds = _Rounds(model, optimizer, records, plan, execution, seeds)
    return OwnLoop(PrivateLoader(rounds), PrivateOptimizer(rounds))


class _Rounds:
    """The rounds of one loop: which batch is out, what its loss is, what was released."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        records: Records,
        plan: Plan,
        execution: Execution,
        seeds: Seeds,
    ) -> None:
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.planned = optimizer is None
        if optimizer is not None:
            _require_optimizer(optimizer, model)
        self.model, self.records, self.plan = model, records, plan
        self.descent = descent_of(plan, parameters, optimizer)
        self._secrets = Secrets.draw(seeds)
        self._private = PrivateRounds(
            plan.privacy,
            parameters,
            cross_entropy,  # every round states its own
            self._secrets,
            micro_batch=execution.micro_batch,
        )
        self._step_size = step_sizes(plan)
        averaging = plan.averaging if self.planned else Averaging("none")
        self.average = IterateAverage(averaging, parameters, plan.rounds)
        caveats = (*declared(plan, None), *trained_before(model, None))
        self.statement: Statement = account(
            plan,
            randomness=randomness(plan, self._secrets),
            not_covered=(TIME_AND_MEMORY, OWN_LOOP, *caveats),
        )
        self._stated: tuple[Loss, ArrangedRecords] | None = None
        self.done, self.closed = 0, ""
        self._batch: _Batch | None = None
        self._value: Deferred | None = None
        self._left = self._standing()
        self._gate = Gate(model)

    def next_batch(self) -> Any:
        """The batch of the next round, in the form of the data set's records."""
        self._require_going_on()
        if self._batch is not None:
            raise RoundError(
                f"the batch of round {self.done} had no optimizer.step(): every batch is one "
                "round, whatever the loop thinks of it. To compute a large batch in pieces give "
                "micro_batch=, instead of accumulating gradients"
            )
        self._batch = _Batch(self)
        return self._batch.form(self.records)

    def take(self, value: Deferred, batch: _Batch) -> None:
        if batch is not self._batch:
            raise RoundError(
                f"this loss is about an earlier batch; the present one is that of round {self.done}"
            )
        if self._value is not None:
            raise RoundError(
                "a second backward() in one round: a record contributes once. Add the losses up "
                "first; to compute a large batch in pieces give micro_batch="
            )
        self._value = value

    def step(self) -> None:
        self._require_going_on()
        if self._batch is None:
            raise RoundError("optimizer.step() without a batch: take the next one of the loader")
        if self._value is None:
            raise RoundError(
                "optimizer.step() without a loss: call loss.backward() on the present batch's loss"
            )
        now = self._standing()
        changed = [name for name, left in self._left.items() if now[name] != left]
        if changed:
            raise RoundError(
                f"{' and '.join(changed)} changed since the last step: what is not released by a "
                "round may follow from private records. Change weights or the optimizer's state in "
                "a hook of the optimizer (register_step_post_hook), load them before "
                "forethought.private, and evaluate in model.eval() (a copy, where the model keeps "
                "what it computed)"
            )
        self._gate.open()
        try:
            with cast_as_called(self._value):
                self._round(self._value)
        finally:
            if not self.closed:
                self._gate.close()
        self._batch = self._value = None
        self.done += 1
        self._left = self._standing()

    def _standing(self) -> dict[str, bytes]:
        """The state that rounds start from, and only rounds may change, as a hash each."""
        return {
            "the model (weights, buffers, or which are trained)": _hash(self.model),
            "tensors among the model's attributes": _of_attributes(self.model),
            "the optimizer's state": _of_state(self.descent.optimizer),
        }

    def _round(self, value: Deferred) -> None:
        loss, arranged_records = found = stated(value, self.model, self.records, self._stated)
        records = arranged_records.settled()
        if found is not self._stated:  # before anything is released
            require_fit(self.model, loss, records)
            kind, altered = self.plan.contribution, self.plan.augmentation
            check_loss(self.model, loss, records, None, kind, altered)
            self._stated = found
        # What fails from here on may have drawn the round's records and noise.
        self.closed = f"round {self.done} failed"
        self._private.how = replace(self._private.how, loss=loss)
        with self._private:
            total = self._private.open(self.done)
            with self.descent.ahead(total.round):
                total.add(self.model, records)
            noised = total.release()
        size = self._step_size(self.done) if self.planned else None
        self.descent.step(noised, size)
        self.average.update(self.done + 1)
        self.closed = ""

    def _require_going_on(self) -> None:
        if self.closed:
            raise RoundError(f"{self.closed}: there are no further rounds")
        if self.done == self.plan.rounds:
            raise RoundError(
                f"the plan's {self.plan.rounds} rounds are done: call optimizer.finish(), or plan "
                "more epochs"
            )

    def finish(self, out: str | Path | None, about: About | None) -> Run:
        transcript = self._private.transcript
        if self.closed == FINISHED:
            raise RoundError(f"{FINISHED}: it has its statement")
        if not len(transcript):
            raise RoundError("nothing was released yet: there is nothing to state")
        self.closed = FINISHED
        self._gate.open()
        self.descent.clear()
        # A round that failed was released whole or not at all: either way a beginning of the plan.
        transcript.require(self.plan.mechanism, stopped=True)
        statement = self.statement
        if len(transcript) < self.plan.rounds:
            how = f"{len(transcript)} of {self.plan.rounds}"
            statement = replace(
                statement, caveats=(*statement.caveats, Caveat("stopped-early", how))
            )
        statement = replace(statement.of_run(transcript.releases()), about=about)
        self.average.hand_over()
        path = None
        if out is not None:
            folder = RunFolder(out)
            path = folder.path
            with locked(path):
                folder.begin(overwrite=False)
                folder.save_plan(self.plan)
                statement = folder.save_results(self.model.state_dict(), (), statement, transcript)
                folder.erase_secrets()
        remember(self.model, statement)
        return Run(self.model, statement, (), self.plan, path, transcript)


class _Batch:
    """The batch of one round, of which nothing is known; see :class:`Leaf`."""

    def __init__(self, rounds: _Rounds) -> None:
        self._rounds = rounds

    def take(self, value: Deferred) -> None:
        """Called by ``backward``."""
        self._rounds.take(value, self)

    def form(self, records: Records) -> Any:
        """Deferred tensors in the form of the data set's own records."""
        tensors, structure = torch.utils._pytree.tree_flatten(blank(records, 1))
        leaves = [Deferred(Leaf(self, place)) for place in range(len(tensors))]
        inputs, targets = torch.utils._pytree.tree_unflatten(leaves, structure)
        label = getattr(records, "label", None)
        return (inputs, targets) if label is None else {**inputs, label: targets}


class PrivateLoader:
    """The batches of a plan's rounds, an epoch (as many rounds as hold N records) an iteration."""

    def __init__(self, rounds: _Rounds) -> None:
        self._rounds = rounds
        plan = rounds.plan
        self._ends: list[int] = []
        for done in range(1, plan.rounds + 1):
            wanted = plan.examples * (len(self._ends) + 1) * (1 - 1e-9)
            if plan.privacy.examples_before(done) >= wanted or done == plan.rounds:
                self._ends.append(done)

    @property
    def epochs(self) -> int:
        """The number of times it can be gone through; the last time may be shorter."""
        return len(self._ends)

    def __len__(self) -> int:
        """Rounds of a whole epoch."""
        return self._ends[0]

    def __iter__(self) -> Iterator[Any]:
        """The batches up to the end of the epoch.

        Raises:
            RoundError: all rounds are done, or a batch had no step.
        """
        rounds = self._rounds
        rounds._require_going_on()
        end = next(end for end in self._ends if end > rounds.done)
        return self._until(end)

    def _until(self, end: int) -> Iterator[Any]:
        while self._rounds.done < end:
            yield self._rounds.next_batch()


class PrivateOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is the plan's next round; schedulers take it as any other."""

    def __init__(self, rounds: _Rounds) -> None:
        # Everything but the step is the wrapped optimizer's own, state and groups above all.
        self._rounds = rounds

    def __getattr__(self, name: str) -> Any:
        if name == "_rounds":
            raise AttributeError(name)
        return getattr(self._rounds.descent.optimizer, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self._rounds.descent.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self._rounds.descent.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self._rounds.descent.optimizer.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Run the round of the present batch and step along what it releases.

        Raises:
            RoundError: no batch, no loss, a second one, or a changed model. ValueError, TypeError:
                a loss that cannot be computed privately; nothing was released then.
        """
        if closure is not None:
            raise RoundError("a closure would look at the records again, without noise")
        self._rounds.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As ever; the records' gradients are never in ``.grad``."""
        self._rounds.descent.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refused: the rounds are about the parameters that there were."""
        raise RoundError("parameters cannot be added after forethought.private()")

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's."""
        return self._rounds.descent.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The wrapped optimizer's."""
        self._rounds.descent.optimizer.load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"private {self._rounds.descent.optimizer!r}"

    def finish(self, out: str | Path | None = None, about: About | None = None) -> Run:
        """End the loop: the model is as it was but for its weights, and the Statement is written.

        A loop may end early, also because a round failed or was interrupted.

        Args:
            out: a new run folder for plan, model, transcript and statement. None keeps nothing.
            about: as for :func:`forethought.train`.

        Raises:
            RoundError: nothing was released, or the run was finished. TranscriptError: what was
                released is not what was accounted. RunFolderExistsError: ``out`` is not empty.
        """
        return self._rounds.finish(out, about)

    @property
    def rounds_done(self) -> int:
        """Rounds so far."""
        return self._rounds.done


def _require_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, PrivateOptimizer):
        raise TypeError(
            "optimizer must be one of torch's, such as torch.optim.Adam(model.parameters()), or "
            f"None for the plan's own; not {type(optimizer).__name__}"
        )
    if needs_closure(type(optimizer)) or isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{type(optimizer).__name__} evaluates the loss inside its step, which would read the "
            "data without noise: use SGD or Adam"
        )
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = {id(p): (name, p.requires_grad) for name, p in model.named_parameters()}
    if not held <= own.keys():
        raise ValueError(
            "the optimizer has parameters that are not the model's: their gradients would not be "
            "private. Make it from model.parameters()"
        )
    missing = [name for key, (name, trained) in own.items() if trained and key not in held]
    if missing:
        raise ValueError(
            f"the optimizer does not have {', '.join(missing[:5])}: freeze these parameters "
            "(requires_grad_(False)), or make it from model.parameters()"
        )


def _hash(model: torch.nn.Module) -> bytes:
    """Names all weights and buffers, and which are trained."""
    state = blake3()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = tuple(tensor.shape)
        state.update(f"{name} {tensor.requires_grad} {tensor.dtype} {shape}\n".encode())
        state.update(content(tensor))
    return state.digest()


def _of_attributes(model: torch.nn.Module) -> bytes:
    """Names the tensors and arrays that modules hold as plain attributes, also in lists."""
    state = blake3()
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in OF_TORCH:
                _take(state, f"{name}.{attribute}", value)
    return state.digest()


def _of_state(optimizer: torch.optim.Optimizer) -> bytes:
    """Names what an optimizer remembers of the rounds before; step sizes are a scheduler's."""
    state = blake3()
    for key, value in optimizer.state_dict()["state"].items():
        _take(state, str(key), value)
        numbers = [one for one in torch.utils._pytree.tree_leaves(value) if isinstance(one, Number)]
        state.update(f"{key} {numbers}\n".encode())
    return state.digest()


def _take(state: blake3, name: str, value: Any) -> None:
    """Add the tensors and arrays in a value."""
    for place, leaf in enumerate(torch.utils._pytree.tree_leaves(value)):
        if isinstance(leaf, np.ndarray | array) and np.asarray(leaf).dtype != object:
            leaf = torch.from_numpy(np.array(leaf))
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, torch.nn.Parameter):
            state.update(f"{name} {place} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            state.update(content(leaf))

"""A training loop of one's own whose steps are the rounds of a plan.

The loop gets batches without values (:class:`Deferred`). It *states* the loss, and
``optimizer.step()`` runs the round: it draws the round's records, computes the loss of each
record separately, clips, adds noise, and updates the weights with the released gradient. So the
loop can be any code, and the release is still that of the plan's mechanism.
"""

from __future__ import annotations

import copyreg
import inspect
import operator
import os
import sys
import warnings
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from numbers import Number
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Unpack

import numpy as np
import torch
from blake3 import blake3
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from forethought.accounting.statement import About, Statement, account
from forethought.gradients.boundary import RECORDERS, STANDARD, shards_of, trained_here, trained_of
from forethought.gradients.sharded import let_go, take_shards, whole_state
from forethought.rounds.contributions import (
    ALIKE,
    Loss,
    check_loss,
    cross_entropy,
    is_mean,
    of_alike,
    own_mean,
)
from forethought.rounds.private_sum import PrivateRounds, RoundError, present_team
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import MappedRecords, Records, TensorRecords, blank, content
from forethought.training import folder as folders
from forethought.training import records as fitting
from forethought.training.execution import Execution, ShortForms, all_there, alone, settled
from forethought.training.folder import RunFolder
from forethought.training.optimizers import IterateAverage, descent_of, require_steps
from forethought.training.run import TIME_AND_MEMORY, Run, in_the_book, randomness, reserved
from forethought.values.caveats import Caveat
from forethought.values.checks import instance, optional
from forethought.values.mechanism import Persons
from forethought.values.plan import Paid, Payer, Plan, marked, step_sizes
from forethought.values.use import Averaging, trained_parameters

OWN_LOOP = Caveat("own-loop")
CHANGED = Caveat(
    "stated",
    "the loop changed weights, or tensors among the model's attributes, after the last round: the "
    "guarantee holds for them only if they follow from released weights and public data",
)
FINISHED = "the run is finished"


class OwnLoop(NamedTuple):
    """The result of :func:`private`, to be unpacked as ``loader, optimizer``."""

    loader: PrivateLoader
    optimizer: PrivateOptimizer


def private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    data: object,
    plan: Plan,
    *,
    ledger: Payer | None = None,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    **short: Unpack[ShortForms],
) -> OwnLoop:
    """Make an ordinary training loop private: its loader and its optimizer.

    The batches of the loader have no values; model and loss functions accept them, and return
    objects without values. ``loss.backward()`` records the loss, one value per example, and
    ``optimizer.step()`` runs the next round of the plan with it. Everything else in the loop
    (schedulers, evaluation, printing) works as before.

    Args:
        model: as for :func:`forethought.train`; until ``finish``, its class is a subclass of its
            own. A model that torch's ``fully_shard`` has sharded trains in all processes of
            torchrun.
        optimizer: any of torch's, over exactly the model's trainable parameters, with step sizes
            of its own (schedulers included). None: the plan's own optimizer, step sizes and
            averaging, as in :func:`forethought.train`.
        data: as for :func:`forethought.train`; or a DataLoader, of which only the data set and the
            ``collate_fn`` are used, since the plan decides how batches are drawn: a sampler of
            one's own is refused.
        plan: the plan whose mechanism is released.
        ledger: the book that pays, a `forethought.Ledger`: the whole plan is reserved before a
            record is read. ``finish`` charges the rounds that were begun and refunds the rest;
            so does the end of the loop's objects, or of the process, without ``finish``.
        execution: only ``device=`` and ``micro_batch=`` have an effect here.
        seeds, short: as for :func:`forethought.train`.

    Returns:
        ``(loader, optimizer)``. ``optimizer.finish()`` at the end gives the Run with its Statement.

    Raises:
        ValueError, TypeError: an argument that does not fit, before any private step.
        OverBudgetError: the ledger's budget is too small for the plan (a ValueError).
        TeamError: the processes' loops differ, or one process has ended (a ValueError); steps can
            raise it too.
    """
    execution, seeds = settled(execution, seeds, **short)
    plan = fitting.uncentred(instance("plan", plan, Plan))
    fitting.require_answered(plan, None)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch module, not {type(model).__name__}")
    if take_shards(model) is None:
        alone("forethought.private of a model that fully_shard has not cut")
    else:
        fitting.require_sharded(plan, optimizer)
    if isinstance(plan.contribution, Persons):
        raise ValueError(
            "a loop states a loss for rows, and this plan takes a person's rows as one record: "
            'make it with person_as="group", or use forethought.train'
        )
    with ExitStack() as held:
        paid = reserved(held, ledger, plan, None, False, False, present_team())
        given, _, found = fitting.opened(data, None)
        plan = fitting.with_caveats(plan, found)
        records = fitting.placed_records(
            model, fitting.arranged(given, plan).data, plan, execution.device
        )
        trained_parameters(model)
        if optimizer is None:  # the step size is the plan's, chosen for a model
            fitting.warn_of_another_model(plan, model, data)
        rounds = _Rounds(model, optimizer, records, plan, execution, seeds, paid)
        if paid is not None:  # reserved until the loop ends or its rounds are garbage-collected
            rounds.over = weakref.finalize(rounds, _unfinished, held.pop_all(), os.getpid())
    return OwnLoop(PrivateLoader(rounds), PrivateOptimizer(rounds))


def _unfinished(held: ExitStack, process: int) -> None:
    """Settle the payment of an abandoned loop, only in the process that began it, not in a fork."""
    if os.getpid() == process:
        held.__exit__(RoundError, RoundError("the loop was not finished"), None)


class _Rounds:
    """The state of one loop: its present batch, the stated loss, and the rounds that are done."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        records: Records,
        plan: Plan,
        execution: Execution,
        seeds: Seeds,
        paid: Paid | None = None,
    ) -> None:
        parameters, shards, self.planned = trained_here(model), shards_of(model), optimizer is None
        if optimizer is not None:
            _require_optimizer(optimizer, model)
        own = trained_of(model, "train")
        self.model, self.records, self.plan = model, records, plan
        self.descent = descent_of(plan, parameters if self.planned else own, optimizer)
        self.team = team = present_team()
        secrets = team.first(lambda: Secrets.draw(seeds))
        loss: Loss = cross_entropy  # a placeholder: every round states its own loss
        if team.size > 1:
            named = folders.identity(model, records, None, loss, secrets.sampling)
            team.require_same((plan, type(optimizer), named), "data, model, plan or optimizer")
        of, pieces = (plan.privacy, parameters, loss, secrets), execution.micro_batch
        self._private = PrivateRounds(*of, micro_batch=pieces, team=team, shards=shards)
        self._paid = paid
        self.over: Callable[[], object] = lambda: None
        if paid is not None:
            self._private.note = marked(paid, self._private.note)
        self._step_size = step_sizes(plan)
        averaging = plan.averaging if self.planned else Averaging("none")
        self.average = IterateAverage(averaging, parameters, plan.rounds)
        caveats = (*fitting.declared(plan, None), *folders.trained_before(model, None))
        self.statement: Statement = team.first(
            lambda: account(
                plan,
                randomness=randomness(plan, secrets),
                not_covered=(TIME_AND_MEMORY, OWN_LOOP, *caveats),
            )
        )
        self._stated: tuple[Loss, ArrangedRecords] | None = None
        self._named = b""
        self.done, self.closed = 0, ""
        self._given = 0  # batches; the last one is open until its step is done
        self._value: Deferred | None = None
        self._left = self._standing()
        # A mark has the full shape of a weight, so that sharded weights get none.
        self._watched = [*parameters.values()] if shards is None else []
        self._told, self._released = list[str](), dict[nn.Parameter, tuple[Any, int]]()
        self._kinds = type(model), _gated(type(model))
        model.__class__ = self._kinds[1]
        self._weights = dict(model.named_parameters())  # the frozen ones too

    def next_batch(self) -> Any:
        """The batch of the next round: deferred tensors in the form of the data set's records."""
        self._require_going_on()
        if self._given > self.done:
            raise RoundError(
                f"the batch of round {self.done} had no optimizer.step(), and every batch is one "
                "round: accumulate no gradients, and give micro_batch= for memory"
            )
        self._given += 1
        tensors, structure = tree_flatten(blank(self.records, 1))
        leaves = [Deferred(Leaf(self, self._given, place)) for place in range(len(tensors))]
        inputs, targets = tree_unflatten(leaves, structure)
        label = getattr(self.records, "label", None)
        return (inputs, targets) if label is None else {**inputs, label: targets}

    def take(self, value: Deferred, batch: int) -> None:
        """Take the loss of a batch, which ``Deferred.backward`` states."""
        if batch <= self.done:
            raise RoundError(f"this loss is about an earlier batch than that of round {self.done}")
        if self._value is not None:
            raise RoundError("a second backward() in one round: add the losses up first")
        for parameter in self._watched:
            given, version = self._released.get(parameter, (None, 0))
            if parameter.grad is not given or getattr(given, "_version", 0) != version:
                _require_none(parameter.grad)
            # In memory of its own, so that torch adds up in it what a further backward() gives.
            mark = torch.zeros_like(parameter.detach()).as_subclass(_NotYet)
            mark.told, parameter.grad = self._told, mark
        self._value = value

    def state_by(self, closure: Callable[[], Any]) -> Any:
        """Call a closure once, which states the loss of the batch; return its value.

        The call comes before the round draws its records, like any other line of the loop.
        """
        if self._value is not None:
            raise RoundError("optimizer.step(closure) after backward(): leave one of the two out")
        returned = closure()
        if self._given > self.done and self._value is None:
            raise RoundError("the closure called no backward() on the present batch's loss")
        return returned

    def step(self) -> None:
        self._require_going_on()
        if self._given == self.done:
            raise RoundError("optimizer.step() without a batch: take the next one of the loader")
        if self._value is None:
            raise RoundError("optimizer.step() without a loss.backward() of the present batch")
        value, self._value = self._value, None  # of a refused loss nothing is left
        for parameter in self._watched:
            _require_none(parameter.grad)
            parameter.grad = None
        found = stated(value, self.model, self.records, self._stated)
        if found is not self._stated and self.team.size > 1:
            self._named = folders.fingerprint(found[0])
        self.team.require_same((self.done, self._named), "loss or number of rounds")
        now = self._standing()
        self.require_own()
        names = (n if n in (_ATTRIBUTES, _STATE) else _MODEL for n in self._changed(now))
        if changed := dict.fromkeys(names):
            raise RoundError(
                f"{' and '.join(changed)} changed since the last step, and may follow from private "
                "records: change them in a hook of the optimizer (register_step_post_hook), load "
                "or freeze weights before forethought.private, and evaluate in model.eval() (a "
                "copy, where the model keeps what it computed)"
            )
        self.model.__class__ = self._kinds[0]
        try:
            with as_called(value):
                self._round(found)
        finally:
            if not self.closed:
                self.model.__class__ = self._kinds[1]
        self.done += 1
        self._left = self._standing()
        self._require_moved(now, self._left)

    def require_own(self) -> None:
        """Refuse a model with other weights in the place of those that the loop began with."""
        let_go(self.model)
        present = dict(self.model.named_parameters())
        replaced = [name for name, p in self._weights.items() if present.get(name) is not p]
        if replaced:
            raise RoundError(
                f"{_some(replaced)} became another Parameter, which no round would see: replace "
                "weights (as load_state_dict(assign=True) and functional_call do) before the loop"
            )

    def _require_moved(self, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
        """Refuse a step that left a trained weight as it was, or changed a frozen one.

        The comparison uses hashes that were computed already. A step may round to no change; a
        weight counts as stepped also if only torch's counter of writes (``_version``) grew.
        """
        trained = self.descent.parameters
        groups = self.descent.optimizer.param_groups
        # Fused kernels do not count their writes.
        uncounted = (group for group in groups if group.get("lr") == 0 or group.get("fused"))
        resting = {id(p) for group in uncounted for p in group["params"]}
        same = {name for name, found in after.items() if before.get(name) == found}
        still = [
            name
            for name, p in trained.items()
            if name in same and p._version == self._versions[name] and id(p) not in resting
        ]
        moved = [name for name in self._weights if name not in same and name not in trained]
        what = ""
        # A hook may write any weight: it knows only released values.
        if moved and not self.descent.optimizer._optimizer_step_post_hooks:
            what = f"moved {_some(moved)}, which is frozen"
        if still:
            what = f"left {_some(still)} as before, though the plan trains it"
        if what:
            self.closed = f"round {self.done - 1} moved other weights than the plan trains"
            raise RoundError(
                f"the optimizer {what}: make it from the parameters that the model has now, and "
                "train the model anew. What was released is accounted; finish() states it"
            )

    def _standing(self) -> dict[str, bytes]:
        """Hashes of the state that only rounds may change.

        One for each weight and buffer, by name, and two for other state, from all processes.
        """
        let_go(self.model)
        found = _hashes(self.model)
        found[_ATTRIBUTES] = _of_attributes(self.model)
        found[_STATE] = _of_state(self.descent.optimizer)
        every = np.frombuffer(self.team.joined(b"".join(found.values())), "V32")
        columns = every.reshape(self.team.size, -1).T
        return {name: column.tobytes() for name, column in zip(found, columns, strict=True)}

    def _changed(self, now: dict[str, bytes]) -> list[str]:
        """The names in :meth:`_standing` whose hashes are not those after the last step."""
        return [name for name in self._left | now if self._left.get(name) != now.get(name)]

    def _round(self, found: tuple[Loss, ArrangedRecords]) -> None:
        loss, records = found[0], found[1].settled()
        if found is not self._stated:  # checked before anything is released
            parts = tree_leaves(blank(records, 1))
            if any(isinstance(part, torch.Tensor) and part.shape[:1] != (1,) for part in parts):
                raise ValueError(
                    "several rows of a record would each be clipped alone: let collate_fn give "
                    "them a dimension of their own, (1, rows, …), and take the mean of their losses"
                )
            fitting.require_fit(self.model, loss, records)
            kind, altered = self.plan.contribution, self.plan.augmentation
            check_loss(self.model, loss, records, None, kind, altered)
            fitting.require_reached(self.model, loss, records)
            self._stated = found
        # A failure from here on may come after the round's records and noise were drawn.
        self.closed = f"round {self.done} failed"
        self._private.how = replace(self._private.how, loss=loss)
        with self._private:
            total = self._private.open(self.done)
            with self.descent.ahead(total.round):
                total.add(self.model, records)
            noised = total.release()
        folders.released_into(self.model)
        size = self._step_size(self.done) if self.planned else None
        self._versions = {name: p._version for name, p in self.descent.parameters.items()}
        self.descent.step(noised, size)
        # Parts of the vector that the descent keeps for the next round, and torch's counters.
        self._released = {p: (p.grad, getattr(p.grad, "_version", 0)) for p in self._watched}
        self.average.update(self.done + 1)
        self.closed = ""

    def _require_going_on(self) -> None:
        if self.closed:
            raise RoundError(f"{self.closed}: there are no further rounds")
        if self.done == self.plan.rounds:
            rounds = self.plan.rounds
            raise RoundError(f"the {rounds} rounds are done: finish(), or plan more epochs")

    def finish(self, out: str | Path | None, about: About | None) -> Run:
        optional(instance, "about", about, kind=About)
        transcript = self._private.transcript
        if self.closed == FINISHED:
            raise RoundError(f"{FINISHED}: it has its statement")
        if not len(transcript):
            raise RoundError("nothing was released yet: there is nothing to state")
        path, team = None if out is None else Path(out), self.team
        team.require_same((self.done, path), "number of rounds or out=")
        folder = None if path is None else RunFolder(path)
        changed = self._changed(self._standing())
        if buffers := [name for name, _ in self.model.named_buffers() if name in changed]:
            raise RoundError(
                f"{_some(buffers)} changed after the last round, as by statistics of private "
                "records: set back what it was before the loop, and call finish() again. Compute "
                "statistics of public records after it"
            )
        self.closed = self.closed or "finish() was called"
        self.model.__class__ = self._kinds[0]
        self.descent.clear()
        # A failed round was released whole or not at all; both are a beginning of the plan.
        transcript.require(self.plan.mechanism, stopped=True)
        more = [CHANGED] if {*changed} - {_STATE} else []
        if len(transcript) < self.plan.rounds:
            more.append(Caveat("stopped-early", f"{len(transcript)} of {self.plan.rounds}"))
        # Kept for a second call, after a failed write.
        self.statement = replace(self.statement, caveats=(*self.statement.caveats, *more))
        statement = replace(self.statement.of_run(transcript.releases()), about=about)
        self.average.hand_over()
        self._left = self._standing()
        state = {} if folder is None else whole_state(self.model, team.leads)
        run = Run(self.model, statement, (), self.plan, path, transcript)

        def ended() -> Statement:
            found = statement
            with folders.locked(path):
                if folder is not None:
                    folder.begin(overwrite=False)
                if self._paid is not None:
                    found = in_the_book(self._paid, found, folder, self._paid.begun)
                if folder is not None:
                    found = folder.save_results(replace(run, statement=found), state)
                self.over()
            return found

        run = replace(run, statement=team.first(ended))
        self.closed = FINISHED
        folders.remember(self.model, run.statement)
        return run


def epoch_ends(plan: Plan) -> list[int]:
    """The numbers of rounds after which epochs end, of N records in the mean; the last may be
    shorter.
    """
    ends: list[int] = []
    for done in range(1, plan.rounds + 1):
        wanted = plan.examples * (len(ends) + 1) * (1 - 1e-9)
        if plan.privacy.examples_before(done) >= wanted or done == plan.rounds:
            ends.append(done)
    return ends


class PrivateLoader:
    """The batches of a plan's rounds; one iteration is an epoch (rounds that hold N records)."""

    def __init__(self, rounds: _Rounds) -> None:
        self._rounds, self._ends = rounds, epoch_ends(rounds.plan)

    @property
    def dataset(self) -> Any:
        """The private records; ``len(loader.dataset)`` is the number that the plan counts."""
        return self._rounds.records

    @property
    def epochs(self) -> int:
        """The number of epochs, that is of iterations over the loader; the last may be shorter."""
        return len(self._ends)

    def __len__(self) -> int:
        """The number of rounds in a whole epoch."""
        return self._ends[0]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches up to the end of the epoch.

        Raises:
            RoundError: all rounds are done, or a batch had no step.
        """
        rounds = self._rounds
        rounds._require_going_on()
        end = next(end for end in self._ends if end > rounds.done)
        return self._until(end)

    def _until(self, end: int) -> Iterator[Any]:
        rounds = self._rounds
        if rounds._value is None:  # an error in the loop may have left a batch without a loss
            rounds._given = rounds.done
        while rounds.done < end:
            yield rounds.next_batch()


class PrivateOptimizer(torch.optim.Optimizer):
    """An optimizer whose step is the plan's next round; schedulers accept it like any other."""

    def __init__(self, rounds: _Rounds) -> None:
        # Everything but the step is the wrapped optimizer's own, such as state and groups.
        self._rounds = rounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rounds.descent.optimizer, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("param_groups", "state", "defaults"):
            raise RoundError(f"optimizer.{name} = … would be lost: change the values in it instead")
        super().__setattr__(name, value)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run the round of the present batch, and update the weights with what it releases.

        Args:
            closure: states the loss of the batch with ``backward``; it is called once, before the
                round.

        Returns:
            The value that the closure returned, which holds no number of the batch.

        Raises:
            RoundError: no batch, no loss, a second loss, or a changed model.
            ValueError, TypeError: a loss that cannot be computed privately, or a ``collate_fn``
                that makes several rows of a record; then nothing was released.
        """
        returned = None if closure is None else self._rounds.state_by(closure)
        with all_there(self._rounds.team, None):
            self._rounds.step()
        return returned

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients as usual; the records' gradients are never in ``.grad``."""
        self._rounds.descent.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> NoReturn:
        """Refuse: the rounds are about the parameters that the loop began with.

        Raises:
            RoundError: always.
        """
        raise RoundError(
            "parameters cannot be added: call finish(), and train them in another loop"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state dict of the wrapped optimizer."""
        return self._rounds.descent.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict into the wrapped optimizer; the next step refuses a changed state."""
        self._rounds.descent.optimizer.load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._rounds._private.__reduce_ex__(protocol)  # refuses

    def __repr__(self) -> str:
        return f"private {self._rounds.descent.optimizer!r}"

    def finish(self, out: str | Path | None = None, about: About | None = None) -> Run:
        """End the loop: give the model its own class again, and write the Statement.

        A loop may end early, also because a round failed or was interrupted.

        Args:
            out: a new run folder for plan, model, transcript and statement. None writes no files.
            about: as for :func:`forethought.train`.

        Returns:
            The Run, with the model, its Statement and an empty history.

        Raises:
            RoundError: nothing was released, the run was finished already, or a buffer of the model
                changed after the last round.
            TranscriptError: the releases are not those that were accounted.
            RunFolderExistsError: ``out`` is not empty.
            OSError: ``out`` cannot be written; call it again with another.
        """
        with all_there(self._rounds.team, None):
            return self._rounds.finish(out, about)

    @property
    def rounds_done(self) -> int:
        """The number of rounds that are done."""
        return self._rounds.done


_HOOKS = "_optimizer_step_post_hooks"


def _require_optimizer(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    # Accelerate's wrapper hands no hooks on.
    whole = isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, _HOOKS)
    if not whole or isinstance(optimizer, PrivateOptimizer):
        raise TypeError(
            f"optimizer must be one of torch's, or None for the plan's, not "
            f"{type(optimizer).__name__} (accelerate prepares what forethought.private returns)"
        )
    require_steps(type(optimizer))
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if not held <= {id(p) for p in model.parameters()}:
        raise ValueError(
            "the optimizer has parameters that are not the model's: make it from model.parameters()"
        )
    if missing := [name for name, p in trained_of(model, "train").items() if id(p) not in held]:
        raise ValueError(
            f"the optimizer does not have {', '.join(missing[:5])}: freeze these parameters "
            "(requires_grad_(False)), or make it from model.parameters()"
        )


_MODEL = "the model (weights, buffers, or which are trained)"
_ATTRIBUTES, _STATE = "tensors among the model's attributes", "the optimizer's state"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - 3
    return ", ".join(names[:3]) + (f" and {rest} more" if rest > 0 else "")


def _hashes(model: torch.nn.Module) -> dict[str, bytes]:
    """A hash of each weight and buffer, by name, which covers ``requires_grad`` too."""
    found = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        state = blake3(f"{tensor.requires_grad} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        state.update(content(tensor))
        found[name] = state.digest()
    return found


def _of_attributes(model: torch.nn.Module) -> bytes:
    """A hash of the tensors and arrays that modules hold as plain attributes, also in lists."""
    state = blake3()
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute not in STANDARD:
                _take(state, f"{name}.{attribute}", value)
    return state.digest()


def _of_state(optimizer: torch.optim.Optimizer) -> bytes:
    """A hash of an optimizer's state, without its step sizes, which a scheduler may change."""
    state = blake3()
    for key, value in optimizer.state_dict()["state"].items():
        _take(state, str(key), value)
        numbers = [one for one in tree_leaves(value) if isinstance(one, Number)]
        state.update(f"{key} {numbers}\n".encode())
    return state.digest()


def _take(state: blake3, name: str, value: Any) -> None:
    """Add the tensors and arrays in a value to a hash."""
    for place, leaf in enumerate(tree_leaves(value)):
        if isinstance(leaf, np.ndarray | array) and np.asarray(leaf).dtype != object:
            leaf = torch.from_numpy(np.array(leaf))
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, torch.nn.Parameter):
            state.update(f"{name} {place} {leaf.dtype} {tuple(leaf.shape)}\n".encode())
            state.update(content(leaf))


class NoGradientsWarning(UserWarning):
    """A loop reads or clips gradients before the round has computed any."""


class _NotYet(torch.Tensor):
    """The gradient of a weight before its round: all zeros; the first use of it warns."""

    told: list[str]

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        told = next(part.told for part in tree_leaves((args, kwargs)) if isinstance(part, cls))
        if name not in _HARMLESS and not told:
            told.append(name)
            warnings.warn(
                "clip_grad_norm_, and whatever looks at gradients after backward(), acts on "
                "nothing: gradients are computed by optimizer.step(), which clips each record's by "
                "itself. Leave the line out; the bound is clip_norm= of forethought.plan",
                NoGradientsWarning,
                stacklevel=2,
            )

        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def _require_none(given: torch.Tensor | None) -> None:
    """Refuse a gradient beside the round's, which would be lost without a word."""
    if given is not None and given.any():
        raise RoundError(
            "a gradient that no round gave would be lost: call zero_grad(), or add it, if it is "
            "public, in a hook of the optimizer (register_step_pre_hook)"
        )


# Accesses to a gradient that do not use its values, as by zero_grad, and :func:`_require_none`'s.
_HARMLESS = frozenset({"__get__", "any", "detach_", "requires_grad_", "zero_", "_foreach_zero_"})


# Batches without values: the loop's operations on them are recorded, and computed in the round.


class DeferredError(ValueError):
    """A loop asked for a number of a private batch, or for a result that no round can compute."""


@dataclass(frozen=True, eq=False)
class Leaf:
    """One tensor of a batch's records.

    Args:
        rounds: of the loop. batch: number of the batch in it, from 1.
        place: index of the tensor among the records' tensors, inputs before targets.
    """

    rounds: Any
    batch: int
    place: int


@dataclass(frozen=True, eq=False)
class FunctionCall:
    """The recorded call of a function.

    Args:
        casts, modes: autocast settings and each module's ``training``, at the call of a model.
        grad: False for a call under ``torch.no_grad()``.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    casts: tuple[tuple[str, torch.dtype], ...] = ()
    modes: tuple[tuple[nn.Module, bool], ...] = ()
    grad: bool = field(default_factory=torch.is_grad_enabled)


def autocasts() -> tuple[tuple[str, torch.dtype], ...]:
    """Device types for which autocast is on here, each with its dtype."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


# Attributes that would hand a number of the records to Python.
_EXITS = frozenset({"item", "tolist", "numpy", "data_ptr", "storage", "untyped_storage", "nonzero"})
# What acts on its argument, beside the names that end in one underscore.
_IN_PLACE = frozenset({"register_hook", "retain_grad", "__setitem__"})
# Attributes that hold the number of records in a batch, which is private.
_SIZES = frozenset({"shape", "size", "numel", "nelement"})


class Deferred:
    """A value without content, which the private round computes for each example separately."""

    __slots__ = ("_what",)

    def __init__(self, what: Leaf | FunctionCall) -> None:
        object.__setattr__(self, "_what", what)

    @classmethod
    def __torch_function__(cls, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        _require_new(getattr(function, "__name__", ""), kwargs)
        if mean := is_mean(function, kwargs):
            kwargs["reduction"] = "none"
        if function in ALIKE:  # other functions give one value an example, or are refused
            function, args = own_mean if mean else of_alike, (function, *args)
        return cls(FunctionCall(function, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _require_new(name)
        if name in _EXITS:
            _refuse(f".{name}()")
        if name in _SIZES and isinstance(self._what, Leaf):
            _refuse(f".{name}", "how many records a batch has is private; use plan.batch")
        return Deferred(FunctionCall(getattr, (self, name), {}))

    def __setattr__(self, name: str, value: object) -> None:
        _refuse(f".{name} = …")

    def __getitem__(self, key: Any) -> Deferred:
        # Only the Trainer's own line means the loss by its 0, not a user's compute_loss.
        asker = sys._getframe(1).f_globals.get("__name__")
        return Deferred(FunctionCall(_part, (self, key, asker == "transformers.trainer"), {}))

    def __call__(self, *args: Any, **kwargs: Any) -> Deferred:
        _require_new("", kwargs)
        return Deferred(FunctionCall(operator.call, (self, *args), kwargs))

    def to(self, *args: Any, **kwargs: Any) -> Deferred:
        """This value if only the device changes, which the round chooses; else a recorded call."""
        places = [*args, *(kwargs[name] for name in ("device", "dtype") if name in kwargs)]
        if all(isinstance(place, str | int | torch.device | None) for place in places):
            return self
        return Deferred(FunctionCall(getattr, (self, "to"), {}))(*args, **kwargs)

    cuda = to

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """State that this value is the loss, one value per example, which the next step minimises.

        Raises:
            DeferredError: arguments were given, or the value is not about exactly one batch.
            RoundError: the batch is an earlier one, or has a loss already.
        """
        if args or kwargs:
            raise DeferredError("backward() of a private loss takes no arguments")
        batches = {(id(leaf.rounds), leaf.batch): leaf.rounds for leaf in leaves(self)}
        if len(batches) != 1:
            count = len(batches)
            raise DeferredError(f"a loss must be about the batch of one turn, not about {count}")
        (_, batch), rounds = batches.popitem()
        match self._what:
            case FunctionCall(operator.truediv, (_, int(pieces))) if pieces > 1:
                warnings.warn(
                    f"the loss of a batch is divided by {pieces}, as where gradients are "
                    "accumulated, and a round is a whole batch: leave the division out (in "
                    "accelerate gradient_accumulation_steps=), and give micro_batch= for memory",
                    stacklevel=2,
                )
        rounds.take(self, batch)

    def __repr__(self) -> str:
        return "a value of a private batch: it is computed when optimizer.step() runs the round"

    def __format__(self, how: str) -> str:
        return _refuse("a number for printing") if how else repr(self)

    __hash__ = object.__hash__


def _part(value: Any, key: Any, of_trainer: bool) -> Any:
    """A part of a value; a Trainer's own number 0 of a model's output by name is its loss."""
    if of_trainer and isinstance(value, Mapping) and key == 0:
        key = "loss"
    try:
        return value[key]
    except KeyError as error:
        raise DeferredError(f"the model's output has no {error}: return it by this name") from None


def _refuse(what: str, instead: str = "") -> NoReturn:
    remedy = instead or "leave it out, look at held-out records, or let the model compute its loss"
    raise DeferredError(
        f"{what} of a private batch would be a number without noise, which no guarantee covers: "
        f"{remedy}"
    )


def _require_new(name: str, kwargs: Mapping[str, Any] | None = None) -> None:
    """Refuse a call that acts on a value in place, since only what a call returns is computed."""
    given = kwargs or {}
    inside = name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    if inside or name in _IN_PLACE or given.get("inplace") or given.get("out") is not None:
        raise DeferredError(
            f"{name or 'this call'} acts in place, which no round would see: give the result a "
            "name (z = z.div(10)), without inplace= and out=, and register hooks in the model"
        )


def _operator(name: str, turned: bool = False) -> Callable[..., Deferred]:
    function = getattr(operator, name)

    def apply(self: Deferred, *others: Any) -> Deferred:
        plain = name == "truediv" and not turned and isinstance(others[0], Number)
        if plain and others[0] == 1:  # trainers divide by their pieces
            return self
        return Deferred(FunctionCall(function, (*others, self) if turned else (self, *others), {}))

    return apply


_LOOP = "a loop over the rows"
_WITHOUT_A_LOOP = "take parts by number (z[0]). Losses by name are added up in the model's forward"


def _exit(what: str) -> Callable[..., NoReturn]:
    return lambda self, *_: _refuse(what, _WITHOUT_A_LOOP if what == _LOOP else "")


_OF_TWO = "add sub mul truediv floordiv mod pow matmul and_ or_ xor"
for _name in _OF_TWO.split():
    setattr(Deferred, f"__{_name.strip('_')}__", _operator(_name))
    setattr(Deferred, f"__r{_name.strip('_')}__", _operator(_name, turned=True))
for _name in ("neg", "pos", "abs", "invert", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Deferred, f"__{_name}__", _operator(_name))
for _name, _what in {
    "bool": "a decision (if, and, while)",
    "len": "the length",
    "iter": _LOOP,
    "float": "float()",
    "int": "int()",
    "index": "an index",
    "array": "an array",
    "contains": "a search",
    "setitem": "writing into it",
}.items():
    setattr(Deferred, f"__{_name}__", _exit(_what))


_scale = torch.amp.GradScaler.scale


def _unscaled(self: torch.amp.GradScaler, outputs: Any) -> Any:
    """Leave a private batch's loss unscaled, since scaling would change the clipping."""
    if isinstance(outputs, Deferred):
        self._enabled = False
        return outputs
    return _scale(self, outputs)


torch.amp.GradScaler.scale = _unscaled  # type: ignore[method-assign]


def _apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
    return kind.apply(*args, **kwargs)


# An ``autograd.Function`` is one call, since its backward is not that of its parts.
RECORDERS[Deferred] = lambda kind, args, kwargs: Deferred(
    FunctionCall(_apply, (kind, *args), kwargs)
)


def nodes(value: Deferred, apart: FunctionCall | None = None) -> Iterator[Leaf | FunctionCall]:
    """Everything that a value is computed from, and the value itself, each once.

    Args:
        apart: a call to leave out, with everything that only this call is computed from.
    """
    seen = {id(apart)}
    pending: list[Any] = [value]
    while pending:
        one = pending.pop()
        if not isinstance(one, Deferred) or id(one._what) in seen:
            continue
        what = one._what
        seen.add(id(what))
        yield what
        if isinstance(what, FunctionCall):
            pending += tree_leaves((what.args, what.kwargs))


def leaves(value: Deferred, apart: FunctionCall | None = None) -> Iterator[Leaf]:
    """The records' tensors that a value is computed from; ``apart`` as in :func:`nodes`."""
    return (what for what in nodes(value, apart) if isinstance(what, Leaf))


@dataclass(frozen=True)
class Position:
    """The number of an earlier result of a stated loss, or of one of a record's tensors."""

    number: int


@contextmanager
def as_called(value: Deferred) -> Iterator[None]:
    """Set autocast and the modules' modes as they were when the model was called."""
    calls = [what for what in nodes(value) if isinstance(what, FunctionCall)]
    with ExitStack() as stack:
        for kind, dtype in {cast for call in calls for cast in call.casts}:
            stack.enter_context(torch.autocast(kind, dtype=dtype))
        for module, mode in (pair for call in calls for pair in call.modes):
            stack.callback(setattr, module, "training", module.training)
            module.training = mode
        yield


def model_call(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The stand-in for a model's call in a recorded loss; the round puts in the output."""
    return model(*args, **kwargs)


_GATED: weakref.WeakSet[type[nn.Module]] = weakref.WeakSet()


def _gated(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass that records calls with deferred values as one step of a loss.

    ``torch.nn.utils.parametrize`` does so, too. Calls with tensors work as before; copies and files
    of a model have its original class.
    """
    if kind in _GATED:
        raise ValueError("this model is in another private loop: finish() that, or copy it")

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Deferred)]
        if given:
            next(leaves(given[0])).rounds.require_own()
            modes = tuple((module, module.training) for module in self.modules())
            return Deferred(FunctionCall(model_call, (self, *args), kwargs, autocasts(), modes))
        return kind.__call__(self, *args, **kwargs)

    def reduce(self: nn.Module, protocol: Any) -> Any:
        # An object of the original class; the default would name the subclass in the pickle.
        rest = tuple(kind.__reduce_ex__(self, protocol))[2:]
        return (copyreg._reconstructor, (kind, object, None), *rest)  # type: ignore[attr-defined]

    gated = type(kind.__name__, (kind,), {"__call__": call, "__reduce_ex__": reduce})
    _GATED.add(gated)
    return gated


# From the operations that a loop recorded on a batch to the loss that a private round computes.


def _put_in(form: Any, values: Sequence[Any]) -> Any:
    """A tree with the values in the places of their positions."""
    return tree_map(lambda at: values[at.number] if isinstance(at, Position) else at, form)


class StatedLoss:
    """The loss of a round, as the loop stated it: ``loss(outputs, targets)``.

    Plain data: calls whose arguments hold :class:`Position` values. It refers to no batch and no
    loop.

    Args:
        value: the value whose ``backward`` was called.
        output: the model's call in it.
        targets: the records' tensors in it, in the order in which the round passes them.
    """

    def __init__(self, value: Deferred, output: FunctionCall, targets: Sequence[Leaf]) -> None:
        known = (output, *targets)
        numbers = {id(what): number for number, what in enumerate(known)}
        steps: list[FunctionCall] = []

        def number(one: Any) -> Any:
            if not isinstance(one, Deferred):
                return one
            what = one._what
            if id(what) not in numbers:
                assert isinstance(what, FunctionCall)  # all leaves are known
                args = tree_map(number, what.args)
                kwargs = tree_map(number, dict(what.kwargs))
                numbers[id(what)] = len(known) + len(steps)
                steps.append(replace(what, args=args, kwargs=kwargs))
            return Position(numbers[id(what)])

        self._result = number(value)
        self._steps = tuple(steps)
        self._places = tuple(leaf.place for leaf in targets)

    def __call__(self, outputs: Any, targets: Any) -> Any:
        given = (targets,) if len(self._places) == 1 else targets if self._places else ()
        values = [outputs, *given]

        for step in self._steps:
            args, kwargs = _put_in((step.args, step.kwargs), values)
            try:
                with nullcontext() if step.grad else torch.no_grad():
                    values.append(step.function(*args, **kwargs))
            except (RuntimeError, IndexError) as error:
                if torch._C._are_functorch_transforms_active():
                    raise  # the example alone tells whether it is the loss's
                raise DeferredError(
                    "the loss does not take one example by itself, as a round gives them to it: "
                    "give each example a value that needs no others"
                ) from error
        return _put_in(self._result, values)

    def form(self) -> tuple[Any, ...]:
        """Equal for losses with the same calls: equal numbers, words, slices; identical objects."""

        def of(part: Any) -> Any:
            plain = isinstance(part, str | bool | int | float | slice | Position)
            return (type(part), part) if plain else id(part)

        calls = []
        for one in self._steps:
            parts, structure = tree_flatten((one.args, dict(one.kwargs)))
            calls.append((id(one.function), one.grad, structure, [*map(of, parts)]))
        return self._places, self._result, calls


class ArrangedRecords(MappedRecords):
    """Records whose tensors are arranged as a model's arguments and a loss's targets.

    Args:
        records: the records to arrange.
        inputs: nested tuples and dicts of :class:`Position` values (indices among all tensors
            of the records, inputs before targets) and of values that are no tensors.
        targets: the indices of the tensors that the loss reads; none if the model computes its
            loss.

    Attributes:
        places: inputs and targets, as given.
    """

    def __init__(self, records: Records, inputs: Any, targets: tuple[int, ...]) -> None:
        super().__init__(records)
        self.places = inputs, targets

    def _mapped(self, *batch: Any) -> tuple[Any, Any]:
        tensors, (form, places) = tree_leaves(batch), self.places
        inputs = _put_in(form, tensors)
        # A round needs a target: a loss that the model computes itself ignores it.
        targets = tuple(tensors[place] for place in places or (-1,))
        return inputs, targets[0] if len(targets) == 1 else targets

    def settled(self) -> Records:
        """The original records if nothing was rearranged, since rounds have fast paths for them."""
        as_they_are = self.places == (Position(0), (1,))
        return self._records if as_they_are and isinstance(self._records, TensorRecords) else self


def stated(
    value: Deferred,
    model: nn.Module,
    records: Records,
    before: tuple[Loss, ArrangedRecords] | None = None,
) -> tuple[Loss, ArrangedRecords]:
    """The loss of a round, and the records in the arrangement that it takes.

    Args:
        value: the value whose ``backward`` was called.
        before: the result of the round before; returned again if the recorded calls are the same,
            since gradients remember their checks of a loss object.

    Raises:
        DeferredError: something that a round cannot compute; the message says what to write.
    """
    calls = [what for what in nodes(value) if isinstance(what, FunctionCall)]
    outputs = [call for call in calls if call.function is model_call]
    if len(outputs) != 1 or outputs[0].args[0] is not model:
        raise DeferredError(
            f"the loss has {len(outputs)} calls of a model: it must have one, of the whole model "
            "that was given to forethought.private. Put several into one module"
        )
    (output,) = outputs
    if not (output.grad and calls[0].grad):
        raise DeferredError("take the model's call and the loss out of torch.no_grad()")
    for call in calls:
        for part in tree_leaves((call.args, call.kwargs)):
            if call.grad and isinstance(part, torch.Tensor) and part.requires_grad:
                raise DeferredError(
                    "the loss uses a parameter besides the model's output: put a penalty on "
                    "weights into the optimizer (weight_decay=), all else into the model's forward"
                )
    inputs = _as_called(model, output)
    # The tensors that the loss reads other than through the model.
    targets = tuple(sorted(leaves(value, output), key=lambda leaf: leaf.place))
    for leaf in tree_leaves(inputs):
        if not isinstance(leaf, Leaf | bool | str | None):
            raise DeferredError(
                "the model must be given the batch's own tensors: move what is done to them into "
                "it or the data set, and what all records share into the model"
            )
    places = tree_map(lambda leaf: Position(leaf.place) if isinstance(leaf, Leaf) else leaf, inputs)
    arranged = ArrangedRecords(records, places, tuple(leaf.place for leaf in targets))
    loss = _known(value, output, targets)
    if before is not None and _form(*before) == _form(loss, arranged):
        return before
    return loss, arranged


def _form(loss: Loss, arranged: ArrangedRecords) -> object:
    return arranged.places, loss.form() if isinstance(loss, StatedLoss) else loss


def _as_called(model: nn.Module, output: FunctionCall) -> Any:
    """The arguments of the model's call, in one of the forms in which rounds call models."""
    given = output.args[1:], dict(output.kwargs)
    args, kwargs = tree_map(lambda part: getattr(part, "_what", part), given)
    if args and kwargs:
        signature = inspect.signature(model.forward)
        bound = signature.bind(*args, **kwargs)  # refuses one that is given twice, or unknown
        parts = signature.parameters.values()
        unnamed = any(one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL) for one in parts)
        if unnamed and bound.kwargs:
            raise DeferredError("call the model with its arguments by position, or all by name")
        by_name = dict(zip(signature.parameters, args, strict=False)) | kwargs
        args, kwargs = (bound.args, {}) if unnamed else ((), by_name)
    if kwargs:
        return kwargs
    alone = len(args) == 1 and not isinstance(args[0], Mapping | tuple | list)
    return args[0] if alone else args


_PLAIN: dict[str, Any] = {"ignore_index": -100, "reduction": "none", "label_smoothing": 0.0}
_PLAIN |= dict.fromkeys(("weight", "size_average", "reduce"))


def _known(value: Deferred, output: FunctionCall, targets: tuple[Leaf, ...]) -> Loss:
    """Forethought's own function for plain cross entropy, which has fast rules; else as stated."""
    what, own = value._what, [output, *targets]
    if not isinstance(what, FunctionCall) or what.function is not F.cross_entropy:
        return StatedLoss(value, output, targets)
    # Torch hands every call on with all of its options, by name.
    plain = what.kwargs == _PLAIN and [getattr(one, "_what", None) for one in what.args] == own
    return cross_entropy if plain else StatedLoss(value, output, targets)

"""Private rounds inside other libraries' trainers: transformers' Trainer and Lightning's.

Both run the same few steps as a user's own loop (:mod:`forethought.training.own_loop`): they take a
batch, compute a loss, and step. So their loader and their optimizer are replaced, and numbers that
they would report of a private batch are left out; everything else stays theirs. Neither library is
imported here: a trainer is recognised by its attributes.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Unpack

import torch
from torch.utils._pytree import tree_leaves

from forethought.accounting.statement import About
from forethought.gradients.sharded import take_shards
from forethought.rounds.private_sum import RoundError
from forethought.rounds.randomness import Seeds
from forethought.training.execution import Execution, ShortForms, alone, settled
from forethought.training.own_loop import Deferred, OwnLoop, epoch_ends, private
from forethought.training.run import Run
from forethought.values.checks import instance
from forethought.values.plan import Plan


class PrivateTraining:
    """A trainer of another library whose steps are the rounds of a plan."""

    _loop: OwnLoop | None = None

    def __init__(self, plan: Plan, planned: bool, how: dict[str, Any]) -> None:
        self._plan, self._planned, self._how = plan, planned, how

    def _begin(self, model: torch.nn.Module, optimizer: Any, data: Any) -> OwnLoop:
        """The loop, with the optimizer if the plan's own was not asked for."""
        own = None if self._planned else optimizer
        self._loop = private(model, own, data, self._plan, **self._how)
        return self._loop

    def finish(self, out: str | Path | None = None, about: About | None = None) -> Run:
        """End the training, after the trainer's own call (``train()``, ``fit(…)``).

        Args:
            out, about: as for the ``finish`` of :func:`forethought.private`'s optimizer.

        Returns:
            The Run with its Statement.

        Raises:
            RoundError: the trainer has not trained. Others as of that ``finish``.
        """
        if self._loop is None:
            raise RoundError("nothing was released yet: call the trainer's fit(…) first")
        return self._loop.optimizer.finish(out, about)


def private_trainer(
    trainer: Any,
    plan: Plan,
    *,
    model: torch.nn.Module | None = None,
    planned: bool = False,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    **short: Unpack[ShortForms],
) -> PrivateTraining:
    """Make a ``transformers.Trainer`` or a Lightning ``Trainer`` train a plan.

    The trainer's loader gives the plan's batches, which have no values, and the steps of its
    optimizer are the plan's rounds, as in :func:`forethought.private`. The plan decides batch size,
    number of steps and clipping, not the trainer's arguments. No loss of a private batch is logged;
    evaluation, checkpoints and schedulers work as usual.

    Args:
        trainer: before its ``train()`` or ``fit(…)``. Model, data set and collator are those of a
            ``transformers.Trainer``, or those given to Lightning's ``fit``. Several processes need
            a ``transformers.Trainer`` whose model torch's ``fully_shard`` has sharded.
        plan: the plan whose mechanism is released.
        model: for Lightning only: the part of the module that its ``training_step`` calls, with all
            trained weights; by default the module itself, called as ``self(…)``.
        planned: True to use the plan's own optimizer, step sizes and average, not the trainer's.
        execution, seeds, short: as for :func:`forethought.private`.

    Returns:
        An object whose ``finish()`` gives the Run with its Statement after training.

    Raises:
        TypeError: another kind of trainer.
        ValueError: arguments that do not fit private rounds.
    """
    how = dict(zip(("execution", "seeds"), settled(execution, seeds, **short), strict=True))
    training = PrivateTraining(instance("plan", plan, Plan), planned, how)
    if hasattr(trainer, "private_training"):
        raise ValueError("this trainer is private already: make a new one for another run")
    if hasattr(trainer, "get_train_dataloader") and hasattr(trainer, "training_step"):
        if model is not None:
            raise ValueError("model= is for Lightning: a transformers.Trainer has its own")
        _in_transformers(trainer, training)
    elif hasattr(trainer, "fit_loop"):
        trainer.callbacks.append(_lightning_callback(trainer, training, model))
    else:
        raise TypeError(
            "trainer must be a transformers.Trainer or a Lightning Trainer, not "
            f"{type(trainer).__name__}: any other loop becomes private with forethought.private"
        )
    trainer.private_training = training
    return training


_PIECES = "a step is one round; micro_batch= computes a large batch in pieces"
_WHOLE_PLAN = "all rounds of the plan would run; leave it out, and try on made-up records first"
# Arguments of transformers' and of Lightning's trainers that do not fit private rounds: the value,
# beside those that are none, which changes nothing, and the remedy for others.
_UNFIT: dict[str, tuple[object, str]] = {
    "gradient_accumulation_steps": (1, _PIECES),
    "accumulate_grad_batches": (1, _PIECES),
    "fast_dev_run": (None, _WHOLE_PLAN),
    "overfit_batches": (None, _WHOLE_PLAN),
    "auto_find_batch_size": (None, "give micro_batch= for memory"),
    "fp16": (None, "a GradScaler would scale what is clipped; use bf16=True"),
    "debug": ([], "it would print numbers of private records; debug on made-up ones"),
    "torch_compile": (None, "rounds look into the model"),
    "deepspeed": (None, "cut the model with torch's fully_shard instead"),
    "fsdp": (None, "cut the model with torch's fully_shard beforehand"),
    "n_gpu": (1, "make one device visible (CUDA_VISIBLE_DEVICES=0)"),
    "include_num_input_tokens_seen": ("no", "it would count tokens of private records"),
    "label_smoothing_factor": (None, "it is a batch's mean; smooth in the model's own loss"),
}


def _require_fit(arguments: Any) -> None:
    for name, (harmless, remedy) in _UNFIT.items():
        given = getattr(arguments, name, None)
        if given and given != harmless:
            raise ValueError(f"{name}={given!r} does not go with private rounds: {remedy}")


class _Steps:
    """A private loader whose iterations all have ``len`` batches, until the plan's rounds are done.

    It takes the place of a trainer's own loader, so that nothing in it reads records but rounds.

    Args:
        training: has the loop once the trainer begins to train.
    """

    def __init__(self, training: PrivateTraining) -> None:
        self._training, self._length = training, epoch_ends(training._plan)[0]

    def __len__(self) -> int:
        return self._length

    @property
    def dataset(self) -> range:
        """Of the records' number and without their values."""
        return range(self._training._plan.examples)

    def __iter__(self) -> Iterator[Any]:
        if (loop := self._training._loop) is None:
            raise RoundError(
                "records would be read before the rounds, without noise: leave out "
                "LearningRateFinder, BatchSizeFinder and Tuner (planned=True has a step size)"
            )
        yield from islice(loop.loader._until(self._training._plan.rounds), len(self))


# In transformers.

# The end of an error where a trainer would go on from a checkpoint.
_GOES_ON = (
    "would run a part of the plan: load the checkpoint's weights into the model and begin a new "
    "run, with a trainer and a plan of its own"
)
# Values that a Trainer would log of private batches.
_OF_BATCHES = ("loss", "grad_norm", "train_loss")


def _private(value: Any) -> bool:
    return any(isinstance(one, Deferred) for one in tree_leaves(value))


def _in_transformers(trainer: Any, training: PrivateTraining) -> None:
    arguments, plan, planned = trainer.args, training._plan, training._planned
    _require_fit(arguments)
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        if (getattr(arguments, name, None) or {}).get("use_reentrant"):
            raise ValueError(f"{name}= of private rounds needs use_reentrant=False")
    if trainer.model_init is not None:
        raise ValueError("model_init= would train another model: give model=model_init() instead")
    if planned and arguments.load_best_model_at_end and plan.averaging.kind != "none":
        raise ValueError(
            "load_best_model_at_end=True would be undone by the plan's average of the weights: "
            'leave it out, or plan with averaging=forethought.Averaging("none")'
        )
    if take_shards(trainer.model) is not None:
        _leave_cut(trainer)
    if not planned:
        trainer.create_optimizer()
    if getattr(trainer.data_collator, "padding", None) in (True, "longest"):
        warnings.warn(
            "the collator pads to the longest record, and rounds collate each alone: pad all to "
            "one public length, with padding='max_length' and max_length= of the tokenizer",
            stacklevel=3,
        )
    loop = training._begin(trainer.model, trainer.optimizer, trainer.get_train_dataloader())
    rounds = loop.optimizer._rounds
    rounds._told.append("clip_grad_norm_")  # a Trainer's own line: no warning of it
    trainer.optimizer, steps = loop.optimizer, _Steps(training)
    if planned:
        trainer.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda _: 1.0)
    arguments.max_steps = plan.rounds
    arguments.logging_nan_inf_filter = False  # it would depend on a private loss
    step, log, train = trainer.training_step, trainer.log, trainer.train

    def begun(resume_from_checkpoint: Any = None, *rest: Any, **named: Any) -> Any:
        if resume_from_checkpoint:
            raise ValueError(f"resume_from_checkpoint= {_GOES_ON}")
        rounds._require_going_on()
        return train(None, *rest, **named)

    def training_step(model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        # The number of items in the batch is private, so it is not given: each record has its own
        # mean.
        step(model, inputs, None)
        return torch.full((), float("nan"), device=arguments.device)

    def logged(logs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        told = {k: v for k, v in logs.items() if k not in _OF_BATCHES and not _private(v)}
        return log(told, *rest, **named)

    trainer.get_train_dataloader = lambda: steps
    trainer.training_step, trainer.log, trainer.train = training_step, logged, begun
    trainer.floating_point_ops = lambda inputs: 0  # they depend on the private batch size


def _leave_cut(trainer: Any) -> None:
    """Make a Trainer treat a model that fully_shard has sharded as one that it sharded itself."""
    own = "is_distributed_loading_by_transformers"
    if not hasattr(trainer, own):
        raise ValueError("this transformers puts DDP around a sharded model: take a newer one")
    if trainer.args.save_strategy != "no":
        raise ValueError(
            "give save_strategy='no': finish(out=…) keeps the whole model, not a shard"
        )
    setattr(trainer, own, True)
    # It would sum numbers of tokens, which are private, and whose sum is not used.
    trainer.args.average_tokens_across_devices = False


# In Lightning.


def _lightning_callback(trainer: Any, training: PrivateTraining, part: Any) -> Any:
    """A callback that puts a plan's rounds into a Lightning trainer when it begins to train."""
    _require_fit(trainer)
    # Lightning's package has two names, and its trainer's class may be a user's own.
    package = type(trainer.state).__module__.partition(".trainer")[0]
    base: Any = import_module(f"{package}.callbacks").Callback

    class PrivateRoundsCallback(base):  # type: ignore[misc]
        """Replaces loader, optimizer and log of a fit by those of the plan."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            fit, steps, most = trainer.fit_loop, _Steps(training), trainer.limit_train_batches
            self.own, fit._data_source.instance = copy.copy(fit._data_source), steps
            # Before the optimizer is made, since schedules ask for the number of steps.
            each = min(len(steps), most if isinstance(most, int) else int(len(steps) * most))
            fit.max_epochs = -(-training._plan.rounds // max(1, each))
            fit.epoch_loop.max_steps = training._plan.rounds

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.ckpt_path or trainer.global_step:
                raise ValueError(f"ckpt_path=, or a second fit of a trainer, {_GOES_ON}")

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            alone("forethought.private_trainer of Lightning")
            wrapped = trainer.strategy.model is not pl_module
            if wrapped or not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
                raise ValueError(
                    "private rounds need one optimizer, automatic optimization, and no strategy= "
                    "that wraps the module; for a loop of your own use forethought.private"
                )
            if any(hasattr(one, "get_accumulate_grad_batches") for one in trainer.callbacks):
                raise ValueError(f"leave GradientAccumulationScheduler out: {_PIECES}")
            if training._loop is not None:
                raise RoundError("it has trained: call private_trainer for a new trainer")
            model, given = pl_module if part is None else part, self.own.dataloader()
            if isinstance(given, Mapping | list | tuple) or hasattr(given, "flattened"):
                raise ValueError("fit takes one training loader, in no dict and no list")
            loop = training._begin(model, trainer.optimizers[0], given)
            trainer.strategy.optimizers = [loop.optimizer]
            _state_in(trainer.strategy, pl_module)

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            # The number of records in a batch is private, so all batches have one weight.
            trainer._results.batch_size = 1

    return PrivateRoundsCallback()


def _state_in(strategy: Any, module: Any) -> None:
    """Let a training step return a loss without values, and keep such values out of the log."""
    step, log = strategy.training_step, module.log
    told: set[str] = set()

    def logged(name: str, value: Any, *rest: Any, **named: Any) -> None:
        if not _private(value):
            log(name, value, *rest, **named)
        elif name not in told:
            told.add(name)
            warnings.warn(
                f"{name} is of private records and holds no number: it is not logged", stacklevel=2
            )

    def training_step(*args: Any, **kwargs: Any) -> Any:
        # Only for this call, since the round needs the module unchanged.
        module.log = logged
        try:
            found = step(*args, **kwargs)
        finally:
            del module.log
        if isinstance(found, Mapping):
            found = found.get("loss")
        return {"loss": found} if isinstance(found, Deferred) else found

    strategy.training_step = training_step

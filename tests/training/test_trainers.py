"""Private rounds inside transformers' Trainer, accelerate and Lightning."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from zoo.oracle import with_torchvision

import forethought as ft
from drawn import randint, randn, reseed, stream
from forethought.accounting.verification import verify
from forethought.errors import (
    DeferredError,
    NoGradientsWarning,
    RoundError,
    UnreachedWeightsWarning,
)

SEEDS = {"seed": 3, "noise_seed": 4}
WORDS, LENGTH, COUNT = 60, 10, 64


def table() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = randn(COUNT, 5, generator=stream(0))
    return inputs, (inputs[:, 0] > 0).long()


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def planned(model: nn.Module, epochs: float = 2) -> ft.Plan:
    budget = ft.Budget(epsilon=8.0, delta=1e-3)
    return ft.plan(examples=COUNT, budget=budget, epochs=epochs, batch=16, model=model)


def text() -> dict[str, Any]:
    """Documents of one length, whose last words are masked, and a class of each."""
    ids = randint(1, WORDS, (COUNT, LENGTH), generator=stream(1))
    masked = ids.clone()
    masked[:, -3:] = -100
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": masked}


def weight_names(model: nn.Module, before: dict[str, torch.Tensor]) -> set[str]:
    return {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}


# transformers.


def trainer_of(model: nn.Module, data: Any, folder: Path, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder),
        learning_rate=0.05,
        per_device_train_batch_size=16,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{"save_strategy": "no", **options},
    )
    return Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data)


def gpt2() -> nn.Module:
    with_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    reseed(1)
    config = GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=8, n_layer=1, n_head=2,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def lora(model: nn.Module) -> Any:
    from peft import LoraConfig, get_peft_model

    reseed(2)
    return get_peft_model(
        model,
        LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
    )


@pytest.mark.slow
def test_documents_train_an_adapter_inside_transformers_trainer(tmp_path: Path) -> None:
    """Masked tokens do not count: the same run with other words behind the mask is the same."""
    from datasets import Dataset

    found = []
    for behind in (0, 1):
        model, data = lora(gpt2()), text()
        data["input_ids"] = data["input_ids"].clone()
        data["input_ids"][:, -1] = 5 + behind  # seen by nothing: nothing comes after it
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        trainer = trainer_of(
            model,
            Dataset.from_dict({name: part.tolist() for name, part in data.items()}),
            tmp_path,
            eval_strategy="epoch",
            bf16=False,
        )
        the_plan = planned(model)
        training = ft.private_trainer(trainer, the_plan, **SEEDS)
        result = trainer.train()
        run = training.finish(out=tmp_path / f"run{behind}")
        assert result.global_step == the_plan.rounds == len(run.transcript)
        assert run.statement.epsilon.upper <= 8.0
        verify(run.statement, the_plan)
        moved = weight_names(model, before)
        assert moved and all("lora_" in name for name in moved)
        logged = [set(row) for row in trainer.state.log_history]
        assert any("eval_loss" in row for row in logged)
        assert not any(row & {"loss", "grad_norm", "train_loss"} for row in logged)
        found.append(weights(model))
    assert torch.equal(found[0], found[1])


@pytest.mark.slow
def test_a_trainers_rounds_are_those_of_a_loop_with_its_optimizer(
    tmp_path: Path, noise_by_round: None
) -> None:
    one, two = gpt2(), gpt2()
    data = TextRecords(text())
    trainer = trainer_of(one, data, tmp_path, lr_scheduler_type="constant", weight_decay=0.0)
    the_plan = planned(one)
    training = ft.private_trainer(trainer, the_plan, **SEEDS)
    trainer.train()
    training.finish()
    adam = torch.optim.AdamW(two.parameters(), 0.05, weight_decay=0.0)
    loader, optimizer = ft.private(two, adam, data, the_plan, **SEEDS)
    for _ in range(loader.epochs):
        for batch in loader:
            two(**batch)[0].backward()
            optimizer.step()
    optimizer.finish()
    torch.testing.assert_close(weights(one), weights(two))
    assert not torch.allclose(weights(one), weights(gpt2()))


class TextRecords(torch.utils.data.Dataset[Any]):
    def __init__(self, columns: dict[str, torch.Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: part[index] for name, part in self.columns.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"auto_find_batch_size": True},
        {"label_smoothing_factor": 0.1},
        {"debug": "underflow_overflow"},
        {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ],
)
def test_arguments_that_do_not_go_with_rounds_are_refused(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    model = gpt2()
    trainer = trainer_of(model, TextRecords(text()), tmp_path, **options)
    with pytest.raises(ValueError, match="private rounds"):
        ft.private_trainer(trainer, planned(model))


@pytest.mark.slow
def test_what_would_undo_or_replace_the_trained_weights_is_refused(tmp_path: Path) -> None:
    model, data = gpt2(), TextRecords(text())
    the_plan = planned(model).with_(averaging=ft.Averaging("tail"))
    best = {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True}
    with pytest.raises(ValueError, match="load_best_model_at_end"):
        ft.private_trainer(trainer_of(model, data, tmp_path, **best), the_plan, planned=True)
    ft.private_trainer(trainer_of(model, data, tmp_path, **best), the_plan)  # it averages nothing
    trainer = trainer_of(model, data, tmp_path)
    trainer.model_init = gpt2
    with pytest.raises(ValueError, match="model_init"):
        ft.private_trainer(trainer, the_plan)


@pytest.mark.slow
@pytest.mark.parametrize("best", ["first", "last"])
def test_the_best_weights_of_a_trainer_are_stated_as_the_loops_choice(
    tmp_path: Path, best: str
) -> None:
    def order(_: Any) -> dict[str, float]:
        seen.append(1)
        return {"order": -len(seen) if best == "first" else len(seen)}

    seen: list[int] = []
    model, data = gpt2(), TextRecords(text())
    often = {"eval_steps": 1, "save_steps": 1, "metric_for_best_model": "order"}
    ways = {"eval_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True}
    trainer = trainer_of(model, data, tmp_path, greater_is_better=True, **often, **ways)
    trainer.compute_metrics = order
    training = ft.private_trainer(trainer, planned(model, 1), **SEEDS)
    trainer.train()
    text_of = training.finish().statement.to_markdown()
    assert ("after the last round" in text_of) == (best == "first")


@pytest.mark.slow
def test_a_trainer_that_would_go_on_from_a_checkpoint_is_refused(tmp_path: Path) -> None:
    model = gpt2()
    trainer = trainer_of(model, TextRecords(text()), tmp_path)
    ft.private_trainer(trainer, planned(model))
    for given in (True, str(tmp_path)):
        with pytest.raises(ValueError, match="new run"):
            trainer.train(resume_from_checkpoint=given)


class Named(nn.Module):
    """Answers with its loss in a tuple, or by a name behind another."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.network, self.kind = network(), kind

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        from transformers.utils import ModelOutput

        scores = self.network(x)
        loss = F.cross_entropy(scores, labels)
        if self.kind == "tuple":
            return (loss,)
        by_name = {"scores": scores.sum(1)} | ({} if self.kind == "none" else {"loss": loss})
        return ModelOutput(by_name) if self.kind == "output" else by_name


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"x": x, "labels": y} for x, y in zip(*table(), strict=True)]


@pytest.mark.slow
def test_a_trainer_takes_the_loss_by_its_name(tmp_path: Path) -> None:
    with_torchvision()
    found = []
    for kind in ("tuple", "dict", "output"):
        model = Named(kind)
        trainer = trainer_of(model, rows(), tmp_path, optim="sgd")
        ft.private_trainer(trainer, planned(model, 1), **SEEDS)
        trainer.train()
        found.append(weights(model))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    trainer = trainer_of(Named("none"), rows(), tmp_path)
    ft.private_trainer(trainer, planned(trainer.model, 1))
    with pytest.raises(DeferredError, match="no 'loss'"):
        trainer.train()


@pytest.mark.slow
def test_a_number_in_ones_own_loss_is_a_place_in_the_outputs(tmp_path: Path) -> None:
    with_torchvision()
    from transformers import Trainer

    found = []
    for key in (0, "scores"):

        class Own(Trainer):  # type: ignore[misc]
            def compute_loss(
                self, model: Any, inputs: Any, *_: Any, key: Any = key, **__: Any
            ) -> Any:
                return F.mse_loss(model(**inputs)[key], inputs["labels"].float())

        plain = trainer_of(Named("output"), rows(), tmp_path, optim="sgd")
        trainer = Own(model=plain.model, args=plain.args, train_dataset=plain.train_dataset)
        ft.private_trainer(trainer, planned(trainer.model, 0.5), **SEEDS)
        trainer.train()
        found.append(weights(trainer.model))
    assert torch.equal(*found) and not torch.equal(found[0], weights(Named("output")))


@pytest.mark.slow
def test_the_length_of_an_epoch_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a walk through all rounds, and an epoch may be one round."""
    with_torchvision()
    trainer = trainer_of(Named("tuple"), rows(), tmp_path)
    ft.private_trainer(trainer, planned(trainer.model))
    monkeypatch.delattr("forethought.training.trainers.epoch_ends")
    assert len(trainer.get_train_dataloader()) == 4


@pytest.mark.slow
def test_a_trainer_that_has_trained_trains_no_more_in_silence(tmp_path: Path) -> None:
    with_torchvision()
    trainer = trainer_of(Named("tuple"), rows(), tmp_path)
    training = ft.private_trainer(trainer, planned(trainer.model, 1))
    with pytest.raises(ValueError, match="private already"):
        ft.private_trainer(trainer, planned(trainer.model, 1))
    trainer.train()
    with pytest.raises(RoundError, match="rounds are done"):
        trainer.train()
    training.finish()
    with pytest.raises(RoundError, match="no further rounds"):
        trainer.train()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_gradient_beside_a_trainers_round_is_refused(tmp_path: Path, when: str) -> None:
    with_torchvision()
    from transformers import Trainer

    class Own(Trainer):  # type: ignore[misc]
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
            if when == "before":
                model.network[0].weight.square().sum().backward()
            loss = super().training_step(model, inputs, *rest)
            if when == "after":
                model.network[0].weight.square().sum().backward()
            return loss

    plain = trainer_of(Named("tuple"), rows(), tmp_path)
    trainer = Own(model=plain.model, args=plain.args, train_dataset=plain.train_dataset)
    ft.private_trainer(trainer, planned(trainer.model, 1))
    with pytest.raises(RoundError, match="no round gave"), warnings.catch_warnings():
        warnings.simplefilter("error", NoGradientsWarning)
        trainer.train()


@pytest.mark.slow
def test_a_trainer_that_was_interrupted_between_rounds_goes_on(tmp_path: Path) -> None:
    with_torchvision()
    from transformers import TrainerCallback

    class Interrupting(TrainerCallback):  # type: ignore[misc]
        begun = 0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.begun += 1
            if self.begun == 2:
                raise KeyboardInterrupt

    trainer = trainer_of(Named("tuple"), rows(), tmp_path)
    trainer.add_callback(Interrupting())
    training = ft.private_trainer(trainer, planned(trainer.model, 1))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train()
    assert len(training.finish().transcript) == 4


@pytest.mark.slow
def test_what_a_trainer_logs_of_a_batch_is_in_no_checkpoint(tmp_path: Path) -> None:
    with_torchvision()
    from transformers import Trainer

    class Telling(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, *rest, **named)
            self.log({"aside": loss.detach(), "inner": {"a": loss.detach()}, "public": 1.0})
            return loss

    plain = trainer_of(Named("tuple"), rows(), tmp_path, save_strategy="steps", save_steps=1)
    trainer = Telling(model=plain.model, args=plain.args, train_dataset=plain.train_dataset)
    training = ft.private_trainer(trainer, planned(trainer.model, 1))
    trainer.train()
    assert len(training.finish().transcript) == 4
    logged = set().union(*trainer.state.log_history)
    assert "public" in logged and not logged & {"aside", "inner"}


# accelerate.


@pytest.mark.slow
def test_accelerate_changes_no_weight() -> None:
    with_torchvision()
    from accelerate import Accelerator

    found = []
    for prepare in (lambda *parts: parts, Accelerator(cpu=True).prepare):
        model = network()
        sgd = torch.optim.SGD(model.parameters(), 0.5)
        loader, optimizer = ft.private(model, sgd, table(), planned(model), **SEEDS)
        wrapped, stepping, batches = prepare(model, optimizer, loader)
        for _ in range(loader.epochs):
            for inputs, targets in batches:
                F.cross_entropy(wrapped(inputs), targets).backward()
                stepping.step()
                stepping.zero_grad()
        optimizer.finish()
        found.append(weights(model))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], weights(network()))


@pytest.mark.slow
def test_a_loss_that_accelerate_divides_is_named() -> None:
    with_torchvision()
    from accelerate import Accelerator
    from accelerate.state import GradientState

    model = network()
    sgd = torch.optim.SGD(model.parameters(), 0.5)
    loader, _ = ft.private(model, sgd, table(), planned(model), **SEEDS)
    inputs, targets = next(iter(loader))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    try:
        with accelerator.accumulate(model), pytest.warns(UserWarning, match="divided by 4"):
            accelerator.backward(F.cross_entropy(model(inputs), targets))
    finally:
        GradientState._reset_state()


@pytest.mark.slow
def test_what_accelerate_has_prepared_is_refused_before_a_release() -> None:
    with_torchvision()
    from accelerate import Accelerator

    model = network()
    sgd = torch.optim.SGD(model.parameters(), 0.5)
    with pytest.raises(TypeError, match="accelerate prepares"):
        ft.private(model, Accelerator(cpu=True).prepare(sgd), table(), planned(model))


# Lightning.


def network() -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def lightning_of(part: bool, **options: Any) -> tuple[Any, Any, nn.Module]:
    """A trainer and a module that calls itself, or its network."""
    with_torchvision()
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.lr = network(), 0.5
            self.asked: list[Any] = []

        def forward(self, inputs: Any) -> Any:
            return self.network(inputs)

        def training_step(self, batch: Any, index: int) -> Any:
            inputs, targets = batch
            loss = F.cross_entropy((self.network if part else self)(inputs), targets)
            self.log("train_loss", loss)
            self.log("step_size", self.lr, on_step=False, on_epoch=True)
            self.log("places", 1.5, False, None, False, True, "mean", False, False, None, True, 7)
            return loss

        def on_train_batch_start(self, batch: Any, index: int) -> None:
            self.log("begun", 2.5, on_step=False, on_epoch=True)

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            self.log("ended", 3.5, on_step=False, on_epoch=True)

        def validation_step(self, batch: Any, index: int) -> None:
            inputs, targets = batch
            self.log("accuracy", (self(inputs).argmax(1) == targets).float().mean())

        def configure_optimizers(self) -> Any:
            sgd = torch.optim.SGD(self.parameters(), self.lr)
            self.asked = [self.trainer.estimated_stepping_batches, self.trainer.max_epochs]
            self.asked += [len(self.trainer.train_dataloader.dataset)]
            falling = torch.optim.lr_scheduler.ConstantLR(sgd, 1.0)
            return [sgd], [falling]

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    module = Module()
    return trainer, module, module.network


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [False, True])
def test_lightnings_rounds_are_those_of_a_loop(part: bool) -> None:
    trainer, module, inner = lightning_of(part)
    the_plan = planned(inner)
    training = ft.private_trainer(trainer, the_plan, model=inner if part else None, **SEEDS)
    batches = DataLoader(TensorDataset(*table()), batch_size=16)
    with pytest.warns(UserWarning, match="not logged") as told:
        trainer.fit(module, batches, batches)
    assert not any(issubclass(one.category, NoGradientsWarning) for one in told)
    run = training.finish()
    assert len(run.transcript) == the_plan.rounds == trainer.global_step
    assert "accuracy" in trainer.callback_metrics and "train_loss" not in trainer.callback_metrics
    other = nn.ModuleDict({"network": network()}) if not part else network()
    called = other if part else other["network"]
    # Names of weights are bound to the noise: those of the module as it was given.
    loop = Outer(called) if not part else called
    sgd = torch.optim.SGD(loop.parameters(), 0.5)
    loader, optimizer = ft.private(loop, sgd, table(), the_plan, **SEEDS)
    for _ in range(loader.epochs):
        for inputs, targets in loader:
            F.cross_entropy(loop(inputs), targets).backward()
            optimizer.step()
    optimizer.finish()
    assert torch.equal(weights(inner), weights(called))


class Outer(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Any) -> Any:
        return self.network(inputs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_lightning_would_run_otherwise_is_refused_and_a_fit_must_come_first() -> None:
    for name, given in {
        "accumulate_grad_batches": 2,
        "fast_dev_run": 1,
        "overfit_batches": 1,
    }.items():
        trainer, _, inner = lightning_of(False, **{name: given})
        with pytest.raises(ValueError, match=name):
            ft.private_trainer(trainer, planned(inner))
    trainer, _, inner = lightning_of(False)
    with pytest.raises(RoundError, match="nothing was released"):
        ft.private_trainer(trainer, planned(inner)).finish()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("by", "words"),
    [("schedule", "GradientAccumulationScheduler"), ("strategy", "that wraps")],
)
def test_what_would_run_otherwise_later_is_refused_before_the_first_round(
    by: str, words: str
) -> None:
    with_torchvision()
    from lightning.pytorch.callbacks import GradientAccumulationScheduler
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class Wrapping(SingleDeviceStrategy):
        def setup(self, trainer: Any) -> None:
            super().setup(trainer)
            self.model = nn.Sequential(self.model)

    options: dict[str, Any] = {"callbacks": [GradientAccumulationScheduler({0: 1, 1: 2})]}
    if by == "strategy":
        options = {"strategy": Wrapping(accelerator=None, device="cpu")}
    trainer, module, inner = lightning_of(False, **options)
    training = ft.private_trainer(trainer, planned(inner))
    with pytest.raises(ValueError, match=words):
        trainer.fit(module, DataLoader(TensorDataset(*table()), batch_size=16))
    with pytest.raises(RoundError, match="nothing was released"):
        training.finish()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_fit_from_a_checkpoint_is_refused(tmp_path: Path) -> None:
    batches = DataLoader(TensorDataset(*table()), batch_size=16)
    trainer, module, _ = lightning_of(False)
    trainer.fit(module, batches)
    trainer.save_checkpoint(tmp_path / "begun.ckpt")
    trainer, module, inner = lightning_of(False)
    ft.private_trainer(trainer, planned(inner))
    with pytest.raises(ValueError, match="ckpt_path="):
        trainer.fit(module, batches, ckpt_path=tmp_path / "begun.ckpt")
    trainer, module, inner = lightning_of(False)
    ft.private_trainer(trainer, planned(inner, 1))
    trainer.fit(module, batches)
    with pytest.raises(ValueError, match="second fit"):
        trainer.fit(module, batches)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("most", "epochs"), [(1.0, 2), (3, 3)])
def test_lightnings_schedules_are_made_for_the_rounds_of_the_plan(most: Any, epochs: int) -> None:
    trainer, module, inner = lightning_of(False, limit_train_batches=most)
    training = ft.private_trainer(trainer, planned(inner))
    trainer.fit(module, DataLoader(TensorDataset(*table()), batch_size=COUNT))
    assert module.asked == [8, epochs, COUNT]
    assert len(training.finish().transcript) == 8
    public = {"step_size": 0.5, "places": 1.5, "begun": 2.5, "ended": 3.5}
    assert public.items() <= {k: float(v) for k, v in trainer.callback_metrics.items()}.items()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("by", ["callback", "tuner"])
def test_no_step_size_is_found_from_records_without_noise(by: str) -> None:
    trainer, module, inner = lightning_of(False)
    from lightning.pytorch.callbacks import LearningRateFinder
    from lightning.pytorch.tuner import Tuner

    batches = DataLoader(TensorDataset(*table()), batch_size=2)
    training = ft.private_trainer(trainer, planned(inner))
    with pytest.raises(RoundError, match="without noise"):
        if by == "tuner":
            Tuner(trainer).lr_find(module, batches, num_training=20)
        else:
            trainer.callbacks.append(LearningRateFinder(num_training_steps=20))
            trainer.fit(module, batches)
    assert module.lr == 0.5
    with pytest.raises(RoundError, match="nothing was released"):
        training.finish()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_fit_takes_one_loader_of_a_trainer_that_is_private_once() -> None:
    batches = DataLoader(TensorDataset(*table()), batch_size=16)
    for given in ({"a": batches}, [batches], [batches, batches]):
        trainer, module, inner = lightning_of(False)
        ft.private_trainer(trainer, planned(inner))
        with pytest.raises(ValueError, match="private already"):
            ft.private_trainer(trainer, planned(inner))
        with pytest.raises(ValueError, match="one training loader"):
            trainer.fit(module, given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_fit_after_one_that_failed_needs_a_new_trainer() -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("a fault")

    batches = DataLoader(TensorDataset(*table()), batch_size=16)
    trainer, module, inner = lightning_of(False)
    ft.private_trainer(trainer, planned(inner))
    module.training_step = fail
    with pytest.raises(RuntimeError, match="a fault"):
        trainer.fit(module, batches)
    with pytest.raises(RoundError, match="a new trainer"):
        trainer.fit(module, batches)


@pytest.mark.slow
def test_a_trainer_of_ones_own_class_becomes_private() -> None:
    with_torchvision()
    import lightning

    class Own(lightning.Trainer):
        pass

    trainer = Own(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert ft.private_trainer(trainer, planned(network())) is trainer.private_training


def test_another_trainer_is_refused() -> None:
    with pytest.raises(TypeError, match=r"forethought\.private"):
        ft.private_trainer(network(), planned(network()))


# What moved is what the plan trains: the reproducer of Opacus' issue 820, and its kin.


def adapted_loop(model: Any, optimizer: Any) -> tuple[Any, Any]:
    data = text()
    return ft.private(model, optimizer, TextRecords(data), planned(model, 1), **SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "switched off", "merged", "stale", "later", "skipped"])
def test_an_adapter_that_is_not_trained_is_refused_in_words(fault: str) -> None:
    base = gpt2()
    stale = torch.optim.AdamW(base.parameters(), 1e-2)
    model = lora(base)
    trained = [p for p in model.parameters() if p.requires_grad]
    if fault == "stale":
        with pytest.raises(ValueError, match="does not have"):
            adapted_loop(model, stale)
        return
    kind = Skipping if fault == "skipped" else torch.optim.AdamW
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    loader, optimizer = adapted_loop(model, kind(trained, 1e-2))
    words = {"later": "changed since", "skipped": "left .*lora_", "none": ""}
    if fault in ("switched off", "merged"):
        model.disable_adapter_layers() if fault == "switched off" else model.merge_adapter()
        for parameter in trained:
            parameter.requires_grad_(True)
    for number, batch in enumerate(loader):
        if fault == "later" and number == 1:
            model.add_adapter("second", model.peft_config["default"])
            model.set_adapter("second")
        model(**batch)[0].backward()
        if fault != "none" and not (fault == "later" and number == 0):
            with pytest.raises((ValueError, RoundError), match=words.get(fault, "none of|changed")):
                optimizer.step()
            break
        optimizer.step()
    if fault == "none":
        optimizer.finish()
        moved = weight_names(model, before)
        assert moved and all("lora_" in name for name in moved)


class Skipping(torch.optim.SGD):
    """Steps all weights but the first."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["params"][0].grad = None
        super().step()


class Straying(torch.optim.SGD):
    """Moves a weight that is frozen."""

    other: nn.Parameter

    def step(self, closure: Any = None) -> None:
        super().step()
        with torch.no_grad():
            self.other.add_(1.0)


@pytest.mark.parametrize("kind", [Skipping, Straying, torch.optim.SGD])
def test_a_step_moves_what_the_plan_trains_and_nothing_else(kind: Any) -> None:
    model = network()
    model[2].bias.requires_grad_(False)
    sgd = kind([p for p in model.parameters() if p.requires_grad], 0.5)
    sgd.other = model[2].bias
    loader, optimizer = ft.private(model, sgd, table(), planned(model), **SEEDS)
    inputs, targets = next(iter(loader))
    F.cross_entropy(model(inputs), targets).backward()
    if kind is torch.optim.SGD:
        optimizer.step()
        assert optimizer.rounds_done == 1
        return
    words = "0.weight as before" if kind is Skipping else "2.bias, which"
    with pytest.raises(RoundError, match=words):
        optimizer.step()
    with pytest.raises(RoundError, match="no further rounds"):
        next(iter(loader))
    assert len(optimizer.finish().transcript) == 1  # what was released is stated


def test_weights_that_take_no_part_in_the_loss_are_named() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(5, 2), nn.Linear(5, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.used(inputs)

    model = Spare()
    with pytest.warns(UnreachedWeightsWarning, match="spare.weight"):
        ft.train(model, table(), planned(model, 1))
    model.used.requires_grad_(False)
    with pytest.raises(ValueError, match="none of the"):
        ft.train(model, table(), planned(model, 1))


def test_a_step_of_size_zero_is_a_step() -> None:
    model = network()
    sgd = torch.optim.SGD(model.parameters(), 0.0)
    loader, optimizer = ft.private(model, sgd, table(), planned(model), **SEEDS)
    inputs, targets = next(iter(loader))
    F.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
    assert torch.equal(weights(model), weights(network()))


# Clipping that acts on nothing.


@pytest.mark.parametrize("clip", ["norm", "value", "own"])
def test_a_loop_that_clips_gradients_is_told_once_that_there_are_none(clip: str) -> None:
    found = []
    for clips in (False, True):
        model = network()
        sgd = torch.optim.SGD(model.parameters(), 0.5)
        loader, optimizer = ft.private(model, sgd, table(), planned(model, 1), **SEEDS)
        with pytest.warns() as told:
            for inputs, targets in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                if clips and clip == "norm":
                    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                elif clips and clip == "value":
                    nn.utils.clip_grad_value_(model.parameters(), 1e-3)
                elif clips:
                    for p in model.parameters():
                        assert p.grad is None or float(p.grad.norm()) == 0 or optimizer.rounds_done
                optimizer.step()
            warnings.warn("at least one", stacklevel=1)
        said = [one for one in told if issubclass(one.category, NoGradientsWarning)]
        assert len(said) == clips
        optimizer.finish()
        found.append(weights(model))
    assert torch.equal(found[0], found[1])


def test_a_closure_states_the_loss_as_lines_of_the_loop_do() -> None:
    found = []
    for closed in (False, True):
        model = network()
        sgd = torch.optim.SGD(model.parameters(), 0.5)
        loader, optimizer = ft.private(model, sgd, table(), planned(model, 1), **SEEDS)
        for inputs, targets in loader:

            def closure(inputs: Any = inputs, targets: Any = targets, model: Any = model) -> Any:
                loss = F.cross_entropy(model(inputs), targets)
                loss.backward()
                return loss

            if closed:
                assert "private batch" in repr(optimizer.step(closure))
            else:
                closure()
                optimizer.step()
        optimizer.finish()
        found.append(weights(model))
    assert torch.equal(found[0], found[1])
    model = network()
    loader, optimizer = ft.private(model, None, table(), planned(model), **SEEDS)
    next(iter(loader))
    with pytest.raises(RoundError, match="called no backward"):
        optimizer.step(lambda: None)


# A person's documents as one contribution, and records that are on disk.


PERSONS, RATE = 6, 0.05


class OfPersons(nn.Module):
    """A model of documents (B, tokens), for persons' documents (B, documents, tokens)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor]:
        scores = self.model(input_ids=input_ids.flatten(0, 1)).logits
        before, after = scores[:, :-1].transpose(1, 2), labels.flatten(0, 1)[:, 1:]
        each = F.cross_entropy(before, after, reduction="none", ignore_index=-100)
        return (each.sum() / (after >= 0).sum().clamp(min=1),)


def documents_of_persons() -> dict[str, torch.Tensor]:
    """Three documents a person, of which the last may be empty."""
    tokens = randint(1, 60, (PERSONS, 3, LENGTH), generator=stream(1))
    labels = tokens.clone()
    labels[:, :, -2:] = -100
    labels[::2, -1] = -100
    return {"input_ids": tokens, "labels": labels}


def without_noise(count: int = PERSONS) -> ft.Plan:
    """One round of all records."""
    return ft.plan(
        examples=count, sampling="full-batch", rounds=1, noise_multiplier=0.0, delta=1e-5,
        clip_norm=10.0, learning_rate=1.0, averaging=ft.Averaging("none"),
    )  # fmt: skip


def expected(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The weights after a step along each person's gradient by torch, none of which is clipped."""
    total = torch.zeros_like(weights(model))
    for person in range(PERSONS):
        model.zero_grad()
        model(**{name: part[person : person + 1] for name, part in data.items()})[0].backward()
        total += torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return weights(model) - RATE * total / PERSONS


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["loop", "trainer"])
def test_the_documents_of_a_person_are_one_contribution(inside: str, tmp_path: Path) -> None:
    model, data = OfPersons(gpt2()), documents_of_persons()
    wanted = expected(model, data)
    records = [{name: part[i] for name, part in data.items()} for i in range(PERSONS)]
    if inside == "loop":
        loader, optimizer = ft.private(
            model, torch.optim.SGD(model.parameters(), RATE), records, without_noise()
        )
        for batch in loader:
            model(**batch)[0].backward()
            optimizer.step()
    else:
        options: dict[str, Any] = {"lr_scheduler_type": "constant", "optim": "sgd"}
        trainer = trainer_of(model, records, tmp_path, **options)
        ft.private_trainer(trainer, without_noise())
        trainer.train()
    torch.testing.assert_close(weights(model), wanted, rtol=1e-4, atol=1e-6)


class OnDisk(torch.utils.data.Dataset[Any]):
    """Tokens in a memory map; it counts the records that were read."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.tokens = np.memmap(path, np.int64, "r", shape=shape)
        self.read: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read.append(index)
        row = torch.from_numpy(np.array(self.tokens[index]))
        return {"input_ids": row, "labels": row}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory map", "arrow"])
def test_records_on_disk_are_read_by_number(kind: str, tmp_path: Path) -> None:
    """The same weights as from memory; of a memory map only what a round draws is read."""
    from datasets import Dataset, load_from_disk

    count = 40
    tokens = randint(1, 60, (count, LENGTH), generator=stream(2))
    plan = ft.plan(examples=count, rounds=1, batch=4, noise_multiplier=1.0, delta=1e-5)
    if kind == "arrow":
        columns = {"input_ids": tokens.tolist(), "labels": tokens.tolist()}
        Dataset.from_dict(columns).save_to_disk(tmp_path / "data")
        data: Any = load_from_disk(tmp_path / "data")
    else:
        tokens.numpy().tofile(tmp_path / "tokens")
        data = OnDisk(tmp_path / "tokens", tuple(tokens.shape))
    found = []
    for records in ({"input_ids": tokens, "labels": tokens}, data):
        model = gpt2()
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loader, optimizer = ft.private(model, sgd, records, plan, seed=1, noise_seed=2)
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()
        found.append(weights(model))
    assert torch.equal(*found)
    if kind == "memory map":
        assert 0 < len(set(data.read)) < count / 2

"""State that one example leaves for another: attributes, buffers, objects, closures, weights."""

from __future__ import annotations

import decimal
import queue
import sys
import threading
import weakref
from array import array
from collections import deque
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from adversaries.attack import Attack, Attacks, D, Run, classify, head, withstand
from torch import Tensor, nn

from forethought.gradients import boundary

attack = Attacks()


@attack("refused")
def loss_with_a_running_scale() -> Any:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(()))

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            values = classify(outputs, targets) * self.scale
            self.scale.mul_(0.5).add_(0.5 * values.detach().mean())
            return values

    return head(), Scaled()


class Remembering:
    scale = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = classify(outputs, targets) * self.scale
        self.scale = 0.5 * self.scale + 0.5 * float(values.detach().mean())
        return values


@attack("either")
def loss_module_with_a_number() -> Any:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 1.0

        forward = Remembering.__call__

    return head(), Scaled()


@attack("either")
def loss_object_with_a_number() -> Any:
    return head(), Remembering()


@attack("either")
def loss_that_is_a_method_of_an_object() -> Any:
    return head(), Remembering().__call__


def remembers(write: Any, read: Any) -> Any:
    """A forward function that shifts by what was written for an earlier example."""

    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + read(self))
        write(self, float(x.detach().mean()))
        return y

    return forward


@attack("either")
def number_in_an_attribute() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + self.value)
        self.value = float(x.detach().mean())
        return y

    return Run(forward, head=head(), value=0.0), classify


@attack("either")
def number_in_an_object() -> Any:
    class Memory:
        value = 0.0

    def write(self: Run, value: float) -> None:
        self.memory.value = value

    forward = remembers(write, lambda self: self.memory.value)
    return Run(forward, head=head(), memory=Memory()), classify


@attack("either")
def numbers_in_a_list_in_a_dict() -> Any:
    forward = remembers(
        lambda self, value: self.bank["seen"].append(value), lambda self: sum(self.bank["seen"])
    )
    return Run(forward, head=head(), bank={"seen": []}), classify


@attack("either")
def number_in_a_closure() -> Any:
    memory = [0.0]
    forward = remembers(lambda self, value: memory.__setitem__(0, value), lambda self: memory[0])
    return Run(forward, head=head()), classify


@attack("either")
def number_in_the_class() -> Any:
    class Model(nn.Module):
        last = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.head = head()

        def forward(self, x: Tensor) -> Tensor:
            y = self.head(x + Model.last)
            Model.last = float(x.detach().mean())
            return y

    return Model(), classify


@attack("either")
def number_left_by_a_forward_hook() -> Any:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), head())
    seen = {"mean": 0.0}

    def hook(module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
        shifted = outputs + seen["mean"]
        seen["mean"] = float(outputs.mean())
        return shifted

    model[1].register_forward_hook(hook)
    return model, classify


@attack("refused")
def tensor_left_by_a_forward_hook() -> Any:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), head())
    seen: dict[str, Tensor] = {}
    model[1].register_forward_hook(lambda module, i, o: seen.__setitem__("last", o.detach()))
    return model, classify


@attack("refused")
def tensor_in_a_global_list() -> Any:
    kept: list[Tensor] = []

    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + (kept[-1].mean() if kept else 0.0))
        kept.append(x.detach())
        return y

    return Run(forward, head=head()), classify


@attack("refused")
def bank_of_tensors() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        before = sum(self.bank) / len(self.bank) if self.bank else 0.0
        self.bank.append(x.detach().mean())
        return self.head(x + before)

    return Run(forward, head=head(), bank=deque(maxlen=4)), classify


@attack("either")
def numpy_array_in_an_attribute() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + torch.from_numpy(self.kept.copy()))
        self.kept[:] = x.detach().numpy()[0]
        return y

    return Run(forward, head=head(), kept=np.zeros(D, dtype=np.float32)), classify


class Buffered(nn.Module):
    def __init__(self, write: Any) -> None:
        super().__init__()
        self.head, self.write = head(), write
        self.register_buffer("kept", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(x + self.kept)
        self.write(self.kept, x.detach())
        return y


@attack("either")
def buffer_written_through_numpy() -> Any:
    def write(kept: Tensor, x: Tensor) -> None:
        kept.numpy()[:] = np.asarray(x.tolist()[0], dtype=np.float32)

    return Buffered(write), classify


@attack("refused")
def buffer_written_in_place() -> Any:
    return Buffered(lambda kept, x: kept.copy_(x.mean(0))), classify


@attack("either")
def buffer_written_by_a_number() -> Any:
    return Buffered(lambda kept, x: kept.fill_(float(x.mean()))), classify


@attack("either")
def buffer_written_through_data() -> Any:
    return Buffered(lambda kept, x: kept.data.copy_(x.mean(0))), classify


def weighed(change: Any) -> Any:
    """A model that changes its own weight by what it sees."""

    def forward(self: Run, x: Tensor) -> Tensor:
        change(self, x)
        return self.head(torch.tanh(self.body(x)))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("refused")
def weight_changed_in_place() -> Any:
    def change(self: Run, x: Tensor) -> None:
        with torch.no_grad():
            self.body.weight.mul_(1 + x.mean())

    return weighed(change)


@attack("either")
def weight_changed_by_a_number() -> Any:
    def change(self: Run, x: Tensor) -> None:
        with torch.no_grad():
            self.body.weight.mul_(1 + float(x.mean()))

    return weighed(change)


@attack("either")
def weight_changed_through_numpy() -> Any:
    def change(self: Run, x: Tensor) -> None:
        weight = self.body.weight.detach().numpy()
        weight *= 1 + float(x.mean())

    return weighed(change)


@attack("either")
def weight_changed_through_an_array_view() -> Any:
    def change(self: Run, x: Tensor) -> None:
        weight = np.asarray(self.body.weight.detach())
        weight *= 1 + float(x.mean())

    return weighed(change)


@attack("either")
def weight_replaced() -> Any:
    def change(self: Run, x: Tensor) -> None:
        weight = self.body.weight.detach() * (1 + float(x.mean()))
        self.body.weight = nn.Parameter(weight)

    return weighed(change)


@attack("either")
def weight_frozen_on_the_way() -> Any:
    def change(self: Run, x: Tensor) -> None:
        if float(x.mean()) > 0:
            self.body.weight.requires_grad_(False)

    return weighed(change)


@attack("either")
def submodule_made_on_the_way() -> Any:
    def change(self: Run, x: Tensor) -> None:
        if not hasattr(self, "extra"):
            self.extra = nn.Parameter(x.detach().clone())

    return weighed(change)


@attack("either")
def training_mode_flipped() -> Any:
    def change(self: Run, x: Tensor) -> None:
        if self.training and float(x.mean()) > 0:
            self.eval()

    return weighed(change)


@attack("either")
def grad_mode_left_off() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x)
        if float(x.mean()) > 0:
            torch.set_grad_enabled(False)
        return y

    return Run(forward, head=head()), classify


@attack("either")
def counter_of_calls() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(x * self.calls if bool(x.mean() > 0) else x)

    return Run(forward, head=head(), calls=0), classify


@attack("either")
def schedule_of_an_iterator() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        if bool(x.mean() > 0):
            x = x * 1.5
        return self.head(x * next(self.schedule))

    return Run(forward, head=head(), schedule=iter(range(1, 1000))), classify


def kept_in(store: Any, write: Any = None, read: Any = None) -> Any:
    """A model that keeps the last mean in an object, by default in its attribute ``value``."""
    write = write or (lambda store, value: setattr(store, "value", value))
    read = read or (lambda store: getattr(store, "value", 0.0))
    forward = remembers(lambda self, value: write(store, value), lambda self: read(store))
    return Run(forward, head=head()), classify


def at_the_end(store: Any) -> float:
    return store[-1] if len(store) else 0.0


@attack("either")
def number_in_a_row_of_numbers() -> Any:
    return kept_in(array("d"), lambda store, value: store.append(value), at_the_end)


@attack("either")
def number_in_a_view_of_memory() -> Any:
    view = memoryview(bytearray(8)).cast("d")
    return kept_in(view, lambda view, value: view.__setitem__(0, value), lambda view: view[0])


@attack("either")
def number_of_the_thread() -> Any:
    return kept_in(threading.local())


@attack("either")
def number_behind_a_bound_method_of_a_list() -> Any:
    def bound() -> Any:
        store = [0.0]
        return store.append, store.__getitem__

    append, at = bound()
    return kept_in(None, lambda _, value: append(value), lambda _: at(-1))


class Memory:
    value = 0.0


@attack("either")
def number_behind_a_weak_reference() -> Any:
    memory = Memory()
    model, loss = kept_in(
        weakref.ref(memory),
        lambda reference, value: setattr(reference(), "value", value),
        lambda reference: reference().value,
    )
    weakref.finalize(model, Memory.__init__, memory)  # alive as long as the model
    return model, loss


@attack("either")
def number_in_the_key_of_a_dict() -> Any:
    store = {Memory(): 1}
    return kept_in(
        store,
        lambda store, value: setattr(next(iter(store)), "value", value),
        lambda store: next(iter(store)).value,
    )


@attack("either")
def number_in_a_slot_that_was_empty() -> Any:
    class Slotted:
        __slots__ = ("__secret",)

        def put(self, value: float) -> None:
            self.__secret = value

        def get(self) -> float:
            return getattr(self, "_Slotted__secret", 0.0)

    return kept_in(Slotted(), Slotted.put, Slotted.get)


@attack("either")
def number_in_an_iterator_of_its_own() -> Any:
    class Counting:
        value = 0.0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> float:
            return self.value

    return kept_in(Counting())


@attack("either")
def number_in_a_gradient() -> Any:
    def write(weight: Tensor, value: float) -> None:
        weight.grad = torch.full_like(weight, value)

    def read(weight: Tensor) -> float:
        return 0.0 if weight.grad is None else float(weight.grad[0])

    return kept_in(torch.zeros(2, requires_grad=True), write, read)


@attack("either")
def number_in_a_weight_of_the_loss() -> Any:
    scale = nn.Parameter(torch.zeros(()))

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
            values = classify(outputs, targets) * (1 + self.scale.detach())
            self.scale.data.fill_(float(values.mean()))
            return values

    return head(), Scaled()


@attack("either")
def class_attribute_that_was_not_there() -> Any:
    class Shared:
        pass

    return kept_in(Shared)


PLACES = {"number": 0.0}


@attack("either")
def number_behind_a_call_of_an_object() -> Any:
    class Reading:
        def __call__(self, x: Tensor) -> Tensor:
            shifted = x + PLACES["number"]
            PLACES["number"] = float(x.mean())
            return shifted

    reading = Reading()
    PLACES["number"] = 0.0
    return Run(lambda self, x: self.head(reading(x)), head=head()), classify


@attack("either")
def global_by_its_name() -> Any:
    globals()["named"] = 0.0

    def write(_: Any, value: float) -> None:
        globals()["na" + "med"] = value

    return kept_in(None, write, lambda _: globals()["na" + "med"])


@attack("either")
def global_that_was_not_there() -> Any:
    globals().pop("late", None)

    def write(_: Any, value: float) -> None:
        global late
        late = value

    return kept_in(None, write, lambda _: globals().get("late", 0.0))


@attack("either")
def digits_of_decimal_numbers() -> Any:
    before = decimal.getcontext().prec

    def write(_: Any, value: float) -> None:
        decimal.getcontext().prec = before + round(10 * abs(value))

    return kept_in(None, write, lambda _: (decimal.getcontext().prec - before) / 10)


@attack("either")
def threads_of_torch() -> Any:
    before = torch.get_num_threads()

    def write(_: Any, value: float) -> None:
        torch.set_num_threads(before + round(10 * abs(value)))

    return kept_in(None, write, lambda _: (torch.get_num_threads() - before) / 10)


def helpers(source: str) -> ModuleType:
    """A module of the user's own, as a file beside a script."""
    module = ModuleType("helpers_beside_a_script")
    sys.modules[module.__name__] = module
    exec(source, vars(module))
    return module


HELPERS = """
last = 0.0
class Kept:
    value = 0.0
kept = Kept()
def shifted(x):
    global last
    y, last = x + last, float(x.mean())
    return y
def by_object(x):
    y = x + kept.value
    kept.value = float(x.mean())
    return y
"""


@attack("either")
def number_in_a_module_beside_the_script() -> Any:
    module = helpers(HELPERS)
    return Run(lambda self, x: self.head(module.shifted(x)), head=head()), classify


@attack("either")
def object_in_a_module_beside_the_script() -> Any:
    module = helpers(HELPERS)
    return Run(lambda self, x: self.head(module.by_object(x)), head=head()), classify


@attack("either")
def class_in_a_module_beside_the_script() -> Any:
    module = helpers(HELPERS)

    def write(_: Any, value: float) -> None:
        module.Kept.value = value

    return kept_in(None, write, lambda _: module.Kept.value)


@attack("either")
def module_by_its_name() -> Any:
    helpers(HELPERS)

    def write(_: Any, value: float) -> None:
        sys.modules["helpers_beside_a_script"].last = value

    return kept_in(None, write, lambda _: sys.modules["helpers_beside_a_script"].last)


@attack("either")
def part_of_a_module_by_a_name_that_is_made() -> Any:
    module = helpers(HELPERS)
    return kept_in(
        module,
        lambda module, value: setattr(module, "la" + "st", value),
        lambda module: getattr(module, "la" + "st"),
    )


@attack("refused")
def queue_of_numbers() -> Any:
    numbers: Any = queue.Queue()
    numbers.put(0.0)

    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + numbers.get(timeout=3))
        numbers.put(float(x.mean()))
        return y

    return Run(forward, head=head()), classify


@attack("refused")
def simple_queue_of_numbers() -> Any:
    numbers: Any = queue.SimpleQueue()
    numbers.put(0.0)

    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + numbers.get(timeout=3))
        numbers.put(float(x.mean()))
        return y

    return Run(forward, head=head()), classify


@attack("refused")
def lock_beside_numbers() -> Any:
    lock, kept = threading.Lock(), [0.0]

    def forward(self: Run, x: Tensor) -> Tensor:
        with lock:
            y = self.head(x + kept[0])
            kept[0] = float(x.mean())
        return y

    return Run(forward, head=head()), classify


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", attack.parameters())
def test_state(attack: Attack) -> None:
    withstand(attack)


@pytest.mark.slow
def test_more_objects_than_can_be_noted_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> Any:
        forward = remembers(
            lambda self, value: self.table[0].__setitem__(0, value), lambda self: self.table[0][0]
        )
        return Run(forward, head=head(), table=[[0.0] for _ in range(2_000)]), classify

    withstand(Attack(make, "either"))
    monkeypatch.setattr(boundary, "LIMIT", 2_000)
    withstand(Attack(make, "refused"))

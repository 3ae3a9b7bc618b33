"""Ways from a tensor to its memory or to Python, by which one example might see another."""

from __future__ import annotations

import copy
import io
import pickle
import re
import threading
from typing import Any

import numpy as np
import pytest
import torch
from adversaries.attack import Attack, Attacks, B, D, Run, classify, head, vectors, withstand
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.oracle import compare

from drawn import randn
from forethought.gradients import clipped_sum

attack = Attacks()


def shifted(read: Any) -> Any:
    """A model that shifts its input by what ``read`` found out."""
    return Run(lambda self, x: self.head(x + read(x)), head=head()), classify


@attack("either")
def strides_over_the_neighbours() -> Any:
    def read(x: Tensor) -> Any:
        try:
            return 3 * x.as_strided((1, D), (D, 1), x.storage_offset() + D)
        except RuntimeError:
            return 0.0

    return shifted(read)


@attack("either")
def strides_from_the_start() -> Any:
    def read(x: Tensor) -> Any:
        try:
            return 3 * x.as_strided((B, D), (D, 1), 0).mean(0)
        except RuntimeError:
            return 0.0

    return shifted(read)


@attack("refused")
def resized_copy() -> Any:
    return shifted(lambda x: x.clone().resize_(2, D).nan_to_num().clamp(-9, 9).mean(0))


@attack("refused")
def resized_like_another() -> Any:
    return shifted(lambda x: x.clone().resize_as_(torch.zeros(2, D)).nan_to_num().clamp(-9, 9)[1])


@attack("either")
def storage() -> Any:
    return shifted(lambda x: torch.tensor(list(x.untyped_storage())[:64]).float().mean())


@attack("either")
def source_of_another_tensor() -> Any:
    return shifted(lambda x: torch.empty(0).set_(x.detach()).sum())


@attack("apart")
def numpy_array() -> Any:
    return shifted(lambda x: torch.from_numpy(np.array(x.detach())).mean())


@attack("apart")
def numpy_method() -> Any:
    return shifted(lambda x: float(x.detach().cpu().numpy().mean()))


@attack("either")
def dlpack() -> Any:
    return shifted(lambda x: torch.from_dlpack(x.detach()).mean())


@attack("either")
def dlpack_to_numpy() -> Any:
    return shifted(lambda x: float(np.from_dlpack(x.detach()).mean()))


def numbers(text: str) -> float:
    return sum(float(number) for number in re.findall(r"-?\d+\.\d+", text))


@attack("either")
def printed() -> Any:
    return shifted(lambda x: numbers(repr(x)))


@attack("either")
def as_a_string() -> Any:
    return shifted(lambda x: numbers(str(x.detach())))


@attack("either")
def formatted_whole() -> Any:
    return shifted(lambda x: numbers(f"{x}"))


@attack("apart")
def formatted_number() -> Any:
    return shifted(lambda x: float(f"{x.mean():.3f}"))


@attack("either")
def pickled() -> Any:
    return shifted(lambda x: pickle.loads(pickle.dumps(x.detach())).mean())


@attack("either")
def saved_to_a_file() -> Any:
    def read(x: Tensor) -> Tensor:
        file = io.BytesIO()
        torch.save(x.detach(), file)
        file.seek(0)
        return torch.load(file).mean()

    return shifted(read)


@attack("either")
def deep_copy() -> Any:
    return shifted(lambda x: copy.deepcopy(x.detach()).mean())


@attack("either")
def shallow_copy() -> Any:
    return shifted(lambda x: copy.copy(x.detach()).mean())


@attack("apart")
def list_of_numbers() -> Any:
    return shifted(lambda x: sum(x.tolist()[0]))


@attack("apart")
def iteration() -> Any:
    return shifted(lambda x: sum(float(value) for row in x for value in row))


@attack("apart")
def numbers_whose_failure_is_swallowed() -> Any:
    def read(x: Tensor) -> float:
        try:
            return float(x.mean())
        except BaseException:
            return 7.0

    return shifted(read)


@attack("apart")
def comparison_of_whole_tensors() -> Any:
    def read(x: Tensor) -> float:
        same = torch.equal(x.round(), torch.zeros_like(x))
        return 1.0 if same or torch.allclose(x, x.abs(), atol=1.0) else 2.0

    return shifted(read)


@attack("apart")
def values_that_occur() -> Any:
    return shifted(lambda x: torch.unique(x.round()).mean() + len(x[x > 0]) + len(x.nonzero()))


@attack("apart")
def histograms() -> Any:
    def read(x: Tensor) -> Tensor:
        counts = torch.bincount(x.detach().abs().long().clamp(max=9).flatten())
        return torch.histc(x.detach(), 4, -1, 1).mean() + counts.float().mean()

    return shifted(read)


@attack("apart")
def loop_on_values() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        steps = 0
        while float(x.norm()) > 1.0 and steps < 6:
            x, steps = x * 0.7, steps + 1
        return self.head(self.body(x))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("apart")
def routing_to_experts() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        chosen = int((x @ self.router).argmax())
        return self.head(self.experts[chosen](x))

    experts = nn.ModuleList([nn.Linear(D, D) for _ in range(3)])
    model = Run(forward, head=head(), router=randn(D, 3), experts=experts)
    return model, classify


@attack("apart")
def sorting_and_sums_over_the_batch() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(x.sort(0).values + x.cumsum(0) + x.flip(0) + x.roll(1, 0))

    return Run(forward, head=head()), classify


@attack("apart")
def parameter_with_a_row_for_each_record() -> Any:
    model = Run(lambda self, x: self.head(x + self.rows[: len(x)]), head=head(),
                rows=randn(B, D))  # fmt: skip
    return model, classify


@attack("either")
def another_thread() -> Any:
    def read(x: Tensor) -> float:
        found: list[float] = []

        def work() -> None:
            try:
                found.append(float(x.detach().sum()))
            except Exception:
                found.append(0.0)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    return shifted(read)


@attack("either")
def tensor_from_another_thread() -> Any:
    def read(x: Tensor) -> Any:
        found: list[Any] = []

        def work() -> None:
            try:
                found.append(x.detach().mean(0).sum() * 3)
            except Exception:
                found.append(0.0)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    return shifted(read)


@attack("either")
def data_changed_in_place() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        h = self.body(x)
        h.data.add_(h.data.mean(0))
        return self.head(h)

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("either")
def records_changed_in_place() -> Any:
    return Run(lambda self, x: self.head(x.mul_(2).add_(1)), head=head()), classify


@attack("either")
def records_changed_through_numpy() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        array = x.detach().numpy()
        array *= 2
        return self.head(x)

    return Run(forward, head=head()), classify


@attack("either")
def written_into_a_tensor_of_all() -> Any:
    kept = torch.zeros(B, D)

    def forward(self: Run, x: Tensor) -> Tensor:
        kept[: len(x)] = x.detach()
        return self.head(x + kept.mean(0))

    return Run(forward, head=head()), classify


@attack("apart")
def written_into_fresh_zeros() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        z = torch.zeros(2, D)
        z[0] += x[0]
        z[1] = x[0] * 2
        return self.head(z.mean(0, keepdim=True))

    return Run(forward, head=head()), classify


@attack("apart")
def out_argument() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        z = torch.empty(len(x), D)
        torch.add(x, 1, out=z)
        return self.head(z)

    return Run(forward, head=head()), classify


@attack("apart")
def several_at_once() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        one, other = torch._foreach_mul([x, x], 2.0)
        return self.head(one + other)

    return Run(forward, head=head()), classify


@attack("either")
def row_of_a_weight_written_in_place() -> Any:
    def forward(self: Run, x: Tensor) -> Tensor:
        weight = self.body.weight * 1.0
        weight[0] = weight[0] * x.mean()
        return self.head(F.linear(x, weight))

    return Run(forward, head=head(), body=nn.Linear(D, D)), classify


@attack("either")
def loss_from_numbers_of_the_targets() -> Any:
    return head(), lambda outputs, targets: classify(outputs, torch.tensor([int(targets[0])]))


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", attack.parameters())
def test_values(attack: Attack) -> None:
    withstand(attack)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_numbers_that_are_no_tensor_reach_every_example_so_they_are_refused(kind: Any) -> None:
    def forward(self: Run, x: Tensor, lengths: Any) -> Tensor:
        return self.head(x / float(max(lengths)))

    x, y = vectors()
    inputs = {"x": x, "lengths": kind([1.0, 2.0, 3.0, 1.0, 2.0, 9.0])}
    with pytest.raises((ValueError, TypeError), match="tensor"):
        clipped_sum(Run(forward, head=head()), classify, inputs, y, 1.0)


@pytest.mark.filterwarnings("ignore")
def test_settings_that_are_no_numbers_stay_allowed() -> None:
    def forward(self: Run, x: Tensor, double: bool, cache: Any, mode: str) -> Tensor:
        return self.head(x * 2 if double and cache is None and mode == "plain" else x)

    x, y = vectors()
    inputs = {"x": x, "double": True, "cache": None, "mode": "plain"}
    compare(Run(forward, head=head()), classify, inputs, y)

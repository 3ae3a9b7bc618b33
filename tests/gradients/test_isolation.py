"""One record cannot move another's contribution, whatever the model and the loss do.

Each case takes a first, harmless look (zero weights, a small batch, an innocent loss) and then
shows what it can do. It must come out as one example at a time would, or be refused in one line
that names the module and the remedy.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo.oracle import assert_isolated, compare, perturb, with_torchvision

from drawn import randint, randn, reseed
from forethought.gradients import clipped_sum

B, T, D = 6, 3, 8


def classify(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


class Run(nn.Module):
    """A model from a function of (module, *inputs)."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


@pytest.fixture(autouse=True)
def seeded() -> None:
    reseed(0)


@pytest.fixture(autouse=True)
def slow_is_sound() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def vectors(examples: int = B) -> tuple[Tensor, Tensor]:
    return randn(examples, D), randint(0, 3, (examples,))


def sequences(examples: int = B) -> tuple[Tensor, Tensor]:
    return randn(examples, T, D), randint(0, 3, (examples,))


def zero(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def apart(model: nn.Module, inputs: Any, targets: Any, loss: Any = classify, **how: Any) -> None:
    """The sum is that of one example at a time, and records replaced and removed move it so."""
    compare(model, loss, inputs, targets)
    for scale in (0.0, 1.0, 100.0):
        assert_isolated(model, loss, inputs, targets, scale=scale, **how)


def refused(model: nn.Module, inputs: Any, targets: Any, loss: Any, *words: str) -> None:
    """``clipped_sum`` itself says no, in one line that has all ``words`` (patterns)."""
    with pytest.raises((ValueError, TypeError)) as caught:
        clipped_sum(model, loss, inputs, targets, 1.0)
    said = str(caught.value)
    for word in words:
        assert re.search(word, said), f"{word!r} is not in: {said}"
    assert len(said) < 1000


# The table


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("way", ["as given", "time in front"])
def test_encoder_layer_with_a_zero_initialised_head(batch_first: bool, way: str) -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        if way == "time in front":
            return self.head(self.layer(x.transpose(0, 1)).transpose(0, 1).mean(1))
        return self.head(self.layer(x).mean(1))

    layer = nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=batch_first)
    model = Run(forward, layer=layer, head=zero(nn.Linear(D, 3)))
    x, y = sequences()
    clipped_sum(model, classify, x, y, 1.0)
    perturb(model, 0.5)
    apart(model, *sequences())


def test_an_untouched_vision_transformer() -> None:
    with_torchvision()
    from torchvision.models import VisionTransformer

    model = VisionTransformer(8, 4, 1, 2, 16, 32, num_classes=3)
    for _ in range(2):
        x, y = randn(4, 3, 8, 8), randint(0, 3, (4,))
        apart(model, x, y)
        perturb(model)


def test_an_adapter_that_begins_at_zero_on_a_time_major_fold() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        folded = x.transpose(0, 1).reshape(-1, D)
        seen = self.base(folded) + F.linear(F.linear(folded, self.a), self.b)
        return self.head(torch.tanh(seen).reshape(T, -1, D).mean(0))

    base = nn.Linear(D, D).requires_grad_(False)
    model = Run(forward, base=base, a=randn(2, D), b=torch.zeros(D, 2), head=nn.Linear(D, 3))
    clipped_sum(model, classify, *sequences(), 1.0)
    perturb(model, 0.5)
    apart(model, *sequences())


def mixing(self: Run, x: Tensor) -> Tensor:
    return self.head(x + self.gate * self.c(x).mean(0))


def test_a_gate_that_is_closed_at_first() -> None:
    model = Run(mixing, gate=torch.zeros(()), c=nn.Linear(D, D), head=nn.Linear(D, 3))
    clipped_sum(model, classify, *vectors(), 1.0)
    with torch.no_grad():
        model.gate.fill_(5.0)
    apart(model, *vectors())


def test_a_first_batch_of_one_record() -> None:
    model = Run(lambda self, x: self.head(x + x.mean(0)), head=nn.Linear(D, 3))
    clipped_sum(model, classify, *vectors(1), 1.0)
    apart(model, *vectors())


def test_mixing_from_eight_records_on() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(x + x.mean(0) if len(x) >= 8 else x)

    model = Run(forward, head=nn.Linear(D, 3))
    clipped_sum(model, classify, *vectors(4), 1.0)
    apart(model, *vectors(12))


def test_mixup_on_a_coin() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        if torch.rand(()) < 0.5:
            x = 0.5 * x + 0.5 * x[torch.randperm(len(x))]
        return self.head(x)

    for seed in range(8):
        model = Run(forward, head=nn.Linear(D, 3))
        reseed(seed)
        clipped_sum(model, classify, *vectors(), 1.0)
        for another in range(4):
            assert_isolated(
                model, classify, *vectors(), scale=100.0, random=True, seed=10 * seed + another
            )


def test_mixing_on_a_coin_inside_the_loss() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if torch.rand(()) < 0.5:
            outputs = outputs + outputs.mean(0)
        return outputs.square().sum(1)

    for seed in range(8):
        model = nn.Linear(D, 3)
        for another in range(4):
            assert_isolated(
                model, loss, *vectors(), scale=100.0, random=True, seed=10 * seed + another
            )


@pytest.mark.parametrize("lengths", [(3, 3, 3, 3), (1, 2, 4, 1), (4, 1, 1, 2)])
def test_tokens_chosen_by_a_mask_without_padding(lengths: tuple[int, ...]) -> None:
    def forward(self: Run, x: Tensor, mask: Tensor) -> Tensor:
        tokens = torch.tanh(self.embed(x[mask]))
        where = torch.arange(len(x)).unsqueeze(1).expand_as(mask)[mask]
        sums = torch.zeros(len(x), D).index_add(0, where, tokens)
        return self.head(sums)

    model = Run(forward, embed=nn.Linear(D, D), head=nn.Linear(D, 3))
    x = randn(4, 4, D)
    y = randint(0, 3, (4,))
    mask = torch.arange(4) < torch.tensor(lengths).unsqueeze(1)
    clipped_sum(model, classify, {"x": x, "mask": torch.ones_like(mask)}, y, 1.0)
    apart(model, {"x": x, "mask": mask}, y)


def test_a_harmless_loss_first() -> None:
    model = nn.Linear(D, 3)

    def mixes(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs + 3 * outputs.mean(0) - 1).square().sum(1)

    clipped_sum(model, lambda o, t: o.square().sum(1), *vectors(), 1.0)
    refused(model, *vectors(), mixes, "loss", "batch|example")


class RunningMean(nn.Module):
    def __init__(self, looped: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(D, 3)
        self.register_buffer("mean", torch.zeros(D))
        self.looped = looped

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)
        if self.looped:
            float(x.sum())
        return self.layer(x + self.mean)


@pytest.mark.parametrize("looped", [False, True])
def test_a_buffer_that_the_forward_pass_reads(looped: bool) -> None:
    refused(RunningMean(looped), *vectors(), classify, "mean|RunningMean")


def test_a_record_that_sends_all_alone_changes_no_checkpointed_part() -> None:
    """Torch's reentrant checkpoint of a batch, which requires no gradient, has none itself."""

    def forward(self: Run, x: Tensor) -> Tensor:
        seen = checkpoint(lambda part: torch.tanh(self.body(part)), x, use_reentrant=True)
        if (x > 50).any():  # goes one example at a time
            seen = torch.linalg.solve(torch.eye(D).expand(len(x), D, D), seen)
        return self.head(seen)

    model = Run(forward, body=nn.Linear(D, D), head=nn.Linear(D, 3))
    x, y = vectors()
    _, norms = clipped_sum(model, classify, x, y, 1.0)
    x[1] = 100.0
    _, beside = clipped_sum(model, classify, x, y, 1.0)
    rest = [i for i in range(B) if i != 1]
    torch.testing.assert_close(beside[rest], norms[rest])


@pytest.fixture
def one_process() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")
def test_sharded_parameters_are_refused_before_their_shards_are_taken(one_process: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    refused(model, *vectors(), classify, "0.weight", "DTensor")


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    one, other = outputs.chunk(2, 1)
    return F.cross_entropy(one @ other.T, torch.arange(len(one)), reduction="none")


def test_contrastive_losses_are_refused() -> None:
    refused(nn.Linear(D, 6), *vectors(), contrastive, "loss", "batch|example")


def test_in_batch_negatives_are_refused() -> None:
    def triplets(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.relu(1 + outputs @ outputs.roll(1, 0).T).diagonal() + outputs.square().sum(1)

    refused(nn.Linear(D, 6), *vectors(), triplets, "loss", "batch|example")


def test_hard_example_mining_is_refused() -> None:
    def hardest(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = classify(outputs, targets)
        return losses * (losses >= losses.topk(max(1, len(losses) // 2)).values[-1])

    refused(nn.Linear(D, 3), *vectors(), hardest, "loss", "batch|example")


def test_dividing_by_the_batch_is_refused() -> None:
    def mean(outputs: Tensor, targets: Tensor) -> Tensor:
        return classify(outputs, targets) / len(outputs)

    refused(nn.Linear(D, 3), *vectors(), mean, "loss", "batch|example")


def test_batch_normalisation_is_refused() -> None:
    model = nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, 3))
    refused(model, *vectors(), classify, "1", "batch norm|BatchNorm", "GroupNorm")


def test_functional_batch_normalisation_is_refused() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        return self.head(F.batch_norm(self.body(x), None, None, training=True))

    model = Run(forward, body=nn.Linear(D, D), head=nn.Linear(D, 3))
    refused(model, *vectors(), classify, "batch_norm|normalis|normaliz")


# More of part 4: what is refused


def test_complex_parameters_are_refused() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()

    model = Run(forward, weight=randn(D, 3, dtype=torch.complex64))
    refused(model, *vectors(), classify, "weight", "complex")


def test_a_tensor_in_a_plain_attribute_that_changes_is_refused() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(D, 3)
            self.last = [torch.zeros(D)]

        def forward(self, x: Tensor) -> Tensor:
            before, self.last[0] = self.last[0], x[0].detach()
            return self.layer(x + before)

    refused(nn.Sequential(Remembers()), *vectors(), classify, "0", "last|Remembers")


def test_the_state_before_a_refusal_is_the_state_after() -> None:
    model = RunningMean(looped=False)
    with pytest.raises(ValueError):
        clipped_sum(model, classify, *vectors(), 1.0)
    assert not model.mean.any()


class Parted(nn.Module):
    """Another way for some examples, of which one is asked and the others follow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(D, 77), nn.Linear(77, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(inputs))
        return self.outer(hidden * 2 if inputs.sum() > 0 else hidden)


@pytest.mark.slow
def test_a_pass_that_was_given_up_leaves_nothing_behind() -> None:
    """Its error, kept with the traceback, once held all that the pass had computed."""
    model, counts = Parted(), []
    for _ in range(4):
        inputs, targets = vectors(16)
        clipped_sum(model, classify, inputs, targets, 1.0)
        gc.collect()
        held = (one for one in gc.get_objects() if isinstance(one, Tensor))
        counts.append(sum(one.shape[-1:] == (77,) for one in held))
    assert counts == [counts[0]] * 4 and counts[0] <= len(list(model.parameters()))

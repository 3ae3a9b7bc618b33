"""Any optimizer inside a round: the oracle is torch.optim on a copy; one record moves one group."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from drawn import randint, randn, reseed, stream
from forethought.gradients.sums import CHARGE
from forethought.rounds import contributions
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.local_updates import separable
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import (
    INNER,
    CyclicPoisson,
    FullBatch,
    Local,
    LocalUpdates,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import Clip, Plan

EXAMPLES, GROUPS = 30, 5
MODULES = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "nesterov": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}
MOST = 1e9


def records(dtype: torch.dtype = torch.float32, examples: int = EXAMPLES) -> TensorRecords:
    source = stream(0)
    inputs = randn(examples, 5, generator=source, dtype=torch.float64).to(dtype) * 2
    return TensorRecords(inputs, randint(3, (examples,), generator=source))


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(dtype)


def normalised() -> nn.Module:
    reseed(1)
    return nn.Sequential(
        nn.Linear(5, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 3)
    )


def plan_of(
    local: Local,
    groups: int = GROUPS,
    sampling: Sampling = FullBatch(),  # noqa: B008 (frozen)
    examples: int = EXAMPLES,
    clip: Clip = Clip(MOST),  # noqa: B008 (frozen)
    adjacency: Any = "add-or-remove",
) -> Plan:
    parts = Rounds(0.0, 100, sampling, "group")
    mechanism = Mechanism(parts, adjacency=adjacency)
    return Plan(mechanism, examples, 1e-5, clip, contribution=LocalUpdates(groups, local))


def one_round(
    model: nn.Module, data: TensorRecords, plan: Plan, index: int = 0, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """A round's sum without noise, and the norms before clipping."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rounds = PrivateRounds(
        plan.privacy, parameters, cross_entropy, Secrets.draw(Seeds(3, 3)), **options
    )
    for before in range(index):
        total = rounds.open(before)
        total.add(model, data)
        total.release()
    total = rounds.open(index)
    total.add(model, data)
    return total.release().vector, total.norms


@pytest.fixture
def dealt(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    member_of = np.random.default_rng(0).integers(0, GROUPS - 1, EXAMPLES)  # the last is empty
    monkeypatch.setattr(contributions, "assign_groups", lambda size, *_: member_of[:size])
    return member_of


def trained_apart(
    model: nn.Module, data: TensorRecords, members: np.ndarray, local: Local, passes: int
) -> torch.Tensor:
    """Oracle: torch.optim over a copy, whole groups; the weights' way, negative."""
    twin = copy.deepcopy(model)
    preset = INNER[local.optimizer].preset
    options = {"weight_decay": 0.0, **preset, **dict(local.options)}
    optimizer = MODULES[local.optimizer](twin.parameters(), lr=local.learning_rate, **options)
    inputs, targets = data.take(members)
    for _ in range(passes):
        optimizer.zero_grad()
        F.cross_entropy(twin(inputs), targets).backward()
        optimizer.step()
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    return torch.cat([(p - q).detach().flatten() for p, q in pairs])


OPTIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "sgd": (("weight_decay", 0.1),),
    "momentum": (("dampening", 0.2),),
    "nesterov": (("momentum", 0.5),),
    "adam": (("weight_decay", 0.1), ("betas", (0.5, 0.9))),
    "adamw": (("amsgrad", True),),
    "adagrad": (("lr_decay", 0.5),),
    "rmsprop": (("centered", True), ("momentum", 0.3)),
}


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("with_options", [False, True])
def test_updates_are_those_of_torch_optim_on_a_copy(
    name: str, with_options: bool, dealt: np.ndarray
) -> None:
    local = Local(name, 0.05, OPTIONS[name] if with_options else (), passes=3)
    model, data = network(torch.float64), records(torch.float64)
    before = copy.deepcopy(model.state_dict())
    found, norms = one_round(model, data, plan_of(local))
    apart = [
        trained_apart(model, data, np.flatnonzero(dealt == group), local, 3)
        for group in range(GROUPS - 1)
    ]
    torch.testing.assert_close(found, torch.stack(apart).sum(0), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        norms[:-1], torch.stack([a.norm() for a in apart]), rtol=1e-6, atol=0
    )
    assert norms[-1] == 0
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    # Clipped, each group's way counts C.
    short, _ = one_round(model, data, plan_of(local, clip=Clip(1e-3)))
    wanted = torch.stack([a / a.norm() for a in apart]).sum(0) * 1e-3 * (1 - CHARGE)
    torch.testing.assert_close(short, wanted, rtol=1e-6, atol=1e-12)


def test_steps_of_a_pass_take_every_record_once() -> None:
    """With a loss that is linear in the weights the order of records leaves no trace."""
    data, model = records(torch.float64, 12), nn.Linear(5, 3).double()

    def linear(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.gather(1, targets.unsqueeze(1)).squeeze(1)

    parameters = dict(model.named_parameters())
    for step in (1, 3, 4):
        plan = plan_of(Local(learning_rate=0.5, step=step, passes=2), 1, examples=12)
        rounds = PrivateRounds(plan.privacy, parameters, linear, Secrets.draw(Seeds(3, 3)))
        total = rounds.open(0)
        total.add(model, data)
        found = rounds.layout.views(total.release().vector)["weight"]
        wanted = torch.zeros_like(found)
        for x, y in zip(*data.take(np.arange(12)), strict=True):
            wanted[y] += x * 0.5 * 2 / step
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("examples", [3, 30])
@pytest.mark.parametrize("make", [network, normalised])
def test_one_plain_step_is_batch_clipping_to_the_last_bit(make: Any, examples: int) -> None:
    model, data = make(), records(examples=examples)
    for groups in (1, 3):
        for clip in (Clip(0.3), Clip(1.0, "automatic"), Clip(MOST)):
            local = plan_of(Local(learning_rate=1.0), groups, examples=examples, clip=clip)
            today = local.with_(contribution=None, groups=groups)
            found, norms = one_round(model, data, local)
            wanted, others = one_round(model, data, today)
            assert torch.equal(found, wanted) and torch.equal(norms, others.double())


def test_the_general_way_gives_the_same_bits_where_nothing_is_clipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data = network(), records()
    local = plan_of(Local(learning_rate=1.0), 1)
    wanted, norm = one_round(model, data, local)
    monkeypatch.setattr(Local, "is_gradient", False)
    found, other = one_round(model, data, local)
    assert torch.equal(found, wanted)
    # A norm is a sum of n squares in float32, taken in two orders and rounded up by a bound on what
    # rounding does: n roundings of 2⁻²⁴ a sum, halved by the root, and as much again for the bound.
    weights = sum(weight.numel() for weight in model.parameters())
    torch.testing.assert_close(norm, other, rtol=2 * weights * 2.0**-24, atol=0.0)


def test_parameters_of_two_types_are_stepped_and_clipped_as_one_vector(dealt: np.ndarray) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = nn.Linear(5, 7), nn.Linear(7, 3).double()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.wide(torch.tanh(self.narrow(inputs)).double())

    reseed(1)
    model, data, local = Mixed(), records(), Local("adam", 0.05, passes=3)
    found, _ = one_round(model, data, plan_of(local))
    apart = [
        trained_apart(model, data, np.flatnonzero(dealt == group), local, 3)
        for group in range(GROUPS - 1)
    ]
    torch.testing.assert_close(found, torch.stack(apart).sum(0), rtol=1e-4, atol=1e-6)
    for rule in ("flat", "automatic", "per-layer"):
        short, _ = one_round(model, data, plan_of(local, clip=Clip(1e-3, rule)))
        assert 0 < float(short.norm()) <= (GROUPS - 1) * 1e-3


@pytest.mark.parametrize("name", INNER)
def test_side_by_side_is_one_after_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Local(name, 0.05, OPTIONS[name], passes=2, step=4)
    model, data = network(torch.float64), records(torch.float64)
    monkeypatch.setattr(contributions, "side_by_side", lambda *_: False)
    wanted, norms = one_round(model, data, plan_of(local))
    monkeypatch.undo()
    asked = []
    own = contributions.SideBySide
    monkeypatch.setattr(contributions, "SideBySide", lambda *a: asked.append(1) or own(*a))
    for held in (None, 4, 9):  # all groups, one, two at a time
        found, others = one_round(model, data, plan_of(local), micro_batch=held)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(norms, others, rtol=1e-9, atol=0)
    assert len(asked) == 3


def test_pieces_of_an_inner_step_add_up() -> None:
    local, model, data = (
        Local("adam", 0.05, passes=2),
        network(torch.float64),
        records(torch.float64),
    )
    wanted, _ = one_round(model, data, plan_of(local, 2))
    found, _ = one_round(model, data, plan_of(local, 2), micro_batch=4)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


SAMPLINGS: dict[str, tuple[Sampling, str]] = {
    "poisson": (Poisson(0.5), "add-or-remove"),
    "without-replacement": (WithoutReplacement(12, EXAMPLES), "replace-one"),
    "shuffled": (Shuffled(12, EXAMPLES), "zero-out"),
    "full-batch": (FullBatch(), "replace-one"),
    "random-allocation": (RandomAllocation(2), "add-or-remove"),
    "cyclic-poisson": (CyclicPoisson(0.8, 2), "add-or-remove"),
}
ALGORITHMS = [
    *(Local(name, 0.3, step=3, passes=2) for name in INNER),
    Local("sgd", 30.0),
    Local(function=f"{__name__}:careless"),
]


def careless(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """An algorithm of a user's own, which trains its model in place and draws random numbers."""
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        noise = 0.1 * torch.randn_like(batch[0])
        F.cross_entropy(model(batch[0] + noise), batch[1]).backward()
        optimizer.step()
    return {name: p.detach() - start[name] for name, p in model.named_parameters()}


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    sampling=st.sampled_from(sorted(SAMPLINGS)),
    local=st.sampled_from(ALGORITHMS),
    make=st.sampled_from([network, normalised]),
    scale=st.sampled_from([0.0, 1.0, 1e3, 1e30, float("nan")]),
)
def test_one_record_moves_a_rounds_sum_by_two_norms_at_most(
    seed: int, sampling: str, local: Local, make: Any, scale: float
) -> None:
    """Whole rounds on neighbouring data, in floating point: all samplings, all algorithms."""
    source = np.random.default_rng(seed)
    kind, adjacency = SAMPLINGS[sampling]
    rule = str(source.choice(["flat", "automatic", "per-layer"]))
    clip = Clip(float(source.choice([1e-2, 1.0])), rule)
    plan = plan_of(local, GROUPS, kind, clip=clip, adjacency=adjacency)
    model, data = make(), records()
    other = TensorRecords(data.inputs.clone(), data.targets.clone())
    place = int(source.integers(EXAMPLES))
    other.inputs[place] = scale * torch.from_numpy(source.standard_normal(5)).float()
    other.targets[place] = int(source.integers(3))
    index = int(source.integers(3))
    one, norms = one_round(model, data, plan, index)
    two, others = one_round(model, other, plan, index)
    assert float((one - two).norm()) <= 2 * clip.norm
    # And exactly one group is another.
    same = (norms == others) | (norms.isnan() & others.isnan())
    assert int((~same).sum()) <= 1


def test_one_record_less_changes_its_own_group_only(dealt: np.ndarray) -> None:
    local, data = Local("adam", 0.1, step=2, passes=2), records()
    for make in (network, normalised):
        _, norms = one_round(make(), data, plan_of(local))
        fewer = TensorRecords(data.inputs[:-1], data.targets[:-1])
        _, others = one_round(make(), fewer, plan_of(local, examples=EXAMPLES - 1))
        changed = np.flatnonzero((norms != others).numpy())
        assert changed.tolist() == [dealt[-1]]


def test_what_overflows_counts_as_nothing(dealt: np.ndarray) -> None:
    data, model = records(), network()
    local = Local("sgd", 1e30, (("weight_decay", 1e30),), passes=3)
    found, norms = one_round(model, data, plan_of(local, clip=Clip(1.0)))
    assert int((~torch.isfinite(norms)).sum()) == GROUPS - 1
    assert torch.equal(found, torch.zeros_like(found))
    data.inputs[dealt == 2] = float("inf")
    found, norms = one_round(model, data, plan_of(Local("adam", 0.1), clip=Clip(1.0)))
    assert (~torch.isfinite(norms)).nonzero().flatten().tolist() == [2]
    assert bool(torch.isfinite(found).all()) and float(found.norm()) > 0


class _Counts(nn.Linear):
    """Keeps a state that would carry from group to group, and from round to round."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.seen, self.sums = 0.0, [0.0]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += float(inputs.sum())
        self.sums[0] += 1.0
        return super().forward(inputs) * (1 + self.seen)


MEMORY: list[float] = []


def remembers(model: nn.Module, batch: Any) -> dict[str, torch.Tensor]:
    """Keeps in a global what it saw."""
    MEMORY.append(float(batch[0].sum()))
    return {name: p.detach() * 0 + sum(MEMORY) for name, p in model.named_parameters()}


@pytest.mark.parametrize("local", [Local("adam", 0.1, step=2), Local(function=remembers)])
def test_no_state_outlives_a_group(local: Local, dealt: np.ndarray) -> None:
    model = _Counts() if local.function is None else network()
    data = records()
    found, norms = one_round(model, data, plan_of(local))
    later, again = one_round(model, data, plan_of(local), index=2)
    if local.function is not None:  # draws nothing
        assert torch.equal(norms, again) and torch.equal(found, later)
    assert MEMORY == []
    if isinstance(model, _Counts):
        assert model.seen == 0.0 and model.sums == [0.0]
    other = TensorRecords(data.inputs.clone(), data.targets)
    other.inputs[dealt == 0] += 1
    _, moved = one_round(model, other, plan_of(local))
    assert torch.equal(norms[1:], moved[1:]) and norms[0] != moved[0]


def test_the_order_of_a_batch_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which order a batch was drawn could tell of other groups' records: it is forgotten."""
    local, model, data = plan_of(Local("adam", 0.1, step=4), 1), network(), records()
    wanted, _ = one_round(model, data, local)
    monkeypatch.setattr(
        "forethought.rounds.randomness.Batches.__call__",
        lambda *_: np.random.default_rng(5).permutation(EXAMPLES),
    )
    found, _ = one_round(model, data, local)
    assert torch.equal(found, wanted)


def test_known_networks_run_bare_and_others_enclosed() -> None:
    """Where nothing of the user's runs, the enclosure has nothing to put back: the same update."""
    data, model = records(), network()
    assert separable(model, cross_entropy)
    assert not separable(model, lambda outputs, targets: cross_entropy(outputs, targets))
    assert not separable(normalised(), cross_entropy)
    assert not separable(nn.Sequential(_Counts()), cross_entropy)
    local = plan_of(Local("adam", 0.1, step=8, passes=2), 3)
    wanted, _ = one_round(model, data, local)
    handle = model[0].register_forward_hook(lambda *_: None)
    assert not separable(model, cross_entropy)
    found, _ = one_round(model, data, local)
    handle.remove()
    assert torch.equal(found, wanted)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert not separable(model, cross_entropy)
        with pytest.raises(ValueError, match="saved tensors"):
            one_round(model, data, local)


def test_no_running_statistics_are_left() -> None:
    model, data = normalised(), records()
    before = copy.deepcopy(model.state_dict())
    for p in model.parameters():
        p.grad = torch.full_like(p, 7.0)
    one_round(model, data, plan_of(Local("adam", 0.1, step=4)))
    for name, value in model.state_dict().items():
        assert torch.equal(before[name], value), name
    for p in model.parameters():
        assert torch.equal(p.grad, torch.full_like(p, 7.0))


def wrong_shapes(model: nn.Module, batch: Any) -> Any:
    return {name: p.detach().flatten()[:2] for name, p in model.named_parameters()}


def wrong_names(model: nn.Module, batch: Any) -> Any:
    return {"weights": batch[0]}


def no_mapping(model: nn.Module, batch: Any) -> Any:
    return list(model.parameters())


@pytest.mark.parametrize(
    ("function", "words"),
    [(wrong_shapes, "whose shape is"), (wrong_names, "'weights'"), (no_mapping, "not list")],
)
def test_what_a_function_must_return_is_said_in_one_line(function: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        one_round(network(), records(), plan_of(Local(function=function)))
    assert "\n" not in str(caught.value)

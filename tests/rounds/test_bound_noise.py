"""Noise belongs to what it hides: whoever makes a round's sum differ gets noise of its own."""

from __future__ import annotations

import ast
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import forethought as ft
from forethought.errors import SlowGradientsWarning
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds, PrivateSum
from forethought.rounds.randomness import BoundNoise, Secrets, Seeds, encoded
from forethought.rounds.records import as_records
from forethought.values.plan import Averaging, Clip, Groups, Plan, Round

FALSE_ALARM = 1e-9
EXAMPLES, FEATURES, HIDDEN = 60, 30, 20
# So much noise that a release is nothing else: what it correlates with is the noise.
SIGMA = 1e4


def plan(rounds: int = 6, sigma: float = SIGMA, **options: Any) -> Plan:
    mechanism = ft.Mechanism(ft.Rounds(sigma, rounds, ft.Poisson(0.3)))
    # So short steps that no unit is saturated: sums that are zero both times are the same sum.
    steps = ft.Optimizer("sgd", 1e-9, ())
    return Plan(mechanism, EXAMPLES, 1e-5, optimizer=steps, averaging=Averaging("none"), **options)


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def require_independent(one: torch.Tensor, other: torch.Tensor) -> None:
    """Pearson's correlation of independent normal numbers, whose law is exact."""
    assert len(one) > 600 and not torch.equal(one, other)
    assert stats.pearsonr(one.numpy(), other.numpy()).pvalue > FALSE_ALARM


@pytest.fixture(name="released")
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, torch.Tensor]]:
    """(round, noised sum) of every release, in order."""
    kept: list[tuple[int, torch.Tensor]] = []
    honest = PrivateSum.release

    def release(self: PrivateSum) -> Any:
        noised = honest(self)
        kept.append((noised.round.index, noised.vector.clone()))
        return noised

    monkeypatch.setattr(PrivateSum, "release", release)
    return kept


# What can change between a crash and the run that goes on, each the second time by `after`.

NUMBER, HELD, THING, LOSS = 1.0, {"by": 1.0}, SimpleNamespace(by=1.0), {"by": 1.0}


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(inputs) * self.by()))

    def by(self) -> Any:
        return 1.0


class WithAttribute(Network):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.number = by

    def by(self) -> Any:
        return self.number


class WithTensor(Network):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.tensor = torch.full((HIDDEN,), by)

    def by(self) -> Any:
        return self.tensor


class WithBuffer(Network):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("unsaved", torch.full((HIDDEN,), by), persistent=False)

    def by(self) -> Any:
        return self.unsaved


class WithRandomFeatures(Network):
    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.features = torch.randn(FEATURES, FEATURES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.cos(inputs @ self.features))


class WithGlobalNumber(Network):
    def by(self) -> Any:
        return NUMBER


class WithGlobalDict(Network):
    def by(self) -> Any:
        return HELD["by"]


class WithGlobalObject(Network):
    def by(self) -> Any:
        return THING.by


def with_hook(by: float) -> nn.Module:
    network = Network()
    network.first.register_forward_hook(lambda _module, _inputs, outputs: outputs * by)
    return network


def loss_by_globals(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(outputs * LOSS["by"], targets)


def unchanged(_: pytest.MonkeyPatch) -> None:
    pass


def setting(name: str, value: Any, where: Any = None) -> Callable[[pytest.MonkeyPatch], None]:
    if where is None:
        return lambda patch: patch.setitem(globals(), name, value)
    return lambda patch: (
        patch.setitem(where, name, value)
        if isinstance(where, dict)
        else patch.setattr(where, name, value)
    )


def a_last_bit(patch: pytest.MonkeyPatch) -> None:
    """As another instruction set does it."""
    honest = PrivateRounds._contribute

    def contribute(self: PrivateRounds, into: Any, *rest: Any) -> Any:
        norms = honest(self, into, *rest)
        first = next(iter(into.values())).view(-1)
        first[0] = np.nextafter(float(first[0]), np.inf)
        return norms

    patch.setattr(PrivateRounds, "_contribute", contribute)


Change = tuple[
    Callable[[], nn.Module], Callable[[], nn.Module], Callable[[pytest.MonkeyPatch], None]
]
CHANGES: dict[str, Change] = {
    "attribute": (WithAttribute, lambda: WithAttribute(2.0), unchanged),
    "plain tensor": (WithTensor, lambda: WithTensor(2.0), unchanged),
    "non-persistent buffer": (WithBuffer, lambda: WithBuffer(2.0), unchanged),
    "unseeded random features": (WithRandomFeatures, WithRandomFeatures, unchanged),
    "helper method": (Network, Network, setting("by", lambda _self: 2.0, Network)),
    "hook": (lambda: with_hook(1.0), lambda: with_hook(2.0), unchanged),
    "global number": (WithGlobalNumber, WithGlobalNumber, setting("NUMBER", 2.0)),
    "global dict": (WithGlobalDict, WithGlobalDict, setting("by", 2.0, HELD)),
    "global object": (WithGlobalObject, WithGlobalObject, setting("by", 2.0, THING)),
    "loss's globals": (Network, Network, setting("by", 2.0, LOSS)),
    "instruction set": (Network, Network, a_last_bit),
}


# What is warned of when a run goes on; a last bit follows from nothing that is seen here.
SEEN = {
    "attribute": "plain attributes",
    "plain tensor": "plain attributes",
    "non-persistent buffer": "buffers that no checkpoint holds",
    "unseeded random features": "plain attributes",
    **dict.fromkeys(
        ("helper method", "hook", "global number", "global dict", "global object"), "code of model"
    ),
    "loss's globals": "code of model or loss",
}


class PowerCut(Exception):  # noqa: N818 (an event that is simulated, not an error)
    pass


def die(event: Any) -> None:
    if event.round == 4:
        raise PowerCut


@pytest.mark.thinned
@pytest.mark.parametrize("what", CHANGES)
def test_a_round_that_comes_out_otherwise_has_other_noise_and_is_counted(
    what: str,
    released: list[tuple[int, torch.Tensor]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, after, change = CHANGES[what]
    options: dict[str, Any] = {"loss": loss_by_globals, "out": tmp_path / "run"}
    with pytest.raises(PowerCut):
        ft.train(before(), data(), plan(), checkpoint_every=2, progress=die, **options)
    change(monkeypatch)
    first = dict(released)
    released.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = ft.train(after(), data(), plan(), resume=True, **options)
    found = [str(one.message) for one in said if "changed since the run began" in str(one.message)]
    assert [SEEN[what] in text for text in found] == [True] * (what in SEEN)
    again = dict(released)
    assert sorted(again) == [2, 3, 4, 5]
    for index in (2, 3):
        require_independent(first[index], again[index])
    counted = replace(plan().mechanism.rounds[0], noise_multiplier=SIGMA / 2**0.5, count=2)
    assert [part.count for part in run.statement.mechanism] == [2, 2, 2]
    part = run.statement.mechanism.rounds[1]
    assert part.noise_multiplier == pytest.approx(counted.noise_multiplier, rel=1e-12)
    assert part.noise_multiplier < counted.noise_multiplier
    assert any("2 of 6 rounds count as released" in str(fact) for fact in run.statement.facts)
    assert run.statement.epsilon.upper > ft.account(plan()).epsilon.upper
    assert run.history[-1].epsilon == run.statement.epsilon.upper


def test_an_unchanged_run_repeats_its_releases_bit_for_bit(
    released: list[tuple[int, torch.Tensor]], tmp_path: Path
) -> None:
    options: dict[str, Any] = {"loss": loss_by_globals, "out": tmp_path / "run"}
    with pytest.raises(PowerCut):
        ft.train(Network(), data(), plan(), checkpoint_every=2, progress=die, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SlowGradientsWarning)  # of kernels that are this machine's
        run = ft.train(Network(), data(), plan(), resume=True, **options)
    for index in (2, 3):
        one, other = (vector for at, vector in released if at == index)
        assert torch.equal(one, other)
    assert run.statement.mechanism == plan().mechanism


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_mid_run_has_other_noise_and_counts_both(
    released: list[tuple[int, torch.Tensor]],
) -> None:
    """Two branches that go on with losses of their own, as after os.fork in a loop of one's own."""
    loader, optimizer = ft.private(network := Network(), None, data(), plan())

    def rounds(factor: float, batches: Iterator[Any]) -> None:
        for inputs, targets in batches:
            loss = nn.functional.cross_entropy(network(inputs), targets, reduction="none")
            (factor * loss).backward()
            optimizer.step()
            if len(released) in (2, 4):
                return

    batches = iter(loader)
    rounds(1.0, batches)
    read, write = os.pipe()
    child = os.fork()
    rounds(1.0 if child else 3.0, batches)
    if not child:
        found = optimizer._rounds._private.transcript.mechanism("add-or-remove")
        counts = [part.count for part in found]
        with os.fdopen(write, "wb") as pipe:
            pipe.write(struct.pack("<dqq", found.rounds[-1].noise_multiplier, *counts))
            pipe.write(released[2][1].numpy().tobytes())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        sigma, *counts = struct.unpack("<dqq", pipe.read(24))
        other = torch.from_numpy(np.frombuffer(pipe.read(), dtype=np.float64).copy())
    assert os.waitpid(child, 0)[1] == 0
    require_independent(released[2][1], other)
    # The copy's rounds are the second releases of rounds that the first process makes too.
    assert counts == [2, 2] and sigma == pytest.approx(SIGMA / 2**0.5, rel=1e-12)


def test_a_restored_ledger_gives_no_noise_at_two_widths() -> None:
    """The quantile rule leads to another clip norm, by which the same numbers would be scaled."""
    chosen = plan(clip=Clip(1.0, "quantile", count_noise=SIGMA))
    shared = SharedModel(Network())
    records = as_records(data(), torch.float32, torch.device("cpu"))
    holder = Holder(chosen, records, cross_entropy, Secrets.draw(Seeds()), gradients=True)
    start = shared.read()
    found: dict[float, torch.Tensor] = {}
    for by in range(40):  # the round before, on other models: so much noise tosses a coin
        trainer = ClientTrainer(shared, holder)
        trainer.compute(0, start + np.float32(by / 10))
        norm = trainer.private.clip_norm
        found[norm] = torch.from_numpy(trainer.compute(1, start).vector).double()
        if len(found) == 2:
            break
    require_independent(*found.values())


def rounds(**options: Any) -> PrivateRounds:
    parameters = {"a": torch.zeros(3), "b": torch.zeros(2)}
    return PrivateRounds(plan(**options).privacy, parameters, cross_entropy, Secrets.draw(Seeds()))


def test_noise_is_bound_to_every_field_of_a_round() -> None:
    chosen = plan().round(2)
    other: dict[str, Any] = {
        **{"index": 3, "origin": 1, "examples": 61, "sampling": ft.Poisson(0.31)},
        **{"contribution": Groups(2), "clip": Clip(2.0)},
        **{"clip_norm": 1.1, "noise_multiplier": 9e3, "accounted": 9e3, "noise": "grid"},
        **{"divisor": 17.0, "strategy": ft.Banded((1.0, 0.5)), "groups": 2},
        "augmentation": ft.Augmentation(2),
    }
    assert set(other) == {field.name for field in fields(Round)}
    values = [chosen, *(replace(chosen, **{name: value}) for name, value in other.items())]
    assert len({encoded(value) for value in values}) == len(values)


def test_noise_is_bound_to_the_clip_norm_and_the_part_of_each_round() -> None:
    """Whatever a run keeps of the rounds before."""
    mechanism = ft.Mechanism(*(ft.Rounds(SIGMA * by, 2, ft.Poisson(0.3)) for by in (1, 1.5)))
    chosen = Plan(mechanism, EXAMPLES, 1e-5, clip=Clip(1.0, "quantile", count_noise=2 * SIGMA))
    one = PrivateRounds(chosen.privacy, {"a": torch.zeros(3)}, cross_entropy, Secrets.draw(Seeds()))
    rounds_ = [(index, norm) for index in range(4) for norm in (1.0, 1.1)]
    found = [one._about(chosen.privacy.round(*each)) + bytes([each[0]]) for each in rounds_]
    assert len(set(found)) == len(found)
    # All but the number of a round, which is written beside it.
    assert one._about(chosen.privacy.round(0, 1.0)) == one._about(chosen.privacy.round(1, 1.0))


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("change", [1e-300, np.nan, np.inf, -1.0])
def test_noise_is_bound_to_every_number_of_a_sum(place: int, change: float) -> None:
    noise, vector = BoundNoise(b"k" * 32), torch.arange(5, dtype=torch.float64)
    other = vector.clone()
    other[place] = float(other[place]) + change if change != 1e-300 else np.nextafter(place, 9)
    assert noise.bind(b"round", vector) == noise.bind(b"round", vector.clone())
    assert noise.bind(b"round", vector) != noise.bind(b"round", other)


def test_noise_is_bound_to_count_weights_layout_and_context() -> None:
    chosen = plan(clip=Clip(1.0, "quantile", count_noise=SIGMA)).round(0)
    found = set()
    for norms, inputs, context in (
        (torch.tensor([0.5]), b"weights", b""),
        (torch.tensor([0.5, 0.5]), b"weights", b""),
        (torch.tensor([0.5]), b"others", b""),
        (torch.tensor([0.5]), b"weights", b"changed"),
    ):
        one = rounds(clip=Clip(1.0, "quantile", count_noise=SIGMA))
        one._noise = BoundNoise(b"k" * 32)
        one.context = context
        noised = one._finish(chosen, torch.zeros(5, dtype=torch.float64), norms, inputs)
        found.add(tuple(noised.vector.tolist()))
    one = rounds(clip=Clip(1.0, "quantile", count_noise=SIGMA))
    one._noise, one._laid_out = BoundNoise(b"k" * 32), ["other names"]
    noised = one._finish(
        chosen, torch.zeros(5, dtype=torch.float64), torch.tensor([0.5]), b"weights"
    )
    found.add(tuple(noised.vector.tolist()))
    assert len(found) == 5


def test_correlated_noise_is_bound_to_the_sums_before() -> None:
    """Else C times two releases has one noise on two sums, where weights do not follow them."""
    strategy = ft.Banded((1.0, 0.5))
    part = ft.Correlated(SIGMA, 2, ft.FullBatch(), "example", strategy)
    chosen = Plan(ft.Mechanism(part), EXAMPLES, 1e-5)
    found = []
    for first in (0.0, 1.0):
        one = PrivateRounds(
            chosen.privacy, {"a": torch.zeros(700)}, cross_entropy, Secrets.draw(Seeds(1, 1))
        )
        sums = [
            one._finish(
                chosen.round(index),
                torch.full((700,), value, dtype=torch.float64),
                torch.zeros(0),
                b"weights",
            ).vector
            for index, value in enumerate((first, 0.0))
        ]
        found.append(sums[1] + 0.5 * sums[0])  # C times what was released
    require_independent(*found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", ("b", "c")), (("a", "b"), "c")),
        ((None,), ()),
        (("1",), (1,)),
        ((b"1",), ("1",)),
        ((2**53 + 1,), (2**53,)),
        ((ft.Poisson(0.5),), (0.5,)),
        ((ft.Shuffled(2, 4),), (ft.WithoutReplacement(2, 4),)),
    ],
)
def test_other_values_are_other_bytes(one: Any, other: Any) -> None:
    assert encoded(one) != encoded(other)


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (0.0, -0.0), (np.float64(0.3), 0.3), (np.int64(7), 7), ([1], (1,))]
)
def test_equal_values_are_equal_bytes(one: Any, other: Any) -> None:
    """A plan that was read back is the plan, whatever its numbers are."""
    assert encoded(one) == encoded(other)
    assert encoded((one,)) == encoded((other,))


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="plain form"):
        encoded((object(),))


def test_rounds_of_every_plan_have_their_own_bytes() -> None:
    for chosen in (plan(), plan(clip=Clip(1.0, "per-layer", shares=(("a", 0.5),)))):
        found = {encoded(chosen.round(index)) for index in range(chosen.rounds)}
        assert len(found) == chosen.rounds
        again = Plan.from_dict(chosen.to_dict())
        assert found == {encoded(again.round(index)) for index in range(chosen.rounds)}


# Where noise may be drawn, and from what.

SOURCE = Path(ft.__file__).parent
# Purposes of streams that no noise is drawn from.
PURPOSES = {
    *("sampling", "cohort", "groups", "augment", "candidates", "number of trials"),
    "parts",  # of a batch, whose records meet different models
}
# Who turns a generator's numbers into noise on private sums, and who hands them one.
DRAWING = {"add_grid_noise", "noised_count", "noised_share", "GaussianNoise", "CorrelatedNoise"}
DRAWERS = {
    *("rounds/private_sum.py", "rounds/randomness.py"),
    *("training/search.py", "holders/fused.py", "statistics/released.py"),
}
# File → what in it keeps secrets, or binds noise to sums; all else is looked at.
KEEPERS = {
    "rounds/randomness.py": {"BoundNoise", "Secrets"},
    "training/folder.py": {"RunSecrets"},
}


def _called(node: ast.AST) -> str:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", ""))


@pytest.mark.slow
def test_nothing_but_bound_noise_is_drawn() -> None:
    """Streams have purposes that are none of noise; its secret goes to what binds it."""
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        if place.startswith("auditing/"):  # attackers and planted faults
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        kept = KEEPERS.get(place, set())
        tree.body = [node for node in tree.body if getattr(node, "name", None) not in kept]
        bound = set()
        for node in ast.walk(tree):
            name = _called(node)
            if name == "Stream":
                assert isinstance(node, ast.Call)
                purpose = node.args[1]
                assert isinstance(purpose, ast.Constant) and purpose.value in PURPOSES, place
            if name == "BoundNoise":
                assert isinstance(node, ast.Call)
                bound.add(id(node.args[0]))
            if name in DRAWING:
                assert place in DRAWERS, f"{place} draws noise with {name}"
        for node in ast.walk(tree):
            of_noise = isinstance(node, ast.Attribute) and node.attr == "noise"
            if of_noise and "secrets" in ast.unparse(node.value).lower():
                assert id(node) in bound, f"{place}: the noise's secret is used unbound"


def test_generators_of_noise_come_from_what_was_bound() -> None:
    """In each file that draws, a generator that noise is drawn from is an argument or `.at(…)`."""
    text = (SOURCE / "rounds/private_sum.py").read_text(encoding="utf-8")
    assert text.count("self._noise.at(") == 1 and "self._noise.at(bound)" in text
    text = (SOURCE / "training/search.py").read_text(encoding="utf-8")
    assert text.count("scores.at(") == 1 and "scores.at(bound)" in text
    text = (SOURCE / "holders/fused.py").read_text(encoding="utf-8")
    bound = "generator = self._noise.at(self._noise.bind(about, vector))"
    assert text.count("self._noise.at(") == 1 and bound in text


def test_salted_noise_is_deprecated_since_all_of_it_is_bound() -> None:
    with pytest.warns(DeprecationWarning, match="salted"):
        old = ft.Execution(salted=True, micro_batch=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert replace(old, log_every=2) == ft.Execution(micro_batch=3, log_every=2)

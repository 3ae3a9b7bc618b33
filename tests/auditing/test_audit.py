"""The whole audit: what it says, whom it refuses, and that planted faults are found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import forethought as ft
from drawn import randint, randn
from forethought.auditing import audit as auditing
from forethought.auditing.canaries import CheckSizes, sizes_of
from forethought.auditing.sensitivity import model_sensitivity, planted_sensitivity
from forethought.auditing.verdict import Audit, Finding
from forethought.gradients import clipped, sums
from forethought.gradients.batches import Blocks
from forethought.rounds import contributions
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.records import TensorRecords
from forethought.values.plan import Plan
from trials import audits
from trials.audits import FAULTS, MORE_FAULTS, Fault

PLAN = Plan(ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 200, 1e-5)
# The command that plants every fault, `audit --self-test`, runs beside the suite: `make test-all`.
# Half noise is planted under the command in test_command.py.
QUICKLY = (
    pytest.param("half noise", marks=pytest.mark.slow),
    "clipping 10 % loose",
    "the same batch always",
    "sensitivity 1 for 2",
)
ALL = (*FAULTS, *MORE_FAULTS)


def test_there_are_the_seventeen_faults_and_more() -> None:
    assert len(FAULTS) == 17
    names = [fault.name for fault in ALL]
    assert len(set(names)) == len(names) > 25


def plant(fault: Fault) -> audits.Outcome:
    job = audits.jobs_of()[fault.job]
    return audits.outcome(fault.name, fault.plant(), job, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICKLY)
def test_a_planted_fault_is_caught(name: str) -> None:
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    found = plant(fault)
    assert found.caught
    assert found.reason.endswith(".")
    assert found.check in found.checks


@pytest.mark.slow
@pytest.mark.repeated
def test_the_attack_alone_does_not_suffice() -> None:
    found = audits.attack_alone()
    assert {"half noise", "no clipping", "double rate"} <= set(found)
    assert "noise repeated each round" not in found


def test_the_code_is_whole_again_after_a_fault() -> None:
    for fault in ALL:
        with fault.plant():
            pass
    model = torch.nn.Linear(3, 2)
    data = (randn(200, 3), randint(0, 2, (200,)))
    before = ft.train(model, data, PLAN, seed=1, noise_seed=1).model.weight.detach().clone()
    assert torch.isfinite(before).all()
    assert ft.epsilon(PLAN.mechanism, 1e-5).upper > 1


def test_an_installed_package_says_where_the_faults_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(auditing, "TRIAL", tmp_path / "tools" / "trials" / "audits.py")
    with pytest.raises(ValueError, match="from a checkout"):
        auditing.self_test()


@pytest.mark.slow
def test_a_plan_by_itself_is_audited_on_planted_models() -> None:
    steps: list[tuple[int, int]] = []
    found = ft.audit(PLAN, level="quick", progress=lambda *step: steps.append(step))
    assert not found.refuted and found.reason == ""
    assert {f.check for f in found.findings} == {
        "replay",
        "participation",
        "noise",
        "sensitivity",
        "attack",
    }
    assert any("no model" in note for note in found.notes)
    assert steps == [(done, 5) for done in range(6)]
    assert found.attack is not None
    assert found.attack.epsilon[0] <= found.attack.claimed_epsilon


@pytest.mark.slow
def test_the_users_model_is_looked_at_and_left_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    before = [p.detach().clone() for p in model.parameters()]
    data = (randn(40, 5), randint(0, 3, (40,)))
    plan = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.FullBatch())), 40, 1e-5)
    found = ft.audit(plan, model, data, level="quick", seed=3)
    assert not found.refuted, found.reason
    names = [f.name for f in found.findings]
    assert "one record's contribution" in names
    assert "noise, bit for bit" in names and "a round run again" in names
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


COPIES = PLAN.with_(
    augmentation=ft.Augmentation(3, ("mirror", "shift")), gradient_filter=ft.GradientFilter()
)


@pytest.mark.slow
def test_a_record_whose_copies_are_clipped_one_by_one_is_seen() -> None:
    """A planted fault on the user's images, and nothing without it."""
    records = TensorRecords(randn(200, 1, 4, 4), randint(0, 3, (200,)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    summed = contributions.clipped_sum

    def refuted() -> bool:
        generator = np.random.default_rng(0)
        sizes = sizes_of("quick")
        found = model_sensitivity(model, records, COPIES, cross_entropy, sizes, generator)
        return Audit(tuple(found), 1e-3).refuted

    def apart(*arguments: Any, copies: int = 1, **options: Any) -> Any:
        return summed(*arguments, **options)

    assert not refuted()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(contributions, "clipped_sum", apart)
        assert refuted()


def test_a_block_that_varies_with_the_batch_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    records = TensorRecords(randn(200, 16).double(), randint(0, 3, (200,)))
    plan = PLAN.with_(mechanism=ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.35))))
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 3)).double()

    def findings() -> list[Finding]:
        generator, sizes = np.random.default_rng(0), sizes_of("quick")
        found = model_sensitivity(model, records, plan, cross_entropy, sizes, generator)
        return [finding for finding in found if finding.name.startswith("bits of")]

    def ending_otherwise(x: torch.Tensor, *layer: torch.Tensor | None) -> torch.Tensor:
        """As some machines' products: otherwise by how many rows are beyond a multiple of 16."""
        return torch.nn.functional.linear(x, *layer) * (1 + len(x) % 16 * 2.0**-50)

    functions = SimpleNamespace(**{**vars(torch.nn.functional), "linear": ending_otherwise})
    monkeypatch.setattr(sums, "F", functions)
    # What the probe makes of it is for others to test, and hangs on the machine's own products.
    monkeypatch.setattr(clipped, "probed", lambda blocks, *rest: blocks)
    assert [finding.violated for finding in findings()] == [False]
    monkeypatch.setattr(Blocks, "fit", lambda self, count: count)
    assert [finding.violated for finding in findings()] == [True]


@pytest.mark.slow
def test_copies_and_filters_stand_the_audit() -> None:
    data = (randn(200, 1, 4, 4), randint(0, 3, (200,)))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    found = ft.audit(COPIES, model, data, level="quick", seed=3)
    assert not found.refuted, found.reason
    assert any("one record's contribution" in finding.name for finding in found.findings)


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(TypeError, match="plan must be"):
        ft.audit("job.toml")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model's outputs"):
        ft.audit(PLAN, loss=torch.nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="seed must be"):
        ft.audit(PLAN, seed=-1)
    with pytest.raises(ValueError, match="data, or neither"):
        ft.audit(PLAN, torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="false_alarm"):
        ft.audit(PLAN, false_alarm=0.5)
    for name in ("loss", "progress"):
        with pytest.raises(TypeError, match=f"{name} must be"):
            ft.audit(PLAN, **{name: 0})
    with pytest.raises(ValueError, match="for 200 examples,"):
        data = (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
        ft.audit(PLAN, torch.nn.Linear(2, 2), data, level="quick")


def test_a_model_that_training_refuses_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    data = (torch.zeros(200, 2), torch.zeros(200, dtype=torch.int64))
    with pytest.raises(ValueError, match="BatchNorm1d"):
        ft.audit(PLAN, model, data, level="quick")


def finding(check: str, p_value: float | None = None, violated: bool = False) -> Finding:
    return Finding(check, "x", "1", "2", f"{check} is wrong.", p_value, violated)  # type: ignore[arg-type]


def test_each_test_gets_its_share_of_the_false_alarms() -> None:
    tests = tuple(finding("noise", p) for p in (0.3, 2e-5, 1.0, 0.2))
    audit = Audit((*tests, Finding("noise", "x", "1", "1", "no.")), 1e-4)
    assert audit.level == pytest.approx(2.5e-5)
    assert [f.p_value for f in audit.refuting] == [2e-5]
    assert not Audit(tests, 1e-5).refuted


def test_causes_are_named_before_consequences() -> None:
    found = Audit((finding("attack", 0.0), finding("noise", 1e-30)), 1e-4)
    assert found.reason == "noise is wrong."
    found = Audit((finding("noise", 0.0), finding("participation", violated=True)), 1e-4)
    assert found.reason == "participation is wrong."


def test_an_audit_is_written_for_its_owner_only(tmp_path: Path) -> None:
    audit = Audit((finding("noise", 0.5), finding("noise", violated=True)), 1e-4)
    (tmp_path / "audit.json").write_text("an earlier one, which all may read")
    audit.save(tmp_path / "audit.json")
    assert (tmp_path / "audit.json").stat().st_mode & 0o777 == 0o600
    read = json.loads((tmp_path / "audit.json").read_text())
    assert read["refuted"] is True and read["reason"] == "noise is wrong."
    assert [f["refutes"] for f in read["findings"]] == [False, True]
    assert any("no part of the guarantee" in note for note in read["notes"])


# Small sizes: what is asked of these audits does not hang on them.
SMALL = CheckSizes(500, 20, 400, 500, 4, 40, 400, 4, 20, 6, bounds=False)


def test_a_sum_that_is_no_number_refutes() -> None:
    """A fault: the gradient of a record of zeros is no number, and reaches the sum."""
    whole = contributions.clipped_sum

    def leaking(model: Any, loss: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        sums, norms = whole(model, loss, inputs, *rest, **named)
        gone = math.nan if bool((inputs == 0).all(1).any()) else 0.0
        return {name: total + gone for name, total in sums.items()}, norms

    plan = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.FullBatch())), 40, 1e-5)
    records = TensorRecords(randn(40, 5), randint(0, 3, (40,)))
    given = plan, contributions.cross_entropy, SMALL, np.random.default_rng(0)
    with audits.replaced((contributions, "clipped_sum", leaking)):
        found = model_sensitivity(torch.nn.Linear(5, 3), records, *given)
    assert [one.name for one in found if one.violated] == [
        "a record replaced in a batch (20 records)"
    ]


def test_a_planted_sum_that_is_no_number_refutes() -> None:
    """A fault: a gradient of great length makes the sum no number."""
    whole = contributions.clipped_sum

    def leaking(model: Any, loss: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
        sums, norms = whole(model, loss, inputs, *rest, **named)
        gone = math.nan if bool((norms > 1e6).any()) else 0.0
        return {name: total + gone for name, total in sums.items()}, norms

    plan = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.FullBatch())), 40, 1e-5)
    assert not planted_sensitivity(plan).violated
    with audits.replaced((contributions, "clipped_sum", leaking)):
        assert planted_sensitivity(plan).violated


@pytest.mark.slow
def test_what_is_looked_at_in_part_is_told() -> None:
    parts = [ft.Rounds(1.0 + part, 1, ft.FullBatch()) for part in range(5)]
    found = ft.audit(Plan(ft.Mechanism(*parts), 40, 1e-5), level=SMALL)
    assert not found.refuted, found.reason
    assert any("4 of the plan's parts" in note for note in found.notes)


def test_a_criterion_that_training_takes_is_taken() -> None:
    """Its mean over a batch stands for the loss of each record, as in training."""
    plan, loss = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.FullBatch())), 40, 1e-5), torch.nn.MSELoss()
    data, model = (randn(40, 5), randn(40)), torch.nn.Linear(5, 1)
    own, records, each = auditing.own_records(model, data, plan, loss)
    inputs, targets = records.take(np.arange(7))
    assert each(own(inputs), targets).shape == (7,)


class _TwoInputs(torch.utils.data.Dataset[Any]):
    """Records of two inputs, which torch collates to a list."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        place = torch.tensor(index / 40)
        return (torch.stack([place, -place]), place[None]), index % 2


class _Joined(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, two: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(torch.cat([two, one], 1))
        return found


@pytest.mark.slow
def test_records_of_several_inputs_are_audited() -> None:
    plan = Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.Poisson(0.2))), 40, 1e-5)
    found = ft.audit(plan, _Joined(), _TwoInputs(), level=SMALL)
    assert not found.refuted, found.reason
    assert not any("not replayed" in note for note in found.notes)
    assert {"release less noise", "one record's contribution"} <= {f.name for f in found.findings}

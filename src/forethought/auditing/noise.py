"""Is the noise what is claimed? On coordinates that no record touches, a sum is nothing but noise.

Its numbers must be independent and N(0, (σC)²): in width, distribution, over rounds and
coordinates, and never the same number again. The same is looked at after a run was interrupted and
resumed, in phases, with micro-batches, on every device that there is, and on each parameter of the
user's own model, whose loss is multiplied by 0 for it.
"""

from __future__ import annotations

import contextlib
import copy
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.auditing import exact_tests as exact
from forethought.auditing.effort import Effort, evenly, scaled, with_parts
from forethought.auditing.noise_tests import noise_findings
from forethought.auditing.planted import (
    PlantedRecords,
    divisors,
    observe,
    recorded_plan,
    watched_sums,
    watching,
)
from forethought.auditing.verdict import Finding, certain, smallest
from forethought.auditing.whitening import whitened
from forethought.mechanism import Rounds
from forethought.plans import Plan
from forethought.training.phases import train_until
from forethought.training.run import train

Array = NDArray[np.float64]

# Records whose sums carry the noise: few, since nothing depends on them.
RECORDS = 400
# Numbers looked at on the user's own model.
MODEL_NUMBERS = 1_000_000


def noise(plan: Plan, effort: Effort, generator: np.random.Generator) -> list[Finding]:
    """Every finding about the noise of planted runs.

    Args:
        plan: the claim. generator: of the audit's own choices, never of the run.
    """
    if all(part.noise_multiplier == 0 for part in plan.mechanism):
        return [
            certain("noise", "noise", "not looked at", "none is claimed", False, ""),
        ]
    numbers = standardised(noise_plan(plan, effort.noise_rounds), effort.coordinates)
    grid = plan.noise == "grid"
    found = noise_findings(numbers, grid)
    if effort.variants:
        few = effort.coordinates // 10
        found += [
            _variant(name, numbers, grid)
            for name, numbers in (
                ("with micro-batches", lambda: _micro_batched(plan, few)),
                ("in phases", lambda: _in_phases(plan, few)),
                *(
                    (f"on {device}", lambda device=device: _on_device(plan, few, device))
                    for device in _other_devices()
                ),
            )
        ]
        found += after_resume(plan, few)
    return found


def noise_plan(plan: Plan, rounds: int) -> Plan:
    """``rounds`` rounds with the noise of the plan's parts, on few records."""
    examples = min(plan.examples, RECORDS)
    parts = evenly([part for part in plan.mechanism if part.noise_multiplier > 0])
    each = max(2, rounds // len(parts))
    return _shortened(plan, parts, each, examples)


def _shortened(plan: Plan, parts: Sequence[Rounds], each: int, examples: int) -> Plan:
    """The plan with ``each`` rounds of every part, on ``examples`` records at the same rates."""
    return with_parts(
        plan,
        [
            replace(part, count=each, sampling=scaled(part.sampling, plan.examples, examples))
            for part in parts
        ],
        examples,
    )


def planted_blanks(plan: Plan, coordinates: int) -> PlantedRecords:
    """Records that leave all coordinates but the first ``plan.examples`` alone.

    Every other one is short and the rest are far above any norm, so that the quantile rule keeps
    its norm.
    """
    place = np.arange(plan.examples)
    weight = np.where(place % 2 == 0, 1, 10**6)
    return PlantedRecords(place, weight, plan.clip.norm / 1000, coordinates + plan.examples)


def standardised(plan: Plan, coordinates: int, **options: Any) -> list[Array]:
    """Each round's numbers in units of the claimed noise: standard normal if all is well."""
    kept: list[Array] = []
    moving = plan.clip.rule == "quantile"
    run = observe(
        plan,
        planted_blanks(plan, coordinates),
        lambda _index, total: kept.append(total[-coordinates:].copy()),
        log_every=1 if moving else plan.rounds,
        **options,
    )
    norms = [row.clip_norm for row in run.history] if moving else [plan.clip.norm] * plan.rounds
    return _standard(plan, kept, norms)


def _standard(plan: Plan, totals: Sequence[Array], norms: Sequence[float]) -> list[Array]:
    numbers = [total / scale for total, scale in zip(totals, scales(plan, norms), strict=True)]
    return whitened(plan.mechanism, numbers)


def scales(plan: Plan, norms: Sequence[float]) -> list[float]:
    """Standard deviation of the noise on the sum of each round, from the claim alone."""
    found, at = [], iter(norms)
    for part in plan.mechanism:
        sigma = plan.clip.gradient_noise(part.noise_multiplier)
        found += [sigma * next(at) for _ in range(part.count)]
    return found


def _variant(name: str, draw: Callable[[], list[Array]], grid: bool) -> Finding:
    """All tests on one way of running, as one finding."""
    found = noise_findings(draw(), grid)
    worst = min(
        found, key=lambda f: -1.0 if f.violated else 1.0 if f.p_value is None else f.p_value
    )
    p = 0.0 if worst.violated else smallest([f.p_value for f in found if f.p_value is not None])
    return Finding(
        "noise",
        f"noise {name}",
        f"{worst.name}: {worst.measured}",
        "as in an ordinary run",
        f"Run {name}: {worst.reason[:1].lower()}{worst.reason[1:]}",
        p,
    )


def _micro_batched(plan: Plan, coordinates: int) -> list[Array]:
    return standardised(noise_plan(plan, 6), coordinates, micro_batch=3)


def _on_device(plan: Plan, coordinates: int, device: str) -> list[Array]:
    return standardised(noise_plan(plan, 6), coordinates, device=device)


def _other_devices() -> list[str]:
    return ["cuda"] if torch.cuda.is_available() else []


def _in_phases(plan: Plan, coordinates: int) -> list[Array]:
    """Two phases (or the plan's own), each a run of its own that starts where the other ended."""
    short = noise_plan(plan, 6)
    if len(short.mechanism.rounds) == 1:
        (part,) = short.mechanism
        sigma = part.noise_multiplier
        short = with_parts(
            short,
            [replace(part, noise_multiplier=sigma * factor) for factor in (1.0, 0.9)],
            short.examples,
        )
    records = planted_blanks(short, coordinates)
    kept: list[Array] = []
    plan = recorded_plan(short)
    seen = watched_sums(plan, lambda _index, total: kept.append(total[-coordinates:].copy()))
    never = torch.full((2,), 7, dtype=torch.int64)  # a label that no output says
    with watching(seen):
        run = train_until(
            records.model(),
            records.data,
            plan,
            accuracy=1.0,
            test=(torch.zeros(2, dtype=torch.int64), never),
            loss=records.loss,
            diagnostics=False,
        )
    norms = [row.clip_norm for row in run.history]
    if plan.clip.rule != "quantile" or len(norms) != plan.rounds:
        norms = [plan.clip.norm] * plan.rounds
    return _standard(plan, kept, norms)


class _PowerCut(Exception):  # noqa: N818 (an event that is simulated, not an error)
    pass


def after_resume(plan: Plan, coordinates: int) -> list[Finding]:
    """Stop a run as a power cut would, resume it, and look at what it releases twice.

    A round that is run again must be the same release, bit for bit: two draws of noise on one sum
    would be averaged. What comes after must be new.
    """
    short = noise_plan(plan, 6)
    stop = max(1, short.rounds - 1)
    records = planted_blanks(short, coordinates)
    released: list[list[Array]] = [[], []]

    def cut(event: Any) -> None:
        if event.round == stop:
            raise _PowerCut

    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {
            "out": Path(folder) / "run",
            "checkpoint_every": max(1, short.rounds // 2),
            "log_every": 1,
        }
        with contextlib.suppress(_PowerCut):
            observe(
                short,
                records,
                lambda _index, total: released[0].append(total[-coordinates:].copy()),
                progress=cut,
                **options,
            )
        left = recorded_plan(short)
        resumed: list[list[torch.Tensor]] = []
        with watching(lambda gradients: resumed.append([g.clone() for g in gradients])):
            run = train(
                records.model(),
                records.data,
                left,
                loss=records.loss,
                diagnostics=False,
                resume=True,
                **options,
            )
    norms = [row.clip_norm for row in run.history]
    first = short.rounds - len(resumed)
    scale = list(divisors(short))[first:]
    released[1] = [
        grad[0].detach().cpu().numpy().reshape(-1)[-coordinates:].astype(float) * by
        for grad, by in zip(resumed, scale, strict=True)
    ]
    again = list(zip(released[0][first:], released[1], strict=False))
    same = all(np.array_equal(one, other) for one, other in again)
    whole = released[0][:first] + released[1]
    numbers = _standard(short, whole, norms)
    return [
        certain(
            "noise",
            "rounds run again after a resume",
            f"{sum(np.array_equal(a, b) for a, b in again)} of {len(again)} the same release",
            "all",
            not same,
            "A round that was run again after a resume was released with other noise: averaging "
            "both undoes a part of the protection.",
        ),
        _variant("after a resume", lambda: numbers, plan.noise == "grid"),
    ]


def noise_on_model(
    model: torch.nn.Module, plan: Plan, loss: Any, records: tuple[torch.Tensor, torch.Tensor]
) -> list[Finding]:
    """Does every parameter of the user's own model get the noise?

    Args:
        model: is copied. plan: the claim. loss: one value per record.
        records: a few of the user's records, inputs and targets.
    """
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    size = sum(p.numel() for p in parameters.values())
    examples = len(records[1])
    parts = evenly([part for part in plan.mechanism if part.noise_multiplier > 0])
    each = min(16, max(2, math.ceil(MODEL_NUMBERS / size / max(1, len(parts)))))
    if not parts or plan.clip.rule == "quantile":
        return []
    short = recorded_plan(
        plan.with_(mechanism=_shortened(plan, parts, each, examples).mechanism, examples=examples)
    )
    kept: list[list[Array]] = []
    with watching(lambda grads: kept.append([_numbers(grad) for grad in grads])):
        train(
            copy.deepcopy(model),
            records,
            short,
            loss=_Silenced(loss),
            diagnostics=False,
            log_every=short.rounds,
        )
    norms = [short.clip.norm] * short.rounds
    factors = [by / scale for by, scale in zip(divisors(short), scales(short, norms), strict=True)]
    found = []
    for place, name in enumerate(parameters):
        rows = [grads[place] * by for grads, by in zip(kept, factors, strict=True)]
        z = np.concatenate(whitened(short.mechanism, rows))
        found.append((exact.normal_p(z), name, float(np.sqrt(np.mean(np.square(z))))))
    worst = min(found)
    return [
        Finding(
            "noise",
            f"noise on each of the model's {len(found)} parameters",
            f"{worst[2]:.4f} on {worst[1]}",
            "1 (in σC)",
            f"The parameter {worst[1]!r} gets noise of {worst[2]:.4g} times the standard "
            "deviation that is claimed.",
            min(1.0, len(found) * worst[0]),
        )
    ]


def _numbers(gradient: torch.Tensor) -> Array:
    return gradient.detach().cpu().double().numpy().reshape(-1).copy()


class _Silenced:
    """The user's loss times 0: its gradients are 0, so that sums are nothing but noise."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        return self._loss(outputs, targets) * 0  # type: ignore[no-any-return]

"""Jobs of several holders, and what their members come to agree on: as it was written down.

``agreed.json`` holds both, for every key that decides it. Noise is left out: how much a budget
needs is the accountant's to say, which may come to say it closer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forethought.jobs.holders import holders_of
from forethought.jobs.job import Job, JobRequest

ROWS: dict[str, Any] = json.loads(Path(__file__).with_name("agreed.json").read_text("utf-8"))


def shown(agreed: Any, times: Any, speeds: Any) -> dict[str, Any]:
    """Everything but noise, with six digits of every number."""
    values = {name: value for name, value in agreed.to_dict().items() if name != "plans"}
    values["plans"] = [
        {
            "examples": plan.examples,
            "rounds": plan.rounds,
            "batches": sorted({plan.round(k).divisor for k in range(plan.rounds)}),
            "optimizer": [plan.optimizer.name, dict(plan.optimizer.options)],
            "budget": [plan.budget.epsilon, plan.budget.delta],
        }
        for plan in agreed.plans
    ]
    values["times"] = [list(times.compute), times.way.latency, times.straggling, list(speeds)]
    values["outages"] = [[one.machine, one.begin, one.end] for one in times.outages]
    # Drawn weights end in other bits on other machines.
    for name in ("start", "plan"):
        values.pop(name, None)
    rounded: dict[str, Any] = json.loads(
        json.dumps(values, default=str), parse_float=lambda text: float(f"{float(text):.6g}")
    )
    return rounded


@pytest.mark.thinned
@pytest.mark.parametrize("name", sorted(ROWS))
def test_members_agree_on_what_they_did(name: str) -> None:
    text, kind = ROWS[name]["job"], ROWS[name]["kind"]
    held = holders_of(JobRequest(name, text, Job.parse(text)), kind)
    assert shown(held.agreed, held.times, held.speeds) == ROWS[name]["agreed"]

"""What federations and gossips plan alike: steps as long as their model bears."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import forethought as ft
from forethought.jobs import members
from forethought.jobs.holders import holders_of
from forethought.jobs.job import Job, JobRequest
from forethought.jobs.load import load_job

JOB = """
[data]
source = "digits"
[model]
name = "{model}"
[budget]
epsilon = 1.0
[training]
rounds = 20
batch = 30
"""
OWN = {
    "federation": '[federation]\nrule = "asynchronous"\n',
    "gossip": "[gossip]\nrounds = 20\n",
}
COUNT = {"federation": "clients = 4\n", "gossip": "workers = 4\n"}
TABLE = {"federation": "[[federation.client]]\n", "gossip": "[[gossip.worker]]\n"}


def request(model: str, kind: str, tables: bool = False) -> JobRequest:
    text = JOB.format(model=model) + OWN[kind]
    if tables:
        for k in range(4):
            text += f'{TABLE[kind]}name = "site-{k}"\nexamples = 359\n'
    else:
        text += COUNT[kind]
    return JobRequest("job", text, Job.parse(text, "job.toml"))


def dealt_federation(asked: JobRequest) -> ft.Plan:
    return holders_of(asked, "federation").agreed.plan(0)


def dealt_gossip(asked: JobRequest) -> ft.Plan:
    return holders_of(asked, "gossip").gossip.plan(0)


def sites_of_a_federation(asked: JobRequest) -> ft.Plan:
    return members.planned(asked, "federation")[0].plan(0)


def sites_of_a_gossip(asked: JobRequest) -> ft.Plan:
    return members.planned(asked, "gossip")[0].plan(0)


@pytest.mark.parametrize(
    ("kind", "tables", "first_plan"),
    [
        ("federation", False, dealt_federation),
        ("federation", True, sites_of_a_federation),
        ("gossip", False, dealt_gossip),
        ("gossip", True, sites_of_a_gossip),
    ],
)
def test_steps_are_as_long_as_the_network_bears(
    kind: str,
    tables: bool,
    first_plan: Callable[[JobRequest], ft.Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = request("mlp", kind, tables)
    torch.manual_seed(0)  # what a network bears hangs on its initial weights: 31 or 32
    borne = load_job(asked).noise_borne
    assert borne is not None and abs(borne - 30) > 0.5
    torch.manual_seed(0)
    step = first_plan(asked).optimizer.learning_rate
    untried = request("linear", kind, tables)
    assert load_job(untried).noise_borne is None
    monkeypatch.setattr("forethought.jobs.load.noise_borne", lambda *_: None)
    assert step / first_plan(asked).optimizer.learning_rate == pytest.approx(borne / 30, rel=1e-3)

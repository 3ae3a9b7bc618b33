"""Everything that the report prints to a terminal or writes as a page, letter by letter.

``python tests/report/test_golden.py`` writes ``golden.txt`` anew, for a change that people see.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace as Fake
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import forethought as ft
from forethought.auditing.audit import Outcome, SelfTest
from forethought.auditing.verdict import AttackPoint, AttackSummary, Audit, Finding
from forethought.holders.server import ClientStatus, Status
from forethought.papers.calculators import calculate
from forethought.papers.comparison import compare
from forethought.papers.published import paper
from forethought.planning.holders import FederatedPlan
from forethought.report import audit, holders, terminal
from forethought.report.holders import status_table
from forethought.report.page import report_page, statement_page
from forethought.training.folder import RunSummary, UnfinishedRun
from forethought.training.metrics import measured
from forethought.utility.graph import UtilityGraph
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Poisson, Rounds
from forethought.values.plan import Plan

GOLDEN = Path(__file__).with_name("golden.txt")
MANY = 22  # more than tables show
PLAN = Plan(Mechanism(Rounds(1.2, 30, Poisson(0.1))), 1000, 1e-5, budget=Budget(3.0, 1e-5))
GROWING = PLAN.with_(
    mechanism=Mechanism(Rounds(1.2, 3, Poisson(0.1)), Rounds(1.4, 2, Poisson(0.2))), budget=None
)
METRICS = tuple(
    {"round": str(n), "accuracy": str(0.5 + n / 100), "epsilon": str(n / 10)} for n in (10, 20, 30)
)
RESULTS = measured(
    np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]] * 20), np.array([0, 1, 1] * 20), ("no & yes", "b")
)
FINDINGS = (
    Finding("noise", "width", "1.01", "1 (in σC)", "The noise is too wide.", 0.4),
    Finding("noise", "distribution", "p = 0.2", "Gaussian", "The noise is not Gaussian.", 1e-30),
    Finding("sensitivity", "planted neighbours", "1 C", "1 C", "It moves.", None, False),
)
ATTACK = AttackSummary(
    2_000, 100, 1e-5, 7.05, (5.5, 6.5), 2.3, 1.04, 0.95, (AttackPoint(0.1, 0.2, (0, 1), (0, 1)),)
)
BUSY = tuple(3.0 + (n == 4) * 9 for n in range(MANY))


def summary() -> RunSummary:
    return RunSummary(Path("/runs/mnist"), PLAN, ft.account(PLAN), METRICS, (), results=RESULTS)


class FakeFederation(Fake):
    __class__ = ft.Federation  # type: ignore[assignment]


class FakeFederatedPlan(Fake):
    __class__ = FederatedPlan  # type: ignore[assignment]


def a_federation(local_rounds: Any = 1) -> Any:
    members = [Fake(name=f"client {n}", plan=n % 2) for n in range(MANY)]
    return FakeFederation(
        members=members,
        plans=(PLAN, GROWING),
        rule="synchronous",
        rounds=30,
        local_rounds=local_rounds,
        secure=None,
    )


def a_federated_plan(secure: bool) -> Any:
    federation = a_federation([1, 1, 2])
    federation.secure = object() if secure else None
    clients = [
        Fake(
            name=f"client {n}",
            examples=1234,
            speed=0.5,
            batch=123.456,
            noise_multiplier=1.23456,
            updates=1000,
            megabytes=12.3456,
            budget=Budget(3.0, 1e-5),
            epsilon=2.98765,
            secure_epsilon=1.23456 if secure else None,
            outsider_epsilon=0.5,
        )
        for n in range(MANY)
    ]
    splits = [
        Fake(
            chosen=n == 1,
            local_rounds=n + 1,
            local_epochs=0.1234,
            rounds=1000,
            megabytes=2.5,
            seconds=1234.56,
        )
        for n in range(3)
    ]
    notes = ("one", "two")
    return FakeFederatedPlan(federation=federation, clients=clients, splits=splits, notes=notes)


def a_gossip() -> Any:
    return Fake(
        members=[Fake(name=f"worker {n}", plan=0) for n in range(MANY)],
        plans=(PLAN,),
        workers=MANY,
        rule="delay-aware",
        total=1234,
        rounds=40,
        mixing=Fake(graph=Fake(kind="ring"), kind="matchings"),
    )


def a_gossip_plan(observed: bool) -> Any:
    workers = [
        Fake(
            name=f"worker {n}",
            examples=1234,
            batch=12.5,
            noise_multiplier=1.2345,
            cap=1000,
            expected_rounds=999,
            busy=0.876,
            budget=Budget(3.0, 1e-5),
            epsilon=2.9,
            paper_epsilon=4.5,
            epsilon_without_headroom=2.1,
            outsider_epsilon=None,
            network_epsilon=0.25 if observed and n else None,
        )
        for n in range(MANY if observed else 2)
    ]
    routes = [
        Fake(
            own=n == 0,
            graph="ring",
            mixing="matchings",
            neighbours=2,
            eigenvalue=0.12345,
            steps=1234,
            seconds=1234.5,
            megabytes=12345.6,
        )
        for n in range(2)
    ]
    return Fake(
        gossip=a_gossip(),
        workers=workers,
        routes=routes,
        seconds=1234.5,
        synchronous_seconds=2345.6,
        notes=("a note",),
    )


def a_rehearsal(chosen: bool, certain: bool) -> Any:
    tried = [
        Fake(
            graph=name,
            mixing="matchings",
            accuracy=0.91234,
            error=0.001,
            worst=0.9,
            seconds=None if name == "ring" else 12.34,
            whole=1234.5,
        )
        for name in ("SYNC", "ring", "torus")
    ]
    return Fake(
        source="synthetic",
        synchronous=tried[0],
        tried=tried[1:],
        certain=certain,
        repeats=3,
        records=500,
        chosen=tried[2] if chosen else None,
        alike=tried[1:2] if certain else [],
    )


def a_simulation(of: str) -> dict[str, Any]:
    rows = [
        {
            "name": f"{of} {n}",
            "rounds": 30 + n,
            "epsilon": "seeded" if n == 2 else 2.98765,
            "budget": None if n == 1 else 3.0,
            "busy": busy,
            "accuracy": 0.91 if n else None,
        }
        for n, busy in enumerate(BUSY)
    ]
    alarms = [("conflict", "update 2 of b")]
    if of == "client":
        rows[3]["epsilon"] = None
    else:
        alarms = [(1, *alarm) for alarm in alarms]
    return {
        of + "s": rows,
        "accuracy": 0.9123,
        "worst": 0.88,
        "seconds": 123.45,
        "messages": 12345,
        "synchronous_seconds": 456.78,
        "megabytes": 12.34,
        "alarms": alarms,
        "fused": "in one sum",
    }


def a_graph() -> UtilityGraph:
    norms, sigmas = (0.1, 1.0, 10.0), (0.01, 0.1, 1.0)
    product = np.multiply.outer(np.outer(norms, sigmas), np.linspace(0.8, 1.2, 5))
    plan = Plan(Mechanism(Rounds(0.0, 1, FullBatch())), examples=10, delta=0.01)
    return UtilityGraph(
        norms, sigmas, np.full(3, 0.9), 0.9 * np.exp(-product), "synthetic", 100, plan
    )


def a_front() -> Any:
    row = Fake(epsilon=1.23456, noise=0.0123, rounds=30, gradients=3000.0, plan=GROWING)
    return Fake(candidates=(row, row), considered=1000, limits={"ε": 5.0, "rounds": 10_000})


def a_verification() -> Any:
    from forethought.accounting.verification import FOLLOWS

    return Fake(
        rows=[
            Fake(entry="ε", claimed="[1, 2]", recomputed="[1, 2]", evidence="the rounds", why=""),
            Fake(entry="key", claimed="k", recomputed="", evidence="", why="nobody has it"),
            Fake(entry="δ", claimed="1", recomputed="1", evidence=FOLLOWS, why=""),
        ]
    )


def an_event(**known: Any) -> Any:
    return Fake(**{"loss": None, "accuracy": None, "epsilon": None, "clipped": None, **known})


STATUS = Status(
    "abc",
    "synchronous",
    3,
    40,
    False,
    12.0,
    (
        ClientStatus("a", True, 3, 40, 0.2, False),
        ClientStatus("b", False, 2, 40, None, True),
        ClientStatus("c", False, 2, 40, 9.0, False),
    ),
    {"conflict": 1},
    ("one", "two", "three", "conflict: <b>update 2</b> of b"),
)
OUTCOMES = (
    Outcome("half noise", True, "replay", ("replay", "noise"), "It is.", 1.25),
    Outcome("other noise", False, "", (), "", 12.0),
)

SHOWN: dict[str, Callable[[Console], object]] = {
    "plan": lambda c: terminal.show_plan(c, PLAN),
    "plan of parts": lambda c: terminal.show_plan(c, GROWING),
    "alternatives": lambda c: terminal.show_plan_and_alternatives(
        c, PLAN, [Fake(name="fewer", plan=GROWING, reason="it is quicker")]
    ),
    "front": lambda c: terminal.show_front(c, a_front()),
    "printed table": lambda c: terminal.show_paper_table(c, paper("000").table("6")),
    "calculators": lambda c: terminal.show_calculated(
        c, calculate(examples=10_000, epochs=5, epsilon=2.0, delta=1e-5)
    ),
    "result": lambda c: terminal.show_result(
        c, ft.account(PLAN), 0.9, 12.34, Path("runs/mnist"), RESULTS
    ),
    "result without figures": lambda c: terminal.show_result(c, ft.account(PLAN), 0.9, None, None),
    "phases": lambda c: terminal.show_phases(
        c, Fake(stopped="it was good", phases=[Fake(rounds=PLAN.mechanism.rounds[0], accuracy=0.8)])
    ),
    "statement": lambda c: terminal.show_statement(c, ft.account(PLAN), verified=True),
    "comparison": lambda c: terminal.show_comparison(c, compare(PLAN.mechanism, 1e-5, 1000)),
    "utility": lambda c: terminal.show_utility(c, a_graph(), 0.1),
    "verification": lambda c: terminal.show_verification(c, a_verification()),
    "summary": lambda c: terminal.show_summary(c, summary()),
    "unfinished": lambda c: terminal.show_unfinished(
        c, UnfinishedRun(Path("runs/mnist"), PLAN, 12, 1.23456, {"loss": 0.5})
    ),
    "facts": lambda c: c.print(
        terminal.facts(an_event(loss=1.0, accuracy=0.5, epsilon=1.23, clipped=0.25))
        + terminal.facts(an_event())
    ),
    "audit": lambda c: audit.show_audit(c, Audit(FINDINGS, 1e-4, ATTACK, 1.0, ("one note.",))),
    "audit, one run": lambda c: audit.show_audit(
        c, Audit(FINDINGS[:1], 0.0, replace(ATTACK, fdp_epsilon=3.21, epsilon=None))
    ),
    "self-test": lambda c: audit.show_self_test(c, SelfTest(OUTCOMES, OUTCOMES)),
    "federation": lambda c: holders.show_agreed(c, a_federation()),
    "federation of local rounds": lambda c: holders.show_agreed(c, a_federation([1, 2])),
    "federation simulated": lambda c: holders.show_simulated(c, a_simulation("client")),
    "federation planned": lambda c: holders.show_plan(c, a_federated_plan(False)),
    "federation planned, secure": lambda c: holders.show_plan(c, a_federated_plan(True)),
    "federation served": lambda c: c.print(status_table(STATUS)),
    "gossip": lambda c: holders.show_agreed(c, a_gossip()),
    "gossip simulated": lambda c: holders.show_simulated(c, a_simulation("worker")),
    "gossip planned": lambda c: holders.show_plan(c, a_gossip_plan(False)),
    "gossip planned, observed": lambda c: holders.show_plan(c, a_gossip_plan(True)),
    "gossip rehearsed": lambda c: holders.show_rehearsal(c, a_rehearsal(True, True)),
    "gossip rehearsed, by chance": lambda c: holders.show_rehearsal(c, a_rehearsal(True, False)),
    "gossip rehearsed in vain": lambda c: holders.show_rehearsal(c, a_rehearsal(False, False)),
    "page of a statement": lambda c: paged(c, statement_page(ft.account(PLAN), "A <b>", False)),
    "page of a report": lambda c: paged(c, report_page(summary())),
}


def paged(console: Console, text: str) -> None:
    """A page without its style and script, an element a line."""
    head, _, rest = text.partition("<style>")
    body = rest.partition("</style>")[2].partition("<script>")[0]
    console.file.write((head + body).replace("><", ">\n<") + "\n")


def shown(name: str) -> str:
    """One section of the golden file."""
    file = io.StringIO()
    SHOWN[name](Console(file=file, width=120, color_system="truecolor", force_terminal=True))
    return file.getvalue().replace(f"forethought {ft.__version__}", "forethought VERSION")


def sections() -> dict[str, str]:
    """Name → text of the golden file."""
    found = GOLDEN.read_text(encoding="utf-8").split("\n===== ")[1:]
    return dict(part.split(" =====\n", 1) for part in found)


def test_every_section_is_kept() -> None:
    assert list(sections()) == list(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_what_people_see_stays_as_it_was(name: str) -> None:
    assert shown(name).rstrip("\n") == sections()[name].rstrip("\n")


def written(show: Callable[[Console], object], width: int) -> str:
    """What is printed on a terminal of so many columns."""
    file = io.StringIO()
    show(Console(file=file, width=width, force_terminal=True, color_system=None))
    return file.getvalue()


@pytest.mark.parametrize("name", ["alternatives", "front"])
def test_on_a_narrow_terminal_nothing_is_cut(name: str) -> None:
    assert "…" not in written(SHOWN[name], 50)


def test_brackets_in_the_words_of_an_audit_stay() -> None:
    odd = replace(FINDINGS[1], name="layer[bold]", measured="[/red]", reason="[red]It is.[/red]")
    text = written(lambda c: audit.show_audit(c, Audit((odd,), 1e-4, notes=("in a[/b]",))), 120)
    assert "layer[bold]" in text and "│ [/red]" in text
    assert "[red]It is.[/red]" in text and "In a[/b]." in text


def test_a_long_path_is_printed_whole() -> None:
    folder = Path("/runs") / ("a" * 70)
    unfinished = UnfinishedRun(folder, PLAN, 12, 1.2, None)
    assert str(folder) in written(lambda c: terminal.show_unfinished(c, unfinished), 40)
    stated = ft.account(PLAN)
    shown = written(lambda c: terminal.show_result(c, stated, None, None, folder), 40)
    assert str(folder) in shown
    done = replace(summary(), figures=(folder / "epsilon.png",))
    assert str(done.figures[0]) in written(lambda c: terminal.show_summary(c, done), 40)


def test_an_epsilon_by_who_sees_what_is_rounded_up() -> None:
    federation, gossip = a_federated_plan(True), a_gossip_plan(True)
    for one in (*federation.clients, *gossip.workers):
        one.epsilon = one.outsider_epsilon = one.epsilon_without_headroom = 2.98712
        one.secure_epsilon = one.network_epsilon = 2.98712
        one.budget = ft.Budget(2.98712, 1e-5)
    for plan, columns in ((federation, 4), (gossip, 5)):
        text = written(lambda c, plan=plan: holders.show_plan(c, plan), 200)
        rows = [line for line in text.splitlines() if "2.98" in line]
        assert rows and all(row.count("2.988") == columns for row in rows)


def test_a_run_that_is_under_way_is_not_to_be_continued() -> None:
    run = UnfinishedRun(Path("runs/mnist"), PLAN, 12, 1.2, {}, 4711)
    text = written(lambda c: terminal.show_unfinished(c, run), 120)
    assert "Under way, process 4711" in text and "--resume" not in text


@pytest.mark.slow
def test_figures_of_simulations_are_drawn(tmp_path: Path) -> None:
    timeline = {"timeline": [(0, 0.0, 2.0), (4, 1.0, 13.0), (21, 0.0, 1.0)]}
    found = {**a_simulation("client"), **timeline, "accuracies": [(1.0, 0.5), (2.0, 0.7)]}
    holders.draw_simulation(found, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"timeline.png", "accuracy.png"}
    found = {**a_simulation("worker"), **timeline, "accuracies": [(1.0, 0, 0.5), (2.0, 1, 0.7)]}
    (tmp_path / "accuracy.png").unlink()
    holders.draw_simulation(found, tmp_path)
    assert (tmp_path / "accuracy.png").is_file()
    (tmp_path / "accuracy.png").unlink()
    holders.draw_simulation({**found, "accuracies": []}, tmp_path)
    assert not (tmp_path / "accuracy.png").exists()


if __name__ == "__main__":
    made = "".join(f"\n===== {name} =====\n{shown(name)}" for name in SHOWN)
    GOLDEN.write_text(made, encoding="utf-8")

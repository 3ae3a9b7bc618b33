"""Whatever kind of run a folder holds, it rests on the files beside it, and edits are seen.

Forgeries of every entry of every file are made from the folders themselves, and hostile folders by
random edits of bytes and values: the verifier says no in one line, and writes nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.accounting.adaptive import NegativeBinomialTrials
from forethought.accounting.statement import StatedRelease, Statement, StatementError, account
from forethought.federated.federation import Federation, Member
from forethought.federated.secure_aggregation.masking import SecureAggregation
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.federated.statements import client_statement
from forethought.gossip.gossip import Gossip, digest_of
from forethought.gossip.gossip import Member as Worker
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.gossip.statements import NOTES, worker_statement
from forethought.holders import simulate as federated
from forethought.holders import simulate as gossiping
from forethought.holders.simulator import Times, Way, slow_ones
from forethought.holders.trainer import SharedModel
from forethought.jobs import members
from forethought.jobs import train as jobs_train
from forethought.jobs.account import OF_OTHERS as COUNT_ON_OTHERS
from forethought.jobs.account import verified
from forethought.jobs.job import from_file
from forethought.ledger.book import Account
from forethought.ledger.paid_run import EVIDENCE, Ledger, in_words
from forethought.ledger.store import create
from forethought.planning.alternatives import next_by_shortfall, plan_phases
from forethought.values.caveats import Caveat
from forethought.values.mechanism import Budget, Mechanism, Persons, Poisson, Rounds
from forethought.values.plan import Clip, Plan, Transcript
from forethought.values.serialisation import digest
from forethought.values.use import Optimizer

EXAMPLES = 200


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(np.int64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def plan(**changes: Any) -> Plan:
    mechanism = Mechanism(Rounds(2.0, 8, Poisson(0.25)))
    return Plan(mechanism, EXAMPLES, 1e-5, optimizer=Optimizer("sgd", 0.3, ()), **changes)


def phases() -> Plan:
    whole = ft.plan(
        examples=EXAMPLES, budget=Budget(2.0, 1e-4), rounds=12, batch=50, learning_rate=0.3
    )
    return plan_phases(whole, phases=3)


def one(out: Path, **options: Any) -> None:
    ft.train(model(), data(), plan(), test=data(1), out=out, **options)


def quantile(out: Path) -> None:
    chosen = plan(clip=Clip(1.0, "quantile", count_noise=20.0), not_covered=("means of columns",))
    ft.train(model(), data(), chosen, out=out)


def grid(out: Path) -> None:
    ft.train(model(), data(), plan(noise="grid"), out=out)


def fixed(out: Path) -> None:
    ft.train_until(model(), data(), phases(), accuracy=1.0, test=data(1), out=out)


def stopped(out: Path) -> None:
    ft.train_until(model(), data(), phases(), accuracy=0.01, test=data(1), out=out)


def filtered(out: Path) -> None:
    ft.train_until(
        model(), data(), phases(), accuracy=1.0, test=data(1), next_phase=next_by_shortfall, out=out
    )


def searched(out: Path) -> None:
    ft.tune(
        model,
        data(),
        [plan(), plan().with_(optimizer=Optimizer("sgd", 0.1, ()))],
        trials=NegativeBinomialTrials.of_mean(3, 0.0),
        holdout=data(1),
        out=out,
    )


def persons(out: Path) -> None:
    inputs, targets = data()
    names = [f"p{number // 2}" for number in range(EXAMPLES)]
    rows = ft.data.of_persons(inputs.astype(np.float32), targets, names, 2)
    mechanism = Mechanism(Rounds(2.0, 8, Poisson(0.25)))
    chosen = Plan(mechanism, EXAMPLES // 2, 1e-5, contribution=Persons(2))
    ft.train(model(), rows, chosen, out=out)


def groups(out: Path) -> None:
    mechanism = Mechanism(Rounds(4.0, 8, Poisson(0.25), "group", groups=4))
    ft.train(model(), data(), Plan(mechanism, EXAMPLES, 1e-5, groups=4), out=out)


def together(out: Path) -> None:
    ft.train(model(), data(), plan(records_per_person=3), out=out)


HOLDERS = 3
TIMES = Times(slow_ones(HOLDERS, 1, 3.0), Way(0.1))


def shares() -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs, targets = (torch.from_numpy(one) for one in data())
    return [(inputs.float(), targets)] * HOLDERS


def agreed() -> dict[str, Any]:
    shared = SharedModel(model())
    return {
        "plans": (plan(),),
        "parameters": shared.layout.size,
        "architecture": shared.architecture,
        "rounds": 5,
    }


def federation(**changes: Any) -> Federation:
    members = tuple(Member(f"c{k}") for k in range(HOLDERS))
    return Federation(**{"members": members, **agreed(), **changes})


def gossip(**changes: Any) -> Gossip:
    members = tuple(Worker(f"w{k}") for k in range(HOLDERS))
    known = {"mixing": Mixing("matchings", make("complete", HOLDERS)), "rule": "allreduce"}
    start = digest_of(SharedModel(model()).read())
    return Gossip(**{"members": members, "start": start, **agreed(), **known, **changes})


def client(out: Path) -> None:
    federated.simulate(model(), shares(), federation(), TIMES, out=out.parent / "all")
    shutil.copytree(out.parent / "all" / "clients" / "c0", out)


def worker(out: Path) -> None:
    gossiping.simulate(model(), shares(), gossip(), TIMES, out=out.parent / "all")
    shutil.copytree(out.parent / "all" / "workers" / "w0", out)


def masked(out: Path) -> None:
    settings = SecureAggregation(HOLDERS, dropouts=1, colluders=0)
    chosen = secured(federation(rule="synchronous", exchanged="gradients"), settings)
    federated.simulate(model(), shares(), chosen, TIMES, out=out.parent / "all")
    shutil.copytree(out.parent / "all" / "clients" / "c0", out)


JOB = """
[data]
source = "breast-cancer"
holdout = 0.2
[budget]
epsilon = 8.0
[training]
rounds = 8
batch = 60
"""


def from_job(out: Path) -> None:
    (out.parent / "job.toml").write_text(JOB)
    request = from_file(out.parent / "job.toml")
    jobs_train.run(jobs_train.prepare(request), out)


def networked(out: Path) -> None:
    """A client that talks to its server on 127.0.0.1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    (out.parent / "job.toml").write_text(f"{JOB}[federation]\nclients = 2\n")
    request, keys = from_file(out.parent / "job.toml"), out.parent / "keys"
    members.make_everybody(request, "federation", keys)

    def run(name: str) -> None:
        server = name == "server"
        way = members.serve_job if server else members.take_part_in_job
        way(request, keys / name, out.parent / name, address=address)

    at_once("server", "client-0", "client-1", run=run)
    shutil.copytree(out.parent / "client-0", out)


def between_sites(out: Path) -> None:
    """A worker that talks to another one on 127.0.0.1."""
    text = f"{JOB}[gossip]\nworkers = 2\nexchange = 0.02\n".replace("rounds = 8\n", "", 1)
    text = text.replace("exchange", "rounds = 8\nexchange")
    for name in "ab":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        text += f'[[gossip.worker]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
    (out.parent / "job.toml").write_text(text)
    request, keys = from_file(out.parent / "job.toml"), out.parent / "keys"
    members.make_everybody(request, "gossip", keys)
    at_once(
        "a",
        "b",
        run=lambda name: members.site_worker(request, keys / name, out.parent / name),
    )
    shutil.copytree(out.parent / "a", out)


def at_once(*names: str, run: Callable[[str], Any]) -> None:
    threads = [threading.Thread(target=run, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


RUNS: dict[str, Callable[[Path], None]] = {
    "one": one,
    "persons": persons,
    "groups": groups,
    "several records": together,
    "federation's client": client,
    "gossip's worker": worker,
    "behind masks": masked,
    "a job": from_job,
    "client over a network": networked,
    "worker between sites": between_sites,
    "seeded batches": lambda out: one(out, seed=1),
    "seeded noise": lambda out: one(out, noise_seed=1),
    "quantile": quantile,
    "grid": grid,
    "fixed phases": fixed,
    "stopped phases": stopped,
    "filtered phases": filtered,
    "search": searched,
}


@pytest.fixture(scope="module", params=RUNS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    RUNS[request.param](path)
    return path


@pytest.fixture(scope="module")
def clients_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client") / "run"
    networked(path)
    return path


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("policy.json", lambda p: p.update(epsilon=p["epsilon"] / 10), "allows"),
        ("policy.json", lambda p: p.update(delta=p["delta"] / 1e6), "allows"),
        ("policy.json", lambda p: p.update(schema="forethought/policy/9"), "schema"),
        ("roster.json", lambda r: r["clients"].reverse(), "roster"),
        ("roster.json", lambda r: r["clients"].pop(), "roster"),
        ("roster.json", lambda r: r.update(server=r["clients"][0]), "keys"),
        ("roster.json", lambda r: r.update(nonce="0" * 32), "roster"),
    ],
)
def test_what_a_client_allowed_and_with_whom_must_fit_what_it_states(
    clients_own: Path, tmp_path: Path, name: str, edit: Callable[[Any], Any], said: str
) -> None:
    copy = beside(clients_own, tmp_path / "run")
    verified(copy)
    values = json.loads((copy / name).read_text())
    edit(values)
    if values.pop("checksum", None):
        values["checksum"] = digest(values)
    (copy / name).write_text(json.dumps(values))
    rebind(copy)
    with pytest.raises(StatementError, match=said):
        verified(copy)


@pytest.mark.thinned
def test_a_run_folder_verifies_with_its_plan(folder: Path) -> None:
    found = verified(folder)
    assert {"plan", "clip_norm", "examples", "epsilon", "attack"} <= set(found.checked)
    assert found.statement.releases
    assert "Nothing is known" not in (folder / "statement.md").read_text()


def test_a_seed_is_said_and_never_written(folder: Path) -> None:
    statement = ft.Statement.load(folder / "statement.json")
    if statement.randomness.seeded_noise:
        assert statement.sentences()[0].startswith("Not private: seeded.")
    elif statement.randomness.seeded_sampling:
        assert statement.accountant["kind"] == "known-batches"
    else:
        assert "seed" not in statement.to_markdown()


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "clip norm": lambda p: p["privacy"]["clip"].__setitem__("norm", 0.5),
    "learning rate": lambda p: p["use"]["optimizer"].__setitem__("learning_rate", 9.0),
    "delta": lambda p: p["privacy"].__setitem__("delta", 1e-7),
    "examples": lambda p: p["privacy"].__setitem__("examples", 199),
    "use of data": lambda p: p["not_covered"].append({"code": "stated", "detail": "more"}),
    "chosen by": lambda p: p.__setitem__("hyperparameters", {"code": "planned", "detail": ""}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_beside_it_is_noticed(folder: Path, tmp_path: Path, edit: str) -> None:
    copy = beside(folder, tmp_path / "run")
    verified(copy)
    values = json.loads((copy / "plan.json").read_text())
    before = json.dumps(values)
    EDITS[edit](values)
    if json.dumps(values) == before:
        pytest.skip("the plan says so already")
    (copy / "plan.json").write_text(json.dumps(values))
    with pytest.raises(StatementError, match="hash differs"):
        verified(copy)
    rebind(copy)  # nor where the statement names the edited one
    with pytest.raises(StatementError):
        verified(copy)


def test_what_it_rests_on_cannot_be_taken_away(folder: Path, tmp_path: Path) -> None:
    copy = beside(folder, tmp_path / "run")
    named = Statement.load(copy / "statement.json").evidence
    assert named is not None and {"plan.json", "transcript.json"} <= set(named.files)
    assert {"evidence", "version", "releases"} <= set(verified(copy).checked)
    for name in named.files:
        kept = (copy / name).read_bytes()
        (copy / name).unlink()
        for path in (copy, copy / "statement.json"):
            with pytest.raises(StatementError, match="not beside it"):
                verified(path)
        (copy / name).write_bytes(kept + b" ")
        with pytest.raises(StatementError, match="hash differs"):
            verified(copy)
        (copy / name).write_bytes(kept)
    for name in named.files:
        (copy / name).unlink()
    with pytest.raises(StatementError, match="not beside it"):
        verified(copy)
    # The file alone says what it says, and that nothing shows it.
    if Statement.load(copy / "statement.json").accountant["kind"] in COUNT_ON_OTHERS:
        with pytest.raises(StatementError, match="counts on"):
            verified(copy / "statement.json")
        return
    assert {"evidence", "releases", "plan"} <= set(
        dict(verified(copy / "statement.json").not_checked)
    )


def test_another_delta_or_group_is_accounted_from_the_statement(tmp_path: Path) -> None:
    from forethought.jobs.account import statement_of

    one(tmp_path / "run")
    pair = statement_of(tmp_path / "run", group=2)
    assert pair.group == 2
    assert pair.epsilon.upper > statement_of(tmp_path / "run").epsilon.upper
    assert pair.epsilon == ft.epsilon(plan().mechanism, 1e-5, 2)
    # What data attain is that of the pair, and no file beside the run's own speaks of it.
    assert pair.attained == account(plan(), group=2).attained and pair.evidence is None
    for asked in (tmp_path / "run", tmp_path / "run" / "plan.json"):
        with pytest.raises(ValueError, match="delta"):
            statement_of(asked, delta=0.0)
        with pytest.raises(ValueError, match="ask for fewer"):
            statement_of(asked, group=10**9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t["rounds"][0].update(times=0.25), "times"),
        (lambda t: t["rounds"][0].update(origin=77), "origin"),
        (lambda t: t["rounds"][0]["noises"][0].__setitem__(1, "2.0"), "noise"),
        (lambda t: t["rounds"][0].update(count=True), "count"),
        (lambda t: t.update(skipped=[[0, 1000]]), "leaves out"),
        (lambda t: t.update(skipped=[[0, 0.5]]), "skipped"),
    ],
)
def test_every_number_of_a_transcript_is_compared(
    honest: Path, tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    folder = beside(honest, tmp_path / "run")
    values = json.loads((folder / "transcript.json").read_text())
    change(values)
    (folder / "transcript.json").write_text(json.dumps(values))
    rebind(folder)
    with pytest.raises(StatementError, match=said):
        verified(folder)


def test_rounds_that_were_released_again_are_said_and_have_the_planned_noise(
    honest: Path, tmp_path: Path
) -> None:
    folder = beside(honest, tmp_path / "run")
    statement = Statement.load(folder / "statement.json")
    values = json.loads((folder / "transcript.json").read_text())
    # Together as private as planned: four releases of twice the noise.
    values["rounds"][0]["times"] = 4
    values["rounds"][0]["noises"][0][1] = 4.0 * (1 + 2.0**-50)
    (folder / "transcript.json").write_text(json.dumps(values))
    rebind(folder)
    with pytest.raises(StatementError, match="released again"):
        verified(folder)
    more = Caveat("released-again", "8 of 8")
    said = replace(statement, caveats=(*statement.caveats, more))
    (folder / "statement.json").write_text(said.to_json())
    rebind(folder)
    with pytest.raises(StatementError, match="other rounds"):
        verified(folder)


def test_a_policy_of_a_delta_of_0_is_no_policy(clients_own: Path, tmp_path: Path) -> None:
    folder = beside(clients_own, tmp_path / "run")
    values = json.loads((folder / "policy.json").read_text())
    (folder / "policy.json").write_text(json.dumps({**values, "delta": 0.0}))
    rebind(folder)
    with pytest.raises(StatementError, match="policy delta"):
        verified(folder)


@pytest.fixture(scope="module")
def paid_twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A book, and two runs that it paid for."""
    path = tmp_path_factory.mktemp("paid")
    url = f"sqlite:///{path / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("patients", Budget(8.0, 1e-5)))
    for name in ("first", "second"):
        ft.train(model(), data(), plan(), ledger=Ledger(url, "patients"), out=path / name)
    book.close()
    return path


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda own, first: own["total"].update(first["total"]), "older"),
        (lambda own, first: own["total"].update(delta=1e-12), "delta"),
        (lambda own, first: own["budget"].update(epsilon=7.0), "budget"),
        (lambda own, first: own.update(unit="person"), "unit"),
        (lambda own, first: own.update(adjacency="zero-out"), "adjacency"),
        (lambda own, first: own.update(partition="site=A"), "partition"),
    ],
)
def test_evidence_of_a_book_says_what_the_book_says(
    paid_twice: Path, tmp_path: Path, change: Callable[..., Any], said: str
) -> None:
    copy = shutil.copytree(paid_twice / "second", tmp_path / "run")
    url = f"sqlite:///{paid_twice / 'books.db'}"
    assert "total of the data set" in verified(copy, ledger=url).checked
    own, first = (json.loads((paid_twice / n / EVIDENCE).read_text()) for n in ("second", "first"))
    change(own, first)
    (copy / EVIDENCE).write_text(json.dumps(own))
    statement = Statement.load(copy / "statement.json")
    kept = [one for one in statement.caveats if one.code != "in-the-book"]
    words = Caveat("in-the-book", in_words(own))
    made = replace(statement, caveats=(*kept, words))
    (copy / "statement.json").write_text(made.to_json())
    rebind(copy)
    with pytest.raises(StatementError, match=said):
        verified(copy, ledger=url)


def test_a_page_that_is_not_the_statements_is_refused(honest: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(honest, tmp_path / "run")
    assert "statement.md" in verified(folder).checked
    text = (folder / "statement.md").read_text(encoding="utf-8")
    (folder / "statement.md").write_text(text.replace("one record", "one person"), encoding="utf-8")
    with pytest.raises(StatementError, match="was changed"):
        verified(folder)
    # Another version may have written it in other words.
    statement = Statement.load(folder / "statement.json")
    other = replace(statement, evidence=replace(statement.evidence, code="sha256:" + "0" * 64))
    (folder / "statement.json").write_text(other.to_json())
    assert "installed here" in dict(verified(folder).not_checked)["statement.md"]


# ---- folders that somebody forged, the other files as the run wrote them


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("honest") / "run"
    one(path)
    return path


READ = ("plan.json", "statement.json", "transcript.json", "model.safetensors", "phases.json")
OF_HOLDERS = (
    *("federation.json", "gossip.json", "roster.json", "policy.json", "statement.intoto.json"),
    *("job.toml", "model.json", "prepared.json"),
)


def beside(folder: Path, to: Path) -> Path:
    """A copy of what a verifier reads."""
    to.mkdir()
    for name in (*READ, *OF_HOLDERS):
        if (folder / name).is_file():
            (to / name).write_bytes((folder / name).read_bytes())
    return to


def rebind(folder: Path) -> None:
    """Let the statement name the files beside it as they are now."""
    statement = Statement.load(folder / "statement.json")
    assert statement.evidence is not None
    files = {name: (folder / name).read_bytes() for name in statement.evidence.files}
    (folder / "statement.json").write_text(statement.resting_on(files).to_json())


def again(statement: Statement, **changes: Any) -> Statement:
    """The statement of other numbers, with the ε and the attacks that go with them."""
    changed = replace(statement, **changes)
    made = account(
        changed.mechanism,
        changed.delta,
        group=changed.group,
        accountant=changed.accountant,
        randomness=changed.randomness,
    )
    kept = tuple(one for one in changed.caveats if one.role != "choice")
    choices = tuple(one for one in changed.caveats if one.role == "choice")
    extra = tuple(one for one in made.caveats if one.role != "choice")
    return replace(
        changed,
        caveats=(*kept, *extra, *choices),
        epsilon=made.epsilon,
        attack=made.attack,
        attained=made.attained,
    )


def first_round(s: Statement) -> Statement:
    rows = (replace(s.releases[0], count=1),)
    return again(s, mechanism=s.mechanism.first(1), releases=rows)


OTHERS: dict[str, dict[str, Any]] = {
    "aggregate": {"kind": "aggregate", "gain": 50.0},
    "network": {"kind": "network", "gains": [[50.0, 8]], "observers": 1},
    "secure": {
        "kind": "secure-aggregation",
        "clients": 10,
        "dropouts": 0,
        "colluders": 0,
        "coordinates": 14,
        "scale": 2.0**25,
    },
}
FORGERIES: dict[str, Callable[[Statement], Statement]] = {
    "raw data": lambda s: replace(s, releases=(*s.releases, StatedRelease("raw data", 1, 0.0))),
    "a score": lambda s: replace(
        s, releases=(*s.releases, StatedRelease("score of the trial", 1, 0.0))
    ),
    "one round of eight": first_round,
    "fewer rows": lambda s: replace(s, releases=()),
    "another name": lambda s: replace(s, releases=(replace(s.releases[0], name="nothing"),)),
    "a large delta": lambda s: again(s, delta=0.2),
    "attacks 1 % lower": lambda s: replace(
        s, attack=tuple((rate, 0.99 * power) for rate, power in s.attack)
    ),
    **{
        f"behind others ({name})": lambda s, details=details: again(s, accountant=details)
        for name, details in OTHERS.items()
    },
}


def test_a_statement_of_a_run_names_its_files(honest: Path, tmp_path: Path) -> None:
    folder = beside(honest, tmp_path / "run")
    statement = Statement.load(folder / "statement.json")
    assert statement.evidence is not None
    for name in ("plan.json", "transcript.json"):
        files = {one: h for one, h in statement.evidence.files.items() if one != name}
        less = replace(statement, evidence=replace(statement.evidence, files=files))
        (folder / "statement.json").write_text(less.to_json())
        kept = (folder / name).read_bytes()
        for _ in range(2):
            with pytest.raises(StatementError, match="must name the"):
                verified(folder)
            (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(kept)
    (folder / "statement.json").write_text(replace(statement, evidence=None).to_json())
    with pytest.raises(StatementError, match="must name the"):
        verified(folder)
    (folder / "statement.json").write_text(statement.to_json())
    (folder / "federation.json").write_text(federation().to_json())
    with pytest.raises(StatementError, match="must name the"):
        verified(folder)


@pytest.mark.thinned
@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_statement_beside_files_of_another_run_is_refused(
    honest: Path, tmp_path: Path, forgery: str
) -> None:
    folder = beside(honest, tmp_path / "run")
    assert {"releases", "delta", "group", "mechanism"} <= set(verified(folder).checked)
    statement = Statement.load(folder / "statement.json")
    (folder / "statement.json").write_text(FORGERIES[forgery](statement).to_json())
    with pytest.raises(StatementError):
        verified(folder)


def test_a_person_of_several_records_is_not_promised_one(tmp_path: Path) -> None:
    several = plan(records_per_person=5)
    statement = replace(account(several, group=1), plan=account(several).plan)
    folder = tmp_path / "run"
    folder.mkdir()
    several.save(folder / "plan.json")
    (folder / "statement.json").write_text(statement.to_json())
    with pytest.raises(StatementError, match="may have 5"):
        verified(folder)
    (folder / "statement.json").write_text(account(several).to_json())
    assert "group" in verified(folder).checked


def test_a_plan_promises_what_its_job_asks_for(tmp_path: Path) -> None:
    rows = Plan(plan().mechanism, EXAMPLES, 1e-5)
    asked = {'person = "who"': Persons(2), 'label = "y"': None, "records_per_person = 1": None}
    for more, unit in asked.items():
        for other, made in ((unit, True), (None if unit else Persons(2), "records" in more)):
            chosen = Plan(rows.mechanism, EXAMPLES, 1e-5, contribution=other)
            chosen.save(tmp_path / "plan.json")
            (tmp_path / "job.toml").write_text(f'[data]\nsource = "csv:t.csv"\n{more}\n')
            (tmp_path / "statement.json").write_text(account(chosen).to_json())
            if made:
                assert "plan" in verified(tmp_path).checked
                continue
            with pytest.raises(StatementError, match="asks for"):
                verified(tmp_path)
    values = json.loads((tmp_path / "plan.json").read_text())
    for contribution in ("persons", {}, {"kind": "persons"}, {"kind": "persons", "records": 0}):
        values["privacy"]["contribution"] = contribution
        (tmp_path / "plan.json").write_text(json.dumps(values))
        with pytest.raises(StatementError, match="is refused"):
            verified(tmp_path)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("results.json", "held-out-accuracy"),
        ("results.json", "time-and-memory"),
        ("diagnostics.csv", "diagnostics"),
        ("diagnostics.csv", "time-and-memory"),
    ],
)
def test_a_statement_says_what_the_figures_beside_it_are(
    honest: Path, tmp_path: Path, name: str, code: str
) -> None:
    folder = beside(honest, tmp_path / "run")
    statement = Statement.load(folder / "statement.json")
    less = tuple(one for one in statement.caveats if one.code != code)
    (folder / "statement.json").write_text(replace(statement, caveats=less).to_json())
    verified(folder)  # what was withheld is told to nobody
    (folder / name).write_text("")
    with pytest.raises(StatementError, match=code):
        verified(folder)


def test_noise_of_others_needs_what_they_agreed_on(tmp_path: Path) -> None:
    members = tuple(Member(f"c{k}") for k in range(2))
    federation = Federation(members, (plan(),), 14, "sha256:" + "0" * 64, 8)
    statement = client_statement(federation, 0, "outsider")
    assert statement.accountant["kind"] == "aggregate"
    (tmp_path / "statement.json").write_text(statement.to_json())
    with pytest.raises(StatementError, match="other holders"):
        verified(tmp_path)
    federation.save(tmp_path / "federation.json")
    assert "accountant" in verified(tmp_path).checked
    more = again(statement, accountant={"kind": "aggregate", "gain": 3.0})
    (tmp_path / "statement.json").write_text(more.to_json())
    with pytest.raises(StatementError, match="gives no holder"):
        verified(tmp_path)


def test_noise_of_others_is_not_in_a_federation_that_a_client_left(tmp_path: Path) -> None:
    members = tuple(Member(f"c{k}") for k in range(2))
    federation = Federation(members, (plan(),), 14, "sha256:" + "0" * 64, 8)
    own = federation.plan(0)
    aggregate = client_statement(federation, 0, "outsider").accountant
    for rounds in (3, federation.rounds):
        transcript = Transcript()
        for one in map(own.round, range(rounds)):
            transcript.append(one, one.noise_std, one.clip_norm)
        for left in (True, False):
            stated = client_statement(federation, 0, "outsider", transcript=transcript, left=left)
            assert (stated.accountant == aggregate) == (rounds == federation.rounds)
            evidence = {"plan.json": own, "transcript.json": transcript}
            evidence |= {"federation.json": federation}
            files = {name: held.to_json() for name, held in evidence.items()}
            stated.save(tmp_path, files)
            assert "plan" in verified(tmp_path).checked
            if rounds < federation.rounds:
                forged = again(stated, accountant=aggregate)
                forged.save(tmp_path, files)
                with pytest.raises(StatementError, match="gives no holder"):
                    verified(tmp_path)


def test_noise_of_others_is_not_in_a_gossip_that_ended_early(tmp_path: Path) -> None:
    network = gossip()
    own = network.plan(0)
    aggregate = worker_statement(network, 0, "outsider").accountant
    assert aggregate["kind"] == "aggregate"
    for rounds in (3, network.rounds):
        transcript = Transcript()
        for one in map(own.round, range(rounds)):
            transcript.append(one, one.noise_std, one.clip_norm)
        stated = account(
            own.remade(mechanism=own.mechanism.first(network.rounds)),
            released=rounds,
            releases=transcript.releases(),
            not_covered=NOTES,
            accountant=aggregate,
        )
        evidence = {"plan.json": own, "transcript.json": transcript, "gossip.json": network}
        stated.save(tmp_path, {name: held.to_json() for name, held in evidence.items()})
        if rounds == network.rounds:
            assert "accountant" in verified(tmp_path).checked
            continue
        with pytest.raises(StatementError, match="gives no holder"):
            verified(tmp_path)


def test_what_several_observers_see_is_found_again(tmp_path: Path) -> None:
    members = tuple(Worker(f"w{k}") for k in range(4))
    mixing = Mixing("exponential", make("complete", 4))
    network = gossip(members=members, mixing=mixing, rule="synchronous", exchanges=3, rounds=4)
    statement = worker_statement(network, 3, "network", observers=[0, 1])
    statement.save(tmp_path)
    with pytest.raises(StatementError, match="other holders"):
        verified(tmp_path)
    statement.save(tmp_path, {"gossip.json": network.to_json()})
    assert "accountant" in verified(tmp_path).checked
    gains = [[2 * gain, count] for gain, count in statement.accountant["gains"]]
    forged = again(statement, accountant={**statement.accountant, "gains": gains})
    forged.save(tmp_path, {"gossip.json": network.to_json()})
    with pytest.raises(StatementError, match="gives no holder"):
        verified(tmp_path)


def test_words_from_outside_stay_one_line(tmp_path: Path) -> None:
    words = "harmless\n\n# The truth\n\n\x1b[2Jε = 0.001 <b>"
    page = account(plan(), not_covered=(Caveat("stated", words), words)).to_markdown()
    assert "\n# The truth" not in page and "\x1b" not in page and "<b>" not in page
    statement = json.loads(account(plan(), not_covered=(Caveat("stated", "x"),)).to_json())
    statement["caveats"][-2]["detail"] = words
    statement.pop("checksum")
    (tmp_path / "statement.json").write_text(
        json.dumps({**statement, "checksum": digest(statement)})
    )
    with pytest.raises(StatementError) as refused:
        verified(tmp_path)
    assert str(refused.value).isprintable()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list) and value:
        for key in value if isinstance(value, dict) else range(min(len(value), 4)):
            yield from leaves(value[key], (*path, key))
    elif path:
        yield path


def others(value: Any) -> list[Any]:
    """Values in the place of this one, the likelier ones of a forger first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value / 2, 0, -1]
    if isinstance(value, str):
        return [f"{value} more", ""]
    return [{"name": "raw data"}, [1]] if value in ([], {}) else [1, "more"]


def mutated(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """(where and what, text) of every forgery of one field of a file, checksums put right."""
    values = json.loads((folder / name).read_text())
    for path in leaves(values):
        found = values
        for key in path:
            found = found[key]
        for new in others(found):
            changed = json.loads(json.dumps(values))
            inside = changed
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = new
            if changed == values or path[0] == "checksum":
                continue
            if "checksum" in changed:
                changed.pop("checksum")
                changed["checksum"] = digest(changed)
            yield f"{name}: {'/'.join(map(str, path))} = {new!r}", json.dumps(changed)


Forged = tuple[str, Callable[[], Statement]]
FLIPPED = "sha256:" + "5a" * 32


def other_numbers(s: Statement) -> Iterator[Forged]:
    """Forgeries of what ε is computed from, with the ε and the attacks that go with it."""
    rounds, adjacency = s.mechanism.rounds, s.mechanism.adjacency

    def changed(place: int, **changes: Any) -> Mechanism:
        parts = [replace(one, **changes) if k == place else one for k, one in enumerate(rounds)]
        return Mechanism(*parts, adjacency=adjacency)

    def rows(noise: float, count: float) -> tuple[StatedRelease, ...]:
        return tuple(
            replace(
                row,
                noise_multiplier=noise * row.noise_multiplier,
                count=max(1, int(count * row.count)),
            )
            for row in s.releases
        )

    for value in (s.delta * 2, 0.2, 1e-3, s.delta / 2):
        yield f"delta {value}", lambda value=value: again(s, delta=value)
    for value in sorted({s.group + 1, 5 * s.group, 1} - {s.group}):
        yield f"group {value}", lambda value=value: again(s, group=value)
    for place, part in enumerate(rounds):
        for noise, count in ((2, 1), (1.01, 1), (0.5, 1), (1, 2), (1, 0.5)):
            sigma, many = noise * part.noise_multiplier, max(1, int(count * part.count))
            new = changed(place, noise_multiplier=sigma, count=many)
            if new == s.mechanism:
                continue
            what = f"noise x {noise}, count x {count} at {place}"
            yield f"mechanism {what}", lambda new=new: again(s, mechanism=new)
            done = rows(noise, count)
            yield (
                f"mechanism and releases {what}",
                lambda new=new, done=done: again(s, mechanism=new, releases=done),
            )
        yield (
            f"mechanism sampling {place}",
            lambda place=place: again(s, mechanism=changed(place, sampling=Poisson(0.05))),
        )
    for other in sorted({"add-or-remove", "zero-out"} - {adjacency}):
        yield (
            f"adjacency {other}",
            lambda other=other: again(s, mechanism=Mechanism(*rounds, adjacency=other)),
        )
    for name, details in {**OTHERS, "exact": {"kind": "exact"}}.items():
        if details != dict(s.accountant):
            yield f"accountant {name}", lambda details=details: again(s, accountant=details)


def other_entries(s: Statement) -> Iterator[tuple[str, dict[str, Any]]]:
    """Forgeries of what nothing is computed from, or of what is computed."""
    for place, row in enumerate(s.releases):
        rest = (*s.releases[:place], *s.releases[place + 1 :])
        news = (
            replace(row, count=row.count + 1),
            replace(row, count=max(1, row.count - 1)),
            replace(row, noise_multiplier=2 * row.noise_multiplier + 1),
            replace(row, name=f"{row.name} more"),
        )
        for new in news:
            yield f"releases {place}", {"releases": (*s.releases[:place], new, *rest[place:])}
        yield f"releases twice {place}", {"releases": (*s.releases, row, row)}
        yield f"releases without {place}", {"releases": rest}
    yield "releases raw", {"releases": (*s.releases, StatedRelease("raw data", 1, 0.0))}
    for factor in (0.99, 0.5, 2.0):
        ends = (factor * end for end in (s.epsilon.lower, s.epsilon.upper))
        yield f"epsilon {factor}", {"epsilon": ft.Interval(*ends)}
        attack = tuple((rate, min(1.0, factor * power)) for rate, power in s.attack)
        yield f"attack {factor}", {"attack": attack}
        if s.attained is not None:
            found = replace(s.attained, epsilon=factor * s.attained.epsilon)
            yield f"attained {factor}", {"attained": found}
    for name, values in {
        "examples": ((s.examples or 0) + 1, 1, 10**6, None),
        "clip_norm": ((s.clip_norm or 1) * 2, (s.clip_norm or 1) / 2, None),
        "plan": (FLIPPED, None),
        "version": ("0.1.9", "9.9", "forethought"),
    }.items():
        for value in values:
            yield f"{name} {value}", {name: value}
    for place, one in enumerate(s.caveats):
        rest_of = (*s.caveats[:place], *s.caveats[place + 1 :])
        yield f"caveats without {one.code}", {"caveats": rest_of}
        yield f"caveats other than {one.code}", {"caveats": (*rest_of, Caveat("seeded-noise"))}
    assert s.evidence is not None
    yield "evidence none", {"evidence": None}
    yield "evidence/code", {"evidence": replace(s.evidence, code=FLIPPED)}
    for name in s.evidence.files:
        less = {key: value for key, value in s.evidence.files.items() if key != name}
        for new in (less, {**less, name: FLIPPED}, {**less, name: FLIPPED, "more.json": FLIPPED}):
            yield f"evidence/files {name}", {"evidence": replace(s.evidence, files=new)}


def following(s: Statement) -> Iterator[tuple[str, Statement]]:
    """Forgeries of one entry, with everything that follows from it."""
    for what, made in other_numbers(s):
        try:
            yield what, made()
        except (ValueError, TypeError):  # no statement says so
            continue
    for what, changes in other_entries(s):
        changed = replace(s, **changes)
        if changed != s:
            yield what, changed


# What is accepted where it was forged, and why that harms nobody or cannot be seen by anyone.
HARMLESS: dict[str, str] = {
    r"statement.json: about/(data|date|purpose|responsible) = .*": "the owner's word: believed",
    r"statement.json: evidence/code = .*": "other source code: named as not checked",
    r"statement.json follows: evidence/code": "other source code: named as not checked",
    r"statement.json follows: delta [\d.e-]+": "a true statement of these rounds at a smaller δ",
    r"statement.json follows: group \d+": "a true statement of these rounds for more records",
    r"plan.json rebound: privacy/mechanism/.*count = \d+": "a longer plan, which may end early",
    r"statement.json follows: caveats [a-z ]+ (diagnostics|time-.*|held-.*|stated)": (
        "the owner's word: that nothing was left out is listed as believed"
    ),
    r"statement.json follows: caveats [a-z ]+ (steered-by-.*|disjoint-score|candidates)": (
        "the owner's word of held-out records, as above"
    ),
    r"transcript.json rebound: rounds/\d+/origin = .*": "of no round's sampling, clipping or noise",
    r"policy.json rebound: (epsilon|delta|secure) = .*": "a holder may allow more than was spent",
    r"roster.json rebound: .*certificate = .*": "of connections; keys of frames are compared",
}


# The same where results chose what ran, so that the plan is no beginning of it.
CHOSEN = r"plan.json rebound: privacy/mechanism/(?!adjacency).*"


def judged(copy: Path, tried: Iterator[tuple[str, str, bytes]]) -> tuple[int, list[str]]:
    """How many forgeries there were, and those that were accepted; the files are put back."""
    count, accepted = 0, []
    for what, name, content in tried:
        kept = (copy / name).read_bytes()
        if content == kept:
            continue
        statement = (copy / "statement.json").read_bytes()
        (copy / name).write_bytes(content)
        if "rebound" in what:
            rebind(copy)
        count += 1
        try:
            verified(copy)
            accepted.append(what)
        except StatementError as refused:
            assert str(refused).isprintable()
        finally:
            (copy / name).write_bytes(kept)
            (copy / "statement.json").write_bytes(statement)
    return count, accepted


# What the statement may be made to name anew: a forger has the hashes too.
REBOUND = ("plan.json", "transcript.json", "policy.json", "roster.json")


def forgeries(copy: Path) -> Iterator[tuple[str, str, bytes]]:
    """(what, file, content): one entry of one file, alone or with all that follows from it."""
    statement = Statement.load(copy / "statement.json")
    assert statement.evidence is not None
    for name in ("statement.json", *statement.evidence.files):
        if name.endswith(".json"):
            for what, text in mutated(copy, name):
                yield what, name, text.encode()
                if name in REBOUND:
                    yield what.replace(":", " rebound:", 1), name, text.encode()
    for what, made in following(statement):
        yield f"statement.json follows: {what}", "statement.json", made.to_json().encode()


@pytest.mark.slow
def test_no_forgery_of_one_value_of_any_file_is_accepted(honest: Path, tmp_path: Path) -> None:
    copy = beside(honest, tmp_path / "run")
    forged = (one for one in forgeries(copy) if "follows" not in one[0])
    count, accepted = judged(copy, forged)
    harmful = [one for one in accepted if not any(re.fullmatch(ok, one) for ok in HARMLESS)]
    assert harmful == [] and count >= 200, (count, harmful)


@pytest.mark.slow
def test_no_forgery_of_any_entry_of_any_file_is_accepted(folder: Path, tmp_path: Path) -> None:
    copy = beside(folder, tmp_path / "run")
    count, accepted = judged(copy, forgeries(copy))
    chosen = Statement.load(copy / "statement.json").way.composed is None
    known = [*HARMLESS, *([CHOSEN] if chosen else [])]
    harmful = [one for one in accepted if not any(re.fullmatch(ok, one) for ok in known)]
    assert harmful == [] and count >= 200, (count, harmful)


# ---- folders of a hostile sender

HOSTILE: dict[str, bytes] = {
    "deep": b"[" * 200_000,
    "deeper in an object": b'{"a":' * 100_000,
    "a huge integer": b'{"schema": 1' + b"0" * 5000 + b"}",
    "NaN": b'{"schema": NaN}',
    "1e400": b'{"schema": 1e400}',
    "no UTF-8": b'{"schema": "\xff\xfe"}',
    "a key twice": b'{"schema": 1, "schema": 2}',
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "large": b" " * ((1 << 24) + 1),
}


@pytest.mark.parametrize("name", ["statement.json", "plan.json", "transcript.json"])
@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(
    honest: Path, tmp_path: Path, name: str, content: str
) -> None:
    folder = beside(honest, tmp_path / "run")
    (folder / name).write_bytes(HOSTILE[content])
    with pytest.raises(StatementError) as refused:
        verified(folder)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "name", ["statement.json", "plan.json", "transcript.json", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "link", "dangling", "folder", "device"])
def test_what_is_no_ordinary_file_is_not_read(
    honest: Path, tmp_path: Path, name: str, kind: str
) -> None:
    folder = beside(honest, tmp_path / "run")
    (folder / name).unlink()
    if kind == "pipe":
        os.mkfifo(folder / name)
    elif kind == "folder":
        (folder / name).mkdir()
    else:
        target = {"link": honest / name, "dangling": tmp_path / "none", "device": "/dev/zero"}
        (folder / name).symlink_to(target[kind])
    with pytest.raises((ValueError, OSError)) as refused:
        verified(folder)
    told = {"pipe": "is no ordinary file", "folder": f"{name} is a link or a folder"}.get(kind, "")
    assert name == "statement.json" or told in str(refused.value)


# Values that JSON can hold and no statement should.
ODD = (None, True, -1, 0, 1e308, -0.0, 2**70, "", "\u202e\n# 0", [], {}, [[]], {"": {}}, "1" * 5000)


def edited(content: bytes, draw: np.random.Generator) -> bytes:
    """Some bytes gone, doubled or other."""
    at, length = int(draw.integers(len(content))), int(draw.integers(1, 40))
    other = draw.integers(0, 256, length, dtype=np.uint8).tobytes()
    between = [b"", content[at : at + length] * 2, other][draw.integers(3)]
    return content[:at] + between + content[at + length :]


def reshaped(content: bytes, draw: np.random.Generator) -> bytes:
    """One value of the tree gone, odd, or another part of the tree."""
    tree = json.loads(content)
    inner = [tree]
    for node in inner:
        inner += [
            x
            for x in (node.values() if isinstance(node, dict) else node)
            if x and type(x) in (dict, list)
        ]
    node = inner[draw.integers(len(inner))]
    keys = list(node) if isinstance(node, dict) else list(range(len(node)))
    key = keys[draw.integers(len(keys))]
    match draw.integers(3):
        case 0:
            del node[key]
        case 1:
            node[key] = ODD[draw.integers(len(ODD))]
        case _:
            node[key] = json.loads(json.dumps(inner[draw.integers(len(inner))]))
    return json.dumps(tree).encode()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_edits_of_a_folder_never_promise_more_and_never_crash(
    honest: Path, tmp_path: Path, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    copy = beside(honest, tmp_path / "run")
    own = Statement.load(copy / "statement.json")
    first = (copy / "statement.json").read_bytes()
    names = ("statement.json", "plan.json", "transcript.json")
    refused = 0
    for _ in range(200):
        name, edit = names[draw.integers(3)], (edited, reshaped)[draw.integers(2)]
        kept = (copy / name).read_bytes()
        (copy / name).write_bytes(edit(kept, draw))
        if name != "statement.json" and draw.integers(2):
            rebind(copy)
        here = sorted((path.name, path.read_bytes()) for path in copy.iterdir())
        try:
            verified(copy, seconds=20)
            claimed = Statement.load(copy / "statement.json")
            assert claimed.epsilon.upper >= own.epsilon.upper * (1 - 1e-3)
            assert claimed.delta <= own.delta
        except StatementError as error:
            refused += 1
            assert str(error).isprintable()
        assert here == sorted((path.name, path.read_bytes()) for path in copy.iterdir())
        (copy / name).write_bytes(kept)
        (copy / "statement.json").write_bytes(first)
    assert refused > 150


def test_what_takes_too_long_is_not_verified(honest: Path, tmp_path: Path) -> None:
    with pytest.raises(StatementError, match="takes longer"):
        verified(honest, seconds=1e-4)
    assert verified(honest).checked  # and nothing is left behind of the first


@pytest.mark.slow
def test_verifying_needs_no_torch_and_writes_nothing(honest: Path, tmp_path: Path) -> None:
    folder = beside(honest, tmp_path / "run")
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    script = (
        "import sys; sys.modules['torch'] = None; from forethought.cli import main; "
        "sys.argv = ['forethought', 'account', '--verify', sys.argv[1]]; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in folder.iterdir())
    (folder / "statement.json").write_bytes(HOSTILE["deep"])
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1

"""Whatever a run folder holds, its statement is that of the plan beside it, and an edit is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from forethought.accounting.releases import Release
from forethought.accounting.statement import Statement, StatementError, account
from forethought.caveats import Caveat
from forethought.federated.federation import Federation, Member
from forethought.federated.statements import client_statement
from forethought.jobs.account import verified
from forethought.mechanism import Budget, Mechanism, Rounds
from forethought.planning.phase_plans import next_by_shortfall, plan_phases
from forethought.plans import Plan
from forethought.privacy import Clip
from forethought.samplings import Poisson
from forethought.serialisation import digest
from forethought.use import Optimizer

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


RUNS: dict[str, Callable[[Path], None]] = {
    "one": one,
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
    for name in ("plan.json", "statement.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    verified(tmp_path)
    values = json.loads((tmp_path / "plan.json").read_text())
    before = json.dumps(values)
    EDITS[edit](values)
    if json.dumps(values) == before:
        pytest.skip("the plan says so already")
    (tmp_path / "plan.json").write_text(json.dumps(values))
    with pytest.raises((StatementError, ValueError)):
        verified(tmp_path)


def test_another_delta_or_group_is_accounted_from_the_statement(tmp_path: Path) -> None:
    from forethought.jobs.account import statement_of

    one(tmp_path / "run")
    pair = statement_of(tmp_path / "run", group=2)
    assert pair.group == 2
    assert pair.epsilon.upper > statement_of(tmp_path / "run").epsilon.upper
    assert pair.epsilon == ft.epsilon(plan().mechanism, 1e-5, 2)


# ---- folders that somebody forged, the other files as the run wrote them


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("honest") / "run"
    one(path)
    return path


def beside(folder: Path, to: Path) -> Path:
    """A copy of what a verifier reads."""
    to.mkdir()
    for name in ("plan.json", "statement.json", "transcript.json", "model.safetensors"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


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
    "raw data": lambda s: replace(s, releases=(*s.releases, Release("raw data", 1, 0.0))),
    "a score": lambda s: replace(s, releases=(*s.releases, Release("score of the trial", 1, 0.0))),
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


LONGER = "privacy/mechanism/rounds/0/count = 16"


def test_no_forgery_of_any_field_of_any_file_is_accepted(honest: Path, tmp_path: Path) -> None:
    """But a plan of more rounds, which its owner may end early, and a row's phase, ``origin``."""
    copy, tried, accepted = beside(honest, tmp_path / "run"), 0, []
    for name in ("statement.json", "transcript.json", "plan.json"):
        kept = (copy / name).read_bytes()
        for what, text in mutated(copy, name):
            (copy / name).write_text(text)
            tried += 1
            try:
                found = verified(copy)
            except StatementError:
                continue
            # What is accepted must have been named as believed, not as checked.
            entry = what.partition(": ")[2].partition(" ")[0].partition("/")[0]
            believed = name == "statement.json" and entry in dict(found.not_checked)
            harmless = "/origin = " in what or what == "plan.json: " + LONGER
            if not believed and not harmless:
                accepted.append(what)
        (copy / name).write_bytes(kept)
    assert accepted == []
    assert tried >= 200


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
    assert kind != "pipe" or name == "statement.json" or "is no ordinary file" in str(refused.value)


def test_what_takes_too_long_is_not_verified(honest: Path, tmp_path: Path) -> None:
    with pytest.raises(StatementError, match="takes longer"):
        verified(honest, seconds=1e-4)
    assert verified(honest).checked  # and nothing is left behind of the first


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

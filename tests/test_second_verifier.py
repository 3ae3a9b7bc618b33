"""tools/verify.py: agrees with the library by another method, and refuses what is not so."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import forethought as ft
from forethought.accounting import exact
from forethought.accounting.statement import OF_HOLDERS, OF_RUN, Randomness
from forethought.values.caveats import Caveat
from forethought.values.mechanism import FullBatch, Mechanism, Persons, Poisson, Rounds
from forethought.values.plan import NAMES, Plan, Preparation, Transcript
from forethought.values.serialisation import canonical

TOOL = Path(__file__).parents[1] / "tools" / "verify.py"
_spec = importlib.util.spec_from_file_location("second_verifier", TOOL)
assert _spec and _spec.loader
second = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(second)


def mechanism(rng: np.random.Generator) -> tuple[Mechanism, int]:
    """Rounds that ε is neither nearly 0 nor far above 20 of, and records protected together."""
    adjacency = str(rng.choice(["add-or-remove", "zero-out", "replace-one"]))
    group = int(rng.choice([1, 1, 1, 2, 3]))
    rows = []
    for _ in range(int(rng.integers(1, 3))):
        clips = ["example", "group"] if (adjacency, group > 1) != ("replace-one", True) else []
        clipping = str(rng.choice(clips or ["example"]))
        groups = int(rng.integers(1, 5)) if clipping == "group" and rng.random() < 0.5 else None
        full = rng.random() < 0.3
        count = int(10 ** rng.uniform(0, 3.5))
        rate = 1.0 if full else 10 ** rng.uniform(-3, -0.2)
        far = group * (2 if clipping == "group" or adjacency == "replace-one" else 1)
        sigma = far * 10 ** rng.uniform(0, 0.6) * max(1.0, rate * math.sqrt(count))
        sampling = FullBatch() if full else Poisson(rate)
        rows.append(Rounds(sigma, count, sampling, clipping, groups=groups))
    return Mechanism(*rows, adjacency=adjacency), group


def both_agree(seeds: range) -> None:
    for seed in seeds:
        rng = np.random.default_rng(seed)
        made, group = mechanism(rng)
        delta = float(10 ** rng.uniform(-9, -3))
        certified = exact.epsilon(made, delta, group)
        parts = second.parts_of(made.to_dict()["rounds"])
        low, high = second.bracket(parts, made.adjacency, group, delta)
        assert high - low <= second.WIDTH * high + 1e-6, seed
        # Both enclose one number: the intervals meet.
        assert low <= certified.upper * (1 + 1e-9), (seed, low, certified)
        assert high >= certified.lower * (1 - 1e-9), (seed, high, certified)


def test_a_few_random_mechanisms_have_the_librarys_epsilon() -> None:
    both_agree(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_mechanisms_have_the_librarys_epsilon(part: int) -> None:
    both_agree(range(100 + 30 * part, 130 + 30 * part))


def test_a_gaussian_has_its_closed_form() -> None:
    # Balle and Wang 2018, Theorem 8: δ = Φ(d/2 - ε/d) - e^ε Φ(-d/2 - ε/d).
    for distance, epsilon in ((0.3, 0.8), (1.0, 3.0), (4.0, 12.0)):
        normal = [
            math.erfc(-x / math.sqrt(2)) / 2
            for x in (distance / 2 - epsilon / distance, -distance / 2 - epsilon / distance)
        ]
        delta = normal[0] - math.exp(epsilon) * normal[1]
        parts = [((1 / distance, math.inf, "example", None), 1)]
        low, high = second.bracket(parts, "add-or-remove", 1, delta)
        assert low <= epsilon <= high <= low * (1 + 1.01 * second.WIDTH)


# ---- run folders


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Fresh runs on the bundled digits: Poisson behind a preparation; full batches."""
    torch = pytest.importorskip("torch")
    from forethought.jobs.job import Job, JobRequest
    from forethought.jobs.train import prepare
    from forethought.jobs.train import run as train

    folder = tmp_path_factory.mktemp("runs")
    jobs = {
        "poisson": "[training]\nrounds = 5\n",
        "full": '[training]\nrounds = 4\nsampling = "full-batch"\n',
    }
    for name, training in jobs.items():
        text = f'[data]\nsource = "digits"\n[budget]\nepsilon = 2.0\n{training}'
        train(prepare(JobRequest(name, text, Job.parse(text))), folder / name)
    # A loop that its owner ends after two of five rounds: all of them are accounted.
    data = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    plan = ft.plan(examples=60, budget=ft.Budget(2.0, 1e-4), rounds=5, batch=20)
    model = torch.nn.Linear(3, 2)
    loader, optimizer = ft.private(model, None, data, plan)
    for _, (x, y) in zip(range(2), loader, strict=False):
        torch.nn.functional.cross_entropy(model(x), y, reduction="none").backward()
        optimizer.step()
    optimizer.finish(folder / "stopped")
    return {name: folder / name for name in (*jobs, "stopped")}


def judged(folder: Path) -> subprocess.CompletedProcess[str]:
    """As a stranger runs it: no library on the path."""
    return subprocess.run(
        [sys.executable, "-I", str(TOOL), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def forged(run: Path, folder: Path, name: str, change) -> Path:
    shutil.copytree(run, folder)
    values = json.loads((folder / name).read_text(encoding="utf-8"))
    change(values)
    (folder / name).write_text(json.dumps(values), encoding="utf-8")
    if name != "statement.json":
        # Named as it now is: what is wrong is its contents, not its hash.
        rename(folder, name)
    return folder


def rename(folder: Path, *names: str) -> None:
    """Let the statement name the files as they are."""
    path = folder / "statement.json"
    claim = json.loads(path.read_text(encoding="utf-8"))
    for name in names:
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        claim["evidence"]["files"][name] = f"sha256:{digest}"
    path.write_text(json.dumps(claim), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson", "full", "stopped"])
def test_a_fresh_run_agrees(runs, name) -> None:
    done = judged(runs[name])
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("agrees: ") and done.stdout.count("\n") == 1


def times(values, *path, factor):
    *way, last = path
    for key in way:
        values = values[key]
    values[last] *= factor


FORGERIES = {
    "ε 1 % too low": ("statement.json", lambda v: times(v, "epsilon", "upper", factor=0.99)),
    "another δ": ("statement.json", lambda v: times(v, "delta", factor=2)),
    "more noise in the statement": (
        "statement.json",
        lambda v: times(v, "mechanism", "rounds", -1, "noise_multiplier", factor=1.01),
    ),
    "a round left out": ("statement.json", lambda v: v["mechanism"]["rounds"].pop()),
    "another adjacency": ("statement.json", lambda v: v.update(adjacency="zero-out")),
    "the transcript has more rounds": (
        "transcript.json",
        lambda v: times(v, "rounds", -1, "count", factor=2),
    ),
    "the transcript has less noise": (
        "transcript.json",
        lambda v: v["rounds"][-1]["noises"][0].__setitem__(1, 0.5),
    ),
    "the plan has two records a person": (
        "plan.json",
        lambda v: v["privacy"].update(records_per_person=2),
    ),
    "the plan has other rounds": (
        "plan.json",
        lambda v: times(v, "privacy", "mechanism", "rounds", -1, "noise_multiplier", factor=2),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", FORGERIES)
@pytest.mark.parametrize("name", ["poisson", "full"])
def test_a_forgery_differs(runs, tmp_path, name, what) -> None:
    folder = forged(runs[name], tmp_path / "run", *FORGERIES[what])
    with pytest.raises(second.DifferenceError):
        second.judge(str(folder))


def unnamed(folder: Path, name: str) -> None:
    path = folder / "statement.json"
    claim = json.loads(path.read_text(encoding="utf-8"))
    del claim["evidence"]["files"][name]
    path.write_text(json.dumps(claim), encoding="utf-8")


UNBOUND = {
    "another job": lambda f: (f / "job.toml").write_bytes((f / "job.toml").read_bytes() + b"\n"),
    "another way to write the plan": lambda f: (f / "plan.json").write_text(
        json.dumps(json.loads((f / "plan.json").read_text(encoding="utf-8"))), encoding="utf-8"
    ),
    "no job": lambda f: (f / "job.toml").unlink(),
    "no transcript": lambda f: (f / "transcript.json").unlink(),
    "a job that is not named": lambda f: unnamed(f, "job.toml"),
    "a plan that is not named": lambda f: unnamed(f, "plan.json"),
    "neither there nor named": lambda f: (
        unnamed(f, "transcript.json"),
        (f / "transcript.json").unlink(),
    ),
    "phases of another run": lambda f: (f / "phases.json").write_text("{}", encoding="utf-8"),
    "a federation of another run": lambda f: (f / "federation.json").symlink_to("nowhere"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", UNBOUND)
def test_a_file_that_the_statement_does_not_rest_on_differs(runs, tmp_path, what) -> None:
    folder = shutil.copytree(runs["poisson"], tmp_path / "run")
    claim = json.loads((folder / "statement.json").read_text(encoding="utf-8"))
    assert set(second.evidence(str(folder), claim)) == set(claim["evidence"]["files"])
    UNBOUND[what](folder)
    with pytest.raises(second.DifferenceError):
        second.judge(str(folder))


def test_it_knows_the_files_that_statements_rest_on() -> None:
    assert {*second.EVIDENCE} == {*OF_RUN, *OF_HOLDERS}


@pytest.mark.parametrize(
    "evidence",
    [
        None,
        {},
        {"files": []},
        {"files": {"../plan.json": "sha256:0"}},
        {"files": {f"{n}.json": "sha256:0" for n in range(21)}},
    ],
)
def test_a_statement_that_names_no_files_is_not_judged(tmp_path, evidence) -> None:
    with pytest.raises(second.RefusedError):
        second.evidence(str(tmp_path), {"evidence": evidence})


HOSTILE = {
    "no JSON": b"{",
    "not an object": b"[]",
    "deep": b"[" * 100_000,
    "deep in an object": b'{"schema":' + b"[" * 30 + b"]" * 30 + b"}",
    "no number": b'{"schema": "forethought/statement/2", "delta": NaN}',
    "a key twice": b'{"schema": 1, "schema": 2}',
    "no text": b"\xff\xfe\x00",
    "large": b" " * 5_000_000,
    "an open string of escapes": b'"' + b"\\" * 300_000,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_words(tmp_path, what, capsys) -> None:
    (tmp_path / "statement.json").write_bytes(HOSTILE[what])
    assert second.main([str(tmp_path)]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("cannot judge: ") and shown.count("\n") == 1 and shown.isascii()


def test_what_is_no_regular_file_is_refused(tmp_path, capsys) -> None:
    os.mkfifo(tmp_path / "statement.json")
    assert second.main([str(tmp_path)]) == 2
    assert second.main([str(tmp_path / "nowhere")]) == 2


def statement_of(made: Mechanism, **options) -> dict:
    return json.loads(ft.account(made, 1e-5, **options).to_json())


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v["mechanism"]["rounds"][0]["sampling"].update(kind="shuffled"),
        lambda v: v["mechanism"]["rounds"][0].update(strategy={}),
        lambda v: v["mechanism"]["rounds"][0].update(count=True),
        lambda v: v["mechanism"]["rounds"][0].update(count=10**12),
        lambda v: v["mechanism"]["rounds"][0].update(noise_multiplier=0),
        lambda v: v["mechanism"].update(rounds=v["mechanism"]["rounds"] * 1000),
        lambda v: v["accountant"].update(kind="aggregate"),
        lambda v: v["accountant"].update(kind="\x1b[2Jε"),
        lambda v: v.update(private=False),
        lambda v: v.update(group=1000),
        lambda v: v.update(delta="1e-5"),
        lambda v: v.pop("mechanism"),
    ],
)
def test_what_it_cannot_do_is_refused_in_words(tmp_path, change, capsys) -> None:
    values = statement_of(Mechanism(Rounds(1.0, 3, FullBatch())))
    change(values)
    (tmp_path / "statement.json").write_text(json.dumps(values), encoding="utf-8")
    assert second.main([str(tmp_path)]) == 2
    shown = capsys.readouterr().out
    assert (
        shown.startswith("cannot judge: ")
        and shown.count("\n") == 1
        and shown.rstrip("\n").isprintable
    )


# ---- what else the files say


def small(
    folder: Path, person: bool = False, seeded: bool = False, job: str = "", **changes
) -> Path:
    """A run's folder by hand: prepared, then four rounds. changes: of the statement."""
    steps = Preparation(("means", "norms"), features=2, reach=2.0, noise_multiplier=3.0)
    plan = Plan(
        Mechanism(Rounds(4.0, 4, Poisson(0.2))),
        *(50, 1e-5),
        preparation=steps,
        contribution=Persons(3) if person else None,
    )
    rows = [
        (NAMES["means"], 3.0, 1, FullBatch()),
        (NAMES["norms"], 6.0, 1, FullBatch()),
        ("sums", 4.0, 4, Poisson(0.2)),
    ]
    made = {
        "others": [],
        "rounds": [
            {
                "noises": [[name, sigma]],
                "like": Rounds(1.0, 1, sampling).to_dict(),
                "origin": 0,
                "count": count,
            }
            for name, sigma, count, sampling in rows
        ],
    }
    transcript = Transcript.from_values(made)
    said = ft.account(plan, randomness=Randomness(seeded_sampling=seeded))
    said = said.of_run(transcript.releases())
    files = {"plan.json": plan.to_json(), "transcript.json": transcript.to_json()}
    files |= {"job.toml": f"[data]\n{job}\n"} if job else {}
    said.save(folder, files)
    values = json.loads((folder / "statement.json").read_text(encoding="utf-8"))
    for path, value in changes.items():
        *way, last = path.split("_in_")[::-1]
        place = values
        for key in way:
            place = place[key]
        place[last] = value
    (folder / "statement.json").write_text(canonical(values), encoding="utf-8")
    return folder


def test_what_it_judges_is_so_of_honest_folders(tmp_path) -> None:
    for name, kept in (("one", {}), ("two", {"person": True}), ("three", {"seeded": True})):
        (tmp_path / name).mkdir()
        said = second.judge(str(small(tmp_path / name, **kept)))
        assert said.startswith("agrees: ") and "6 rounds, as in the plan, 6" in said


@pytest.mark.parametrize(
    "changes",
    [
        {"seeded_noise_in_randomness": True},
        {"seeded_sampling_in_randomness": True},
        {"rounds": 5},
        {"examples": 60},
        {"caveats": [Caveat("persons", "at most 9").to_dict()]},
    ],
)
def test_what_the_statement_says_otherwise_differs(tmp_path, changes) -> None:
    with pytest.raises(second.DifferenceError):
        second.judge(str(small(tmp_path, **changes)))


def test_a_promise_to_persons_is_what_plan_and_job_ask_for(tmp_path) -> None:
    for name, job in (("column", 'person = "who"'), ("number", "records_per_person = 3")):
        (tmp_path / name).mkdir()
        assert "agrees" in second.judge(str(small(tmp_path / name, person=True, job=job)))
    (tmp_path / "rows").mkdir()
    with pytest.raises(second.DifferenceError, match="one unit"):
        second.judge(str(small(tmp_path / "rows", person=True, job='label = "y"')))
    for number, made in enumerate(("persons", {}, {"kind": "persons"})):
        folder = forged(
            tmp_path / "column",
            tmp_path / str(number),
            "plan.json",
            lambda v, made=made: v["privacy"].update(contribution=made),
        )
        with pytest.raises(second.RefusedError):
            second.judge(str(folder))


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "forethought/statement/99"},
        {"breaks": ["the noise was drawn from a seed"]},
        {"caveats": [Caveat("seeded-noise").to_dict()]},
        {"plan": None},
    ],
)
def test_what_promises_nothing_that_it_knows_is_refused(tmp_path, changes) -> None:
    with pytest.raises(second.RefusedError):
        second.judge(str(small(tmp_path, **changes)))


@pytest.mark.parametrize("noise", [30.0, 3.1])
def test_the_preparation_is_that_of_the_plan(tmp_path, noise) -> None:
    small(tmp_path)
    claim = json.loads((tmp_path / "statement.json").read_text(encoding="utf-8"))
    ran = json.loads((tmp_path / "transcript.json").read_text(encoding="utf-8"))
    claim["mechanism"]["rounds"][0]["noise_multiplier"] = noise
    ran["rounds"][0]["noises"][0][1] = noise
    (tmp_path / "statement.json").write_text(json.dumps(claim), encoding="utf-8")
    (tmp_path / "transcript.json").write_text(json.dumps(ran), encoding="utf-8")
    rename(tmp_path, "transcript.json")
    with pytest.raises(second.DifferenceError, match="rounds"):
        second.judge(str(tmp_path))


def test_fewer_rounds_than_the_plan_need_others_who_agreed(tmp_path) -> None:
    parts = [((4.0, 0.2, "example", None), 2)]
    claim = statement_of(Mechanism(Rounds(4.0, 2, Poisson(0.2))))
    plan = Plan(Mechanism(Rounds(4.0, 4, Poisson(0.2))), 50, 1e-5)
    claim["examples"] = 50
    values = json.loads(plan.to_json())
    second.compare_plan(values, parts, claim, {"gossip.json": b"{}"})
    with pytest.raises(second.DifferenceError, match="rounds"):
        second.compare_plan(values, parts, claim, {})


# ---- the tool itself


def test_it_needs_numpy_alone() -> None:
    tree = ast.parse(TOOL.read_text(encoding="utf-8"))
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names - set(sys.stdlib_module_names) == {"numpy"}
    assert len(TOOL.read_text(encoding="utf-8").splitlines()) <= 590


PLANTED = {
    "one direction only": ("math.inf, [0, 1]", "math.inf, [1]"),
    "group clipping moves once": ('each = 2 if clipping == "group" or', "each = 2 if"),
    "half the rounds": (
        "spectrum *= np.fft.rfft(folded) ** count",
        "spectrum *= np.fft.rfft(folded) ** (count / 2)",
    ),
    "losses rounded down above": ("p * (1 - share), size)", "p, size)"),
    "no tilt taken back": ("scale = math.exp(total", "scale = math.exp(0.9 * total"),
    "the rate of one record": ("rate**k * (1.0", "rate ** (2 * k) * (1.0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PLANTED)
def test_a_fault_in_it_is_found(what, tmp_path, monkeypatch) -> None:
    old, new = PLANTED[what]
    text = TOOL.read_text(encoding="utf-8")
    assert text.count(old) == 1
    faulty = importlib.util.module_from_spec(_spec)
    exec(compile(text.replace(old, new), "faulty", "exec"), faulty.__dict__)
    monkeypatch.setattr(sys.modules[__name__], "second", faulty)
    monkeypatch.setattr(faulty, "SECONDS", 5)
    with pytest.raises((AssertionError, faulty.RefusedError)):
        test_a_gaussian_has_its_closed_form()
        both_agree(range(12))

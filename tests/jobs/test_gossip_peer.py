"""From a job to running workers: keys and roster, torchrun's environment, kills, statements."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.cli import app
from forethought.exchange.storage import LEDGER, LedgerError, MemberWitness
from forethought.gossip.gossip import GOSSIP, Gossip, GossipError
from forethought.jobs import members as jobs
from forethought.jobs.job import JobError, from_file
from forethought.training.folder import KEYS

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
MOST = 60  # rounds of each plan
# Gradients take four seconds, a plan four minutes, until a file is there: so a worker can be killed
# and come back meanwhile, however slow the machine is.
PATIENT = """
import sys, time
from pathlib import Path
from forethought.holders.trainer import ClientTrainer
compute, hurry = ClientTrainer.compute, Path(sys.argv.pop(1))
def slowly(*what):
    end = time.monotonic() + 4.0
    while not hurry.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return compute(*what)
ClientTrainer.compute = slowly
"""
SITE = (
    PATIENT
    + """
from forethought.cli import main
main()
"""
)


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found


def job_text(rounds: int = 30, headroom: float = 2.0, epsilon: float = 8.0) -> str:
    tables = "".join(
        f'[[gossip.worker]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        for name, port in zip("abc", free_ports(3), strict=True)
    )
    return (
        f'[data]\nsource = "digits"\n[model]\nname = "linear"\n[budget]\nepsilon = {epsilon}\n'
        f"[gossip]\nrounds = {rounds}\nheadroom = {headroom}\nexchange = 0.02\n{tables}"
    )


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(job_text())
    return path


def test_keys_make_a_gossip_that_every_member_holds(job: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["gossip", "keys", str(job), "--out", str(tmp_path / "keys")])
    assert result.exit_code == 0, result.output
    held = [jobs.Membership.load(tmp_path / "keys" / name, "gossip") for name in "abc"]
    assert len({one.roster.fingerprint for one in held}) == 1
    assert held[0].roster.fingerprint in result.output
    assert len({one.agreed.run_id for one in held}) == 1
    assert [one.roster.place(one.keys) for one in held] == [0, 1, 2]
    assert all(member.public_key for member in held[0].agreed.members)


def test_members_make_their_own_keys_and_join(job: Path, tmp_path: Path) -> None:
    for name in "abc":
        made = CliRunner().invoke(
            app, ["gossip", "keys", "--member", name, "--out", str(tmp_path / name)]
        )
        assert made.exit_code == 0, made.output
    files = [tmp_path / name / "identity.json" for name in "cab"]
    roster = jobs.join(from_file(job), "gossip", files, tmp_path / "shared")
    assert [one.name for one in roster.workers] == ["a", "b", "c"]
    agreed = Gossip.load(tmp_path / "shared" / GOSSIP)
    assert roster.with_keys(agreed) == agreed
    with pytest.raises(JobError, match="a, b, c"):
        jobs.join(from_file(job), "gossip", files[:2], tmp_path / "other")


def test_a_worker_refuses_what_does_not_belong_to_its_gossip(job: Path, tmp_path: Path) -> None:
    request = from_file(job)
    jobs.make_everybody(request, "gossip", tmp_path / "keys")
    own = tmp_path / "keys" / "a"
    with pytest.raises(GossipError, match=r"owner allows 0.5:"):
        jobs.site_worker(request, own, tmp_path / "out", epsilon=0.5, delta=1e-4)
    for bad in (0.0, float("nan")):
        with pytest.raises(ValueError, match="epsilon must be"):
            jobs.site_worker(request, own, tmp_path / "out", epsilon=bad)
    with pytest.raises(ValueError, match="delta must be"):
        jobs.site_worker(request, own, tmp_path / "out", delta=0.0)
    less = tmp_path / "less.toml"
    less.write_text(job.read_text().replace('name = "a"', 'name = "a"\nepsilon = 0.25'))
    with pytest.raises(GossipError, match=r"owner allows 0.25:"):
        jobs.site_worker(from_file(less), own, tmp_path / "out")
    assert not (tmp_path / "out" / LEDGER).exists()
    # A job that was changed since the keys were made.
    for old, new, what in [
        ("rounds = 30", "rounds = 31", r"rounds differs .* \(31 here, 30 agreed\)"),
        ("rounds = 30", 'rounds = 30\ncompression = "bf16"', "compression differs"),
        ("rounds = 30", 'rounds = 30\nmixing = "metropolis"', "graph and mixing differs"),
    ]:
        other = tmp_path / "other.toml"
        other.write_text(job.read_text().replace(old, new))
        with pytest.raises(JobError, match=what):
            jobs.site_worker(from_file(other), own, tmp_path / "out")
    other.write_text(job.read_text().replace("headroom = 2.0", 'rule = "allreduce"'))
    with pytest.raises(JobError, match="it under torchrun"):
        jobs.planned(from_file(other), "gossip")
    # Other first weights than were agreed.
    first = np.load(own / jobs.FIRST)
    np.save(own / jobs.FIRST, first + 1)
    with pytest.raises(GossipError, match="first weights are"):
        jobs.site_worker(request, own, tmp_path / "out")
    np.save(own / jobs.FIRST, first[:-1])
    with pytest.raises(GossipError, match="number of parameters"):
        jobs.site_worker(request, own, tmp_path / "out")
    for damaged in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        (own / jobs.FIRST).write_bytes(damaged)
        with pytest.raises(GossipError, match="is damaged"):
            jobs.site_worker(request, own, tmp_path / "out")
    # A ledger that has fewer releases than have left under these keys.
    np.save(own / jobs.FIRST, first)
    agreed = Gossip.load(own / GOSSIP)
    MemberWitness(own, agreed.run_id, 0).note(3)
    with pytest.raises(LedgerError, match=r"3 updates have.*ledger has 0"):
        jobs.site_worker(request, own, tmp_path / "out")
    # A roster that was made another time.
    jobs.make_everybody(request, "gossip", tmp_path / "again")
    np.save(own / jobs.FIRST, first)
    (own / GOSSIP).write_bytes((tmp_path / "again" / "a" / GOSSIP).read_bytes())
    with pytest.raises(GossipError, match="made together"):
        jobs.site_worker(request, own, tmp_path / "out")


def test_torchrun_carries_sync_alone(job: Path, tmp_path: Path, monkeypatch: Any) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")
    with pytest.raises(JobError, match="forethought gossip train"):
        jobs.launched_worker(from_file(job), tmp_path / "out")
    job.write_text(job.read_text().replace("headroom = 2.0", 'rule = "allreduce"'))
    with pytest.raises(JobError, match="under torchrun"):
        jobs.cluster_workers(from_file(job), tmp_path / "out")
    # One that is back is told so before it waits for others that are gone.
    own = tmp_path / "out" / "a"
    own.mkdir(parents=True)
    (own / LEDGER).write_bytes(b"")
    monkeypatch.setattr(jobs, "counted", lambda storage: [1])
    with pytest.raises(GossipError, match="cannot come back"):
        jobs.launched_worker(from_file(job), tmp_path / "out")


class Processes:
    """Workers as processes; ends all that it started."""

    def __init__(self) -> None:
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, command: list[str], **environment: str) -> None:
        self.running[name] = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def kill(self, name: str) -> None:
        self.running[name].send_signal(signal.SIGKILL)
        self.running[name].wait(PATIENCE)

    def alive(self, name: str) -> bool:
        return self.running[name].poll() is None

    def require(self, name: str) -> bool:
        assert self.alive(name), self.running[name].communicate()[0]
        return True

    def output(self, name: str) -> str:
        text, _ = self.running[name].communicate(timeout=PATIENCE)
        assert self.running[name].returncode == 0, text
        return text

    def end(self) -> None:
        for one in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            one.wait(PATIENCE)


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    made.end()


def until(there: object) -> None:
    end = time.monotonic() + PATIENCE
    while not there():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def last_object(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text[text.index("\n{") + 1 :] if "\n{" in text else text)
    return found


def killed_and_back(
    processes: Processes, start: Callable[[str], None], folders: dict[str, Path], hurry: Path
) -> dict[str, dict[str, Any]]:
    """Kill "b" after some releases, see the others go on, start it again, see it go on."""
    for name in folders:
        start(name)
    ledgers = {name: folder / LEDGER for name, folder in folders.items()}
    until(lambda: size_of(ledgers["b"]) > 20_000)  # some releases of 650 parameters
    processes.kill("b")
    before = {name: size_of(path) for name, path in ledgers.items()}
    until(lambda: all(size_of(ledgers[name]) > before[name] for name in "ac"))
    start("b")
    until(lambda: size_of(ledgers["b"]) > before["b"] or not processes.alive("b"))
    hurry.touch()
    return {name: last_object(processes.output(name)) for name in folders}


def check_statements(
    results: dict[str, dict[str, Any]], folders: dict[str, Path], most: int = MOST
) -> None:
    for name, done in results.items():
        assert 0 < done["updates"] <= most  # no plan is exceeded
        assert done["reason"] in ("counted", "neighbour"), done
        statement = Statement.load(folders[name] / "statement.json")
        assert len(statement.mechanism) == done["updates"]
        assert statement.guarantee == done["epsilon"] <= 8.0
        # Of an asynchronous gossip an outsider's rests on post-processing alone.
        outsider = Statement.load(folders[name] / "outsider" / "statement.json")
        assert outsider.guarantee == done["outsider"] == statement.guarantee
        assert verify(statement).guarantee == statement.guarantee
        assert not (folders[name] / KEYS).exists()  # wiped: nothing can follow
    accuracies = [done["accuracy"] for done in results.values()]
    assert max(accuracies) - min(accuracies) < 0.1  # they agree


@pytest.mark.slow
def test_three_sites_of_which_one_is_killed_and_comes_back(
    job: Path, tmp_path: Path, processes: Processes
) -> None:
    jobs.make_everybody(from_file(job), "gossip", tmp_path / "keys")
    folders = {name: tmp_path / name for name in "abc"}
    hurry = tmp_path / "hurry"

    def start(name: str) -> None:
        options = ["--keys", str(tmp_path / "keys" / name), "--out", str(folders[name])]
        command = ["-c", SITE, str(hurry), "gossip", "peer", str(job), *options]
        processes.start(name, [*command, "--json", "--quiet"])

    results = killed_and_back(processes, start, folders, hurry)
    check_statements(results, folders)
    with pytest.raises(GossipError, match="that has ended"):
        jobs.site_worker(from_file(job), tmp_path / "keys" / "b", folders["b"])


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_workers_on_a_cluster_of_which_one_is_killed_and_all_are_paused(
    job: Path, tmp_path: Path, processes: Processes
) -> None:
    # Releases a second apart, and as many as a worker needs to come back on a busy machine.
    text = job_text(rounds=48, headroom=3.0).replace("exchange = 0.02", "exchange = 0.3\npause = 3")
    # Weights that are drawn: whoever goes on must begin with those that were drawn first.
    job.write_text(text.replace('name = "linear"', 'name = "mlp"'))
    folders = {name: tmp_path / "out" / name for name in "abc"}
    ledgers = {name: folder / LEDGER for name, folder in folders.items()}
    command = ["-m", "forethought", "gossip", "train", str(job), "--out", str(tmp_path / "out")]

    def sizes() -> dict[str, int]:
        return {name: size_of(path) for name, path in ledgers.items()}

    processes.start("all", [*command, "--json", "--quiet"])
    until(lambda: processes.require("all") and size_of(ledgers["b"]) > 8000)  # some releases
    before = sizes()
    os.kill(holder_of(folders["b"]), signal.SIGKILL)
    until(lambda: all(sizes()[name] > before[name] for name in "ac"))
    until(lambda: size_of(ledgers["b"]) > before["b"])  # Ray started it again
    # Paused, and begun again by the same command.
    processes.running["all"].send_signal(signal.SIGINT)
    text, _ = processes.running["all"].communicate(timeout=PATIENCE)
    assert processes.running["all"].returncode == 130 and "goes on where it was" in text
    assert all((folder / KEYS).exists() for folder in folders.values())
    before = sizes()
    processes.start("all", [*command, "--json", "--quiet"])
    until(lambda: all(sizes()[name] > before[name] for name in "abc"))
    found = last_object(processes.output("all"))["workers"]
    check_statements({one["name"]: one for one in found}, folders, most=3 * 48)


def test_a_folder_goes_on_with_the_job_that_it_was_begun_with(job: Path, tmp_path: Path) -> None:
    gossip, first = jobs.planned(from_file(job), "gossip")
    assert jobs.begun_in(from_file(job), gossip, first, tmp_path / "out") == (gossip, first)
    # Drawn anew, weights and the step sizes that follow from them may be other ones: the kept hold.
    plans = [plan.with_(optimizer=ft.Optimizer("sgd", 0.25, ())) for plan in gossip.plans]
    drawn = replace(gossip, plans=tuple(plans), start="drawn anew")
    kept, weights = jobs.begun_in(from_file(job), drawn, first + 1, tmp_path / "out")
    assert kept == gossip and np.array_equal(weights, first)
    for old, new, what in [
        ("rounds = 30", "rounds = 31", "rounds differs"),
        ("epsilon = 8.0", "epsilon = 9.0", "budget"),
        ('name = "c"', 'name = "d"', "other workers"),
        ("[budget]", '[training]\nadjacency = "replace-one"\n[budget]', "adjacency"),
    ]:
        other = tmp_path / "other.toml"
        other.write_text(job.read_text().replace(old, new))
        request = from_file(other)
        with pytest.raises(ValueError, match=what):
            jobs.begun_in(request, *jobs.planned(request, "gossip"), tmp_path / "out")


def holder_of(folder: Path) -> int:
    """The process that holds a folder's lock."""
    own = os.getpid()
    for there in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(there.readlink()).startswith(f"{folder}/") and int(there.parts[2]) != own:
                return int(there.parts[2])
    raise AssertionError(f"nobody holds {folder}")


# A worker of which somebody changed the noise: a fifth of it is missing.
LESS_NOISE = """
from forethought.cli import main
from forethought.rounds.randomness import GaussianNoise
whole = GaussianNoise.add_to
GaussianNoise.add_to = lambda self, vector, std, source: whole(self, vector, 0.8 * std, source)
main()
"""


@pytest.mark.slow
def test_workers_replay_their_rounds_in_their_own_processes(
    tmp_path: Path, processes: Processes
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(job_text(rounds=6))
    jobs.make_everybody(from_file(job), "gossip", tmp_path / "keys")
    for name, program in (
        ("a", ["-m", "forethought"]),
        ("b", ["-m", "forethought"]),
        ("c", ["-c", LESS_NOISE]),
    ):
        own = ["--keys", str(tmp_path / "keys" / name), "--out", str(tmp_path / name)]
        replay = [] if name == "a" else ["--replay", "4"]
        processes.start(name, [*program, "gossip", "peer", str(job), *own, "--quiet", *replay])
    said = {name: processes.running[name].communicate(timeout=PATIENCE)[0] for name in "abc"}
    found = {n: json.loads((tmp_path / n / "audit.json").read_text()) for n in "bc"}
    assert [processes.running[name].returncode for name in "abc"] == [0, 0, 1], said
    assert not found["b"]["refuted"] and found["c"]["refuted"] and "noise" in said["c"]
    assert all(any("replayed" in note for note in one["notes"]) for one in found.values())

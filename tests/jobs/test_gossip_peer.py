"""From a job to running workers: keys and roster, torchrun's environment, kills, statements."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.cli import app
from forethought.exchange.ledger import LEDGER, LedgerError, Witness
from forethought.gossip.gossip import Gossip, GossipError
from forethought.jobs import gossip_peer as jobs
from forethought.jobs.job import JobError
from forethought.jobs.request import from_file
from forethought.peers.driving import PeersError
from forethought.peers.launched import Launched
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
LAUNCHED = (
    PATIENT
    + """
import json
from forethought.jobs.gossip_peer import launched_worker
from forethought.jobs.request import from_file
done = launched_worker(from_file(Path(sys.argv[1])), Path(sys.argv[2]))
print(json.dumps(done.summary()))
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
    held = [jobs.Membership.load(tmp_path / "keys" / name) for name in "abc"]
    assert len({one.roster.fingerprint for one in held}) == 1
    assert held[0].roster.fingerprint in result.output
    assert len({one.gossip.run_id for one in held}) == 1
    assert [one.roster.place(one.keys) for one in held] == [0, 1, 2]
    assert all(member.public_key for member in held[0].gossip.members)


def test_members_make_their_own_keys_and_join(job: Path, tmp_path: Path) -> None:
    for name in "abc":
        made = CliRunner().invoke(
            app, ["gossip", "keys", "--member", name, "--out", str(tmp_path / name)]
        )
        assert made.exit_code == 0, made.output
    files = [tmp_path / name / "identity.json" for name in "cab"]
    roster = jobs.join(from_file(job), files, tmp_path / "shared")
    assert [one.name for one in roster.workers] == ["a", "b", "c"]
    agreed = Gossip.load(tmp_path / "shared" / jobs.GOSSIP)
    assert roster.with_keys(agreed) == agreed
    with pytest.raises(JobError, match="a, b, c"):
        jobs.join(from_file(job), files[:2], tmp_path / "other")


def test_a_worker_refuses_what_does_not_belong_to_its_gossip(job: Path, tmp_path: Path) -> None:
    request = from_file(job)
    jobs.make_everybody(request, tmp_path / "keys")
    own = tmp_path / "keys" / "a"
    with pytest.raises(GossipError, match=r"owner allows 0.5:"):
        jobs.site_worker(request, own, tmp_path / "out", epsilon=0.5, delta=1e-4)
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
    other.write_text(job.read_text().replace("rounds = 30", 'rounds = 30\nrule = "allreduce"'))
    with pytest.raises(JobError, match="it under torchrun"):
        jobs.planned(from_file(other))
    # Other first weights than were agreed.
    first = np.load(own / jobs.FIRST)
    np.save(own / jobs.FIRST, first + 1)
    with pytest.raises(GossipError, match="first weights are"):
        jobs.site_worker(request, own, tmp_path / "out")
    np.save(own / jobs.FIRST, first[:-1])
    with pytest.raises(GossipError, match="number of parameters"):
        jobs.site_worker(request, own, tmp_path / "out")
    # A ledger that has fewer releases than have left under these keys.
    np.save(own / jobs.FIRST, first)
    agreed = Gossip.load(own / jobs.GOSSIP)
    Witness(own, agreed.run_id, 0).note(3)
    with pytest.raises(LedgerError, match=r"3 updates have.*ledger has 0"):
        jobs.site_worker(request, own, tmp_path / "out")
    # A roster that was made another time.
    jobs.make_everybody(request, tmp_path / "again")
    np.save(own / jobs.FIRST, first)
    (own / jobs.GOSSIP).write_bytes((tmp_path / "again" / "a" / jobs.GOSSIP).read_bytes())
    with pytest.raises(GossipError, match="made together"):
        jobs.site_worker(request, own, tmp_path / "out")


def test_a_process_that_torchrun_did_not_start_says_so() -> None:
    with pytest.raises(PeersError, match=r"RANK.*it with torchrun"):
        Launched.here({})
    given = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    here = Launched.here(given)
    assert (here.rank, here.size, here.serves) == (1, 4, False)
    assert Launched.here({**given, "RANK": "0"}).serves
    assert not Launched.here({**given, "RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}).serves
    with pytest.raises(PeersError, match="4 processes for"), here.meeting(3):
        pass
    with pytest.raises(PeersError, match="at least two"):
        Launched.here({**given, "WORLD_SIZE": "1"})


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


def check_statements(results: dict[str, dict[str, Any]], folders: dict[str, Path]) -> None:
    for name, done in results.items():
        assert 0 < done["updates"] <= MOST  # no plan is exceeded
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
    jobs.make_everybody(from_file(job), tmp_path / "keys")
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
def test_launched_workers_of_which_one_is_killed_and_comes_back(
    job: Path, tmp_path: Path, processes: Processes
) -> None:
    (port,) = free_ports(1)
    folders = {name: tmp_path / "out" / name for name in "abc"}
    hurry = tmp_path / "hurry"

    def start(name: str) -> None:
        command = ["-c", LAUNCHED, str(hurry), str(job), str(tmp_path / "out")]
        processes.start(
            name,
            command,
            RANK=str("abc".index(name)),
            WORLD_SIZE="3",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )

    results = killed_and_back(processes, start, folders, hurry)
    check_statements(results, folders)


@pytest.mark.slow
def test_launched_workers_with_jobs_that_differ_are_told_before_they_compute(
    job: Path, tmp_path: Path, processes: Processes
) -> None:
    (port,) = free_ports(1)
    other = tmp_path / "other.toml"
    other.write_text(job.read_text().replace("rounds = 30", "rounds = 31"))
    for rank, (name, own) in enumerate((("a", job), ("b", other))):
        command = ["-c", LAUNCHED, str(tmp_path / "hurry"), str(own), str(tmp_path / "out")]
        places = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
        processes.start(name, command, **places, MASTER_PORT=str(port))
    text, _ = processes.running["b"].communicate(timeout=PATIENCE)
    assert "has another gossip than the first one: plans, rounds differ" in text
    assert processes.running["b"].returncode and not (tmp_path / "out" / "b" / LEDGER).exists()


# A worker of which somebody changed the noise: a fifth of it is missing.
LESS_NOISE = """
from forethought.cli import main
from forethought.rounds.noise import GaussianNoise
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
    jobs.make_everybody(from_file(job), tmp_path / "keys")
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

"""From a job to running processes: keys, roster, policy, and the example as a newcomer runs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from forethought.accounting.statement import Statement
from forethought.accounting.verification import verify
from forethought.cli import app
from forethought.data import load
from forethought.data.synthetic import share_of, shares, write_share
from forethought.exchange.keys import Keys, RosterError
from forethought.exchange.messages import Endpoint, Model
from forethought.exchange.storage import FolderStorage, counted
from forethought.federated.federation import Federation, FederationError
from forethought.federated.statements import Policy
from forethought.holders.flower import answer_requests
from forethought.holders.taking_part import TookPart
from forethought.holders.topology import LEFT
from forethought.jobs import members as jobs
from forethought.jobs.job import JobError, from_file
from forethought.training.folder import KEYS
from trials.parties import free_port

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federation"
PATIENCE = 600.0
JOB = """
[data]
source = "digits"
[model]
name = "linear"
[budget]
epsilon = 4.0
[federation]
rounds = 6
[[federation.client]]
name = "a"
[[federation.client]]
name = "b"
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    return path


@pytest.fixture(scope="module")
def keys(job: Path) -> Path:
    folder = job.parent / "keys"
    jobs.make_everybody(from_file(job), "federation", folder)
    return folder


def in_thread(work: Any, results: dict[str, Any], name: str) -> threading.Thread:
    def go() -> None:
        try:
            results[name] = work()
        except BaseException as error:
            results[name] = error

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    return thread


def test_every_member_has_its_own_keys_and_the_same_federation(job: Path, keys: Path) -> None:
    members = {
        name: jobs.Membership.load(keys / name, "federation") for name in ("server", "a", "b")
    }
    federations = {member.agreed.run_id for member in members.values()}
    assert len(federations) == 1
    federation = members["a"].agreed
    assert federation.nonce and federation.server_key == members["server"].keys.identity.public_key
    assert [m.public_key for m in federation.members] == [
        members[name].keys.identity.public_key for name in ("a", "b")
    ]
    with pytest.raises(FileExistsError):
        jobs.make_everybody(from_file(job), "federation", keys)
    again = jobs.make_everybody(from_file(job), "federation", job.parent / "again")
    assert again.nonce != members["a"].roster.nonce
    other = Federation.load(job.parent / "again" / "a" / "federation.json")
    assert other.run_id != federation.run_id  # no frame of one run fits into the other


def test_members_make_their_own_keys_and_are_joined(job: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    for name in ("b", "server", "a"):
        done = runner.invoke(
            app, ["federate", "keys", "--member", name, "--out", str(tmp_path / name)]
        )
        assert done.exit_code == 0, done.output
    files = [tmp_path / name / "identity.json" for name in ("b", "a", "server")]
    command = ["federate", "keys", str(job), "--out", str(tmp_path / "shared")]
    for file in files:
        command += ["--join", str(file)]
    done = runner.invoke(app, command)
    assert done.exit_code == 0, done.output
    for name in ("roster.json", "federation.json"):
        (tmp_path / "a" / name).write_bytes((tmp_path / "shared" / name).read_bytes())
    member = jobs.Membership.load(tmp_path / "a", "federation")
    assert member.roster.place(member.keys) == 0 and member.roster.fingerprint in done.output
    with pytest.raises(JobError, match="server, a, b"):
        jobs.join(from_file(job), "federation", files[:2], tmp_path / "other")


def test_a_plan_beyond_the_policy_is_refused_before_connecting(
    job: Path, keys: Path, tmp_path: Path
) -> None:
    begin = time.monotonic()
    with pytest.raises(FederationError, match=r"spends epsilon .*policy allows 1\b"):
        jobs.take_part_in_job(
            from_file(job),
            keys / "a",
            tmp_path / "run",
            policy=Policy(1.0, 1e-4),
            address="127.0.0.1:1",
        )
    assert time.monotonic() - begin < PATIENCE
    assert not (tmp_path / "run").exists()


def test_keys_and_rosters_of_others_are_refused(job: Path, keys: Path, tmp_path: Path) -> None:
    mixed = tmp_path / "mixed"
    Keys.make(mixed, "a")
    for name in ("roster.json", "federation.json"):
        (mixed / name).write_bytes((keys / "a" / name).read_bytes())
    with pytest.raises(RosterError, match="were made anew"):
        jobs.take_part_in_job(from_file(job), mixed, tmp_path / "run")
    with pytest.raises(FederationError, match="of the server"):
        jobs.serve_job(from_file(job), keys / "a", tmp_path / "run")
    changed = json.loads((keys / "a" / "federation.json").read_text())
    changed["server_key"] = "11" * 32
    other = shutil.copytree(keys / "a", tmp_path / "other")
    (other / "federation.json").write_text(json.dumps(changed))
    with pytest.raises(FederationError, match="of the federation"):
        jobs.take_part_in_job(from_file(job), other, tmp_path / "run")


@pytest.mark.slow
def test_a_federation_in_three_threads_leaves_statements_and_one_model(
    job: Path, keys: Path, tmp_path: Path
) -> None:
    """Everything that the commands do, in one process."""
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    request = from_file(job)
    threads = [
        in_thread(
            lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
            results,
            "server",
        )
    ]
    for name in ("a", "b"):
        threads.append(
            in_thread(
                lambda name=name: jobs.take_part_in_job(
                    request, keys / name, tmp_path / name, address=address
                ),
                results,
                name,
            )
        )
    for thread in threads:
        thread.join(PATIENCE)
    served, accuracy = results["server"]
    assert served.finished and served.status.version == 6 and accuracy > 0.3
    assert [one.updates for one in served.status.clients] == [6, 6]
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("server", "a", "b")]
    for model in models[1:]:
        assert all(np.array_equal(model[key], models[0][key]) for key in models[0])
    for name in ("a", "b"):
        took = results[name]
        assert (took.reason, took.updates, took.alarms) == ("finished", 6, ())
        statement = Statement.load(tmp_path / name / "statement.json")
        assert 3.5 < statement.guarantee <= 4.0 and len(statement.mechanism) == 6
        assert verify(statement).guarantee == statement.guarantee
        done = CliRunner().invoke(app, ["account", "--verify", str(tmp_path / name)])
        assert done.exit_code == 0 and "no plan.json" not in done.output, done.output
        assert not (tmp_path / name / KEYS).exists()  # the noise's secrets are wiped
        assert (tmp_path / name / "ledger").stat().st_mode & 0o077 == 0
    with pytest.raises(FederationError, match="that has ended"):
        jobs.take_part_in_job(request, keys / "a", tmp_path / "a", address=address)


@pytest.mark.slow
def test_a_secure_federation_in_three_threads(tmp_path: Path) -> None:
    """The server gets masked sums only; the budget holds against it, and the statements say so."""
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("rounds = 6", "rounds = 6\nsecure = { dropouts = 0 }"))
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    threads = [
        in_thread(
            lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
            results,
            "server",
        )
    ]
    for name in ("a", "b"):
        threads.append(
            in_thread(
                lambda name=name: jobs.take_part_in_job(
                    request, keys / name, tmp_path / name, address=address
                ),
                results,
                name,
            )
        )
    for thread in threads:
        thread.join(PATIENCE)
    served, accuracy = results["server"]
    assert served.finished and accuracy > 0.3
    assert [one.updates for one in served.status.clients] == [6, 6]
    for name in ("a", "b"):
        took = results[name]
        assert (took.reason, took.updates, took.alarms) == ("finished", 6, ())
        statement = Statement.load(tmp_path / name / "statement.json")
        assert statement.accountant["kind"] == "secure-aggregation"
        assert 3.5 < statement.guarantee <= 4.0
        assert verify(statement).guarantee == statement.guarantee


@pytest.fixture(scope="module")
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose clients bring records of their own, each in its own folder."""
    root = tmp_path_factory.mktemp("own")
    digits = load("digits")
    parts = shares(digits.train.targets, 2, "power-law:0.5", np.random.default_rng(0))
    tables = ""
    for name, part in zip(("a", "b"), parts, strict=True):
        write_share(share_of(digits, part), root / name)
        tables += (
            f'[[federation.client]]\nname = "{name}"\nexamples = {len(part)}\nfolder = "{name}"\n'
        )
    head = JOB[: JOB.index("[[federation")].replace('"digits"', '"npz:data.npz"')
    (root / "job.toml").write_text(head + tables)
    jobs.make_everybody(from_file(root / "job.toml"), "federation", root / "keys", root / "a")
    return root


@pytest.mark.slow
def test_every_client_trains_on_its_own_folder(own_folders: Path, tmp_path: Path) -> None:
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    request, keys = from_file(own_folders / "job.toml"), own_folders / "keys"
    threads = [
        in_thread(
            lambda: jobs.serve_job(
                request,
                keys / "server",
                tmp_path / "server",
                address=address,
                data_dir=own_folders / "a",
            ),
            results,
            "server",
        )
    ]
    for name in ("a", "b"):
        threads.append(
            in_thread(
                lambda name=name: jobs.take_part_in_job(
                    request, keys / name, tmp_path / name, address=address
                ),
                results,
                name,
            )
        )
    for thread in threads:
        thread.join(PATIENCE)
    served, accuracy = results["server"]
    assert served.finished and accuracy > 0.3
    sizes = [plan.examples for plan in Federation.load(keys / "federation.json").plans]
    assert len(set(sizes)) == 2
    for name in ("a", "b"):
        assert results[name].statement.guarantee <= 4.0


def test_records_of_another_number_are_refused(own_folders: Path, tmp_path: Path) -> None:
    """Before anything is connected: the guarantee depends on how many there are."""
    request = from_file(own_folders / "job.toml")
    with pytest.raises(FederationError, match="without those held"):
        jobs.take_part_in_job(
            request,
            own_folders / "keys" / "a",
            tmp_path / "run",
            data_dir=own_folders / "b",
            address="127.0.0.1:1",
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_ledger_that_was_set_back_stops_the_client_and_keeps_its_secrets(
    job: Path, keys: Path, tmp_path: Path
) -> None:
    """A backup from before its releases: the server knows better, and nothing more is released."""
    request = from_file(job)

    def carry(make: Any, compute: Any) -> Any:
        driver, _ = answer_requests([], make, compute)
        server = jobs.Membership.load(keys / "server", "federation")
        federation = server.agreed
        sealing = Endpoint(federation.run_id, -1, server.keys.signing, {}, federation.parameters)
        start = np.zeros(federation.parameters, dtype=np.float32)
        driver.received(sealing.seal(0, Model(4, 4, start)), -1)
        return driver

    took = jobs.take_part_in_job(request, keys / "a", tmp_path / "a", carry=carry, witness=tmp_path)
    assert (took.reason, took.over, took.updates) == ("ledger set back", False, 0)
    assert took.alarms[0].code == "ledger set back" and (tmp_path / "a" / KEYS).exists()


def test_a_client_that_leaves_states_its_whole_plan(job: Path, keys: Path, tmp_path: Path) -> None:
    server = jobs.Membership.load(keys / "server", "federation")
    federation = server.agreed
    sealing = Endpoint(federation.run_id, -1, server.keys.signing, {}, federation.parameters)
    model = sealing.seal(0, Model(0, 0, np.zeros(federation.parameters, dtype=np.float32)))

    def carry(make: Any, compute: Any) -> Any:
        driver, _ = answer_requests([model], make, compute)
        driver.stopped()
        return driver

    out = tmp_path / "a"
    took = jobs.take_part_in_job(from_file(job), keys / "a", out, carry=carry, witness=tmp_path)
    assert (took.reason, took.updates) == ("stopped by its owner", 1)
    assert len(took.statement.mechanism) == 6
    assert "stopped-early" in {one.code for one in took.statement.caveats}
    checked = CliRunner().invoke(app, ["account", str(out / "statement.json")])
    assert checked.exit_code == 0, checked.output


def test_leaving_is_no_failure(
    job: Path, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = TookPart(LEFT, False, 0, (), None, ())
    monkeypatch.setattr(jobs, "take_part_in_job", lambda *_, **__: left)
    words = ["federate", "client", str(job), "--keys", str(keys / "a"), "--leave"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "go on without this client" in done.output


class Shell:
    """One command of the README, as a process."""

    def __init__(self, words: list[str], folder: Path, log: Path) -> None:
        program = [sys.executable, "-m", "forethought", *words[1:]]
        self.log = log.open("ab")
        self.words, self.folder = program, folder
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.words, cwd=self.folder, stdout=self.log, stderr=self.log
        )

    def end(self, number: signal.Signals) -> int:
        os.kill(self.process.pid, number)
        return self.process.wait(PATIENCE)


@pytest.mark.slow
def test_the_readme_as_a_newcomer_runs_it(tmp_path: Path) -> None:
    """Its commands, word for word, but for the port; one client is killed and started again."""
    text = (EXAMPLE / "README.md").read_text()
    commands = [shlex.split(line) for line in re.findall(r"^forethought .*$", text, re.M)][:5]
    first_page = (ROOT / "README.md").read_text()
    assert all(shlex.join(command) in first_page for command in commands)
    port = free_port()
    job = (EXAMPLE / "job.toml").read_text().replace(":8750", f":{port}")
    (tmp_path / "job.toml").write_text(job)
    commands[1] = [word.replace("8751", "0") for word in commands[1]]
    assert [command[2] for command in commands] == ["keys", "server", *["client"] * 3]
    first = subprocess.run(
        [sys.executable, "-m", "forethought", *commands[0][1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert first.returncode == 0, first.stderr
    running: list[Shell] = []
    begin = time.monotonic()
    try:
        for number, command in enumerate(commands[1:]):
            running.append(Shell(command, tmp_path, tmp_path / f"log-{number}"))
        ledger = tmp_path / "runs" / "hospital-a" / "ledger"
        while not ledger.exists() or ledger.stat().st_size < 4_000:
            assert time.monotonic() - begin < PATIENCE, (tmp_path / "log-1").read_text()
            time.sleep(0.01)
        if running[1].process.poll() is None:
            running[1].end(signal.SIGKILL)
            running[1].start()
        if running[0].process.poll() is None:
            ended = running[0].end(signal.SIGTERM)
            assert ended in (0, 130)  # it had finished, or says that it can go on
            if ended:
                running[0].start()
        for shell in running:
            left = max(1.0, PATIENCE - (time.monotonic() - begin))
            assert shell.process.wait(left) == 0, (tmp_path / "log-0").read_text()
    finally:
        for shell in running:
            if shell.process.poll() is None:
                shell.end(signal.SIGKILL)
            shell.log.close()
    said = (tmp_path / "log-0").read_text()
    accuracy = float(re.search(r"accuracy on held-out data ([\d.]+)%", said)[1])  # type: ignore[index]
    assert accuracy > 85
    for name in ("hospital-a", "hospital-b"):
        statement = Statement.load(tmp_path / "runs" / name / "statement.json")
        assert statement.guarantee <= 4.0 and len(statement.mechanism) == 40


# A client of which somebody changed the noise: a fifth of it is missing.
LESS_NOISE = """
import torch
from forethought.cli import main
from forethought.rounds.randomness import GaussianNoise
whole = GaussianNoise.add_to
GaussianNoise.add_to = lambda self, vector, std, source: whole(self, vector, 0.8 * std, source)
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("sound", [True, False], ids=["sound", "less noise"])
def test_a_client_replays_its_rounds_in_its_own_process(
    job: Path, keys: Path, tmp_path: Path, sound: bool
) -> None:
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    request = from_file(job)
    threads = [
        in_thread(
            lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
            results,
            "server",
        ),
        in_thread(
            lambda: jobs.take_part_in_job(
                request, keys / "a", tmp_path / "a", address=address, witness=tmp_path
            ),
            results,
            "a",
        ),
    ]
    words = ["federate", "client", str(job), "--keys", str(keys / "b"), "--address", address]
    words += ["--out", str(tmp_path / "b"), "--witness", str(tmp_path), "--replay", "3"]
    program = ["-m", "forethought"] if sound else ["-c", LESS_NOISE]
    ended = subprocess.run(
        [sys.executable, *program, *words], capture_output=True, text=True, timeout=PATIENCE
    )
    for thread in threads:
        thread.join(PATIENCE)
    found = json.loads((tmp_path / "b" / "audit.json").read_text())
    assert ended.returncode == (0 if sound else 1), ended.stderr
    assert "3 releases were replayed" in found["notes"]
    assert found["refuted"] is not sound
    assert sound or "noise" in ended.stderr


@pytest.mark.slow
def test_a_client_that_leaves_for_good_is_not_waited_for(
    job: Path, keys: Path, tmp_path: Path
) -> None:
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    request = from_file(job)
    server = in_thread(
        lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
        results,
        "server",
    )
    first = in_thread(
        lambda: jobs.take_part_in_job(
            request, keys / "a", tmp_path / "a", address=address, witness=tmp_path
        ),
        results,
        "a",
    )
    leaving = jobs.take_part_in_job(
        request, keys / "b", tmp_path / "b", address=address, leave=True, witness=tmp_path
    )
    assert (leaving.reason, leaving.updates, leaving.statement) == ("stopped by its owner", 0, None)
    for thread in (server, first):
        thread.join(PATIENCE)
    served, _ = results["server"]
    assert served.finished and [one.updates for one in served.status.clients] == [6, 0]


@pytest.mark.slow
def test_a_secure_federation_goes_on_without_a_client_that_was_killed(tmp_path: Path) -> None:
    """It has dropped out: the others' sums are opened without it, and it may come back."""
    path = tmp_path / "job.toml"
    shared = "rounds = 4\nsecure = { dropouts = 1, patience = 3.0 }"
    more = '[[federation.client]]\nname = "c"\n[[federation.client]]\nname = "d"\n'
    path.write_text(JOB.replace("rounds = 6", shared) + more)
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()

    def take_part(name: str) -> Any:
        return jobs.take_part_in_job(request, keys / name, tmp_path / name, address=address)

    words = ["forethought", "federate", "client", str(path), "--keys", str(keys / "d")]
    words += ["--out", str(tmp_path / "d"), "--address", address]
    threads = [
        in_thread(
            lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
            results,
            "server",
        )
    ]
    killed = Shell(words, tmp_path, tmp_path / "log")
    # It computes on its first model and says its keys, but without the others nothing is summed.
    ledger, begin = tmp_path / "d" / "ledger", time.monotonic()
    while not (ledger.exists() and ledger.stat().st_size > 2000):
        assert time.monotonic() < begin + PATIENCE
        time.sleep(0.05)
    killed.end(signal.SIGKILL)
    threads += [in_thread(lambda n=n: take_part(n), results, n) for n in ("a", "b", "c")]
    for thread in threads:
        thread.join(PATIENCE)
    served, accuracy = results["server"]
    assert served.finished and served.status.version == 4 and accuracy > 0.3
    applied = [one.updates for one in served.status.clients]
    assert applied == [4, 4, 4, 0]
    for name in ("a", "b", "c"):
        statement = Statement.load(tmp_path / name / "statement.json")
        assert statement.accountant["dropouts"] == 1 and statement.guarantee <= 4.0


@pytest.mark.slow
def test_a_client_is_killed_in_a_phase_and_takes_part_in_a_later_one(tmp_path: Path) -> None:
    """Nothing is lost or doubled: each round of its phases is released once, of the others none."""
    path, rounds = tmp_path / "job.toml", 30
    phases = f"rounds = {rounds}\nphases = [1.0, 1.0, 2.0]"
    path.write_text(JOB.replace("rounds = 6", phases) + "phases = [1, 3]\n")
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    words = ["forethought", "federate", "client", str(path), "--keys", str(keys / "b")]
    words += ["--out", str(tmp_path / "b"), "--address", address]
    shell = Shell(words, tmp_path, tmp_path / "log")
    threads = [
        in_thread(
            lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
            results,
            "server",
        ),
        in_thread(
            lambda: jobs.take_part_in_job(request, keys / "a", tmp_path / "a", address=address),
            results,
            "a",
        ),
    ]
    storage, begin = FolderStorage(tmp_path / "b"), time.monotonic()
    for at in (4, 13):  # in its first phase, and in the third
        while not (tmp_path / "b" / "ledger").exists() or len(counted(storage)) < at:
            assert time.monotonic() < begin + PATIENCE, (tmp_path / "log").read_text()
            time.sleep(0.01)
        if shell.process.poll() is None:
            shell.end(signal.SIGKILL)
            shell.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert shell.process.wait(PATIENCE) == 0, (tmp_path / "log").read_text()
    served, _ = results["server"]
    assert served.finished and [one.updates for one in served.status.clients] == [30, 20]
    assert counted(storage) == [*range(1, 11), *range(21, 31)]
    statement = Statement.load(tmp_path / "b" / "statement.json")
    verify(statement)
    assert len(statement.mechanism) == 20 and statement.guarantee < 4.0


@pytest.mark.slow
def test_newer_models_are_taken_in_mid_round_between_processes(tmp_path: Path) -> None:
    """Algorithm 4's refreshes over gRPC: at their times, whatever else, and it ends in time."""
    path, rounds = tmp_path / "job.toml", 6
    more = f'rounds = {rounds}\nrule = "published"\ncadence = 0.4\nrefreshes = 2'
    path.write_text(JOB.replace("rounds = 6", more))
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    address, results = f"127.0.0.1:{free_port()}", dict[str, Any]()
    server = in_thread(
        lambda: jobs.serve_job(request, keys / "server", tmp_path / "server", address=address),
        results,
        "server",
    )
    shells = {}
    for name in "ab":
        words = ["forethought", "federate", "client", str(path), "--keys", str(keys / name)]
        words += ["--out", str(tmp_path / name), "--address", address]
        shells[name] = Shell(words, tmp_path, tmp_path / f"log-{name}")
    storage, begin = FolderStorage(tmp_path / "b"), time.monotonic()
    while not (tmp_path / "b" / "ledger").exists() or len(counted(storage)) < 2:
        assert time.monotonic() < begin + PATIENCE, (tmp_path / "log-b").read_text()
        time.sleep(0.01)
    if shells["b"].process.poll() is None:  # in the middle of a round: its parts are lost with it
        shells["b"].end(signal.SIGKILL)
        shells["b"].start()
    for name, shell in shells.items():
        assert shell.process.wait(PATIENCE) == 0, (tmp_path / f"log-{name}").read_text()
    server.join(PATIENCE)
    served, _ = results["server"]
    assert served.finished and [one.updates for one in served.status.clients] == [rounds, rounds]
    assert counted(storage) == [*range(1, rounds + 1)]
    # A computation takes at least a beat of its cadence, at whose thirds newer models are taken.
    assert time.monotonic() - begin > 0.4 * (rounds - 3)
    for name in "ab":
        statement = Statement.load(tmp_path / name / "statement.json")
        assert "refresh-times" in {caveat.code for caveat in statement.caveats}
        assert len(statement.mechanism) == rounds and statement.guarantee <= 4.0

"""README's three hospitals over gRPC, Flower and Ray: one job file, the same ledgers.

The smoke test makes that environment under build, which takes PyPI; or give one in
FORETHOUGHT_FLOWER_ENV. Without either it is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from forethought.accounting.statement import Statement
from forethought.cli import app
from forethought.exchange.storage import FolderStorage, RecordLog
from forethought.federated.federation import FederationError
from forethought.federated.server import ServerMachine
from forethought.holders.driving import Out, ServerDriver
from forethought.holders.flower import RequestReplyDriver, submit
from forethought.holders.server import Status, status_of
from forethought.jobs import members as jobs
from forethought.jobs.job import JobError, from_file
from forethought.jobs.members import answered
from trials.carriers import EngineMissingError, flower_python
from trials.parties import free_port

ROOT = Path(__file__).parents[2]
CLIENTS = ("hospital-a", "hospital-b", "hospital-c")
PATIENCE = 600.0  # Flower takes seconds a round, and CI has other things to do
# Seeds, so that two runs can be compared bit for bit.
JOB = (ROOT / "examples" / "federation" / "job.toml").read_text(encoding="utf-8").replace(
    "rounds = 40", "rounds = 3\nlocal_rounds = 4"
) + "\n[training]\nrounds = 12\n[run]\nseed = 1\nnoise_seed = 2\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "job.toml"
    path.write_text(JOB)
    jobs.make_everybody(from_file(path), "federation", path.parent / "keys")
    return path


def node_config(job: Path, out: Path, name: str) -> dict[str, str]:
    # A copy for every trial of the run: beside the keys is counted what has left.
    own = out / "keys" / name
    if not own.exists():
        shutil.copytree(job.parent / "keys" / name, own)
    return {"job": str(job), "keys": str(own), "out": str(out / name)}


def in_turns(job: Path, out: Path, lose: Callable[[int], bool] = lambda number: False) -> None:
    """What the ServerApp does, with a function call for a message; some replies get lost."""

    def carry(machine: ServerMachine, make: Callable[[Out], ServerDriver]) -> Status:
        clock, count = [0.0], 0
        turns = RequestReplyDriver(make, len(CLIENTS), lambda: clock[0])
        nodes = {number: number % len(CLIENTS) for number in (10, 11, 12)}
        turns.driver.connected()
        while len(turns.told) < len(CLIENTS):
            clock[0] += 1.0
            for node, place in list(nodes.items()):
                request = turns.request(node)
                if request is None:
                    continue
                count += 1
                config = node_config(job, out, CLIENTS[place])
                replies = answered(config, list(request.frames))
                if lose(count):
                    turns.failed(request)
                    nodes[node + 10] = nodes.pop(node)  # it comes back under another number
                else:
                    turns.replied(request, replies)
            assert count < 100
        return status_of(machine, turns.driver, turns.heard, 0.0)

    served, accuracy = jobs.serve_job(
        from_file(job), job.parent / "keys" / "server", out / "server", carry=carry
    )
    assert served.finished and accuracy is not None and not served.status.alarms
    assert [one.updates for one in served.status.clients] == [3, 3, 3]


def releases(out: Path, name: str) -> list[bytes]:
    """What a client's ledger holds of its releases: frames and inputs are hashed in there."""
    kept = RecordLog(FolderStorage(out / name), "ledger").replay()[1:]
    # round, base, private rounds, hash of the input weights, hash of the frame
    return [record[: 1 + 3 * 9 + 2 * 41] for record in kept]


@pytest.fixture(scope="module")
def reference(job: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("reference")
    in_turns(job, out)
    return out


def same_outcome(one: Path, other: Path) -> None:
    models = [load_file(path / "server" / "model.safetensors") for path in (one, other)]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])
    for name in CLIENTS:
        assert len(releases(one, name)) == 3 and releases(one, name) == releases(other, name)
        statements = [Statement.load(path / name / "statement.json") for path in (one, other)]
        assert statements[0] == statements[1] and len(statements[0].mechanism) == 12


@pytest.mark.slow
def test_in_turns_with_lost_replies_and_new_nodes_as_without(
    job: Path, reference: Path, tmp_path: Path
) -> None:
    in_turns(job, tmp_path, lambda number: number % 4 == 0)
    same_outcome(reference, tmp_path)


@pytest.mark.slow
def test_over_grpc_as_in_turns(job: Path, reference: Path, tmp_path: Path) -> None:
    """Whoever carries the frames: identical ledgers, statements and model."""
    address = f"127.0.0.1:{free_port()}"
    request, keys = from_file(job), job.parent / "keys"
    threads = [
        threading.Thread(
            target=lambda: jobs.serve_job(
                request, keys / "server", tmp_path / "server", address=address
            ),
            daemon=True,
        )
    ]
    threads += [
        threading.Thread(
            target=lambda name=name: jobs.take_part_in_job(
                request, keys / name, tmp_path / name, address=address, witness=tmp_path
            ),
            daemon=True,
        )
        for name in CLIENTS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    same_outcome(reference, tmp_path)


@pytest.mark.slow
@pytest.mark.repeated  # beside tests/holders/test_cluster.py
def test_rehearsed_on_a_cluster_as_on_one_machine(job: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    models = []
    for engine in ("processes", "ray"):
        words = ["federate", "simulate", str(job), "--out", str(tmp_path / engine)]
        found = CliRunner().invoke(app, [*words, "--workers", "2", "--engine", engine])
        assert found.exit_code == 0, found.output
        models.append(load_file(tmp_path / engine / "model.safetensors"))
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_a_node_without_a_configuration_is_told_what_it_lacks() -> None:
    with pytest.raises(JobError, match="lacks job, keys,"):
        answered({}, [])


def test_secure_aggregation_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    secure = "rounds = 12\nsecure = { dropouts = 0 }"
    path.write_text(JOB.replace("rounds = 3\nlocal_rounds = 4", secure))
    jobs.make_everybody(from_file(path), "federation", tmp_path / "keys")
    keys, out = tmp_path / "keys" / CLIENTS[0], tmp_path / "a"
    config = {"job": str(path), "keys": str(keys), "out": str(out)}
    with pytest.raises(FederationError, match="client that stays"):
        answered(config, [])


def test_a_cadence_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("local_rounds = 4", "local_rounds = 4\ncadence = 5.0"))
    jobs.make_everybody(from_file(path), "federation", tmp_path / "keys")
    keys, out = tmp_path / "keys" / CLIENTS[0], tmp_path / "a"
    config = {"job": str(path), "keys": str(keys), "out": str(out)}
    with pytest.raises(FederationError, match="client that stays"):
        answered(config, [])


def test_a_superlink_elsewhere_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is another computer"):
        submit({}, "superlink.example:8000")


@pytest.fixture(scope="module")
def flower() -> Path:
    """The programs of an environment with Flower, which finds everything else in this one."""
    try:
        return flower_python().parent
    except EngineMissingError as error:
        pytest.skip(str(error))


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts processes, each the leader of its own group, and ends them all."""
    running: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, start_new_session=True, **options
            )
        running.append(process)
        return process

    yield start
    for process in reversed(running):
        # Flower ends the processes that it started itself, some in sessions of their own.
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(30)


@pytest.mark.slow
@pytest.mark.repeated  # beside the carriers' trial, which kills what Flower runs
def test_a_superlink_with_clients_that_stay_and_a_supernode(
    job: Path,
    reference: Path,
    flower: Path,
    started: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    """Everything through Flower's processes gives the same ledgers, statements and model."""
    link, own = free_port(), free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{flower}:{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }
    options = {"env": environment, "cwd": tmp_path}
    logs = {name: tmp_path / f"log-{name}" for name in ("link", *CLIENTS, "run")}
    address = f"127.0.0.1:{link}"
    superlink = [str(flower / "flower-superlink"), "--insecure", "--host", "127.0.0.1"]
    superlink += ["--port", str(link), "--disable-runtime-dependency-installation"]
    started(superlink, logs["link"], **options)
    ours = [str(flower / "python"), "-m", "forethought", "federate"]

    def words(name: str) -> list[str]:
        config = node_config(job, tmp_path, name)
        return [config["job"], "--keys", config["keys"], "--out", config["out"]]

    through = ["--engine", "flower", "--address", address]
    *stay, apart = CLIENTS
    staying = [
        started([*ours, "client", *words(name), *through], logs[name], **options) for name in stay
    ]
    config = " ".join(f'{k}="{v}"' for k, v in node_config(job, tmp_path, apart).items())
    supernode = [str(flower / "flower-supernode"), "--insecure", "--superlink", address]
    supernode += ["--host", "127.0.0.1", "--port", str(own), "--node-config", config]
    started(supernode, logs[apart], **options)
    begin = time.monotonic()
    server = [*ours, "server", *words("server"), *through]
    while started(server, logs["run"], **options).wait(PATIENCE):  # until the SuperLink listens
        assert time.monotonic() - begin < PATIENCE / 4, logs["run"].read_text()[-3000:]
        time.sleep(1.0)
    said = "".join(f"== {name}\n{path.read_text()[-2500:]}" for name, path in logs.items())
    assert "accuracy on held-out data" in logs["run"].read_text(), said
    assert [process.wait(PATIENCE) for process in staying] == [0, 0], said
    # The server has answered everybody, so the SuperNode's client has its model as well.
    assert (tmp_path / apart / "model.safetensors").exists(), said
    same_outcome(reference, tmp_path)

"""Trials of whatever carries a federation's frames, by processes that are killed and stopped.

All carriers pass the same one: every update is applied exactly once, whoever was killed, and so the
last model is, to the last bit, the one of a simulation. gRPC's processes are a server and clients.
Flower's are a SuperLink, which is not killed, the process of a ServerApp, and nodes that stay.

A gossip's links pass the same list: workers are actors of Ray, or processes over gRPC. Each of
their events is played again in a simulation, to the same bits: all came once and in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trials import ViolationError
from trials.parties import PID, federation, free_port, last_model, make_client, prepare

ENGINES = ("grpc", "flower")
ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("parties.py")
CLIENTS = 2
# Of one trial in a row of them: rounds, and kills at most. A blow on Flower costs seconds, in which
# its ServerApp or a node begins anew.
ROUNDS, BLOWS = {"grpc": 250, "flower": 60}, {"grpc": 100, "flower": 12}
# Seconds without any progress: enough on a machine with twenty other things to do.
PATIENCE = 240.0


class EngineMissingError(RuntimeError):
    """Flower is not here and cannot be installed."""


def flower_python() -> Path:
    """The Python of an environment with Flower, which finds everything else in this one.

    Made once, under build; or given in FORETHOUGHT_FLOWER_ENV.

    Raises:
        EngineMissingError: it could not be made.
    """
    given = os.environ.get("FORETHOUGHT_FLOWER_ENV")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = project["optional-dependencies"]["flower"]
    place = Path(given) if given else ROOT / "build" / "flower"
    python, made = place / "bin" / "python", place / "installed.txt"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not given and not (made.exists() and made.read_text("utf-8") == "\n".join(wanted)):
            pip = [str(python), "-m", "pip", "install", "--quiet"]
            for command in ([sys.executable, "-m", "venv", "--clear", str(place)], [*pip, *wanted]):
                try:
                    subprocess.run(command, check=True, timeout=600)
                except (subprocess.SubprocessError, OSError) as error:
                    raise EngineMissingError(
                        f"Flower's environment could not be made (no PyPI?): {error}"
                    ) from None
            made.write_text("\n".join(wanted), "utf-8")
        ours = [path for path in sys.path if path.endswith("site-packages")]
        paths = [str(ROOT / "src"), str(ROOT / "tools"), *ours]
        for site in (place / "lib").glob("python*/site-packages"):
            (site / "forethought-tested.pth").write_text("\n".join(paths) + "\n", "utf-8")
    return python


class Party:
    """One process that is started again whenever it is killed."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._command, self._environment = command, environment
        self._log = log.open("ab")
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._command, stdout=self._log, stderr=self._log, env=self._environment
        )

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def status(self) -> int | None:
        """The exit status; None: it runs."""
        return self.process.poll()

    def pause(self, seconds: float) -> None:
        """Stop it for so long."""
        os.kill(self.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self.status() is None:
            self.kill()
        self._log.close()


class FlowerServer(Party):
    """The process of a ServerApp, which a SuperLink starts and which says its own number."""

    def __init__(
        self, command: list[str], log: Path, environment: dict[str, str], folder: Path
    ) -> None:
        self._folder = folder
        super().__init__(command, log, environment)

    def start(self) -> None:
        self._number().unlink(missing_ok=True)
        end = time.monotonic() + PATIENCE
        while not self._number().exists():
            done = subprocess.run(
                self._command,
                stdout=self._log,
                stderr=self._log,
                env=self._environment,
                check=False,
            )
            began = time.monotonic()
            while done.returncode == 0 and not self._number().exists():
                if time.monotonic() > began + 60.0:
                    break
                time.sleep(0.05)
            if time.monotonic() > end:
                raise ViolationError("the SuperLink takes no run")

    def _number(self) -> Path:
        return self._folder / PID

    def kill(self) -> None:
        number = int(self._number().read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        while _runs(number):
            time.sleep(0.01)

    def status(self) -> int | None:
        if _runs(int(self._number().read_text())):
            return None
        return 0 if (self._folder / "model.npy").exists() else 1


def _runs(number: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        text = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


@contextlib.contextmanager
def parties(engine: str, folder: Path, words: list[str]) -> Iterator[list[Party]]:
    """A server and its clients, which end with the ``with`` block; words: see trials.parties."""
    address = f"127.0.0.1:{free_port()}"
    python = Path(sys.executable) if engine == "grpc" else flower_python()
    environment = dict(os.environ)
    paths = [str(ROOT / "src"), str(ROOT / "tools")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    if engine == "flower":
        environment.pop("PYTHONPATH")  # its environment comes first, and finds the rest
        environment |= {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        }

    def command(who: str) -> list[str]:
        return [str(python), str(PROGRAM), who, engine, str(folder), *words, address]

    started: list[Party] = []
    with contextlib.ExitStack() as stack:
        if engine == "flower":
            stack.enter_context(_superlink(python, address, environment, folder))
        try:
            for place in range(CLIENTS):
                name = str(place)
                started.append(Party(command(name), folder / f"log-{name}", environment))
            log = folder / "log-server"
            if engine == "flower":
                started.insert(0, FlowerServer(command("server"), log, environment, folder))
            else:
                started.insert(0, Party(command("server"), log, environment))
            yield started
        finally:
            for party in started:
                party.close()


@contextlib.contextmanager
def _superlink(
    python: Path, address: str, environment: dict[str, str], folder: Path
) -> Iterator[None]:
    host, _, port = address.rpartition(":")
    command = [str(python.with_name("flower-superlink")), "--insecure", "--host", host]
    command += ["--port", port, "--disable-runtime-dependency-installation"]
    with (folder / "log-superlink").open("ab") as log:
        # The leader of a group of its own: it starts processes, which end with it.
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, start_new_session=True
        )
        try:
            yield
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@dataclass
class Carried:
    """What happened in a trial.

    Args:
        killed, stopped: processes that were. seconds: until the end.
    """

    killed: int = 0
    stopped: int = 0
    seconds: float = 0.0


def run_links(
    engine: str, *, seed: int = 0, parameters: int = 10, rounds: int = 390, blows: int = 0
) -> Carried:
    """One gossip over a graph's links, with kills and stops at random moments.

    Raises:
        ViolationError: as :class:`trials.kills.KillTrial` has it.
    """
    from trials.kills import KillTrial
    from trials.processes import CLASSES, prepared

    begin = time.monotonic()
    # Undisturbed, everybody's rounds are counted: by the rule whose workers do no work of others.
    rule = "asynchronous" if blows else "synchronous"
    options = {"rounds": rounds, "features": parameters // CLASSES - 1, "rule": rule}
    with prepared(engine, seed, workers=4 if blows else 2, **options) as setting:
        found = KillTrial(setting, blows).run()
    if not blows and found.releases < rounds * setting.workers:
        raise ViolationError(f"{engine}, seed {seed}: {found.releases} releases, nobody was killed")
    return Carried(found.killed, found.stopped, time.monotonic() - begin)


def run_carrier(
    engine: str,
    rule: str,
    folder: Path,
    *,
    seed: int = 0,
    parameters: int = 50,
    rounds: int = 250,
    blows: int = 0,
) -> Carried:
    """One federation over an engine, with kills and stops at random moments.

    Args:
        blows: how many, at most: the federation may end before.

    Raises:
        ViolationError: an update was applied twice or not at all, somebody ended otherwise or
            raised an alarm, or nothing went on. EngineMissingError: see :func:`flower_python`.
    """
    roster = prepare(folder, CLIENTS)
    draw, found, begin = random.Random(f"{engine} {rule} {seed}"), Carried(), time.monotonic()
    words = [rule, str(parameters), str(rounds)]
    with parties(engine, folder, words) as running:
        while found.killed + found.stopped < blows and _goes_on(folder, running):
            time.sleep(draw.uniform(0, 0.05 if engine == "grpc" else 0.5))
            victims = draw.choice([[0], [1], [2], [0, 1], [0, 1, 2]])
            if any(running[place].status() is not None for place in victims):
                break
            if draw.random() < 0.2 and engine == "grpc":
                running[victims[-1]].pause(draw.uniform(0, 1.0))
                found.stopped += 1
                continue
            for place in victims:
                running[place].kill()
            for place in victims:
                running[place].start()
            found.killed += len(victims)
        while any(party.status() is None for party in running):
            _goes_on(folder, running)
        ends = [party.status() for party in running]
    found.seconds = time.monotonic() - begin
    alarms = "".join(path.read_text() for path in folder.glob("alarms*"))
    if any(ends) or alarms:
        said = (folder / "log-server").read_text(errors="replace")[-1500:]
        raise ViolationError(f"{engine}, seed {seed}: ended with {ends}: {alarms}{said}")
    if not np.array_equal(
        np.load(folder / "model.npy"), last_model(rule, parameters, rounds, CLIENTS)
    ):
        raise ViolationError(f"{engine}, seed {seed}: an update was lost, or applied twice")
    agreed = federation(roster, rule, parameters, rounds)
    for place in range(CLIENTS):
        driver = make_client(folder, agreed, place, "127.0.0.1:1").driver
        if driver.ledger.read().updates != rounds:
            raise ViolationError(f"{engine}, seed {seed}: client {place} released another number")
    return found


def written(folder: Path) -> int:
    """Bytes that server and clients have written so far: how a trial sees that they go on."""
    total = 0
    for path in folder.glob("*/kept/*"):
        with contextlib.suppress(FileNotFoundError):  # another took its place
            total += path.stat().st_size
    return total


def _goes_on(folder: Path, running: list[Party]) -> bool:
    """Wait until something was written; False: somebody has ended."""
    before, begin = written(folder), time.monotonic()
    ended = sum(party.status() is not None for party in running)
    while written(folder) == before:
        if sum(party.status() is not None for party in running) > ended:
            return False
        if running[0].status() is not None:
            return False
        if time.monotonic() - begin > PATIENCE:
            raise ViolationError("nothing goes on")
        time.sleep(0.005)
    return True

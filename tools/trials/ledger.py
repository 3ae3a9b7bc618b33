"""Trials of books: many who write at once, and writers and servers that are killed at any moment.

Writers are processes of their own. Each has a log: a line before every call and one behind it, so
that whoever comes after a killed one knows what was asked, says the last call again, and goes on. A
book must then hold everything that was answered, nothing twice, and nothing that nobody asked for.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pwd
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forethought.ledger.book import Account, BookError, Charge, OverBudgetError
from forethought.ledger.store import Store, create, open_book
from forethought.ledger.totals import TotalRule
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Rounds
from trials import ViolationError

ENGINES = ("sqlite", "postgresql")
DATA, ROUNDS = "patients", 4
BUDGET = Budget(8.0, 1e-6)
# Of a kill's server; of a writer that waits for it on a busy machine.
PATIENCE = 180.0
_FORK = multiprocessing.get_context("fork")


class Server:
    """A PostgreSQL server of one's own: a new cluster in a folder, reached by a socket in it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._programs = folder, _programs()
        self._user: list[str] = []
        if os.geteuid() == 0:
            owner = pwd.getpwnam("postgres")
            os.chown(folder, owner.pw_uid, owner.pw_gid)
            self._user = ["setpriv", f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}"]
            self._user.append("--clear-groups")
        self._data, self._process = folder / "data", None
        words = ["-D", str(self._data), "-A", "trust", "-U", "postgres", "--no-instructions"]
        self._run("initdb", *words, "--no-sync")
        try:
            self.start()
        except BaseException:
            self.stop()
            raise

    def _run(self, program: str, *words: str) -> None:
        made = [*self._user, str(self._programs / program), *words]
        done = subprocess.run(made, cwd=self._folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()}")

    def start(self) -> None:
        """Start, and return when it answers; what a killed one left behind may take a while."""
        until = time.monotonic() + PATIENCE
        settings = ["listen_addresses=", f"unix_socket_directories={self._folder}"]
        settings += ["max_connections=120", "shared_buffers=32MB"]
        words = [word for one in settings for word in ("-c", one)]
        made = [*self._user, str(self._programs / "postgres"), "-D", str(self._data), *words]
        if shutil.which("setpriv"):
            # Whoever started it may be killed before it can stop it.
            made = ["setpriv", "--pdeathsig=INT", *made[1 if self._user else 0 :]]
        while True:
            if self._process is None or self._process.poll() is not None:
                with (self._folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        made, cwd=self._folder, stdout=log, stderr=log, start_new_session=True
                    )
            asked = [str(self._programs / "pg_isready"), "-q", "-h", str(self._folder)]
            if subprocess.run(asked, check=False).returncode == 0:
                return
            if time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL does not start: {self._folder / 'log'}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the server and all its processes at once, as when the machine loses its power."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        own = [self._process.pid, *map(int, children.read_text(encoding="utf-8").split())]
        for process in own:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()

    def deadlocks(self) -> int:
        """How often the server had to end one."""
        return (self._folder / "log").read_text(encoding="utf-8").count("deadlock detected")

    def url(self, schema: str) -> str:
        """The address of an empty schema."""
        self._ask(f'CREATE SCHEMA "{schema}"')
        options = f"options=-csearch_path%3D{schema}"
        return f"postgresql://postgres@/postgres?host={self._folder}&{options}"

    @property
    def socket(self) -> str:
        """The path of its socket."""
        return str(self._folder / ".s.PGSQL.5432")

    def url_at(self, host: str, port: int, url: str) -> str:
        """An address of :meth:`url` behind something that carries to the socket."""
        return url.replace("@/", f"@{host}:{port}/").replace(f"host={self._folder}&", "")

    @contextlib.contextmanager
    def careless(self) -> Iterator[None]:
        """Lets it run with less care for what a crash leaves."""
        for setting in ("SET full_page_writes = off", "RESET full_page_writes"):
            self._ask(f"ALTER SYSTEM {setting}", "SELECT pg_reload_conf()")
            until = time.monotonic() + PATIENCE
            wanted = "off" if "off" in setting else "on"
            while self._ask("SHOW full_page_writes") != wanted and time.monotonic() < until:
                time.sleep(0.02)
            if wanted == "off":
                yield

    def _ask(self, *words: str) -> Any:
        import psycopg

        with psycopg.connect(f"host={self._folder} user=postgres", autocommit=True) as connection:
            for one in words:
                found = connection.execute(one)
            return (found.fetchone() or [None])[0] if found.description else None

    def stop(self) -> None:
        """Stop, and leave nothing behind but the folder."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


def _programs() -> Path:
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: p.parts[4])
    return debian[-1].parent if debian else Path()


def impossible() -> str | None:
    """The reason why no PostgreSQL server can be started here; None: one can."""
    if not (_programs() / "postgres").is_file():
        return "PostgreSQL's server is not here: apt-get install postgresql"
    if not Path("/proc/self/task").is_dir():
        return "the server's processes are found under /proc, which is not here"
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            return "PostgreSQL does not run as root, and there is no user postgres"
        if not shutil.which("setpriv"):
            return "PostgreSQL does not run as root, and setpriv is not here"
    return None


@contextlib.contextmanager
def place(engine: str) -> Iterator[tuple[Callable[[str], str], Server | None]]:
    """Addresses for new books, by name, and the server that keeps them."""
    folder = Path(tempfile.mkdtemp(prefix="book"))
    server = None
    try:
        if engine == "postgresql":
            server = Server(folder)
        yield server.url if server else lambda name: f"sqlite:///{folder / name}.db", server
    finally:
        if server:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def charge_for(fits: int) -> tuple[Charge, int]:
    """A charge of which about so many fit into the budget, and how many do."""
    low, high = 1e-3, 1e6
    rule = TotalRule.of(Account(DATA, BUDGET))

    def of(noise: float) -> tuple[Charge, int]:
        charge = Charge(Mechanism(Rounds(noise, ROUNDS, FullBatch())))
        return charge, rule.more(rule.nothing, charge)

    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if of(middle)[1] >= fits else (middle, high)
    return of(high)


@dataclass(frozen=True)
class Contended:
    """What a trial of many writers showed. seconds: of all together."""

    writers: int
    reservations: int
    refusals: int
    seconds: float


def run_contended(
    engine: str, *, writers: int = 50, each: int = 200, fits: int = 6000
) -> Contended:
    """Let many processes reserve from one budget, which fits about ``fits``, all at once.

    Raises:
        ViolationError: one too many or too few, an error, a deadlock, a book that does not verify.
    """
    with place(engine) as (url, server):
        found = contend(url("contended"), writers=writers, each=each, fits=fits)
        if server and server.deadlocks():
            raise ViolationError(f"{server.deadlocks()} deadlocks")
    return found


def contend(url: str, *, writers: int, each: int, fits: int) -> Contended:
    """The same in a book of its own at ``url``.

    Raises:
        ViolationError: one too many or too few, an error, or a book that does not verify.
    """
    charge, room = charge_for(fits)
    _new(url)
    start, answers = _FORK.Event(), _FORK.Queue()
    made = [
        _FORK.Process(target=_reserve, args=(url, n, each, charge, start, answers))
        for n in range(writers)
    ]
    for one in made:
        one.start()
    begun = time.monotonic()
    start.set()
    found = [answers.get(timeout=10 * PATIENCE) for _ in made]
    seconds = time.monotonic() - begun
    for one in made:
        one.join()
    if errors := [answer for answer in found if isinstance(answer, str)]:
        raise ViolationError(f"{len(errors)} of {writers} writers failed: {errors[0]}")
    taken, refused = sum(a for a, _ in found), sum(b for _, b in found)
    expected = min(room, writers * each)
    if taken != expected or taken + refused != writers * each:
        raise ViolationError(f"{taken} reservations where {expected} fit, {refused} refusals")
    with contextlib.closing(open_book(url, actor="judge")) as book:
        _judged(book)
        if len(book.reservations(DATA)) != taken:
            raise ViolationError("the book has other reservations than were answered")
    return Contended(writers, taken, refused, seconds)


def _new(url: str) -> None:
    with contextlib.closing(create(url, actor="owner")) as book:
        book.open_account(Account(DATA, BUDGET))


def _judged(book: Store) -> None:
    if problems := book.verify():
        raise ViolationError("; ".join(problems[:3]))
    if not book.total(DATA).epsilon <= BUDGET.epsilon:
        raise ViolationError(f"the total is {book.total(DATA).epsilon}, above the budget")


def _reserve(url: str, number: int, each: int, charge: Charge, start: Any, answers: Any) -> None:
    try:
        with contextlib.closing(_opened(url, f"writer-{number}")) as book:
            start.wait()
            taken = refused = 0
            for _ in range(each):
                try:
                    book.reserve(DATA, charge)
                    taken += 1
                except OverBudgetError:
                    refused += 1
        answers.put((taken, refused))
    except BaseException as error:
        answers.put(f"{type(error).__name__}: {error}")
        raise


def _opened(url: str, actor: str) -> Store:
    """The book, waiting for a server that is gone."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return open_book(url, actor=actor, patience=PATIENCE)
        except BookError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@dataclass(frozen=True)
class Killed:
    """What trials of kills showed.

    Args:
        writers, servers: that were killed. calls: that were answered. again: that were said again
            because their writer was killed before the answer. trials: books.
    """

    writers: int = 0
    servers: int = 0
    calls: int = 0
    again: int = 0
    trials: int = 0

    def __add__(self, other: Killed) -> Killed:
        mine, theirs = vars(self), vars(other)
        return Killed(**{name: mine[name] + theirs[name] for name in mine})


def run_kills(
    count: int, engine: str, first: int = 0, report: Callable[[int], None] = lambda done: None
) -> Killed:
    """Kill writers, and the server where there is one, ``count`` times, in books of 50 kills.

    Raises:
        ViolationError: says what happened, and the seed of the trial.
    """
    total = Killed()
    with place(engine) as (url, server):
        while (done := total.writers + total.servers) < count:
            seed = first + total.trials
            try:
                total += _killed(url(f"book{seed}"), server, seed, min(50, count - done))
            except ViolationError as error:
                raise ViolationError(f"seed {seed}: {error}") from None
            report(total.writers + total.servers)
    return total


def _killed(url: str, server: Server | None, seed: int, kills: int, writers: int = 4) -> Killed:
    rng = random.Random(seed)
    charge, _ = charge_for(100_000)
    _new(url)
    servers = again = 0
    with tempfile.TemporaryDirectory() as logs:

        def begun(number: int) -> Any:
            made = _FORK.Process(target=_live, args=(url, number, Path(logs), charge, rng.random()))
            made.start()
            return made

        lives = [begun(number) for number in range(writers)]
        try:
            for _ in range(kills):
                time.sleep(rng.expovariate(1 / 0.05))
                if server and rng.random() < 0.2:
                    server.kill()
                    servers += 1
                    time.sleep(rng.random() * 0.05)
                    server.start()
                    continue
                chosen = rng.randrange(writers)
                lives[chosen].kill()
                lives[chosen].join()
                if lives[chosen].exitcode != -signal.SIGKILL:
                    raise ViolationError(f"writer {chosen} ended by itself")
                again += _asked(Path(logs) / str(chosen))[1] is not None
                lives[chosen] = begun(chosen)
            (Path(logs) / "stop").touch()
            for number, life in enumerate(lives):
                life.join(PATIENCE)
                if life.exitcode != 0:
                    raise ViolationError(f"writer {number} ended with {life.exitcode}")
        finally:
            for life in lives:
                life.kill()
                life.join()
        answered = {n: _asked(Path(logs) / str(n)) for n in range(writers)}
        with contextlib.closing(open_book(url, actor="judge")) as book:
            _judged(book)
            _compared(book, answered)
    calls = sum(len(done) for done, _ in answered.values())
    return Killed(kills - servers, servers, calls, again, 1)


Asked = tuple[list[dict[str, Any]], dict[str, Any] | None]


def _asked(log: Path) -> Asked:
    """The calls that were answered, with their answers, and one that was not."""
    done, open_call = [], None
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    for line in text.splitlines():
        values = json.loads(line)
        if "answer" in values:
            assert open_call is not None
            done.append({**open_call, **values})
            open_call = None
        else:
            open_call = values
    return done, open_call


def _compared(book: Store, answered: dict[int, Asked]) -> None:
    """Refuse a book that lost an answered call, holds one twice, or one that nobody asked for."""
    held = {one.number: one for one in book.reservations(DATA)}
    numbers = [c["answer"] for done, _ in answered.values() for c in done if c["do"] == "reserve"]
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        raise ViolationError(f"reservation {twice[0]} was given to two calls")
    if set(numbers) != set(held):
        raise ViolationError(f"reservations {set(numbers) ^ set(held)} are lost, or nobody's")
    for done, _ in answered.values():
        for call in done:
            one = held[call["answer"] if call["do"] == "reserve" else call["number"]]
            good = {
                "reserve": True,
                "begin": one.status != "reserved" and one.run == call.get("run"),
                "mark": one.mark >= call.get("rounds", 0),
                "settle": one.status == "settled" and one.released == call.get("rounds"),
            }[call["do"]]
            if not good:
                raise ViolationError(f"{call} was answered, and the book has {one}")


def _live(url: str, number: int, logs: Path, charge: Charge, seed: float) -> None:
    """Reserve, begin, mark and settle until told to stop; goes on where a killed one was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rng = random.Random(seed)
    log = logs / str(number)
    done, call = _asked(log)
    last = done[-1] if done else None
    with (
        log.open("a", encoding="utf-8") as file,
        contextlib.closing(_opened(url, f"writer-{number}")) as book,
    ):

        def note(values: dict[str, Any]) -> None:
            file.write(json.dumps(values) + "\n")
            file.flush()

        while True:
            if call is None:
                if (logs / "stop").exists() and (last is None or last["do"] == "settle"):
                    return
                call = _next(last, rng)
                note(call)
            last, call = {**call, "answer": _do(book, call, charge)}, None
            note({"answer": last["answer"]})


def _next(last: dict[str, Any] | None, rng: random.Random) -> dict[str, Any]:
    name = f"{rng.getrandbits(64):x}"
    if last is None or last["do"] == "settle":
        return {"do": "reserve", "call": name}
    if last["do"] == "reserve":
        return {"do": "begin", "number": last["answer"], "run": name}
    mark = last.get("rounds", 0)
    if mark < ROUNDS and rng.random() < 0.6:
        return {"do": "mark", "number": last["number"], "rounds": mark + 1}
    return {"do": "settle", "number": last["number"], "rounds": mark}


def _do(book: Store, call: dict[str, Any], charge: Charge) -> int:
    match call["do"]:
        case "reserve":
            return book.reserve(DATA, charge, call=call["call"]).number
        case "begin":
            return book.begin(call["number"], call["run"]).number
        case "mark":
            book.mark(call["number"], call["rounds"])
        case _:
            book.settle(call["number"], call["rounds"])
    return int(call["number"])

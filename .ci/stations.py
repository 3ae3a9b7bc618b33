"""Stations: how many files and functions of the library a value passes on its way, and their size.

python .ci/stations.py            # the table, beside the ceilings in .ci/stations.json
python .ci/stations.py --check    # the same; status 1 where a figure lies above its ceiling
python .ci/stations.py --lower    # take today's figures as ceilings where they are lower

Six walks run in one process, with everything imported before, so that only calls are counted: files
of the library that a function ran in, and functions (comprehensions and lambdas are some).
Lines of code are lines with a token of the language on them: no comments, docstrings, blank lines.

A ceiling is lowered with --lower. To raise one, edit the file and say why in the commit. A few
functions run on some machines only (what is probed there, what is kept from before): their number
may lie above its ceiling by one in a hundred.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import os
import pkgutil
import sys
import tempfile
import threading
import tokenize
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forethought"
CEILINGS = ROOT / ".ci" / "stations.json"
_NOTHING = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
)


# Size.


def code_lines(text: str) -> set[int]:
    """The numbers of the lines with code on them."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOTHING:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            lines.difference_update(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    return lines


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a text and nothing else: a docstring."""
    inside = node.value if isinstance(node, ast.Expr) else None
    return isinstance(inside, ast.Constant) and isinstance(inside.value, str)


def import_lines(text: str) -> set[int]:
    """The numbers of the lines that imports stand on."""
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def sizes() -> dict[str, float]:
    """Files, lines of code, and the share of imports in them, in percent."""
    texts = [path.read_text("utf-8") for path in sorted(SOURCE.rglob("*.py"))]
    lines = sum(len(code_lines(text)) for text in texts)
    imports = sum(len(import_lines(text)) for text in texts)
    return {"files": len(texts), "lines": lines, "imports %": round(100 * imports / lines, 1)}


# Walks.


@dataclass
class Entered:
    """The functions of the library that ran inside the ``with`` block, in every thread."""

    functions: set[tuple[str, str, int]] = field(default_factory=set)
    files: set[str] = field(default_factory=set)

    def __enter__(self) -> Entered:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_PREFIX):
            self.files.add(code.co_filename)
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))


_PREFIX = str(SOURCE) + os.sep


def import_everything() -> None:
    """So that no walk runs a module's own code; what needs a package that is not here is left."""
    import forethought

    for module in pkgutil.walk_packages(forethought.__path__, "forethought."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ImportError:
                continue


def budget_to_noise() -> Entered:
    """A budget on its way to the noise multiplier of a plan."""
    import forethought as ft

    with Entered() as found:
        ft.plan(examples=60_000, budget=ft.Budget(1.0, 1e-5), epochs=20)
    return found


def one_round() -> Entered:
    """The second round of a run: everything between two reports of progress."""
    import numpy as np
    import torch

    import forethought as ft

    draw = np.random.default_rng(0)
    rows = draw.normal(size=(200, 8)).astype(np.float32)
    # A drawn number of records would now and then fill its block, and pass other functions.
    plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, 4, ft.WithoutReplacement(40, 200))), 200, 1e-5)
    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    found = Entered()

    def progress(event: Any) -> None:
        if event.round == 1:
            found.__enter__()
        elif event.round == 2:
            found.__exit__()

    ft.train(network, (rows, draw.integers(3, size=200)), plan, progress=progress)
    return found


JOB = """
[data]
source = "csv:table.csv"
label = "died"
classes = ["no", "yes"]
holdout = 0.2

[data.columns]
age = [0, 120]
ward = {categories = ["A", "B", "ICU"], other = true}

[budget]
epsilon = 2.0
delta = 1e-4

[training]
rounds = 5
"""


def table(path: Path, rows: int) -> None:
    """Records of patients; nobody's."""
    import numpy as np

    draw = np.random.default_rng(0)
    ages, wards = draw.integers(18, 99, rows), draw.choice(["A", "B", "ICU"], rows)
    died = np.where(ages + draw.normal(0, 20, rows) > 70, "yes", "no")
    lines = [f"{age},{ward},{end}" for age, ward, end in zip(ages, wards, died, strict=True)]
    path.write_text("\n".join(["age,ward,died", *lines, ""]), "utf-8")


def job_to_prediction(folder: Path) -> tuple[Entered, Entered, Entered]:
    """A job file to its plan, the plan to a run folder, and a new table to predictions."""
    import forethought as ft
    from forethought.jobs import train
    from forethought.jobs.job import from_file

    table(folder / "table.csv", 400)
    (folder / "job.toml").write_text(JOB, "utf-8")
    with Entered() as planned:
        prepared = train.prepare(from_file(folder / "job.toml"))
    with Entered() as ran:
        train.run(prepared, folder / "run")
    table(folder / "new.csv", 3)
    with Entered() as predicted:
        ft.load(folder / "run").predict_file(folder / "new.csv", folder / "predictions.csv")
    return planned, ran, predicted


def clients_update() -> Entered:
    """A model's signed frame, to the update in the client's ledger and its signed frame."""
    import numpy as np
    import torch
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    import forethought as ft
    from forethought.exchange import events as on
    from forethought.exchange.messages import SERVER, Endpoint, Model
    from forethought.exchange.storage import ClientLedger, FolderStorage
    from forethought.federated.client import ClientMachine
    from forethought.holders.driving import ClientDriver
    from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
    from forethought.rounds.contributions import cross_entropy
    from forethought.rounds.randomness import Secrets
    from forethought.rounds.records import TensorRecords

    keys = {one: Ed25519PrivateKey.generate() for one in (SERVER, 0)}
    public = {one: key.public_key().public_bytes_raw() for one, key in keys.items()}
    draw = np.random.default_rng(0)
    rows = torch.from_numpy(draw.normal(size=(100, 4)).astype(np.float32))
    records = TensorRecords(rows, torch.from_numpy(draw.integers(3, size=100)))
    shared = SharedModel(torch.nn.Linear(4, 3))
    plan = ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, 3, ft.Poisson(0.2)), adjacency="add-or-remove"), 100, 1e-5
    )
    federation = ft.Federation(
        (ft.Member("client", public_key=public[0].hex()),),
        (plan,),
        len(shared.read()),
        shared.architecture,
        3,
        server_key=public[SERVER].hex(),
    )
    own = Endpoint(federation.run_id, 0, keys[0], {SERVER: public[SERVER]}, federation.parameters)
    server = Endpoint(federation.run_id, SERVER, keys[SERVER], {}, federation.parameters)
    holder = Holder(plan, records, cross_entropy, Secrets.draw(ft.Seeds(1, 2)))
    trainer = ClientTrainer(shared, holder)
    folder = tempfile.TemporaryDirectory()
    ledger = ClientLedger(FolderStorage(Path(folder.name)), own, records.digest(bytes(32)))
    asked: list[on.Compute] = []
    sent: list[bytes] = []
    driver = ClientDriver(
        ClientMachine(federation, 0, ledger.read()),
        ledger,
        own,
        lambda to, message, frame: sent.append(frame),
        asked.append,
    )
    driver.connected()
    before, frame = len(sent), server.seal(0, Model(0, 0, shared.read()))
    with Entered() as found:
        driver.received(frame, SERVER)
        done = trainer.compute(asked[0].round, asked[0].vector)
        values = done.vector, done.rounds, done.input_hash, done.state
        driver.handle(on.Computed(asked[0].round, asked[0].base, *values, now=0.0))
    if len(sent) != before + 1 or not ledger.frames():
        raise RuntimeError("the client did not send an update")
    return found


# The table.


def measured() -> dict[str, dict[str, float]]:
    """Name → its figures."""
    figures: dict[str, dict[str, float]] = {"the library": sizes()}
    import_everything()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.chdir(folder)
        walks = {"budget → noise multiplier": budget_to_noise(), "one round": one_round()}
        names = ("job → plan", "plan → run folder", "cell → prediction")
        walks |= zip(names, job_to_prediction(Path(folder)), strict=True)
        walks["client's update"] = clients_update()
        os.chdir(here)
    for name, found in walks.items():
        figures[name] = {"files": len(found.files), "functions": len(found.functions)}
    return figures


def main() -> None:
    """The table; status 1 where --check finds a figure above its ceiling."""
    parser = argparse.ArgumentParser(description="Files and functions that a value passes.")
    parser.add_argument("--check", action="store_true", help="fail above a ceiling")
    parser.add_argument("--lower", action="store_true", help="take lower figures as ceilings")
    given = parser.parse_args()
    sys.path.insert(0, str(SOURCE.parent))
    ceilings = json.loads(CEILINGS.read_text("utf-8")) if CEILINGS.exists() else {}
    figures = measured()
    above = 0
    for name, row in figures.items():
        for what, value in row.items():
            most = ceilings.setdefault(name, {}).get(what, value)
            over = value > most * (1.01 if what == "functions" else 1.0)
            above += over
            mark = "  above its ceiling" if over else ""
            print(f"{name:27} {what:10} {value:>8}   at most {most:>8}{mark}")
            ceilings[name][what] = min(value, most)
    if given.lower:
        CEILINGS.write_text(json.dumps(ceilings, indent=1, ensure_ascii=False) + "\n", "utf-8")
    sys.exit(bool(given.check and above))


if __name__ == "__main__":
    main()

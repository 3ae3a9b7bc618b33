"""The stored formats, written down: what the files in ``golden/`` hold, and how to write them.

``python tests/formats/golden.py`` writes them all anew, with fixed seeds and keys. The tests read
them with today's code and compare with the values that are made here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import forethought as ft
from forethought.exchange.events import ClientRelease
from forethought.exchange.messages import KINDS, SERVER, Endpoint, Update, layout
from forethought.exchange.storage import (
    ENTRIES,
    ClientLedger,
    FolderStorage,
    ServerJournal,
    ServerSnapshot,
)
from forethought.federated.federation import Delay, Federation, Member
from forethought.gossip.gossip import Gossip
from forethought.gossip.gossip import Member as Worker
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.jobs.account import sign
from forethought.values.caveats import Caveat
from forethought.values.plan import Transcript
from forethought.values.use import Assumed

GOLDEN = Path(__file__).parent / "golden"
RUN_ID = bytes(range(32))
PARAMETERS = 3
# What of a run folder is its format: neither pictures nor pages.
NO_FORMAT = {"figures", "report.html", "statement.html"}
# Written by a run, from computations that end in other bits on other machines.
RUN = "run"


def key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def mechanism() -> ft.Mechanism:
    """Every kind of sampling and of correlated noise."""
    return ft.Mechanism(
        ft.Rounds(1.5, 10, ft.Poisson(0.125)),
        ft.Rounds(2.0, 3, ft.WithoutReplacement(5, 40)),
        ft.Rounds(2.5, 8, ft.Shuffled(10, 40)),
        ft.Rounds(3.0, 4, ft.RandomAllocation(4)),
        ft.Rounds(3.5, 6, ft.CyclicPoisson(0.5, 3)),
        ft.Rounds(4.0, 2, ft.FullBatch(), "group", groups=4),
        ft.Correlated(1.0, 6, ft.CyclicPoisson(1.0, 3), strategy=ft.Banded((1.0, 0.5))),
        ft.Correlated(2.0, 6, ft.FullBatch(), strategy=ft.BufferedToeplitz((0.25,), (0.5,))),
        adjacency="replace-one",
    )


def plan() -> ft.Plan:
    """A plan that says everything that clipped examples can."""
    return ft.Plan(
        ft.Mechanism(ft.Rounds(1.5, 3, ft.Poisson(0.25)), ft.Rounds(2.0, 2, ft.Poisson(0.5))),
        40,
        1e-3,
        ft.Clip(0.5, "per-layer", shares={"weight": 0.75, "bias": 0.5}, final=0.25),
        budget=ft.Budget(3.0, 1e-3),
        noise="grid",
        preparation=ft.Preparation(("moments", "classes"), (0.0, 1.0), 2, 2, noise_multiplier=8.0),
        records_per_person=2,
        augmentation=ft.Augmentation(4, ("mirror", "crop"), None, 0.5),
        optimizer=ft.Optimizer("adam", 0.25, (("betas", (0.5, 0.75)),)),
        schedule=ft.Schedule("cosine", warmup=1),
        averaging=ft.Averaging("tail", fraction=0.5),
        gradient_filter=ft.GradientFilter("low-pass", 2.0, 1),
        assumed=Assumed(100, 2.0, True, ("step size",)),
        hyperparameters=Caveat("declared"),
        not_covered=("the weather",),
        reasons=(("batch", "given"),),
    )


def plan_of_updates() -> ft.Plan:
    """A plan of local updates, whose clipping norm follows a quantile."""
    return ft.Plan(
        ft.Mechanism(ft.Rounds(2.0, 5, ft.Poisson(0.5), "group", groups=4)),
        40,
        1e-3,
        ft.Clip(1.0, "quantile", count_noise=10.0),
        groups=4,
        local=ft.Local("adam", 0.125, (("betas", (0.5, 0.75)),), passes=2, step=4),
    )


def transcript() -> Transcript:
    """Both releases of each round, then one of another kind."""
    made, chosen = Transcript(), plan_of_updates()
    for index in range(3):
        one = chosen.round(index)
        made.append(one, one.noise_std, one.clip_norm, one.count_noise)
    made.append_other("scores", 4.0)
    return made


def plain_plan(rounds: int) -> ft.Plan:
    optimizer = ft.Optimizer("sgd", 0.5, ())
    return ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(0.5))), 40, 1e-3, optimizer=optimizer
    )


def federation() -> Federation:
    return Federation(
        members=(Member("a", 0, 1.0, "01" * 32), Member("b", 1, 2.0, "02" * 32)),
        plans=(plain_plan(3), plain_plan(4)),
        parameters=PARAMETERS,
        architecture="test",
        rounds=3,
    )


def changing_federation() -> Federation:
    """Local rounds that change, and a permissible delay of one's own."""
    return replace(
        federation(),
        plans=(plain_plan(4), plain_plan(6)),
        local_rounds=(1, 1, 2),
        delay=Delay("own:delay", 2),
    )


def gossip() -> Gossip:
    return Gossip(
        members=(Worker("a"), Worker("b"), Worker("c"), Worker("d")),
        plans=(plain_plan(6),),
        mixing=Mixing("matchings", make("ring", 4), 5),
        parameters=PARAMETERS,
        architecture="test",
        rounds=4,
        nonce="golden",
    )


def vector(first: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return first + np.arange(PARAMETERS, dtype=np.float32) / 4


def endpoint() -> Endpoint:
    """A client's."""
    return Endpoint(RUN_ID, 0, key(2), {SERVER: key(1).public_key().public_bytes_raw()}, PARAMETERS)


def made(kind: Any, number: int, later: bool = False) -> Any:
    """One of a class that is sent or kept, with a value of its own in every field.

    Args:
        later: in the field that came after 0.2.0, too.
    """
    values: dict[str, Any] = {}
    for place, (name, type_) in enumerate(layout(kind), number):
        if not later and name == getattr(kind, "LATER", ""):
            continue
        values[name] = {
            "int": place,
            "str": f"text {place}",
            "bytes": bytes([place]) * 4,
            "int64": np.arange(PARAMETERS, dtype=np.int64) - place,
            "float32": vector(place),
            "packed": vector(place + (place % 2) / 3),  # of both forms
        }[type_]
    return kind(**values)


def messages(later: bool = False) -> list[Any]:
    """One of every registered kind, by their numbers; later: of those that have a later field."""
    for room in ("gossip.events", "federated.secure_aggregation.protocol", "holders.grpc"):
        import_module(f"forethought.{room}")  # which register kinds of their own
    kinds = [number for number in sorted(KINDS) if not later or hasattr(KINDS[number], "LATER")]
    return [made(KINDS[number], number, later) for number in kinds]


def signed_frames(later: bool = False) -> bytes:
    return b"".join(endpoint().seal(SERVER, message) for message in messages(later))


def release(round: int) -> ClientRelease:
    update = Update(round, round + 5, vector(round))
    state = b"state %d" % round
    return ClientRelease(round, round + 5, 2 * round + 2, bytes([round]) * 32, state, update)


def ledger() -> bytes:
    """Three releases, of which the first was acknowledged."""
    with tempfile.TemporaryDirectory() as folder:
        made = ClientLedger(FolderStorage(Path(folder)), endpoint(), "data")
        for round in range(3):
            made.commit(release(round))
            if round == 0:
                made.acknowledged(0)
        return (Path(folder) / "ledger").read_bytes()


SNAPSHOT = ServerSnapshot(
    {"version": 3, "pending": [[1, 2]], "x": 0.125},
    {"model": vector(0.0), "counts": np.array([3, 4], dtype=np.int64)},
)


def entries() -> list[Any]:
    """One of every kind that a journal takes."""
    return [made(kind, number) for number, kind in sorted(ENTRIES.items())]


def journal() -> bytes:
    """A snapshot, then every kind of entry."""
    with tempfile.TemporaryDirectory() as folder:
        kept = ServerJournal(FolderStorage(Path(folder)), RUN_ID)
        kept.snapshot(SNAPSHOT)
        for entry in entries():
            kept.append(entry)
        return (Path(folder) / "journal").read_bytes()


def statement() -> ft.Statement:
    """About something, resting on a plan."""
    about = ft.About("patients", "2026", "triage", "A. Person", "sha256:" + "0" * 64)
    made = replace(ft.account(plain_plan(5)), about=about)
    return made.resting_on({"plan.json": text(plain_plan(5).to_dict())})


def write_signed(folder: Path) -> None:
    """The statement, and beside it what signs it."""
    (folder / NEXT_ENVELOPE).unlink(missing_ok=True)  # it signs what was there
    (folder / NEXT_STATEMENT).write_text(statement().to_json() + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as made:
        pem = Path(made) / "key.pem"
        pem.write_bytes(
            key(9).private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        sign(folder / NEXT_STATEMENT, pem)


TABLE = [(20 + age, "AB"[age % 2], "yes" if age > 30 else "no") for age in range(60)]
JOB = """\
[data]
source = "csv:patients.csv"
label = "died"
classes = ["no", "yes"]

[data.columns]
age = [0, 110]
ward = ["A", "B"]

[model]
name = "linear"

[budget]
epsilon = 3.0
delta = 1e-2

[training]
rounds = 4

[run]
seed = 1
noise_seed = 2
"""


def write_run(folder: Path) -> None:
    """A job on a declared table, trained with seeds, without its pictures and pages."""
    from typer.testing import CliRunner

    from forethought.cli import app

    here = Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        rows = "".join(f"{age},{ward},{died}\n" for age, ward, died in TABLE)
        Path(made, "patients.csv").write_text(f"age,ward,died\n{rows}", encoding="utf-8")
        Path(made, "job.toml").write_text(JOB, encoding="utf-8")
        os.chdir(made)
        try:
            done = CliRunner().invoke(app, ["train", "job.toml", "--out", RUN, "--quiet"])
            if done.exit_code:
                raise RuntimeError(f"{done.output} {done.exception}")
        finally:
            os.chdir(here)
        for path in sorted(Path(made, RUN).iterdir()):
            if path.name not in NO_FORMAT:
                shutil.copyfile(path, folder / path.name)


RECORDS = {"age": ["25", "50", "75"], "ward": ["A", "B", "A"]}


def answers() -> dict[str, Any]:
    """What the run in ``golden/`` says of some records."""
    predictor = ft.load(GOLDEN / RUN)
    return {
        "predictions": predictor.predict(RECORDS).tolist(),
        "probabilities": predictor.predict_proba(RECORDS).tolist(),
    }


def text(values: Any) -> bytes:
    return (json.dumps(values, indent=2) + "\n").encode()


NEXT_FEDERATION = "federation-2.json"
FRAMES, NEXT_FRAMES = "signed-frames.bin", "signed-frames-2.bin"
# File → its bytes, the same on every machine.
EXACT: dict[str, Callable[[], bytes]] = {
    "mechanism.json": lambda: text(mechanism().to_dict()),
    "plan.json": lambda: text(plan().to_dict()),
    "plan-of-updates.json": lambda: text(plan_of_updates().to_dict()),
    "transcript.json": lambda: text(transcript().to_values()),
    "federation.json": lambda: text(federation().to_dict()),
    NEXT_FEDERATION: lambda: text(changing_federation().to_dict()),
    "gossip.json": lambda: text(gossip().to_dict()),
    FRAMES: signed_frames,
    NEXT_FRAMES: lambda: signed_frames(later=True),
    "ledger.bin": ledger,
    "journal.bin": journal,
}
STATEMENT, ANSWERS = "statement.json", "run-answers.json"
# Forms that came after 0.2.0, beside the frozen ones.
NEXT_STATEMENT, NEXT_ENVELOPE = "statement-4.json", "statement-4.intoto.json"


def main() -> None:
    """Write every file anew; with "next" only those that came after 0.2.0."""
    if sys.argv[1:] == ["next"]:
        write_signed(GOLDEN)
        for name in (NEXT_FEDERATION, NEXT_FRAMES):
            (GOLDEN / name).write_bytes(EXACT[name]())
        return
    shutil.rmtree(GOLDEN, ignore_errors=True)
    (GOLDEN / RUN).mkdir(parents=True)
    for name, make_it in EXACT.items():
        (GOLDEN / name).write_bytes(make_it())
    (GOLDEN / STATEMENT).write_text(statement().to_json() + "\n", encoding="utf-8")
    write_run(GOLDEN / RUN)
    (GOLDEN / ANSWERS).write_bytes(text(answers()))


if __name__ == "__main__":
    sys.exit(main())

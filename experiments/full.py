"""Every experiment at its full size, one after the other, with the processor time of each.

    python experiments/full.py --data ../shared/data --estimate   # what it would take; minutes
    python experiments/full.py --data ../shared/data --hours 10   # what a night is enough for
    python experiments/full.py --data ../shared/data              # runs what is not done, for years
    python experiments/full.py --data ../shared/data --only proactive_dp/tables.py

The shortest run first. With ``--hours`` commands are begun while what they are expected to take
fits into what is left; the rest of the time goes to the shortest of the others that resumes, and
the call ends with a list of what was left out and what it would take. Commands that ended are kept,
with their processor time, in experiments/full.jsonl and not run again.

What a command is expected to take is what it says itself (``--estimate``), by timing a few rounds;
else what the rows took that it has kept; else a guess, which is called one. What it took is the
processor time of all calls, and at least the own seconds of the rows that had been kept before:
where they have none, the time of a command that had rows is not known, and none is recorded.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DONE = HERE / "full.jsonl"


@dataclass(frozen=True)
class Command:
    """One experiment at its full size.

    Args:
        script: below this folder. options: besides the data.
        data: the option that names the data sets' folder; empty: none is needed.
        resumes: finished parts are kept when it is stopped. estimates: knows ``--estimate``.
        kept: file of its rows. timed: whether they have the seconds of the processor that each
            took, as their own column.
        minutes: of one core, by guess.
    """

    script: str
    options: tuple[str, ...] = ("--full",)
    data: str = "--data"
    resumes: bool = False
    estimates: bool = False
    kept: str = ""
    timed: bool = True
    minutes: float = 0.0

    @property
    def name(self) -> str:
        """As it is kept."""
        return " ".join((self.script, *self.options))

    def words(self, folder: Path, *more: str) -> list[str]:
        """What is run."""
        data = [self.data, str(folder)] if self.data else []
        return [sys.executable, str(HERE / self.script), *data, *self.options, *more]


def paper(script: str, kept: str, *options: str) -> Command:
    """A comparison of the first paper, which resumes and estimates."""
    path = f"proactive_dp/{kept}.jsonl"
    return Command(f"proactive_dp/{script}.py", (*options, "--full"), "--data", True, True, path)


def untimed(script: str, kept: str, *options: str, minutes: float = 0.0) -> Command:
    """One that resumes from rows of which nobody knows what they took."""
    return Command(script, options, resumes=True, kept=kept, timed=False, minutes=minutes)


ADAPTIVE, FRAMEWORK = "adaptive_noise", "general_framework"
REHEARSALS, FALLING = "defaults/rehearsals.py", "gossip/falling.py"
COMMANDS = (
    Command("proactive_dp/tables.py", (), "", minutes=1),
    Command("proactive_dp/sizes.py", (), "", minutes=1),
    paper("logistic_regression", "logistic_regression_phishing"),
    paper("logistic_regression", "logistic_regression_a9a", "--set", "a9a"),
    paper("lenet", "lenet5"),
    paper("alexnet", "alexnet"),
    *(
        Command("proactive_dp/utility_graph.py", ("--only", name, "--full"), "--data", True, True)
        for name in (
            *("strongly-convex", "plain-convex", "strongly-convex-a9a", "plain-convex-a9a"),
            *("lenet5-mnist", "alexnet-cifar10"),
        )
    ),
    untimed("defaults/run.py", "defaults/results.csv", "--full"),
    Command(
        *("defaults/networks.py", (), "--data", True, True, "defaults/networks.csv"), timed=False
    ),
    Command(
        *("defaults/network_paths.py", (), "--data", True, True, "defaults/network_paths.csv"),
        timed=False,
    ),
    untimed("defaults/epochs.py", "defaults/epochs.jsonl", minutes=60),
    untimed("defaults/epochs.py", "defaults/epochs.jsonl", "--held-out", minutes=180),
    Command("statistics/run.py", (), "--data-dir", minutes=5),
    Command(
        "ledger/run.py",
        ("--full",),
        "",
        True,
        kept="ledger/results.csv",
        timed=False,
        minutes=2,
    ),
    Command("defaults/network_units.py", (), "", minutes=1),
    Command("defaults/paths.py", ("--only", "digits", "german"), minutes=10),
    Command("defaults/adult.py", (), minutes=10),
    untimed(REHEARSALS, "defaults/rehearsals.jsonl", minutes=60),
    untimed(REHEARSALS, "defaults/rehearsals.jsonl", "--model", "mlp", minutes=20),
    *(
        untimed(REHEARSALS, "defaults/rehearsals.jsonl", "--fresh", "--model", name, minutes=15)
        for name in ("linear", "mlp", "cnn")
    ),
    untimed("estimators/run.py", "estimators/results.csv", "--full", minutes=60),
    *(
        Command(
            *("large_models/run.py", ("--full", *text), "", True, False),
            *("large_models/rows.jsonl", False, minutes),
        )
        for text, minutes in (((), 10), (("--text", "services", "--only", "bert"), 30))
    ),
    Command(
        "large_models/costs.py", ("--full",), "", True, False, "large_models/costs.jsonl", False
    ),
    Command("hospital/run.py", (), "", True, False, "hospital/results.csv", False, minutes=5),
    Command("correlated_noise/run.py", (), minutes=10),
    Command(f"{ADAPTIVE}/run.py", (), "--data-dir"),
    Command(f"{ADAPTIVE}/constants.py", (), "--data-dir", minutes=10),
    Command(f"{ADAPTIVE}/horizons.py", (), "--data-dir", minutes=1),
    Command(f"{ADAPTIVE}/mnist.py", (), "--data-dir", minutes=10),
    Command(f"{ADAPTIVE}/steered.py", (), "--data-dir", minutes=1),
    Command(f"{ADAPTIVE}/subsampled.py", (), "--data-dir", minutes=5),
    Command("accuracy/run.py", (), "--data-dir", resumes=True, kept="accuracy/results.csv"),
    Command("accuracy/trial.py", (), "--data-dir", resumes=True, kept="accuracy/trial.csv"),
    Command("accuracy/settings.py", (), "--data-dir", resumes=True, kept="accuracy/settings.csv"),
    Command("filters/run.py", data="--data-dir", resumes=True, kept="filters/results.csv"),
    Command(
        *("filters/steps.py", ("--full",), "--data-dir", True, False, "filters/steps.csv", False)
    ),
    Command("patches/constants.py", (), "", minutes=2),
    Command("patches/run.py", ("trial",), resumes=True, kept="patches/trial.csv"),
    Command("patches/run.py", ("measure",), resumes=True, kept="patches/results.csv"),
    Command("patches/variants.py", (), minutes=3),
    untimed("patches/further.py", "patches/further.csv", minutes=20),
    untimed("patches/shifts.py", "patches/shifts.csv", minutes=20),
    untimed("patches/recipe.py", "patches/recipe.csv", minutes=10),
    untimed("patches/choices.py", "patches/choices.csv", minutes=60),
    Command("patches/image_defaults.py", (), resumes=True, kept="patches/image_defaults.csv"),
    Command("patches/selection_price.py", (), "", minutes=1),
    *(
        Command("patches/longest_step.py", (name, features, count, "3"))
        for name, features, count in (
            ("fashion-mnist", "scattering", "50000"),
            ("mnist", "scattering", "50000"),
            ("cifar10", "patches", "30000"),
        )
    ),
    *(
        Command(f"{FRAMEWORK}/{script}.py", more, "--data-dir", True, kept=f"{FRAMEWORK}/{kept}")
        for script, more, kept in (
            ("table3", (), "table3.jsonl"),
            ("combinations", (), "combinations.jsonl"),
            ("combinations", ("--large",), "large_budgets.jsonl"),
            ("inner_steps", (), "inner_steps.jsonl"),
        )
    ),
    Command("federated/tables.py", resumes=True, kept="federated/results.csv"),
    Command("federated/asynchronous.py", ("--seeds", "5"), minutes=25),
    Command("federated/stragglers.py", data="", minutes=10),
    Command(*("gossip/run.py", ("--full",), "--data", True, True, "gossip/results.jsonl", False)),
    untimed("gossip/run.py", "gossip/results.jsonl", "--further", minutes=15),
    untimed("gossip/choosing.py", "gossip/choosing.jsonl", "--sigma", "4", minutes=2),
    untimed("gossip/choosing.py", "gossip/choosing.jsonl", "--sigma", "2", minutes=2),
    Command(FALLING, (), resumes=True, kept="gossip/falling.jsonl"),
    *(
        untimed("gossip/beyond.py", "gossip/beyond.jsonl", "--seed", str(k), minutes=10)
        for k in range(3)
    ),
    untimed("gossip/real.py", "gossip/real.jsonl", minutes=8),
)
# These only draw or print what others have kept, or are begun by them, or need a package's tables.
BY_OTHERS = (
    *(f"{FRAMEWORK}/figures.py", f"{FRAMEWORK}/tables.py", "estimators/rival.py"),
    "forecast/run.py",
    "forecast/times.py",
    *("newcomer/run.py", "newcomer/persons.py"),
    *("additive/run.py", "additive/rival.py", "tables/run.py", "tables/values.py"),
    *("estimators/adassp.py", "estimators/against_plan.py"),
)


def calls() -> list[dict[str, Any]]:
    """What is kept of every call."""
    if not DONE.exists():
        return []
    return [json.loads(line) for line in DONE.read_text(encoding="utf-8").splitlines()]


def finished() -> dict[str, float | None]:
    """Processor hours of the commands that ended; None where their rows were kept untimed."""
    rows = calls()
    return {
        ended["command"]: None if ended["hours"] is None else hours_of(rows, ended["command"])
        for ended in rows
        if ended["ended"]
    }


def hours_of(rows: Sequence[dict[str, Any]], name: str) -> float:
    """Of all calls of a command; at least what the rows took that were there already."""
    own = [row for row in rows if row["command"] == name]
    used: float = sum(row["hours"] or 0 for row in own)
    return max(used, max((row.get("of_rows", 0.0) for row in own), default=0.0))


def kept_rows(command: Command) -> tuple[int, float]:
    """How many rows a command has kept, and the hours that they took by their own account."""
    path = HERE / command.kept
    if not command.kept or not path.exists():
        return 0, 0.0
    text = path.read_text(encoding="utf-8")
    if command.kept.endswith(".csv"):
        rows: list[dict[str, Any]] = list(csv.DictReader(text.splitlines()))
    else:
        rows = [json.loads(line) for line in text.splitlines()]
    if not command.timed:
        return len(rows), 0.0
    return len(rows), sum(float(row.get("seconds") or 0) for row in rows) / 3600


def expected(command: Command, folder: Path) -> tuple[float | None, str]:
    """Hours that a command would take, None where nobody knows; and on what that rests."""
    if command.estimates:
        found = subprocess.run(
            command.words(folder, "--estimate"), check=True, capture_output=True, text=True
        )
        hours = float(found.stdout.split(" h of one core in all")[0].split()[-1])
        return hours, found.stdout.strip().replace("\n", "; ")
    rows, hours = kept_rows(command)
    if hours:
        return hours, f"{hours:.2f} h, what its {rows} kept rows took"
    if command.minutes:
        hours = command.minutes / 60
        return hours, f"{hours:.2f} h by guess, never timed"
    return None, "nothing is known of its time"


def run(command: Command, folder: Path, hours: float | None) -> float:
    """Run a command, keep its time if it ended or goes on later, and return the hours it used."""
    had, of_rows = kept_rows(command)
    known = any(row["command"] == command.name and row["hours"] is not None for row in calls())
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = None if hours is None or not command.resumes else 3600 * max(hours, 0)
    status: int | None = None
    try:
        status = subprocess.run(
            command.words(folder), timeout=limit, env=os.environ, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{command.name}: stopped after {hours:.2f} h; goes on at the next call", flush=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3600
    print(f"{command.name}: status {status}, {used:.3f} h of processor time", flush=True)
    if status in (0, None):
        # Rows that another call made, of which this one's time says nothing.
        strange = bool(had) and not of_rows and not known
        row: dict[str, Any] = {"command": command.name, "hours": round(used, 4)}
        if strange:
            row["hours"] = None
        elif of_rows:
            row["of_rows"] = round(of_rows + used, 4)
        row |= {"ended": status == 0, "date": str(date.today())}
        with DONE.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return used


def run_all(commands: Sequence[Command], folder: Path, hours: float | None) -> list[Command]:
    """Run commands, the shortest first, and return those that did not fit into ``hours``."""
    known = {command: expected(command, folder) for command in commands}
    order = sorted(commands, key=lambda c: math.inf if known[c][0] is None else known[c][0])
    begun = time.monotonic()
    out = []
    for command in order:
        took = known[command][0]
        left = None if hours is None else hours - (time.monotonic() - begun) / 3600
        if left is not None and (took is None or took > left):
            out.append(command)
        else:
            run(command, folder, left)
    left = None if hours is None else hours - (time.monotonic() - begun) / 3600
    goes_on = next((c for c in out if c.resumes and left is not None and left > 0.01), None)
    if goes_on is not None:
        run(goes_on, folder, left)
        out = [command for command in out if command.name not in finished()]
    for command in out:
        print(f"left out: {command.name}: {known[command][1]}")
    return out


def main() -> None:
    """Run, or estimate, what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    parser.add_argument("--only", nargs="+", help="scripts, or commands with their options")
    parser.add_argument("--hours", type=float, help="of this call, in all; what fits is run")
    args = parser.parse_args()
    done = finished()
    chosen = [c for c in COMMANDS if not args.only or {c.script, c.name} & set(args.only)]
    for command in chosen:
        if command.name in done:
            took = done[command.name]
            said = "its rows were kept without times" if took is None else f"{took:.3f} h"
            print(f"{command.name}: done, {said}")
    left = [command for command in chosen if command.name not in done]
    if not args.estimate:
        run_all(left, args.data, args.hours)
        return
    total = sum(done.get(command.name) or 0.0 for command in chosen)
    guessed, unknown = 0.0, 0
    for command in left:
        hours, basis = expected(command, args.data)
        print(f"{command.name}: {basis}", flush=True)
        total += hours or 0.0
        guessed += command.minutes / 60 if "by guess" in basis else 0.0
        unknown += hours is None
    print(
        f"all of these: {total:,.1f} h of one core, {guessed:.1f} of them by guess; nothing is "
        f"known of {unknown} more"
    )


if __name__ == "__main__":
    main()

"""Every experiment at its full size, one after the other, with the processor time of each.

    python experiments/full.py --data ../shared/data --estimate   # what it would take; minutes
    python experiments/full.py --data ../shared/data              # runs what is not done, for days
    python experiments/full.py --data ../shared/data --only proactive_dp/tables.py --hours 1

Finished commands are kept, with their processor time, in experiments/full.jsonl and not run again.
Those that resume by themselves are stopped after ``--hours`` and go on at the next call; the others
are run to their end. What a command would take is what it took where it ended here; else what it
says itself (``--estimate``), by timing a few rounds; else what the rows took that it has kept; else
a guess, which is called one.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
DONE = HERE / "full.jsonl"


@dataclass(frozen=True)
class Command:
    """One experiment at its full size.

    Args:
        script: below this folder. options: besides the data.
        data: the option that names the data sets' folder; empty: none is needed.
        resumes: finished parts are kept when it is stopped. estimates: knows ``--estimate``.
        kept: file of its rows, which have the seconds that each took.
        minutes: of one core, by guess.
    """

    script: str
    options: tuple[str, ...] = ("--full",)
    data: str = "--data"
    resumes: bool = False
    estimates: bool = False
    kept: str = ""
    minutes: float = 0.0

    @property
    def name(self) -> str:
        """As it is kept."""
        return " ".join((self.script, *self.options))

    def words(self, folder: Path, *more: str) -> list[str]:
        """What is run."""
        data = [self.data, str(folder)] if self.data else []
        return [sys.executable, str(HERE / self.script), *data, *self.options, *more]


def paper(script: str, *options: str) -> Command:
    """A comparison of the first paper, which resumes and estimates."""
    return Command(f"proactive_dp/{script}.py", (*options, "--full"), resumes=True, estimates=True)


ADAPTIVE, FRAMEWORK = "adaptive_noise", "general_framework"
COMMANDS = (
    Command("proactive_dp/tables.py", (), "", minutes=1),
    Command("proactive_dp/sizes.py", (), "", minutes=1),
    paper("logistic_regression"),
    paper("logistic_regression", "--set", "a9a"),
    paper("lenet"),
    paper("alexnet"),
    Command("proactive_dp/utility_graph.py", estimates=True),
    Command("defaults/run.py"),
    Command("defaults/networks.py", (), resumes=True, estimates=True),
    Command("defaults/network_paths.py", (), resumes=True, estimates=True),
    Command("defaults/paths.py", ("--only", "digits", "german"), minutes=10),
    Command("defaults/adult.py", (), minutes=10),
    Command("defaults/rehearsals.py", (), resumes=True, minutes=60),
    Command("defaults/rehearsals.py", ("--model", "mlp"), resumes=True, minutes=20),
    Command("estimators/run.py", minutes=60),
    Command("hospital/run.py", (), "", minutes=5),
    Command("correlated_noise/run.py", (), minutes=10),
    Command(f"{ADAPTIVE}/run.py", (), "--data-dir"),
    Command(f"{ADAPTIVE}/constants.py", (), "--data-dir", minutes=10),
    Command(f"{ADAPTIVE}/horizons.py", (), "--data-dir", minutes=1),
    Command(f"{ADAPTIVE}/mnist.py", (), "--data-dir", minutes=10),
    Command(f"{ADAPTIVE}/steered.py", (), "--data-dir", minutes=1),
    Command(f"{ADAPTIVE}/subsampled.py", (), "--data-dir", minutes=5),
    Command("accuracy/run.py", (), "--data-dir", resumes=True, kept="accuracy/results.csv"),
    Command("accuracy/trial.py", (), "--data-dir", resumes=True, minutes=40),
    Command("accuracy/settings.py", (), "--data-dir", resumes=True, minutes=15),
    Command("filters/run.py", data="--data-dir", resumes=True, kept="filters/results.csv"),
    Command("filters/steps.py", data="--data-dir", resumes=True),
    Command("patches/constants.py", (), "", minutes=2),
    Command("patches/run.py", ("trial",), resumes=True, kept="patches/trial.csv"),
    Command("patches/run.py", ("measure",), resumes=True, kept="patches/results.csv"),
    Command("patches/variants.py", (), minutes=3),
    Command("patches/further.py", (), resumes=True, minutes=20),
    Command("patches/recipe.py", (), resumes=True, minutes=10),
    Command("patches/choices.py", (), resumes=True, minutes=60),
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
    Command(f"{FRAMEWORK}/table3.py", (), "--data-dir", True, kept=f"{FRAMEWORK}/table3.jsonl"),
    Command(
        f"{FRAMEWORK}/combinations.py",
        (),
        "--data-dir",
        resumes=True,
        kept=f"{FRAMEWORK}/combinations.jsonl",
    ),
    Command(
        f"{FRAMEWORK}/combinations.py",
        ("--large",),
        "--data-dir",
        resumes=True,
        kept=f"{FRAMEWORK}/large_budgets.jsonl",
    ),
    Command(
        f"{FRAMEWORK}/inner_steps.py",
        (),
        "--data-dir",
        resumes=True,
        kept=f"{FRAMEWORK}/inner_steps.jsonl",
    ),
    Command("federated/tables.py", resumes=True, kept="federated/results.csv"),
    Command("federated/asynchronous.py", ("--seeds", "5"), minutes=25),
    Command("federated/stragglers.py", data="", minutes=10),
    Command("gossip/run.py", ("--full",), resumes=True, estimates=True),
    Command("gossip/run.py", ("--further",), resumes=True, minutes=15),
    Command("gossip/choosing.py", ("--sigma", "4"), resumes=True, minutes=2),
    Command("gossip/choosing.py", ("--sigma", "2"), resumes=True, minutes=2),
    Command("gossip/falling.py", (), resumes=True, minutes=15),
    *(Command("gossip/beyond.py", ("--seed", str(k)), resumes=True, minutes=10) for k in range(3)),
    Command("gossip/real.py", (), resumes=True, minutes=8),
)
# These only draw or print what others have kept, or are begun by them.
BY_OTHERS = (f"{FRAMEWORK}/figures.py", f"{FRAMEWORK}/tables.py", "estimators/rival.py")


def finished() -> dict[str, float]:
    """Processor hours, over all calls, of the commands that ended."""
    rows = []
    if DONE.exists():
        rows = [json.loads(line) for line in DONE.read_text(encoding="utf-8").splitlines()]
    return {
        ended["command"]: sum(row["hours"] for row in rows if row["command"] == ended["command"])
        for ended in rows
        if ended["ended"]
    }


def kept_hours(command: Command) -> tuple[int, float]:
    """How many rows a command has kept, and what they took."""
    text = (HERE / command.kept).read_text(encoding="utf-8")
    if command.kept.endswith(".csv"):
        rows = list(csv.DictReader(text.splitlines()))
    else:
        rows = [json.loads(line) for line in text.splitlines()]
    seconds = [float(row["seconds"]) for row in rows if row.get("seconds")]
    return len(seconds), sum(seconds) / 3600


def estimate(command: Command, folder: Path) -> float:
    """Print what a command would take, and on what that rests; in hours, 0 where nobody knows."""
    hours, basis = 0.0, "nothing is known of its time"
    if command.estimates:
        found = subprocess.run(
            command.words(folder, "--estimate"), check=True, capture_output=True, text=True
        )
        hours = float(found.stdout.split(" h of one core in all")[0].split()[-1])
        basis = found.stdout.strip().replace("\n", "; ")
    elif command.kept:
        rows, hours = kept_hours(command)
        basis = f"{hours:.2f} h, what its {rows} kept rows took"
    elif command.minutes:
        hours = command.minutes / 60
        basis = f"{hours:.2f} h by guess, never timed"
    print(f"{command.name}: {basis}", flush=True)
    return hours


def run(command: Command, folder: Path, hours: float | None) -> None:
    """Run a command, and keep its time if it ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    limit = None if hours is None or not command.resumes else 3600 * hours
    status: int | None = None
    try:
        status = subprocess.run(
            command.words(folder), timeout=limit, env=os.environ, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        print(f"{command.name}: stopped after {hours:g} h; goes on at the next call", flush=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 3600
    print(f"{command.name}: status {status}, {used:.3f} h of processor time", flush=True)
    if status in (0, None):
        row = {"command": command.name, "hours": round(used, 4), "ended": status == 0}
        with DONE.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, "date": str(date.today())}) + "\n")


def main() -> None:
    """Run, or estimate, what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    parser.add_argument("--only", nargs="+", help="scripts, such as proactive_dp/tables.py")
    parser.add_argument("--hours", type=float, help="most for each command that resumes")
    args = parser.parse_args()
    done, total, guessed = finished(), 0.0, 0.0
    for command in COMMANDS:
        if args.only and command.script not in args.only:
            continue
        if command.name in done:
            print(f"{command.name}: done, {done[command.name]:.3f} h of processor time")
            total += done[command.name]
        elif args.estimate:
            total += estimate(command, args.data)
            guessed += 0 if command.estimates or command.kept else command.minutes / 60
        else:
            run(command, args.data, args.hours)
    if args.estimate:
        print(
            f"all of these: {total:.0f} h of one core, {guessed:.1f} of them by guess, without "
            "those of which nothing is known"
        )


if __name__ == "__main__":
    main()

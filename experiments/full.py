"""Every experiment at its full size, one after the other, with the processor time of each.

    python experiments/full.py --data ../shared/data --estimate   # what it would take
    python experiments/full.py --data ../shared/data              # runs what is not done, for days
    python experiments/full.py --data ../shared/data --only proactive_dp/tables.py --hours 1

Finished commands are kept, with their processor time, in experiments/full.jsonl and not run again.
Those that resume by themselves are stopped after ``--hours`` and go on at the next call; the others
are run to their end.
"""

from __future__ import annotations

import argparse
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
    """

    script: str
    options: tuple[str, ...] = ("--full",)
    data: str = "--data"
    resumes: bool = False
    estimates: bool = False

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


COMMANDS = (
    Command("proactive_dp/tables.py", (), ""),
    Command("proactive_dp/sizes.py", (), ""),
    paper("logistic_regression"),
    paper("logistic_regression", "--set", "a9a"),
    paper("lenet"),
    paper("alexnet"),
    Command("proactive_dp/utility_graph.py"),
    Command("defaults/run.py"),
    Command("defaults/rehearsals.py", (), resumes=True),
    Command("estimators/run.py"),
    Command("hospital/run.py", (), ""),
    Command("correlated_noise/run.py", ()),
    Command("adaptive_noise/run.py", (), "--data-dir"),
    Command("accuracy/run.py", (), "--data-dir", resumes=True),
    Command("patches/run.py", ("trial",), resumes=True),
    Command("patches/run.py", ("measure",), resumes=True),
    Command("patches/recipe.py", resumes=True),
    Command("general_framework/table3.py", (), "--data-dir", resumes=True),
    Command("general_framework/combinations.py", (), "--data-dir", resumes=True),
    Command("federated/tables.py", resumes=True),
    Command("federated/stragglers.py", data=""),
    Command("gossip/run.py", resumes=True),
)


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
    done = finished()
    for command in COMMANDS:
        if args.only and command.script not in args.only:
            continue
        if command.name in done:
            print(f"{command.name}: done, {done[command.name]:.3f} h of processor time")
        elif not args.estimate:
            run(command, args.data, args.hours)
        elif command.estimates:
            print(f"{command.name}:", flush=True)
            subprocess.run(command.words(args.data, "--estimate"), check=True)
        else:
            print(f"{command.name}: not done; its own text says about how long it takes")


if __name__ == "__main__":
    main()

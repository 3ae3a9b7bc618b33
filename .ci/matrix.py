"""Run the suite under every supported Python on this machine; say which ones are missing.

The rooms that never load torch run everywhere: planning, accounting, values. With ``--all`` each
Python gets torch and runs all quick tests; that downloads gigabytes where there is no CPU build.

``--ends`` takes the oldest Python here with the oldest versions that pyproject.toml allows of what
the numbers come from (torch, transformers, scikit-learn, polars and the like), under the oldest
instruction set, and the newest Python with the newest, each in an environment of its own, and runs
the quick tests of the rooms that they reach. An environment is kept as long as its requirements are
the same: ``--fresh`` asks for newer releases, ``--install`` makes environments for a later run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
ROOMS = ("tests/accounting", "tests/planning", "tests/papers", "tests/data", "tests/exchange")
# Of these, what is about networks or tensors; in the other rooms a test that loads torch fails.
WITH_TORCH = r"^(import|from) (torch|onnx|forethought\.rounds)\b"
ON_TENSORS = (
    ROOT / "tests" / "planning" / "test_defaults.py",
    *(
        path
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if re.search(WITH_TORCH, path.read_text(encoding="utf-8"), re.MULTILINE)
    ),
)
WITHOUT_TORCH = (*ROOMS, *(f"--ignore={path.relative_to(ROOT)}" for path in ON_TENSORS))
# What only the rooms with torch, or their tests, need: much of it would bring torch along.
HEAVY = (
    *("torch", "torchvision", "transformers", "peft", "timm"),
    *("accelerate", "lightning", "datasets"),
    *("onnx", "tensorboard", "mlflow-skinny", "ray"),
)
# What the two ends are of, and the rooms that rest on it.
HELD = (
    *("numpy", "scipy", "torch", "torchvision", "scikit-learn", "polars"),
    *("transformers", "peft", "timm"),
)
# Of what trains, files on torch's optimizers, loops and stored tensors: the rest trains by the
# gradients.
REACHED = (
    *(*ROOMS, "tests/gradients", "tests/rounds", "tests/estimators"),
    *(f"tests/training/test_{name}.py" for name in ("optimizers", "own_loop", "checkpoint")),
)
# The oldest versions have been what they are for long: what hangs on their kernels and signatures.
REACHED_BY_OLDEST = ("tests/gradients", "tests/rounds", "tests/data", "tests/estimators")
UNREACHED = ("playwright", "tensorboard", "mlflow-skinny", "ray")


def interpreter(version: str) -> Path | None:
    """A Python of that version on the path, or one that pyenv keeps."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = shutil.which(f"python{version}")
    for path in (found, *sorted(kept.glob(f"{version}.*/bin/python"), reverse=True)):
        if path is not None:
            code = "import sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return Path(path)
    return None


def requirements(everything: bool) -> list[str]:
    """Of the project and its test group."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["test"]]
    return [
        one
        for one in wanted
        if everything or not one.lower().startswith(HEAVY) or one.startswith("torch-")
    ]


def end(oldest: bool) -> list[str]:
    """Requirements of the oldest or the newest that pyproject.toml allows."""
    found = []
    for one in requirements(True):
        name, least = re.match(r"([\w-]+)(?:>=([\d.]+))?", one).groups()
        if name not in UNREACHED:
            found.append(f"{name}=={least}.*" if oldest and name in HELD else one)
    return found


@dataclass(frozen=True)
class Environment:
    """Something to run tests in: where it is, what it holds, and the tests."""

    name: str
    python: Path
    wanted: list[str]
    tests: tuple[str, ...]
    instructions: str = "own"  # a set of .ci/instruction_sets.py

    def ready(self, fresh: bool) -> bool:
        """Install what is wanted, where it is not there; whether it is then."""
        place = ROOT / "build" / self.name
        inside, made = place / "bin" / "python", place / "installed.txt"
        if not fresh and made.is_file() and made.read_text(encoding="utf-8") == self._said():
            return True
        # Not compiled: of gigabytes the tests import a small part.
        install = [inside, "-m", "pip", "install", "--quiet", "--no-compile"]
        install.append("--disable-pip-version-check")
        done = (
            self._done([self.python, "-m", "venv", "--clear", place])
            and self._done([*install, "--upgrade", "pip>=25.1"])
            and self._done([*install, *self.wanted])
        )
        if done:
            made.write_text(self._said(), encoding="utf-8")
        return done

    def passes(self) -> bool:
        """Whether the tests pass there."""
        inside = ROOT / "build" / self.name / "bin" / "python"
        script = ROOT / ".ci" / "instruction_sets.py"
        if done := self._done([inside, script, self.instructions, "--", *self.tests]):
            print(f"{self.name}: passed", flush=True)
        return done

    def _said(self) -> str:
        return "\n".join(self.wanted)

    def _done(self, command: list[str | Path]) -> bool:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "src"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        words = list(map(str, command))
        if subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode:
            print(f"{self.name}: failed at {' '.join(words)}", flush=True)
            return False
        return True


def ends() -> list[Environment]:
    """The oldest Python and versions, and the newest."""
    here = list(filter(None, map(interpreter, PYTHONS)))
    if not here:
        raise SystemExit(f"none of the Pythons {', '.join(PYTHONS)} is on this machine")
    return [
        Environment("oldest", here[0], end(oldest=True), REACHED_BY_OLDEST, "default"),
        Environment("newest", here[-1], end(oldest=False), REACHED),
    ]


def pythons(everything: bool) -> list[Environment]:
    """With every Python that is here."""
    tests = ("tests",) if everything else WITHOUT_TORCH
    wanted = ["-c", str(ROOT / "constraints.txt"), *requirements(everything)]
    found = []
    for version in PYTHONS:
        python = interpreter(version)
        if python is not None:
            found.append(Environment(f"python{version}", python, wanted, tests))
        else:
            print(f"Python {version}: not on this machine, not tested", flush=True)
    return found


def main() -> int:
    """Exit status 0 when every environment that can be made passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="run the rooms that need torch as well")
    parser.add_argument("--ends", action="store_true", help="oldest and newest versions instead")
    parser.add_argument("--fresh", action="store_true", help="install everything again")
    parser.add_argument("--install", action="store_true", help="install only, and run no test")
    options = parser.parse_args()
    chosen = ends() if options.ends else pythons(options.all)
    good = [one.ready(options.fresh) and (options.install or one.passes()) for one in chosen]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())

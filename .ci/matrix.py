"""Run the suite under every supported Python on this machine; say which ones are missing.

The rooms that never load torch run everywhere: planning, accounting, values. With ``--all`` each
Python gets torch and runs all quick tests; that downloads gigabytes where there is no CPU build.

``--ends`` leaves the Pythons alone and takes the oldest and the newest versions that pyproject.toml
allows of what the numbers come from (torch, transformers, scikit-learn, polars and the like), each
in an environment of its own, and runs the quick tests of the rooms that they reach. An environment
is kept as long as its requirements are the same: ``--fresh`` asks for newer releases.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
ROOMS = ("tests/accounting", "tests/planning", "tests/published", "tests/data", "tests/exchange")
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
# What only the rooms with torch, or their tests, need.
HEAVY = (
    *("torch", "torchvision", "transformers", "peft", "timm"),
    *("onnx", "tensorboard", "mlflow-skinny"),
)
# What the two ends are of, and the rooms that rest on it.
HELD = (
    *("numpy", "scipy", "torch", "torchvision", "scikit-learn", "polars"),
    *("transformers", "peft", "timm"),
)
REACHED = ("tests/gradients", "tests/rounds", "tests/data", "tests/training", "tests/estimators")
UNREACHED = ("playwright", "tensorboard", "mlflow-skinny")
PYTEST = ("-q", "-m", "not slow", "-n", "auto", "--dist", "worksteal", "-p", "no:cacheprovider")


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


def run(name: str, python: Path, wanted: list[str], tests: tuple[str, ...], keep: bool) -> bool:
    """Whether tests pass in an environment with what is wanted; ``keep``: it may be there."""
    place = ROOT / "build" / name
    inside, made = place / "bin" / "python", place / "installed.txt"
    install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    commands = [[inside, "-m", "pytest", *PYTEST, *tests]]
    if not (keep and made.is_file() and made.read_text(encoding="utf-8").split() == wanted):
        commands = [
            [python, "-m", "venv", "--clear", place],
            [*install, "--upgrade", "pip>=25.1"],
            [*install, *wanted],
            *commands,
        ]
    for command in commands:
        if command is commands[-1] and place.is_dir():
            made.write_text("\n".join(map(str, wanted)), encoding="utf-8")
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, check=False)
        if done.returncode:
            print(f"{name}: failed at {' '.join(map(str, command))}", flush=True)
            return False
    print(f"{name}: passed", flush=True)
    return True


def run_ends(fresh: bool) -> bool:
    """Whether the rooms pass with the oldest and with the newest versions."""
    python = next(filter(None, map(interpreter, PYTHONS)), None)
    if python is None:
        print(f"none of the Pythons {', '.join(PYTHONS)} is on this machine", flush=True)
        return False
    passed = [run(n, python, end(n == "oldest"), REACHED, not fresh) for n in ("oldest", "newest")]
    return all(passed)


def main() -> int:
    """Exit status 0 when every Python that is here passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="run the rooms that need torch as well")
    parser.add_argument("--ends", action="store_true", help="oldest and newest versions instead")
    parser.add_argument("--fresh", action="store_true", help="of these, install everything again")
    parser.add_argument("--except", dest="left_out", default="", help="a version to leave out")
    options = parser.parse_args()
    if options.ends:
        return 0 if run_ends(options.fresh) else 1
    good = True
    tests = ("tests",) if options.all else WITHOUT_TORCH
    wanted = ["-c", str(ROOT / "constraints.txt"), *requirements(options.all)]
    for version in PYTHONS:
        if version == options.left_out:
            continue
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not on this machine, not tested", flush=True)
        else:
            good &= run(f"python{version}", python, wanted, tests, keep=False)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

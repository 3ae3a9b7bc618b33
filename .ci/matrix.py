"""Run the suite under every supported Python on this machine; say which ones are missing.

The rooms that never load torch run everywhere: planning, accounting, values. With ``--all`` each
Python gets torch and runs all quick tests; that downloads gigabytes where there is no CPU build.
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
ON_TENSORS = (
    ROOT / "tests" / "planning" / "test_defaults.py",
    *(
        path
        for path in sorted((ROOT / "tests" / "data").glob("test_*.py"))
        if re.search(r"^(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    ),
)
WITHOUT_TORCH = (*ROOMS, *(f"--ignore={path.relative_to(ROOT)}" for path in ON_TENSORS))
# What only the rooms with torch, or their tests, need.
HEAVY = (
    *("torch", "torchvision", "transformers", "peft", "timm"),
    *("onnx", "tensorboard", "mlflow-skinny"),
)
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


def run(version: str, python: Path, everything: bool) -> bool:
    """Whether the suite passes under one Python."""
    place = ROOT / "build" / f"python{version}"
    inside = place / "bin" / "python"
    install = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    limits = ["-c", ROOT / "constraints.txt"]
    tests = ("tests",) if everything else WITHOUT_TORCH
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    for command in (
        [python, "-m", "venv", "--clear", place],
        [*install, "--upgrade", "pip>=25.1"],
        [*install, *limits, *requirements(everything)],
        [inside, "-m", "pytest", *PYTEST, *tests],
    ):
        done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, check=False)
        if done.returncode:
            print(f"Python {version}: failed at {' '.join(map(str, command))}", flush=True)
            return False
    print(f"Python {version}: passed", flush=True)
    return True


def main() -> int:
    """Exit status 0 when every Python that is here passes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="run the rooms that need torch as well")
    parser.add_argument("--except", dest="left_out", default="", help="a version to leave out")
    options = parser.parse_args()
    good = True
    for version in PYTHONS:
        if version == options.left_out:
            continue
        python = interpreter(version)
        if python is None:
            print(f"Python {version}: not on this machine, not tested", flush=True)
        else:
            good &= run(version, python, options.all)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

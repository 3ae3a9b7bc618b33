"""An outsider comments a line out in a private copy: the audit fails, with the right sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forethought as ft
from forethought.values.plan import Plan

SOURCE = Path(ft.__file__).parent

EDITS = {
    "half of the noise": (
        "rounds/randomness.py",
        "add_(noise, alpha=std)",
        "add_(noise, alpha=std / 2)",
        "is not the noise that belongs to its sum",
    ),
    "clipping": (
        "gradients/sums.py",
        "    scaled = norms.total.reciprocal().mul_(clip_norm / _margin(norms.by_parameter))",
        "    scaled = 1e30 + 0 * norms.total",
        "is not the sum of the batch's contributions",
    ),
    "clipping by a tenth": (
        "gradients/sums.py",
        "bound = clip_norm * (1 - CHARGE)",
        "bound = 1.1 * clip_norm * (1 - CHARGE)",
        "Clipping does not hold",
    ),
    "sampling": (
        "rounds/randomness.py",
        "    return uniform_subset(examples, poisson_count(examples, rate, generator), generator)",
        "    return np.arange(examples)",
        "is not what its sampling draws",
    ),
    "the choice of records": (
        "rounds/randomness.py",
        "    return generator.choice(examples, size, replace=False, shuffle=False)",
        "    return np.arange(size)",
        "is not what its sampling draws",
    ),
}


# The audit's self-test, which CI runs, plants faults of the same kinds in this process.
SHOWN = ("clipping by a tenth", "sampling")
OTHERS = [pytest.param(name, marks=pytest.mark.repeated) for name in EDITS if name not in SHOWN]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SHOWN, *OTHERS])
def test_an_edited_copy_fails_its_audit(name: str, tmp_path: Path) -> None:
    file, old, new, sentence = EDITS[name]
    copy = tmp_path / "copy" / "forethought"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    text = (copy / file).read_text(encoding="utf-8")
    assert old in text, f"{file} has changed: edit another line here"
    # Clipping of every path: what is commented out in one function is in the other, too.
    (copy / file).write_text(text.replace(old, new), encoding="utf-8")
    if name == "clipping":
        _unclip(copy / file)
    Plan(ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 500, 1e-5).save(tmp_path / "plan.json")
    command = [sys.executable, "-m", "forethought", "audit", "plan.json", "--quick"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "copy")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("error: refuted: ")
    assert sentence in last


def _unclip(path: Path) -> None:
    """Take the cap of C/‖g‖ out of the general function as well."""
    text = path.read_text(encoding="utf-8")
    start = text.index("\ndef factors(")
    body = text.index("    table, total", start)
    path.write_text(
        text[:body] + "    return torch.ones_like(norms.by_parameter)\n" + text[body:],
        encoding="utf-8",
    )

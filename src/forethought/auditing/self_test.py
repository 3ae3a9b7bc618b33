"""The self-test of audits: whether faults are found that are planted into the running code.

The faults are not in the installed package, but in the repository (``tools/trials/audits.py``):
they break the code that trains, and nobody's training may be one import away from them.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TRIAL = Path(__file__).parents[3] / "tools" / "trials" / "audits.py"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault.

    Args:
        name: of the fault.
        caught: whether the audit refuted the run.
        check: which check did; empty where none.
        checks: all checks that refuted.
        reason: the sentence that a user would read.
        seconds: that the audit took.
    """

    name: str
    caught: bool
    check: str
    checks: tuple[str, ...]
    reason: str
    seconds: float


@dataclass(frozen=True)
class SelfTest:
    """The result of a self-test: every fault, and the sound jobs."""

    faults: tuple[Outcome, ...]
    sound: tuple[Outcome, ...]

    @property
    def passed(self) -> bool:
        """Every fault was caught, and no sound job was refuted."""
        return all(f.caught for f in self.faults) and not any(s.caught for s in self.sound)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "passed": self.passed,
            "faults": [asdict(outcome) for outcome in self.faults],
            "sound": [asdict(outcome) for outcome in self.sound],
        }


def self_test(seed: int | None = None, *, more: bool = True) -> SelfTest:
    """Plant every fault, one after the other, and audit jobs without a fault, too.

    Args:
        seed: of the audits' own choices. more: False: only the faults that the field has met.

    Raises:
        ValueError: the library is installed without its repository.
    """
    if not TRIAL.is_file():
        raise ValueError(
            "the faults that the self-test plants are not installed: they are in the repository "
            "(tools/trials/audits.py); run forethought audit --self-test from a checkout of it"
        )
    spec = importlib.util.spec_from_file_location("forethought_audit_trial", TRIAL)
    assert spec is not None and spec.loader is not None
    trial = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = trial  # where dataclasses look their module up
    spec.loader.exec_module(trial)
    return SelfTest(tuple(trial.outcomes(seed, more=more)), tuple(trial.sound_outcomes(seed)))

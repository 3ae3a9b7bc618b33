"""Modules that have moved stay importable under their old paths for one release.

Importing an old path gives the module at its new place and a :class:`DeprecationWarning` that names
it. The two are one module object, so values made through either are the same.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Old path → new path, both below `forethought`.
MOVED = {
    "accounting.asynchronous": "published.decentralised",
    "accounting.calculators": "published.calculators",
    "accounting.closed_form": "published.closed_form",
    "accounting.clt": "published.clt",
    "accounting.comparison": "published.comparison",
    "accounting.occupancy": "accounting.pld.occupancy",
    "accounting.pairs": "accounting.pld.pairs",
    "accounting.piecewise": "accounting.pld.piecewise",
    "accounting.privacy_loss": "accounting.pld.privacy_loss",
    "accounting.profiles": "accounting.pld.profiles",
    "accounting.renyi_filter": "accounting.renyi.filter",
    "accounting.schedules": "published.adaptive_noise",
    "accounting.selection": "accounting.renyi.selection",
    "attest": "jobs.account",
    "federated.in_process": "holders.in_process",
    "federated.recorded": "holders.recorded",
    "federated.trainer": "holders.trainer",
    "federated.work": "holders.work",
    "federated.workers": "holders.workers",
    "job": "jobs.job",
    "planning.calculator": "published.calculators_exact",
    "planning.noise": "planning.noise_to_signal",
    "planning.perturbing": "utility.perturbing",
    "planning.phases": "planning.phase_plans",
    "planning.rehearsal": "utility.rehearsal",
    "planning.side_by_side": "utility.side_by_side",
    "planning.tuning": "planning.search_plans",
    "planning.utility": "utility.graph",
    "preview": "jobs.plan",
    "report.calculator": "report.calculator_tables",
    "running": "jobs.train",
    "training.clipping": "rounds.clip_norm",
    "training.losses": "rounds.losses",
    "training.noise": "rounds.noise",
    "training.randomness": "rounds.randomness",
    "training.records": "rounds.records",
    "training.rounds": "rounds.private_sum",
    "training.sampling": "rounds.sampling",
    "training.schedules": "training.step_sizes",
    "training.tuning": "training.search",
    "wishes": "jobs.request",
}


class _Forward(Loader):
    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"forethought.{MOVED[old.removeprefix('forethought.')]}"
        # Level 2 is whoever wrote the import: warnings leave the import system's frames out.
        warnings.warn(f"{old} has moved to {new}", DeprecationWarning, stacklevel=2)
        # The import system hands out what is in sys.modules now.
        sys.modules[old] = import_module(new)


class _Moved(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        moved = package == "forethought" and rest in MOVED
        return ModuleSpec(fullname, _Forward()) if moved else None


def install() -> None:
    """Answer for old paths, after every other finder; once."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())

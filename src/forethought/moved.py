"""The modules of 0.2 under their former names: they load as before, with a warning.

The package puts :class:`Former` behind Python's other finders, so that it is asked last.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Former name → name now, both below the package.
MOVED: dict[str, str] = {
    **{name: f"values.{name}" for name in ("checks", "mechanism", "samplings", "serialisation")},
    **{name: f"values.{name}" for name in ("caveats", "signing", "strategies", "use")},
    **dict.fromkeys(("augmentation", "contributions", "local_updates"), "values.contributions"),
    **dict.fromkeys(("assumed", "optimizers"), "values.use"),
    **dict.fromkeys(("plans", "preparation", "privacy"), "values.plan"),
    "caveat_kinds": "values.caveats",
    "planning.courses": "planning.plan_request",
    **{f"planning.{name}": "planning.search" for name in ("pareto", "phase_plans", "search_plans")},
    "published": "papers",
    **dict.fromkeys(("auditing.federated", "auditing.gossip"), "auditing.holders"),
}
MOVED["federated.delay"] = "federated.federation"
MOVED |= dict.fromkeys(
    [f"federated.{one}" for one in ("asynchronous", "rule", "synchronous")], "federated.rules"
)
MOVED |= dict.fromkeys(("gossip.colouring", "gossip.tournament"), "gossip.pairing")
_SECURE = "federated.secure_aggregation"
for _part in ("masks", "ring", "settings", "shamir"):
    MOVED[f"{_SECURE}.{_part}"] = f"{_SECURE}.masking"
for _part in ("aggregator", "messages", "participant", "session"):
    MOVED[f"{_SECURE}.{_part}"] = f"{_SECURE}.protocol"
for _paper in ("adaptive_noise", "calculators", "closed_form", "comparison", "decentralised"):
    MOVED[f"published.{_paper}"] = f"papers.{_paper}"


class Former(MetaPathFinder, Loader):
    """Finds a module under its former name; what it holds is what the module of today holds."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """A specification where ``fullname`` is a former name in this package."""
        package, name = fullname.partition(".")[::2]
        if package != __package__ or name not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=MOVED[name] == "papers")

    def exec_module(self, module: ModuleType) -> None:
        """Fill ``module`` with the names of today's, and warn."""
        now = f"{__package__}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is {now} now", DeprecationWarning, stacklevel=2)
        names = vars(import_module(now)).items()
        vars(module).update((name, value) for name, value in names if not name.startswith("__"))

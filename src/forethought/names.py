"""Names and where they are: public ones, loaded on first use, and modules under former names.

The modules of version 0.2 load under their former names as before, with a warning: the package
appends :class:`Former` to ``sys.meta_path``, so that Python asks it last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def on_first_use(
    scope: Mapping[str, Any], held: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """``__all__``, ``__getattr__`` and ``__dir__`` of a module that loads names on first use.

    tools/options.py writes the same names into the module's stub, for editors and type checkers.

    Args:
        scope: ``globals()`` of the module.
        held: modules, relative to its package, → their names, with spaces between them. The names
            of ``""`` are modules themselves, and so are the modules that have names.
    """
    homes = {name: home for home, names in held.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes and name not in held:
            raise AttributeError(f"module {scope['__name__']!r} has no attribute {name!r}")
        module = homes.get(name, "")
        home = import_module(f".{module or name}", scope["__package__"])
        return getattr(home, name) if module else home

    return sorted(homes), load, lambda: sorted({*scope, *homes})


# Present module → its former names, relative to the package.
_FORMER = {
    "accounting.accountants": "accounting.discrete_gaussian accounting.summed",
    "accounting.adaptive": "accounting.gaussian_filter accounting.profile_selection "
    "training.progress",
    "accounting.attack_bounds": "accounting.attack accounting.attained",
    "accounting.dominating_pair": "accounting.gaussian accounting.limits",
    "accounting.exact": "accounting.calibration accounting.chains accounting.convex_order",
    "accounting.statement": "accounting.about accounting.assumptions accounting.parallel "
    "accounting.releases",
    "accounting.theorems": "accounting.correlated",
    "accounting.tradeoff": "accounting.envelopes",
    "auditing.attack": "auditing.inference",
    "auditing.audit": "auditing.self_test",
    "auditing.holders": "auditing.federated auditing.gossip",
    "data.columns": "data.encoder",
    "data.dataset": "data.labels data.persons",
    "data.files": "data.reading",
    "data.sources": "data.cifar data.idx",
    "exchange.messages": "exchange.codec exchange.frame",
    "exchange.storage": "exchange.ledger",
    "federated.federation": "federated.delay",
    "federated.rules": "federated.asynchronous federated.rule federated.synchronous",
    "federated.secure_aggregation.masking": "federated.secure_aggregation.masks "
    "federated.secure_aggregation.ring federated.secure_aggregation.settings "
    "federated.secure_aggregation.shamir",
    "federated.secure_aggregation.protocol": "federated.secure_aggregation.aggregator "
    "federated.secure_aggregation.messages federated.secure_aggregation.participant "
    "federated.secure_aggregation.session",
    "federated.steps": "federated.server_optimizers",
    "gossip.compression": "gossip.replicas",
    "gossip.events": "gossip.messages",
    "gossip.gossip": "gossip.clipping",
    "gossip.pairing": "gossip.colouring gossip.tournament",
    "gossip.worker": "gossip.count gossip.steps",
    "gradients.batch_mixing": "gradients.mixing",
    "gradients.boundary": "turns gradients.state",
    "gradients.sums": "gradients.terms",
    "holders.cluster": "peers.cluster",
    "holders.driving": "network.client network.driving",
    "holders.flower": "network.flower",
    "holders.fused": "federated.fused",
    "holders.grpc": "network peers.roster peers.sites",
    "holders.links": "peers peers.driving peers.launched peers.links",
    "holders.server": "network.server",
    "holders.simulate": "federated.secure_checkpoint federated.secure_training federated.simulate "
    "gossip.simulate holders.recorded holders.secure_training holders.simulated",
    "holders.simulator": "federated.simulator gossip.machines gossip.simulator holders.times "
    "holders.work simulation simulation.clock simulation.speeds simulation.times",
    "holders.taking_part": "peers.taking_part",
    "holders.trainer": "federated.reporting",
    "jobs.holders": "jobs.federate jobs.gossip",
    "jobs.job": "jobs.request",
    "jobs.members": "jobs.federate_network jobs.gossip_peer",
    "models.networks": "models.activations models.convolutional models.dense models.recurrent "
    "models.wide",
    "papers": "published",
    "papers.adaptive_noise": "published.adaptive_noise",
    "papers.calculators": "published.calculators",
    "papers.closed_form": "published.closed_form",
    "papers.comparison": "published.comparison",
    "papers.decentralised": "published.decentralised",
    "papers.strong_adversary": "accounting.strong_adversary",
    "planning.alternatives": "planning.pareto planning.phase_plans planning.search_plans",
    "planning.holders": "planning.federated planning.gossip",
    "planning.plan_request": "planning.courses",
    "rounds.contributions": "rounds.augmenting rounds.contributors rounds.linear "
    "rounds.local_contributions rounds.losses rounds.statistics rounds.undisturbed",
    "rounds.local_updates": "local local.alone local.enclosure local.joined local.known "
    "local.optimizers local.stacked",
    "rounds.preparation": "preparing preparing.prepare",
    "rounds.private_sum": "rounds.clip_norm rounds.flat rounds.team rounds.together",
    "rounds.randomness": "rounds.correlated_noise rounds.grid rounds.noise rounds.sampling",
    "training.folder": "training.summary",
    "training.optimizers": "training.descent",
    "training.own_loop": "training.deferred training.stated_loss",
    "training.records": "training.fit",
    "training.run": "training.loop",
    "training.search": "training.phases",
    "values.caveats": "caveats caveat_kinds",
    "values.checks": "checks",
    "values.mechanism": "mechanism augmentation contributions local_updates samplings",
    "values.plan": "plans preparation privacy rounds.transcript rounds.grid_step "
    "training.step_sizes",
    "values.serialisation": "serialisation",
    "values.signing": "signing",
    "values.strategies": "strategies",
    "values.use": "use assumed optimizers",
    "web.site": "web.server",
}
# Former name → present name.
MOVED = {former: now for now, names in _FORMER.items() for former in names.split()}
# Former module → former name of an object → its present name.
RENAMED: dict[str, dict[str, str]] = {
    "federated.simulator": {"Simulated": "SimulatedStar", "Simulator": "StarSimulator"},
    "gossip.simulator": {
        "Pace": "GraphTimes", "Simulated": "SimulatedGraph", "Simulator": "GraphSimulator",
    },
    "gossip.simulate": {"SimulatedGossip": "SimulatedRun"},
    "planning.gossip": {"predict": "predict_gossip"},
}  # fmt: skip


class Former(MetaPathFinder, Loader):
    """Finds a module under its former name; its content is that of the present module."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """The module specification if ``fullname`` is a former name in this package; else None."""
        package, name = fullname.partition(".")[::2]
        if package != __package__ or name not in MOVED:
            return None
        packages = "local", "network", "peers", "preparing", "published", "simulation"
        return ModuleSpec(fullname, self, is_package=name in packages)

    def exec_module(self, module: ModuleType) -> None:
        """Fill ``module`` with the names of the present module, and warn."""
        now = f"{__package__}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is {now} now", DeprecationWarning, stacklevel=2)
        names = vars(import_module(now))
        vars(module).update((name, what) for name, what in names.items() if name[:2] != "__")
        former = RENAMED.get(module.__name__.partition(".")[2], {})
        vars(module).update((name, names[renamed]) for name, renamed in former.items())

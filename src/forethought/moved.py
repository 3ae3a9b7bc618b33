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
    **{name: f"values.{name}" for name in ("checks", "mechanism", "serialisation")},
    **{name: f"values.{name}" for name in ("caveats", "signing", "strategies", "use")},
    **dict.fromkeys(
        ("augmentation", "contributions", "local_updates", "samplings"), "values.mechanism"
    ),
    **dict.fromkeys(("assumed", "optimizers"), "values.use"),
    **dict.fromkeys(("plans", "preparation", "privacy"), "values.plan"),
    "caveat_kinds": "values.caveats",
    "planning.courses": "planning.plan_request",
    "gradients.mixing": "gradients.batch_mixing",
    "gradients.terms": "gradients.sums",
    "rounds.transcript": "values.plan",
    "turns": "gradients.boundary",
    "training.descent": "training.optimizers",
    "web.server": "web.site",
    **{
        f"planning.{name}": "planning.alternatives"
        for name in ("pareto", "phase_plans", "search_plans")
    },
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
for _now, _former in {
    "cluster": "peers.cluster",
    "driving": "network.client network.driving",
    "flower": "network.flower",
    "fused": "federated.fused",
    "grpc": "network peers.roster peers.sites",
    "links": "peers peers.driving peers.launched peers.links",
    "secure_training": "federated.reporting federated.secure_checkpoint federated.secure_training",
    "server": "network.server",
    "simulate": "federated.simulate gossip.simulate holders.recorded holders.simulated",
    "simulator": "federated.simulator gossip.machines gossip.simulator holders.times holders.work "
    "simulation simulation.clock simulation.speeds simulation.times",
    "taking_part": "peers.taking_part",
}.items():
    MOVED.update(dict.fromkeys(_former.split(), f"holders.{_now}"))
MOVED.update(dict.fromkeys(("planning.federated", "planning.gossip"), "planning.holders"))
for _now, _former in {
    "exchange.messages": "exchange.codec exchange.frame",
    "federated.steps": "federated.server_optimizers",
    "gossip.compression": "gossip.replicas",
    "gossip.events": "gossip.messages",
    "gossip.gossip": "gossip.clipping",
    "exchange.storage": "exchange.ledger",
    "jobs.job": "jobs.request",
    "jobs.holders": "jobs.federate jobs.gossip",
    "jobs.members": "jobs.federate_network jobs.gossip_peer",
    "rounds.randomness": "rounds.correlated_noise rounds.grid rounds.noise rounds.sampling",
    "rounds.private_sum": "rounds.clip_norm rounds.flat rounds.team rounds.together",
    "rounds.contributions": "rounds.augmenting rounds.contributors rounds.linear "
    "rounds.local_contributions rounds.losses rounds.statistics rounds.undisturbed",
    "gradients.boundary": "gradients.state",
    "rounds.local_updates": "local local.alone local.enclosure local.joined local.known "
    "local.optimizers local.stacked",
    "rounds.preparation": "preparing preparing.prepare",
    "training.run": "training.loop",
    "training.records": "training.fit",
    "training.search": "training.phases",
    "training.own_loop": "training.deferred training.stated_loss",
    "training.folder": "training.summary",
    "accounting.adaptive": "accounting.gaussian_filter accounting.profile_selection "
    "training.progress",
    "accounting.accountants": "accounting.discrete_gaussian accounting.summed",
    "accounting.attack_bounds": "accounting.attack accounting.attained",
    "accounting.dominating_pair": "accounting.gaussian accounting.limits",
    "accounting.exact": "accounting.calibration accounting.chains accounting.convex_order",
    "accounting.statement": "accounting.about accounting.assumptions accounting.parallel "
    "accounting.releases",
    "accounting.theorems": "accounting.correlated",
    "accounting.tradeoff": "accounting.envelopes",
    "papers.strong_adversary": "accounting.strong_adversary",
    "values.plan": "rounds.grid_step training.step_sizes",
    "data.sources": "data.cifar data.idx",
    "data.files": "data.reading",
    "auditing.attack": "auditing.inference",
    "auditing.audit": "auditing.self_test",
    "data.dataset": "data.labels data.persons",
    "data.columns": "data.encoder",
    "models.networks": "models.activations models.convolutional models.dense models.recurrent "
    "models.wide",
}.items():
    MOVED.update(dict.fromkeys(_former.split(), _now))
# Names that are others now, by the module that they were in.
RENAMED: dict[str, dict[str, str]] = {
    "federated.simulator": {"Simulated": "SimulatedStar", "Simulator": "StarSimulator"},
    "gossip.simulator": {
        "Pace": "GraphTimes", "Simulated": "SimulatedGraph", "Simulator": "GraphSimulator",
    },
    "planning.gossip": {"predict": "predict_gossip"},
}  # fmt: skip
for _paper in ("adaptive_noise", "calculators", "closed_form", "comparison", "decentralised"):
    MOVED[f"published.{_paper}"] = f"papers.{_paper}"


class Former(MetaPathFinder, Loader):
    """Finds a module under its former name; what it holds is what the module of today holds."""

    def find_spec(self, fullname: str, *_: Any) -> ModuleSpec | None:
        """A specification where ``fullname`` is a former name in this package."""
        package, name = fullname.partition(".")[::2]
        if package != __package__ or name not in MOVED:
            return None
        packages = "local", "network", "peers", "preparing", "published", "simulation"
        return ModuleSpec(fullname, self, is_package=name in packages)

    def exec_module(self, module: ModuleType) -> None:
        """Fill ``module`` with the names of today's, and warn."""
        now = f"{__package__}.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is {now} now", DeprecationWarning, stacklevel=2)
        names = vars(import_module(now))
        vars(module).update((name, what) for name, what in names.items() if name[:2] != "__")
        former = RENAMED.get(module.__name__.partition(".")[2], {})
        vars(module).update((name, names[renamed]) for name, renamed in former.items())

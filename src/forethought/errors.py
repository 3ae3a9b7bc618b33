"""Every exception and warning of the library; each is loaded from its module on first use.

Errors about an input are of type ``ValueError``. The others stop an operation: an exhausted budget,
a release that was not accounted, processes that disagree (``RuntimeError``), bounds that cross
(``ArithmeticError``), workers that cannot connect (``ConnectionError``), an interruption
(``KeyboardInterrupt``).
"""

from __future__ import annotations

import warnings
from typing import Any

from forethought.names import on_first_use

# Module → its public names.
_HELD = {
    "accounting.adaptive": "BudgetExceededError",
    "accounting.exact": "CertificateError",
    "accounting.statement": "StatementError",
    "data.columns": "SuspiciousDataWarning UndeclaredError",
    "data.files": "DataError",
    "estimators.estimator": "SelectionNotCoveredWarning",
    "exchange.keys": "RosterError",
    "exchange.messages": "DecodeError ForgeryError FrameError",
    "exchange.storage": "JournalError LedgerError LogError",
    "federated.federation": "FederationError",
    "federated.secure_aggregation.masking": "SecureAggregationError",
    "gossip.compression": "PayloadError",
    "gossip.decentralised": "NetworkViewError",
    "gossip.gossip": "GossipError NeighbourError",
    "gossip.graphs": "GraphError",
    "gossip.mixing": "MixingError",
    "gradients.passes": "SlowGradientsWarning",
    "holders.grpc": "ConnectionPolicyError",
    "holders.links": "PeersError",
    "holders.simulator": "HolderError SimulationError",
    "jobs.job": "JobError",
    "ledger.book": "BookError NotAllowedError OverBudgetError",
    "papers.calculators": "CalculatorError",
    "planning.plan_request": "PlanError",
    "report.page": "PrintingError",
    "rounds.private_sum": "RoundError TeamError",
    "training.execution": "Interrupted",
    "training.folder": "CheckpointError RunFolderBusyError",
    "training.own_loop": "DeferredError NoGradientsWarning",
    "training.records": "CoincidingRecordsError MutedWeightsWarning NonFiniteRecordsWarning "
    "NotCentredWarning OtherModelWarning UnreachedWeightsWarning",
    "values.checks": "RunFolderExistsError",
    "values.mechanism": "UnsupportedMechanismError",
    "values.plan": "TranscriptError",
    "values.signing": "SignatureError",
    "web.planner": "SettingError",
}
__all__, _load, __dir__ = on_first_use(globals(), _HELD)


def __getattr__(name: str) -> Any:
    if name == "StoreError":
        warnings.warn(
            "StoreError is no longer raised, since workers need no store: catch PeersError",
            DeprecationWarning,
            stacklevel=2,
        )
        name = "PeersError"
    return _load(name)

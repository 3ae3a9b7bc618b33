"""Every exception and warning of the library; each is loaded from its module on first use.

Errors about an input are of type ``ValueError``. The others stop an operation: an exhausted budget,
a release that was not accounted, processes that disagree (``RuntimeError``), bounds that cross
(``ArithmeticError``), workers that cannot connect (``ConnectionError``), an interruption
(``KeyboardInterrupt``).
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forethought.accounting.adaptive import BudgetExceededError as BudgetExceededError
    from forethought.accounting.exact import CertificateError as CertificateError
    from forethought.accounting.statement import StatementError as StatementError
    from forethought.data.columns import SuspiciousDataWarning as SuspiciousDataWarning
    from forethought.data.columns import UndeclaredError as UndeclaredError
    from forethought.data.files import DataError as DataError
    from forethought.estimators.estimator import (
        SelectionNotCoveredWarning as SelectionNotCoveredWarning,
    )
    from forethought.exchange.keys import RosterError as RosterError
    from forethought.exchange.messages import DecodeError as DecodeError
    from forethought.exchange.messages import ForgeryError as ForgeryError
    from forethought.exchange.messages import FrameError as FrameError
    from forethought.exchange.storage import JournalError as JournalError
    from forethought.exchange.storage import LedgerError as LedgerError
    from forethought.exchange.storage import LogError as LogError
    from forethought.federated.federation import FederationError as FederationError
    from forethought.federated.secure_aggregation.masking import (
        SecureAggregationError as SecureAggregationError,
    )
    from forethought.gossip.compression import PayloadError as PayloadError
    from forethought.gossip.decentralised import NetworkViewError as NetworkViewError
    from forethought.gossip.gossip import GossipError as GossipError
    from forethought.gossip.gossip import NeighbourError as NeighbourError
    from forethought.gossip.graphs import GraphError as GraphError
    from forethought.gossip.mixing import MixingError as MixingError
    from forethought.gradients.passes import SlowGradientsWarning as SlowGradientsWarning
    from forethought.holders.grpc import ConnectionPolicyError as ConnectionPolicyError
    from forethought.holders.links import PeersError as PeersError
    from forethought.holders.simulator import HolderError as HolderError
    from forethought.holders.simulator import SimulationError as SimulationError
    from forethought.jobs.job import JobError as JobError
    from forethought.ledger.book import BookError as BookError
    from forethought.ledger.book import NotAllowedError as NotAllowedError
    from forethought.ledger.book import OverBudgetError as OverBudgetError
    from forethought.papers.calculators import CalculatorError as CalculatorError
    from forethought.planning.plan_request import PlanError as PlanError
    from forethought.report.page import PrintingError as PrintingError
    from forethought.rounds.private_sum import RoundError as RoundError
    from forethought.rounds.private_sum import TeamError as TeamError
    from forethought.training.execution import Interrupted as Interrupted
    from forethought.training.folder import CheckpointError as CheckpointError
    from forethought.training.folder import RunFolderBusyError as RunFolderBusyError
    from forethought.training.folder import RunFolderExistsError as RunFolderExistsError
    from forethought.training.own_loop import DeferredError as DeferredError
    from forethought.training.own_loop import NoGradientsWarning as NoGradientsWarning
    from forethought.training.records import CoincidingRecordsError as CoincidingRecordsError
    from forethought.training.records import MutedWeightsWarning as MutedWeightsWarning
    from forethought.training.records import NonFiniteRecordsWarning as NonFiniteRecordsWarning
    from forethought.training.records import NotCentredWarning as NotCentredWarning
    from forethought.training.records import OtherModelWarning as OtherModelWarning
    from forethought.training.records import UnreachedWeightsWarning as UnreachedWeightsWarning
    from forethought.values.mechanism import UnsupportedMechanismError as UnsupportedMechanismError
    from forethought.values.plan import TranscriptError as TranscriptError
    from forethought.values.signing import SignatureError as SignatureError
    from forethought.web.planner import SettingError as SettingError

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
    "training.folder": "CheckpointError RunFolderBusyError RunFolderExistsError",
    "training.own_loop": "DeferredError NoGradientsWarning",
    "training.records": "CoincidingRecordsError MutedWeightsWarning NonFiniteRecordsWarning "
    "NotCentredWarning OtherModelWarning UnreachedWeightsWarning",
    "values.mechanism": "UnsupportedMechanismError",
    "values.plan": "TranscriptError",
    "values.signing": "SignatureError",
    "web.planner": "SettingError",
}
_HOME = {name: module for module, held in _HELD.items() for name in held.split()}

__all__ = sorted(_HOME)  # noqa: PLE0605 (a list of strings)


def __getattr__(name: str) -> Any:
    if name == "StoreError":
        warnings.warn(
            "StoreError is no longer raised, since workers need no store: catch PeersError",
            DeprecationWarning,
            stacklevel=2,
        )
        name = "PeersError"
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"forethought.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)

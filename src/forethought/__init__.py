"""Private training you plan before you run: plan → train → account.

The package lists the public names. They are loaded on first use, so that ``import forethought`` and
the accounting are fast and do not import torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from forethought.moved import Former

# With this setting MKL's products of odd widths have the same bits wherever a row begins in memory,
# at no cost. MKL reads it at torch's first product; gradients/clipped.py checks that it did.
os.environ.setdefault("MKL_CBWR", "AUTO")

__version__ = "0.2.0"

if not any(isinstance(finder, Former) for finder in sys.meta_path):
    sys.meta_path.append(Former())

if TYPE_CHECKING:
    from forethought import accounting as accounting
    from forethought import convex as convex
    from forethought import data as data
    from forethought import errors as errors
    from forethought import estimators as estimators
    from forethought import gradients as gradients
    from forethought import statistics as statistics
    from forethought.accounting.adaptive import NegativeBinomialTrials as NegativeBinomialTrials
    from forethought.accounting.adaptive import PoissonTrials as PoissonTrials
    from forethought.accounting.exact import calibrate as calibrate
    from forethought.accounting.exact import delta as delta
    from forethought.accounting.exact import epsilon as epsilon
    from forethought.accounting.exact import noise_multiplier as noise_multiplier
    from forethought.accounting.interval import Interval as Interval
    from forethought.accounting.statement import About as About
    from forethought.accounting.statement import Statement as Statement
    from forethought.accounting.statement import account as account
    from forethought.accounting.tradeoff import TradeOff as TradeOff
    from forethought.accounting.tradeoff import tradeoff as tradeoff
    from forethought.auditing.audit import audit as audit
    from forethought.auditing.verdict import Audit as Audit
    from forethought.federated.federation import Federation as Federation
    from forethought.federated.federation import Member as Member
    from forethought.federated.statements import Policy as Policy
    from forethought.holders.simulate import simulate as simulate
    from forethought.jobs.predict import Predictor as Predictor
    from forethought.jobs.predict import load as load
    from forethought.ledger.paid_run import Ledger as Ledger
    from forethought.planning.alternatives import Front as Front
    from forethought.planning.alternatives import pareto as pareto
    from forethought.planning.alternatives import plan_phases as plan_phases
    from forethought.planning.alternatives import plan_tuning as plan_tuning
    from forethought.planning.plan_request import PlanRequest as PlanRequest
    from forethought.planning.solve import plan as plan
    from forethought.rounds.preparation import Prepared as Prepared
    from forethought.rounds.preparation import prepare as prepare
    from forethought.rounds.randomness import Seeds as Seeds
    from forethought.training.cost import Cost as Cost
    from forethought.training.cost import cost as cost
    from forethought.training.execution import Execution as Execution
    from forethought.training.own_loop import private as private
    from forethought.training.run import Run as Run
    from forethought.training.run import train as train
    from forethought.training.search import PhasedRun as PhasedRun
    from forethought.training.search import Tuned as Tuned
    from forethought.training.search import train_until as train_until
    from forethought.training.search import tune as tune
    from forethought.training.trainers import private_trainer as private_trainer
    from forethought.utility.graph import UtilityGraph as UtilityGraph
    from forethought.utility.perturbing import utility_graph as utility_graph
    from forethought.utility.rehearsal import Rehearsal as Rehearsal
    from forethought.utility.rehearsal import rehearse as rehearse
    from forethought.values.mechanism import Augmentation as Augmentation
    from forethought.values.mechanism import Budget as Budget
    from forethought.values.mechanism import Correlated as Correlated
    from forethought.values.mechanism import CyclicPoisson as CyclicPoisson
    from forethought.values.mechanism import FullBatch as FullBatch
    from forethought.values.mechanism import Local as Local
    from forethought.values.mechanism import Mechanism as Mechanism
    from forethought.values.mechanism import Poisson as Poisson
    from forethought.values.mechanism import RandomAllocation as RandomAllocation
    from forethought.values.mechanism import Rounds as Rounds
    from forethought.values.mechanism import Shuffled as Shuffled
    from forethought.values.mechanism import UnsupportedMechanismError as UnsupportedMechanismError
    from forethought.values.mechanism import WithoutReplacement as WithoutReplacement
    from forethought.values.plan import Clip as Clip
    from forethought.values.plan import Plan as Plan
    from forethought.values.plan import Preparation as Preparation
    from forethought.values.strategies import Banded as Banded
    from forethought.values.strategies import BufferedToeplitz as BufferedToeplitz
    from forethought.values.use import Averaging as Averaging
    from forethought.values.use import GradientFilter as GradientFilter
    from forethought.values.use import Optimizer as Optimizer
    from forethought.values.use import Schedule as Schedule

# Module → its public names.
_HELD = {
    "accounting.adaptive": "NegativeBinomialTrials PoissonTrials",
    "accounting.exact": "calibrate delta epsilon noise_multiplier",
    "accounting.interval": "Interval",
    "accounting.statement": "About Statement account",
    "accounting.tradeoff": "TradeOff tradeoff",
    "auditing.audit": "audit",
    "auditing.verdict": "Audit",
    "federated.federation": "Federation Member",
    "federated.statements": "Policy",
    "holders.simulate": "simulate",
    "jobs.predict": "Predictor load",
    "ledger.paid_run": "Ledger",
    "planning.alternatives": "Front pareto plan_phases plan_tuning",
    "planning.plan_request": "PlanRequest",
    "planning.solve": "plan",
    "rounds.preparation": "Prepared prepare",
    "rounds.randomness": "Seeds",
    "training.cost": "Cost cost",
    "training.execution": "Execution",
    "training.own_loop": "private",
    "training.run": "Run train",
    "training.search": "PhasedRun Tuned train_until tune",
    "training.trainers": "private_trainer",
    "utility.graph": "UtilityGraph",
    "utility.perturbing": "utility_graph",
    "utility.rehearsal": "Rehearsal rehearse",
    "values.mechanism": "Augmentation Budget Correlated CyclicPoisson FullBatch Local Mechanism "
    "Poisson RandomAllocation Rounds Shuffled UnsupportedMechanismError WithoutReplacement",
    "values.plan": "Clip Plan Preparation",
    "values.strategies": "Banded BufferedToeplitz",
    "values.use": "Averaging GradientFilter Optimizer Schedule",
}
_HOME = {name: module for module, held in _HELD.items() for name in held.split()}

# Subpackages and modules that are public under their own names.
_ROOMS = ("accounting", "convex", "data", "errors", "estimators", "gradients", "statistics")

__all__ = ["__version__", *_ROOMS, *sorted(_HOME)]  # noqa: PLE0604 (all strings)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"forethought.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'forethought' has no attribute {name!r}")
    return getattr(import_module(f"forethought.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

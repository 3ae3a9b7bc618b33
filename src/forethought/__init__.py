"""Private training you plan before you run: plan → train → account.

The package lists the public names. They are loaded on first use, so that ``import forethought`` and
the accounting are fast and do not import torch.
"""

import os
import sys

from forethought.names import Former, on_first_use

# With this setting MKL's products of odd widths have the same bits wherever a row begins in memory,
# at no cost. MKL reads it at torch's first product; gradients/clipped.py checks that it did.
os.environ.setdefault("MKL_CBWR", "AUTO")

__version__ = "0.2.0"

if not any(isinstance(finder, Former) for finder in sys.meta_path):
    sys.meta_path.append(Former())

# Module → its public names; those of "" are rooms, public under their own names.
_HELD = {
    "": "accounting convex data errors estimators gradients statistics",
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
__all__, __getattr__, __dir__ = on_first_use(globals(), _HELD)
__all__.append("__version__")

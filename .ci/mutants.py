"""Change one line at a time that soundness hangs on, and see a test die.

python .ci/mutants.py              # every mutant
python .ci/mutants.py radius       # those whose name contains a word
python .ci/mutants.py --tested     # the tests are known to pass as they are: only the mutants

Radii, directions and charges of the accountant; what statements and signatures rest on. A mutant
that survives, or a line that is no longer there, fails the run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ACCOUNTING = "forethought/accounting/"
PLD = ACCOUNTING + "pld/"
TESTS = "tests/accounting/"
FUZZ = [TESTS + "test_fuzz.py", "-k", "few_random"]
SEARCH = [TESTS + "pld/test_search.py"]
LINE = [TESTS + "pld/test_integral.py"]
TRANSFORM = [TESTS + "pld/test_transform.py"]
OFF_THE_LINE = [TESTS + "pld/test_transform.py", "-k", "above_the_line"]
HALF_LINES = [TESTS + "pld/test_told.py", "-k", "half_lines"]
HITS = [TESTS + "pld/test_hits.py"]
CURVES = [TESTS + "pld/test_privacy_loss.py", "-k", "curves"]
FILTER = [TESTS + "test_gaussian_filter.py"]
LIMITS = [TESTS + "test_limits.py"]
COMPARISON = ["tests/published/test_comparison.py"]
VERIFY = [TESTS + "test_verification.py", "-k", "not every_edit"]
KNOWN = [TESTS + "test_accountants.py"]
RELEASES = [TESTS + "test_releases.py"]
SIGNING = ["tests/test_signing.py"]
ALLOCATION = [
    TESTS + "pld/test_allocation.py",
    *("-k", "two_rounds or mean_one or one_used or clipping"),
]
TURNS = [TESTS + "test_exact.py", "-k", "turns"]
TOLD = [TESTS + "pld/test_told.py", "-k", "not two_rounds and not replace"]
CHAINS = [TESTS + "pld/test_allocation.py", "-k", "change_by_change"]
BEST = [TESTS + "test_profile_selection.py", "-k", "laws"]
REACH = ["tests/test_mechanism.py", "-k", "move_at_most"]
CORRELATED = [TESTS + "test_correlated.py"]
CORRELATED_NOISE = ["tests/rounds/test_correlated_noise.py"]
FEDERATED = "forethought/federated/"
OWN = "forethought/training/"
SECURE = ["tests/federated/secure_aggregation"]
PERSON_PLANS = ["tests/planning/test_persons.py", "-k", "budget or less_noise"]
PERSON_ROWS = [
    "tests/training/test_persons.py",
    *("-k", "no_more_than_may_be or mean_loss or go_together"),
]
IMAGE_PLANS = ["tests/planning/test_image_features.py"]
PAGE = ["tests/web/test_server.py", "-k", "nobody_else"]
CLIENT = ["tests/federated/test_client.py"]
SERVER = ["tests/federated/test_server.py"]
TOGETHER = ["tests/rounds/test_together.py"]
SUMMED = [TESTS + "test_summed.py"]
DISCRETE = [TESTS + "test_discrete_gaussian.py"]
VIEWS = ["tests/federated/test_statements.py"]
GOSSIP = "forethought/gossip/"
GOSSIP_VIEWS = ["tests/gossip/test_statements.py"]
WORKER = ["tests/gossip/test_asynchronous.py", "-k", "plan_has or set_back"]
GOSSIP_POINT = ["tests/gossip/test_asynchronous.py", "-k", "point"]
DISTANT = ["tests/gossip/test_decentralised.py", "-k", "exponential or independent"]
MIXING = ["tests/gossip/test_mixing.py", "-k", "one_line or broken"]
ESTIMATORS = "forethought/estimators/"
DECLARED = ["tests/estimators/test_declared.py"]
CALLERS = ["tests/estimators/test_callers.py", "-k", "says_so or named"]
OWN_LOOP = ["tests/training/test_own_loop.py", "-k", "changed or accumulated or needs or read"]
LOCAL = ["tests/rounds/test_local_contributions.py", "-k", "state or statistics or order or norms"]
PREPARED = ["tests/preparing", "-k", "longer or states"]
CENTRED = ["tests/training/test_centring.py", "-k", "norms_noise or norm_has"]
STORING = ["tests/estimators/test_storing.py", "-k", "counts"]
DESCENT = ["tests/convex/test_descent.py", "-k", "general_way or moves or budgets or without_noise"]
PROBLEMS = ["tests/convex/test_problems.py", "-k", "slopes"]
HORIZON = ["tests/convex/test_schedules.py", "-k", "last_that_fits"]
STEERED = ["tests/convex/test_steered.py"]
EXCHANGE = "forethought/exchange/"
FRAME, LOG = ["tests/exchange/test_frame.py"], ["tests/exchange/test_log.py"]
LEDGER = ["tests/exchange/test_ledger.py"]
COPIES = ["tests/rounds/test_augmenting.py"]
FILTERS = ["tests/training/test_filters.py", "-k", "left or best or ahead"]
DRIVING = ["tests/network/test_driving.py"]


# Seconds; many times what the slowest of these suites takes.
PATIENCE = 200
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]


@dataclass(frozen=True)
class Mutant:
    """One line of the source, what it is changed to, and the tests that must notice."""

    name: str
    file: str
    line: str
    changed: str
    tests: list[str]


MUTANTS = [
    Mutant("local updates: one that is not clipped", "forethought/rounds/local_contributions.py",
           '{"": whole[0]}, chosen.clip_norm,', '{"": whole[0]}, 9.0 * chosen.clip_norm,', LOCAL),
    Mutant("local updates: one that is not clipped by layer",
           "forethought/rounds/local_contributions.py",
           "clip_and_sum(terms, kinds, chosen.clip_norm,",
           "clip_and_sum(terms, kinds, 9.0 * chosen.clip_norm,", LOCAL),
    Mutant("local updates: weights that a group leaves behind", "forethought/local/enclosure.py",
           "parameter.data.copy_(self.start[name])\n            self._surroundings",
           "self._surroundings", LOCAL),
    Mutant("local updates: weights of the group before", "forethought/local/alone.py",
           "            weight.copy_(value)", "            pass",
           ["tests/rounds/test_local_contributions.py", "-k", "torch_optim"]),
    Mutant("local updates: what a group remembers", "forethought/local/enclosure.py",
           "self._surroundings.restore()", "pass", LOCAL),
    Mutant("local updates: batches in the order they were drawn",
           "forethought/rounds/local_contributions.py",
           "np.sort(batch.indices[batch.member_of == g])",
           "batch.indices[batch.member_of == g]", LOCAL),
    Mutant("copies: each a contribution", "forethought/rounds/contributions.py",
           "copies=copies,", "copies=1,", COPIES),
    Mutant("copies: by the number of another record", "forethought/rounds/augmenting.py",
           "state = draws[:, None] + steps", "state = draws[::-1, None] + steps", COPIES),
    Mutant("copies: another record's pixels", "forethought/rounds/augmenting.py",
           "images.movedim(1, -1)[which[", "images.movedim(1, -1)[which.flip(0)[", COPIES),
    Mutant("copies: see each other", "forethought/gradients/batch.py",
           "return self.members is not None and not self.copies",
           "return self.members is not None", COPIES),
    Mutant("copies: of a share by the whole batch's numbers", "forethought/rounds/contributions.py",
           "None if draws is None else draws[every]", "None if draws is None else draws", COPIES),
    Mutant("adam-bc: the noise stays in", OWN + "adam_bc.py",
           'without = (state["square"] - state["noise"]) / settled',
           'without = state["square"] / settled', ["tests/training/test_adam_bc.py"]),
    Mutant("adam-bc: another round's noise", OWN + "descent.py",
           "sum(one.round.noise_std**2 for one in sums) / whole**2",
           "sum(one.round.noise_std**2 for one in sums) / whole",
           ["tests/training/test_adam_bc.py", "-k", "nothing"]),
    Mutant("filters: noise that is left", OWN + "filters.py",
           "self._left + gain**2 * variance", "self._left + gain * variance", FILTERS),
    Mutant("filters: weights that stay ahead", OWN + "descent.py",
           "parameter.copy_(here[name])", "pass", FILTERS),
    Mutant("preparation: histograms longer than declared", "forethought/preparing/vectors.py",
           ".double().mean(2) for at", ".double().sum(2) for at", PREPARED),
    Mutant("preparation: norms longer than declared", "forethought/preparing/vectors.py",
           "left.log().clamp(-limit, limit)", "left.log()", PREPARED),
    Mutant("preparation: norms with the noise of the means", "forethought/preparing/prepare.py",
           "asked.sigma(statistic), 1", "asked.noise_multiplier or 0.0, 1", CENTRED),
    Mutant("preparation: norms at no cost", "forethought/preparation.py",
           "(self.sigma(name) for name in self.statistics)",
           "(self.sigma(name) for name in self.statistics[:1])", CENTRED),
    Mutant("preparation: in no transcript", "forethought/preparing/paid.py",
           "whole.extend(prepared.transcript)", "pass", PREPARED),
    Mutant(
        "radius of a group's half lines",
        PLD + "pairs.py",
        "and by_itself else 2.0",
        "and by_itself else 1.0",
        HALF_LINES,
    ),
    Mutant(
        "radius of group clipping and of sampling without replacement",
        "forethought/mechanism.py",
        "or rounds.sampling.exchanges:\n        return 2.0",
        "or rounds.sampling.exchanges:\n        return 1.0",
        FUZZ,
    ),
    Mutant(
        "radius of the Gaussian that caps every cell",
        PLD + "pairs.py",
        "shift = reach(rounds, mechanism.adjacency, most) / rounds.noise_multiplier",
        "shift = reach(rounds, mechanism.adjacency, 1) / rounds.noise_multiplier",
        LIMITS,
    ),
    Mutant("groups: those of one round for a whole epoch", "forethought/mechanism.py",
           "places = min(epoch_length(rounds.sampling), rounds.count)", "places = 1", REACH),
    Mutant("groups: records that are left over", "forethought/mechanism.py",
           "full * rounds.groups**2 + rest**2", "full * rounds.groups**2", REACH),
    Mutant("groups: any number of them", "forethought/privacy.py",
           "if part.groups not in (None, count):", "if False:",
           ["tests/test_plans.py", "-k", "same_groups"]),
    Mutant("groups: of all parts, with known batches", ACCOUNTING + "accountants.py",
           "part.groups * epoch_length(part.sampling)", "part.groups",
           [TESTS + "test_exact.py", "-k", "several_parts"]),
    Mutant("groups: of all parts, with correlated noise", ACCOUNTING + "correlated.py",
           "rounds.groups * separation", "rounds.groups", CORRELATED),
    Mutant("selection: a trial's own share", ACCOUNTING + "profile_selection.py",
           "curve.epsilon(delta / trials.mean * (1 - _ROUNDING))",
           "curve.epsilon(delta * (1 - _ROUNDING))", BEST),
    Mutant("selection: losses near the top", ACCOUNTING + "profile_selection.py",
           "np.maximum(near, far)", "far", BEST),
    Mutant("selection: the shape of the number", ACCOUNTING + "profile_selection.py",
           "(trials.shape + 1) * ", "1.0 * ", BEST),
    Mutant("chains: what is lost on the way", ACCOUNTING + "chains.py",
           "return (steps - 1) * level + math.log", "return math.log", CHAINS),
    Mutant("chains: an exchange is one change", ACCOUNTING + "chains.py",
           "2 * group", "group", CHAINS),
    Mutant("told hits: the place that another record takes", PLD + "told.py",
           "hit, 2 * r if told.blanked else r, r if", "hit, r, 0.0 if", TOLD),
    Mutant("told hits: only one side", PLD + "told.py",
           "in ((ahead, 1.0), (behind, -1.0)):", "in ((ahead, 1.0),):", TOLD),
    Mutant("told hits: radius of what is blanked", PLD + "pairs.py",
           "(shift / 2 if blanked else shift, weight)", "(shift / 2, weight)", TOLD),
    Mutant("told hits: cells that are not spread", PLD + "told.py",
           "right = np.expm1(rise) / np.expm1(gap)", "right = 0.0 * rise", TOLD),
    Mutant("cap: replaced records stay in place", PLD + "pairs.py",
           'placed = mechanism.adjacency != "add-or-remove" and', "placed =", LIMITS),
    Mutant("epochs: begun ones with known batches", ACCOUNTING + "accountants.py",
           "return replace(part, count=releases(part) * part.sampling.rounds_per_epoch)",
           "return part", TOLD),
    Mutant("epochs: a cut inside one", "forethought/mechanism.py",
           "if part.count > taken and taken % epoch_length(part.sampling):", "if False:",
           ["tests/test_mechanism.py", "-k", "inside"]),
    Mutant(
        "direction: the reverse one is never looked at",
        ACCOUNTING + "exact.py",
        "one_sided = not all(pair.two_sided for pair in counts)",
        "one_sided = False",
        SEARCH,
    ),
    Mutant(
        "direction: the reverse one is skipped too easily",
        ACCOUNTING + "exact.py",
        "if largest > (searches[0].lower if epsilon is None else epsilon):",
        "if largest > 1e9:",
        SEARCH,
    ),
    Mutant(
        "direction: seen in a mirror the wrong way round",
        PLD + "transform.py",
        "(left, right) if swapped and not first.two_sided else (right, left)",
        "(right, left)",
        SEARCH,
    ),
    Mutant("direction: the reverse one called the lesser too easily", PLD + "contour.py",
           "value = moment + log_peak(tilt) - tilt * at + self.shift",
           "value = moment + log_peak(tilt) - tilt * at - 30.0", SEARCH),
    Mutant("charge: smoothing from above", PLD + "integral.py",
           "above = common * np.exp(tau * tau * s / 2)", "above = common", LINE),
    Mutant("charge: smoothing from below", PLD + "integral.py",
           "below = common * (1 - s * _expm1(tau * tau * (s + 0.5)))", "below = common", LINE),
    Mutant("charge: a transform that is off", PLD + "integral.py",
           "wrong = grown + size * (EPS * units)", "wrong = size * (EPS * units)", LINE),
    Mutant("charge: the end of the line, above", PLD + "integral.py",
           "float((np.abs(above) * wrong).sum()) + tail * peak,",
           "float((np.abs(above) * wrong).sum()),", LINE),
    Mutant("charge: the end of the line, below", PLD + "integral.py",
           "float((np.abs(below) * wrong).sum()) + tail_below * peak,",
           "float((np.abs(below) * wrong).sum()),", LINE),
    Mutant("charge: what wraps around from the left", PLD + "integral.py",
           "aliased = math.exp(min(left - math.log(-math.expm1(left)) - scale, 700.0))",
           "aliased = 0.0", LINE),
    Mutant("charge: what wraps around from the right", PLD + "integral.py",
           "aliased += math.exp(min(right - scale, 700.0))", "aliased += 0.0", LINE),
    Mutant("charge: quadrature", PLD + "transform.py",
           "quadrature = 2 * float(np.exp(found.log_errors).sum())", "quadrature = 0.0", TRANSFORM),
    Mutant("charge: quadrature of the moment beyond", PLD + "quadrature.py",
           "size = np.where(analytic, size + demand.frequency * turn, np.inf)",
           "size = np.where(analytic, size - 40, np.inf)", TRANSFORM),
    Mutant("charge: rounding of the transform", PLD + "points.py",
           "return np.asarray(EPS * (6 * turned + (frequency + abs(self.tilt)) * slips + still))",
           "return np.zeros_like(turned)",
           TRANSFORM),
    Mutant("charge: the posterior's spread", PLD + "transform.py",
           "spread = largest**2 / 4", "spread = largest**2 / 40", TRANSFORM),
    Mutant("charge: weights in doubt", PLD + "contour.py",
           "self.shift = math.fsum(2 * n * p.doubt for p, n in parts.items())", "self.shift = 0.0",
           SEARCH),
    Mutant("charge: rounding of weights", PLD + "hits.py",
           "doubt = EPS * (6.0 * max(above.size, below.size) + weights.size + 8)", "doubt = 0.0",
           HITS),
    Mutant("charge: weights left out", PLD + "hits.py",
           "return Hits(first + start, weights, doubt, 1e-270 if cut else 0.0)",
           "return Hits(first + start, weights, doubt, 0.0)", HITS),
    Mutant("charge: mass of no component", PLD + "contour.py",
           "above = self.lost + self.cut_off", "above = self.cut_off", SEARCH),
    Mutant("charge: losses cut off", PLD + "contour.py",
           "above = self.lost + self.cut_off", "above = self.lost", SEARCH),
    Mutant("charge: what the disclosed losses cost", PLD + "charges.py",
           "gain -= math.exp(min(epsilon + shift, 700.0)) * undisclosed", "gain -= 0.0",
           SEARCH),
    Mutant("charge: Q's mass of no component", PLD + "charges.py",
           "if lower > -math.inf and lost_below > 0:", "if False:", SEARCH),
    Mutant("charge: mass cut off the transform", PLD + "transform.py",
           "composed(gap[:, :count] - lost, error", "composed(gap[:, :count], error", TRANSFORM),
    Mutant("curve: losses below 0 of the same direction", PLD + "privacy_loss.py",
           "value = 1 - alpha * (1 - self._behind.bounds(-epsilon)[self._above])",
           "value = 1 - alpha * (1 - self._ahead.bounds(-epsilon)[self._above])", CURVES),
    Mutant("curve: an upper bound carried to the left", PLD + "privacy_loss.py",
           'before = int(np.searchsorted(self._knots, epsilon, side="right")) - 1',
           'before = int(np.searchsorted(self._knots, epsilon, side="right"))', CURVES),
    Mutant("curve: a lower bound carried to the right", PLD + "privacy_loss.py",
           'after = int(np.searchsorted(self._knots, epsilon, side="left"))',
           'after = int(np.searchsorted(self._knots, epsilon, side="left")) - 1', CURVES),
    Mutant("curve: the other direction left out", ACCOUNTING + "exact.py",
           "swapped=swapped,\n                accuracy",
           "swapped=False,\n                accuracy", CURVES),
    Mutant("charge: what a transform regains between frequencies", PLD + "transform.py",
           "error = error + slack[rows, None]", "error = error + 0.0", TRANSFORM),
    Mutant("charge: how fast a transform changes", PLD + "transform.py",
           "return np.asarray(np.sqrt((moment + error[0]) * square) * (1 + 1e-9))",
           "return np.asarray(0.3 * np.sqrt((moment + error[0]) * square))", TRANSFORM),
    Mutant("charge: the variance of a shared base", PLD + "quadrature.py",
           "height * height / (2 * variance)", "height * height / 2", OFF_THE_LINE),
    Mutant("filter: an order that may spend too much", ACCOUNTING + "renyi/filter.py",
           "optimal = binary_moment(order, epsilon, delta) / (order - 1) / LIFT",
           "optimal = 1.02 * binary_moment(order, epsilon, delta) / (order - 1)",
           [TESTS + "renyi/test_filter.py"]),
    Mutant("filter: half of what a round costs", ACCOUNTING + "gaussian_filter.py",
           "return 2 * zcdp(rounds) * _ROUNDING", "return zcdp(rounds)", FILTER),
    Mutant("filter: charged although it does not fit", ACCOUNTING + "gaussian_filter.py",
           "        if not total <= self._limit:\n", "        if False:\n", FILTER),
    Mutant("filter: charged for other rounds than the stated", ACCOUNTING + "adaptive.py",
           "if len(charged) != len(spent) or not np.allclose(charged, spent, rtol=_SAME, atol=0):",
           "if len(charged) != len(spent):", FILTER),
    Mutant("crossing: the side on which the bound does not hold", PLD + "search.py",
           "return high if upper else low", "return low if upper else high", SEARCH),
    Mutant("crossing: clipped instead of reported", ACCOUNTING + "exact.py",
           "if found.lower > found.upper:", "if False:", SEARCH),
    Mutant("strong adversary: distance without replacement",
           ACCOUNTING + "strong_adversary.py",
           'distance = 2.0 if exchanged or adjacency == "replace-one" else 1.0', "distance = 1.0",
           COMPARISON),
    Mutant("statement: an ε that is too small", ACCOUNTING + "verification.py",
           "if claimed.upper < now.upper and claimed.upper < _finest(case):", "if False:", VERIFY),
    Mutant("statement: attacks that promise too much", ACCOUNTING + "verification.py",
           "if stated < true - distance or (", "if (", VERIFY),
    Mutant("statement: what it must say left out", ACCOUNTING + "verification.py",
           "    if missing:\n", "    if False:\n", VERIFY),
    Mutant("statement: another plan beside it", ACCOUNTING + "verification.py",
           "if s.plan != plan_digest(", "if s.plan == plan_digest(", VERIFY),
    Mutant("statement: entries that do not follow", ACCOUNTING + "statement.py",
           "if value != found[name] or", "if", VERIFY),
    Mutant("statement: seeded noise not mentioned", ACCOUNTING + "assumptions.py",
           'found.append(Caveat("seeded-noise"))', "pass", VERIFY),
    Mutant("statement: known batches amplified all the same", ACCOUNTING + "accountants.py",
           "return Rounds(noise, releases(part), FullBatch()",
           "return part or Rounds(noise, 1, FullBatch()", KNOWN),
    Mutant("statement: presence promised with known batches", ACCOUNTING + "accountants.py",
           '"zero-out" if mechanism.adjacency == "add-or-remove" else mechanism.adjacency',
           "mechanism.adjacency", KNOWN),
    Mutant("statement: noise of several releases", ACCOUNTING + "releases.py",
           "return 0.0 if min(values) == 0 else 1 / math.sqrt(math.fsum(sigma**-2 for "
           "sigma in values))", "return min(values)", RELEASES),
    Mutant("signature: of any content", "forethought/signing.py",
           "return _CONTEXT + canonical(content).encode()", "return _CONTEXT", SIGNING),
    Mutant("signature: by any key", "forethought/signing.py",
           "if key is not None and _public_key(key)", "if False and _public_key(key)", SIGNING),
    Mutant("secure aggregation: colluders hide their noise too", ACCOUNTING + "summed.py",
           'neither drop out nor collude", clients - dropouts - colluders)',
           'neither drop out nor collude", clients - dropouts)', SUMMED),
    Mutant("secure aggregation: noise of drop-outs", FEDERATED + "secure_aggregation/settings.py",
           "return self.clients - self.dropouts - self.colluders",
           "return self.clients - self.colluders", SECURE),
    Mutant("secure aggregation: two sums opened", FEDERATED + "secure_aggregation/settings.py",
           "if 2 * self.threshold <= self.clients + self.colluders:",
           "if self.threshold <= self.colluders:", SECURE),
    Mutant("secure aggregation: few survivors", FEDERATED + "secure_aggregation/participant.py",
           "if len(survivors) < self.settings.threshold:", "if len(survivors) < 1:", SECURE),
    Mutant("secure aggregation: second list", FEDERATED + "secure_aggregation/participant.py",
           "if self._answered[0] != survivors:", "if False:", SECURE),
    Mutant("secure aggregation: others' keys", FEDERATED + "secure_aggregation/participant.py",
           "if not self._verify(client, content, signature):", "if False:", SECURE),
    Mutant("secure aggregation: a secret in the clear", FEDERATED + "secure_aggregation/shamir.py",
           "drawn = np.frombuffer(entropy((threshold - 1) * len(secret)), np.uint8)",
           "drawn = np.zeros((threshold - 1) * len(secret), np.uint8)", SECURE),
    Mutant("secure aggregation: an update in the clear", FEDERATED + "secure_aggregation/client.py",
           "if not (isinstance(effect, Send) and isinstance(effect.message, Update))", "if True",
           SECURE),
    Mutant("secure aggregation: masked again", FEDERATED + "secure_aggregation/client.py",
           "if asked.base <= self._unmasked:", "if False:", SECURE),
    Mutant("secure aggregation: attempts share keys", FEDERATED + "secure_aggregation/messages.py",
           "run_id + attempt.to_bytes(8", "run_id + (0).to_bytes(8", SECURE),
    Mutant("discrete Gaussian: the second sum", ACCOUNTING + "discrete_gaussian.py",
           "math.sqrt(before / (before + 1))", "math.sqrt(before)", DISCRETE),
    Mutant("discrete Gaussian: charged once", ACCOUNTING + "discrete_gaussian.py",
           "(interval.upper + 2 * divergence)", "(interval.upper + divergence)", DISCRETE),
    Mutant("views: several local rounds add up", FEDERATED + "statements.py",
           "or federation.local_rounds != 1", "or False", VIEWS),
    Mutant("views: a cohort takes part whole", FEDERATED + "statements.py",
           "or federation.cohort is not None", "or False", VIEWS),
    Mutant("views: stopped clients still add noise", FEDERATED + "statements.py",
           "if other != client and round < federation.updates(other)", "if other != client", VIEWS),
    Mutant("views: momentum of clients that stop", FEDERATED + "statements.py",
           "return len(ends) == 1 and len(uses) == 1", "return len(uses) == 1", VIEWS),
    Mutant("views: noise that changes out of step", FEDERATED + "secure_aggregation/settings.py",
           "(part.count, part.noise_multiplier) for part in", "part.noise_multiplier for part in",
           VIEWS),
    Mutant("views: least noisy clients are known", FEDERATED + "statements.py",
           "hidden = sorted(variances)[: max(0, len(variances) - known)]",
           "hidden = sorted(variances)[known:]", VIEWS),
    Mutant("estimator: δ from a private number of records", ESTIMATORS + "declared.py",
           'if adjacency == "add-or-remove":', "if False:", DECLARED),
    Mutant("estimator: labels outside the declared classes", ESTIMATORS + "declared.py",
           "    if len(strange):\n", "    if False:\n", DECLARED),
    Mutant("estimator: classes read and not named", ESTIMATORS + "declared.py",
           'return found, (Caveat("classes-from-data", ", ".join(map(str, found))),)',
           "return found, ()", DECLARED),
    Mutant("estimator: weights taken", ESTIMATORS + "estimator.py",
           'if "sample_weight" in given:', "if False:", DECLARED),
    Mutant("estimator: a search not named", ESTIMATORS + "callers.py",
           'found.append(Caveat("chosen-on-private-data", words))', "pass", CALLERS),
    Mutant("estimator: a fitted scaler not named", ESTIMATORS + "callers.py",
           'found.append(Caveat("preparation-from-data", words))', "pass", CALLERS),
    Mutant("estimator: private counts stored", ESTIMATORS + "estimator.py",
           "state.pop(name, None)", "pass", STORING),
    Mutant("descent: a linear model's norms too small", "forethought/rounds/linear.py",
           "return Bounds(slopes * self.measured,", "return Bounds(slopes * self.measured / 2,",
           DESCENT),
    Mutant("descent: rows longer than their bound", "forethought/convex/rows.py",
           "few * (bound / torch", "few * (2 * bound / torch", DESCENT),
    Mutant("descent: noise of half the sensitivity", "forethought/convex/planning.py",
           "_scaled(found, mu, moved * C / N)", "_scaled(found, mu, C / N)", DESCENT),
    Mutant("descent: one round too many", "forethought/convex/schedules.py",
           "if total > allowed:", "if spent > allowed:", HORIZON),
    Mutant("descent: a gradient bound too small", "forethought/convex/problems.py",
           "return math.sqrt(2) * self.row_bound", "return self.row_bound", PROBLEMS),
    Mutant("descent: a round that the filter is not charged for", "forethought/convex/steered.py",
           "ledger.spend(part)", "ledger.would_exceed(part)", STEERED),
    Mutant("descent: rounds that share their noise", "forethought/convex/steered.py",
           "Secrets.draw(self.seeds.part(index))", "Secrets.draw(self.seeds)", STEERED),
    Mutant("allocation: values spread to the right only", PLD + "allocation.py",
           "out[m : m + n - d] += left[d] * pairs", "out[m : m + n - d] += 0 * pairs", ALLOCATION),
    Mutant("allocation: pairs counted once", PLD + "allocation.py",
           "pairs = q[: n - d] * q[d:] * (2.0 if d else 1.0)", "pairs = q[: n - d] * q[d:]",
           ALLOCATION),
    Mutant("allocation: rounds that were not released", PLD + "allocation.py",
           "share = t / epoch.rounds", "share = 1.0", ALLOCATION),
    Mutant("allocation: a law below taken for one above", ACCOUNTING + "convex_order.py",
           "(with_laws(counts, fineness, end) for end in (0, 1))",
           "(with_laws(counts, fineness, end) for end in (1, 0))", ALLOCATION),
    Mutant("allocation: radius of group clipping", PLD + "pairs.py",
           "distance = sensitivity(rounds, adjacency) / rounds.noise_multiplier\n    used",
           "distance = 1.0 / rounds.noise_multiplier\n    used", ALLOCATION),
    Mutant("turns: the part that has fewest", "forethought/mechanism.py",
           "return -(-rounds.count // epoch_length(rounds.sampling))",
           "return max(1, rounds.count // epoch_length(rounds.sampling))", TURNS),
    Mutant("correlated: turns do not add up", ACCOUNTING + "correlated.py",
           ".cumsum(axis=0)", "", CORRELATED),
    Mutant("correlated: sampled turns may overlap", ACCOUNTING + "correlated.py",
           "if rounds.strategy.bands > separation:", "if False:", CORRELATED),
    Mutant("correlated: groups are amplified", ACCOUNTING + "correlated.py",
           "if group == 1 and sampling.hides", "if sampling.hides", CORRELATED),
    Mutant("correlated: negative coefficients", ACCOUNTING + "correlated.py",
           "if strategy.bands > separation and not strategy.nonnegative:", "if False:", CORRELATED),
    Mutant("correlated: known batches keep their rate", ACCOUNTING + "accountants.py",
           "CyclicPoisson(1.0, part.sampling.rounds_per_epoch)", "part.sampling", CORRELATED),
    Mutant("correlated: parts merge", "forethought/mechanism.py",
           "if isinstance(one, Correlated) or isinstance(other, Correlated):", "if False:",
           ["tests/test_strategies.py"]),
    Mutant("correlated: a lag of the noise", "forethought/rounds/correlated_noise.py",
           "(self._newest + lag) % bands", "self._newest", CORRELATED_NOISE),
    Mutant("correlated: the transcript forgets the strategy", "forethought/rounds/transcript.py",
           'getattr(part, "strategy", None),', "None,", CORRELATED_NOISE),
    Mutant("frame: the sender's claim believed", EXCHANGE + "frame.py",
           "_public(senders[sender]).verify(bytes(view[-SIGNATURE_BYTES:]), signed)", "pass",
           FRAME),
    Mutant("frame: another run taken", EXCHANGE + "frame.py",
           "if its_run != run:", "if False:", FRAME),
    Mutant("frame: somebody else's frame taken", EXCHANGE + "frame.py",
           "if recipient != me:", "if False:", FRAME),
    Mutant("frame: any length allocated", EXCHANGE + "frame.py",
           "if length > limits[kind]:", "if False:", FRAME),
    Mutant("frame: the payload not signed", EXCHANGE + "frame.py",
           "return blake3(payload).digest()", "return bytes(32)", FRAME),
    Mutant("decode: NaN taken", EXCHANGE + "signed.py",
           'raise DecodeError(f"{what} holds NaN or ∞")', "return", FRAME),
    Mutant("decode: another shape taken", EXCHANGE + "signed.py",
           "if len(vector) != self.parameters:", "if False:", FRAME),
    Mutant("log: a torn record read as whole", EXCHANGE + "log.py",
           "if sums[_SUM_BYTES:] != of_record:", "if False:", LOG),
    Mutant("ledger: two contents for a round", EXCHANGE + "ledger.py",
           "if self._released[release.round].digest != new.digest:", "if False:", LEDGER),
    Mutant("ledger: another data set", EXCHANGE + "ledger.py",
           "elif records[0] != self._opening:", "elif False:", LEDGER),
    Mutant("client: sent before it is written", "forethought/network/driving.py",
           "            if kept is None:\n", "            if kept is None and False:\n", DRIVING),
    Mutant("server: another member's connection", "forethought/network/driving.py",
           "if peer not in (None, opened.sender):", "if False:", DRIVING),
    Mutant("federation: a client that goes beyond its plan", FEDERATED + "client.py",
           "if self.updates >= self._limit:", "if self.updates > self._limit:", CLIENT),
    Mutant("federation: a lost ledger that nobody notices", FEDERATED + "client.py",
           "if model.round > self.updates:", "if model.round > self.updates + 1:", CLIENT),
    Mutant("federation: two updates on one model", FEDERATED + "client.py",
           "if self.base <= self._last:", "if self.base < self._last:", CLIENT),
    Mutant("federation: a policy that allows twice as much", FEDERATED + "statements.py",
           "if found > self.epsilon:", "if found > 2 * self.epsilon:", CLIENT),
    Mutant("federation: steps that climb", FEDERATED + "pieces.py",
           "np.subtract(weights, step * scale, out=out)",
           "np.add(weights, step * scale, out=out)", CLIENT),
    Mutant("federation: a cadence that begins when a batch is ready", FEDERATED + "client.py",
           "(self._begun + beats * cadence, update)", "(self._now + beats * cadence, update)",
           ["tests/federated/test_cadence.py"]),
    Mutant("federation: secure sums of everybody in place of the cohort",
           FEDERATED + "secure_training.py",
           "in cohort_of(federation, index, np.array(members))", "in members",
           ["tests/federated/test_secure_training.py"]),
    Mutant("client: a count that lags by one", "forethought/network/driving.py",
           "self._witness.note(effect.release.round + 1)",
           "self._witness.note(effect.release.round)", ["tests/jobs/test_witness.py"]),
    Mutant("federation: sent before it is written", FEDERATED + "server.py",
           "[on.Append(entry), *answers]", "[*answers, on.Append(entry)]", SERVER),
    Mutant("federation: other bytes for a round", FEDERATED + "server.py",
           "if known and known != NO_MARK:", "if known and known == NO_MARK:", SERVER),
    Mutant("federation: no bound on the norm", FEDERATED + "server.py",
           "return length <= limit", "return True", SERVER),
    Mutant("federation: marks lost in a snapshot", FEDERATED + "server.py",
           "bytearray(marks[start:end]) if end > start else None", "None", SERVER),
    Mutant("federation: a version that does not wait", FEDERATED + "asynchronous.py",
           "if self.finished or self._behind:",
           "if self.finished or (self._behind and self.version % 2):", SERVER),
    Mutant("federation: noise that does not depend on the weights",
           "forethought/rounds/private_sum.py",
           "blake3() if rounds.salted else None", "None", TOGETHER),
    Mutant("federation: a part that takes its neighbour's records",
           "forethought/gradients/part_sums.py",
           "return Dense(term.values[start:end])", "return Dense(term.values[: end - start])",
           TOGETHER),
    Mutant("statement: another model file", "forethought/accounting/verification.py",
           "about.model != case.model:", "False:", ["tests/accounting/test_about.py"]),
    Mutant("own loop: a model that was changed", OWN + "own_loop.py",
           "if _hash(self.model) != self._left:", "if False:", OWN_LOOP),
    Mutant("own loop: gradients accumulated over batches", OWN + "own_loop.py",
           "if self._batch is not None:", "if False:", OWN_LOOP),
    Mutant("own loop: a second loss in a round", OWN + "own_loop.py",
           "if self._value is not None:", "if False:", OWN_LOOP),
    Mutant("own loop: an earlier batch", OWN + "own_loop.py",
           "if batch is not self._batch:", "if False:", OWN_LOOP),
    Mutant("gossip: a round beyond the plan", GOSSIP + "worker.py",
           "or self.updates >= self.limit:", "or self.updates > self.limit:", WORKER),
    Mutant("gossip: a ledger set back by one", GOSSIP + "asynchronous.py",
           "        if message.known > self.own.updates:",
           "        if message.known > self.own.updates + 1:", WORKER),
    Mutant("gossip: a waiting worker's ledger set back", GOSSIP + "synchronous.py",
           "if message.known > self.own.updates:", "if message.known > self.own.updates + 9:",
           ["tests/gossip/test_synchronous.py", "-k", "set_back"]),
    Mutant("gossip: what a worker said last is not in its ledger", GOSSIP + "worker.py",
           "self.sent[one.base - before] = sent", "self.sent[one.base - before] = self.held",
           ["tests/gossip/test_synchronous.py", "-k", "changes_a_bit"]),
    Mutant("gossip: what was heard of a neighbour is forgotten", "forethought/peers/driving.py",
           "self._heard[came.sender].note(message.round)", "self._heard[came.sender].note(0)",
           ["tests/peers/test_driving.py", "-k", "known_to"]),
    Mutant("gossip: the own count lags", "forethought/peers/driving.py",
           "self._witness.note(effect.release.round + 1)",
           "self._witness.note(effect.release.round)",
           ["tests/peers/test_driving.py", "-k", "restart"]),
    Mutant("gossip: waiting in a group that was given up", "forethought/peers/pairs.py",
           "self._name(store, lives) != name:", "self._lives(store) != lives:",
           ["tests/peers/test_pairs.py", "-k", "given_up"]),
    Mutant("gossip: the own noise stays where gradients are taken", GOSSIP + "worker.py",
           "excess *= self._beyond", "excess *= np.float32(0)",
           GOSSIP_POINT),
    Mutant("gossip: who meets nobody leaves out all it ever added", GOSSIP + "worker.py",
           "if self._fresh is not None and self.share < 1:", "if self._fresh is not None:",
           ["tests/gossip/test_asynchronous.py", "-k", "meets_nobody"]),
    Mutant("planner: a linear model's longest step forgets its weights",
           "forethought/planning/defaults.py",
           "max(1.0, parameters / STEP_WEIGHTS)", "1.0",
           ["tests/planning/test_defaults.py", "-k", "carry_the_noise"]),
    Mutant("planner: image features in small batches", "forethought/planning/solve.py",
           "if request.image_features and request.by_scores:", "if False:", IMAGE_PLANS),
    Mutant("planner: large batches for what is not planned by scores",
           "forethought/planning/solve.py",
           "if request.image_features and request.by_scores:", "if request.image_features:",
           IMAGE_PLANS),
    Mutant("planner: ever shorter paths with more features", "forethought/planning/defaults.py",
           "min(features, MOST_FEATURES)", "features", IMAGE_PLANS),
    Mutant("planner: nobody says that features are of images", "forethought/planning/given.py",
           'found.setdefault("image_features", True)', "pass", IMAGE_PLANS),
    Mutant("export: nobody says that a network takes features", "forethought/jobs/onnx_export.py",
           "            **before(predictor),\n", "",
           ["tests/jobs/test_init_images.py", "-k", "onnx"]),
    Mutant("gossip: what an exchange takes along is forgotten", GOSSIP + "worker.py",
           "self.share - weight * share * self._workers / (self._workers - 1)", "self.share",
           GOSSIP_POINT),
    Mutant("gossip: half of what a message tells", GOSSIP + "decentralised.py",
           "total += rest[place] ** 2 / length", "total += rest[place] ** 2 / (2 * length)",
           DISTANT),
    Mutant("gossip: messages are solved one by one", GOSSIP + "decentralised.py",
           "            if part:\n", "            if False:\n", DISTANT),
    Mutant("gossip: rounds compose at hidden weights", GOSSIP + "statements.py",
           "elif rounds > 1 and not _averages(gossip):", "elif False:", GOSSIP_VIEWS),
    Mutant("gossip: a message too late", GOSSIP + "statements.py",
           "first = round * gossip.exchanges + 1", "first = round * gossip.exchanges + 2",
           GOSSIP_VIEWS),
    Mutant("gossip: an outsider where nothing averages", GOSSIP + "statements.py",
           "return plain and _averages(gossip)", "return plain", GOSSIP_VIEWS),
    Mutant("gossip: clipped exchanges taken for linear", GOSSIP + "statements.py",
           "gossip.compression.exact and gossip.trust.difference is None",
           "gossip.compression.exact", GOSSIP_VIEWS),
    Mutant("gossip: the cap is not what the ledger released", GOSSIP + "statements.py",
           "        released=count,\n", "        released=1,\n", GOSSIP_VIEWS),
    Mutant("gossip: columns need not sum to one", GOSSIP + "mixing.py",
           '_sums_to_one("column", worker, columns[worker])', "pass", MIXING),
    Mutant("gossip: the best round for all of several kinds", ACCOUNTING + "summed.py",
           "_scaled(mechanism, min(gain for gain, _ in gains))",
           "_scaled(mechanism, max(gain for gain, _ in gains))", SUMMED),
    Mutant("persons: the budget is for one row", "forethought/planning/plan_request.py",
           'return 1 if self.person_as == "contribution" else self.records_per_person',
           "return 1", PERSON_PLANS),
    Mutant("persons: a statement is about one row", ACCOUNTING + "statement.py",
           'together = int(getattr(plan_or_mechanism, "records_per_person", 1))',
           "together = 1", PERSON_PLANS),
    Mutant("persons: the noisier way is taken", "forethought/planning/persons.py",
           "if ratio < 1:", "if ratio >= 1:", PERSON_PLANS),
    Mutant("persons: a row more than may be kept", "forethought/data/persons.py",
           "there = place < most\n", "there = place <= most\n", PERSON_ROWS),
    Mutant("persons: rows are summed", OWN + "persons.py",
           "return (values * there).sum(1) / there.sum(1).clamp(min=1)",
           "return (values * there).sum(1)", PERSON_ROWS),
    Mutant("persons: a plan for single rows", OWN + "persons.py",
           "if promised < most:", "if False:", PERSON_ROWS),
    Mutant("planner's page: any token", "forethought/web/server.py",
           "if not hmac.compare_digest(given.encode(), self.server.token.encode()):", "if False:",
           PAGE),
    Mutant("planner's page: another site's page", "forethought/web/server.py",
           'if origin is not None and origin.removeprefix("http://") not in self.server.names:',
           "if False:", PAGE),
]  # fmt: skip


def unchanged(tests: list[str]) -> str | None:
    """Why these tests say nothing: they fail without any mutant."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*PYTEST, *tests], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    return None if done.returncode == 0 else f"{tests} fail as they are: {done.stdout[-500:]}"


def survives(mutant: Mutant) -> str | None:
    """Why the mutant lives, or None."""
    text = (ROOT / "src" / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.line) != 1:
        return f"its line is there {text.count(mutant.line)} times: {mutant.line!r}"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src" / "forethought", Path(folder) / "forethought")
        (Path(folder) / mutant.file).write_text(
            text.replace(mutant.line, mutant.changed), encoding="utf-8"
        )
        environment = {**os.environ, "PYTHONPATH": folder, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [*PYTEST, *mutant.tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            return None  # it waits for ever where it should not: nobody would overlook that
    if done.returncode == 1:
        return None
    return f"tests ended with status {done.returncode}: {done.stdout.strip()[-200:]}"


def main() -> None:
    """One line for each mutant; status 1 where one lives."""
    words = [word for word in sys.argv[1:] if word != "--tested"]
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    with ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        suites = [list(suite) for suite in dict.fromkeys(tuple(m.tests) for m in chosen)]
        if "--tested" in sys.argv:
            suites = []
        broken = [why for why in pool.map(unchanged, suites) if why]
        verdicts = list(pool.map(survives, chosen))
    print(*broken, sep="\n")
    for mutant, why in zip(chosen, verdicts, strict=True):
        print(f"killed  {mutant.name}" if why is None else f"ALIVE   {mutant.name}: {why}")
    sys.exit(any(verdicts) or bool(broken))


if __name__ == "__main__":
    main()

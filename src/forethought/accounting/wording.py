"""What a Statement says of the way in which its ε was computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from forethought.accounting.adaptive import FILTER, SELECTION, trials_from_dict
from forethought.accounting.pld.pairs import theorem
from forethought.accounting.renyi.selection import PoissonTrials
from forethought.mechanism import Mechanism

EXACT = "exact"
ADVERSARY = (
    "sees every noised sum that was released (hence every intermediate and the final model), "
    "knows the plan and all other records, and does not see which records were sampled"
)
_RENYI = {
    "poisson": "Poisson-sampled Gaussian (Mironov, Talwar and Zhang 2019, Theorems 4 and 5; under "
    "replace-one Wang, Balle and Kasiviswanathan 2019, Theorem 27)",
    "without-replacement": "sampling without replacement (Wang, Balle and Kasiviswanathan 2019, "
    "Theorems 9 and 27)",
    "shuffled": "one Gaussian for each started epoch (Mironov 2017, Proposition 7)",
    "full-batch": "Gaussian (Mironov 2017, Proposition 7)",
}


@dataclass(frozen=True)
class Wording:
    """The words of one kind of accountant.

    Args:
        covered: what the first sentence says that the proof is for.
        rounds: what the mechanism's rounds are.
        adversary: what the attacker is assumed to see and know.
        theorems: (mechanism, group) → the results that the accounting rests on.
        done: the accountant's details → what was done, a sentence each.
    """

    covered: str
    rounds: str
    adversary: str
    theorems: Callable[[Mechanism, int], tuple[str, ...]]
    done: Callable[[Mapping[str, Any]], tuple[str, ...]]


def _exact(mechanism: Mechanism, group: int) -> tuple[str, ...]:
    said = [theorem(part, mechanism.adjacency, group) for part in mechanism]
    return tuple(dict.fromkeys(said))


def _renyi(*more: str) -> Callable[[Mechanism, int], tuple[str, ...]]:
    def theorems(mechanism: Mechanism, _group: int) -> tuple[str, ...]:
        kinds = dict.fromkeys(part.sampling.kind for part in mechanism)
        return (*(f"Rényi divergence: {_RENYI[kind]}" for kind in kinds), *more)

    return theorems


def _search(details: Mapping[str, Any]) -> tuple[str, ...]:
    trials = trials_from_dict(details["trials"])
    if isinstance(trials, PoissonTrials):
        drawn = f"Poisson with mean {trials.mean:g}"
    else:
        drawn = (
            f"truncated negative binomial with stopping {trials.stopping:g} and shape "
            f"{trials.shape:g} (mean {trials.mean:.4g})"
        )
    noise = details["score_noise"]
    score = (
        "Trials were compared by a score that is public or named below as not covered"
        if noise is None
        else "Trials were compared by their number of right answers on held-out records, each "
        f"count with Gaussian noise of standard deviation {noise:g}. ε covers those records too; "
        f"for a training record it is {float(details['training']['epsilon']):.4g}"
    )
    others = len(details["candidates"])
    return (
        f"The number of trials was drawn once, {drawn}, and is not shown; the table is one trial",
        score,
        *((f"{others} other mechanisms could be drawn, and ε covers them",) if others else ()),
    )


def _filtered(details: Mapping[str, Any]) -> tuple[str, ...]:
    orders = ", ".join(f"{order:g}" for order in details["orders"])
    return (
        "Rounds were chosen adaptively, after seeing results. A Rényi filter at order "
        f"{orders} with a budget of ε = {details['epsilon']:g} at δ = {details['delta']:g}, set "
        "before the first round, was charged before each release; ε is that budget, whatever "
        "would have been chosen",
    )


WORDINGS: dict[str, Wording] = {
    EXACT: Wording(
        "everything the run released", "rounds accounted", ADVERSARY, _exact, lambda _details: ()
    ),
    SELECTION: Wording(
        "the best of a random number of private trials, the search for it included",
        "rounds of one trial",
        "sees every noised sum of the trial that was chosen (hence its intermediate and final "
        "models) and its score, knows the candidates and all other records, and sees neither the "
        "other trials, nor how many there were, nor which records were sampled",
        _renyi(
            "best of a random number of trials (Papernot and Steinke 2022, Theorems 2 and 6)",
            "conversion to (ε, δ) (Asoodeh et al. 2021, Theorem 2)",
        ),
        _search,
    ),
    FILTER: Wording(
        "everything the run released, whatever its results would have made it do",
        "rounds released",
        ADVERSARY,
        _renyi(
            "Rényi filter (Feldman and Zrnic 2021, Theorem 4.3)",
            "conversion to (ε, δ) (Canonne, Kamath and Steinke 2020, Proposition 12)",
        ),
        _filtered,
    ),
}

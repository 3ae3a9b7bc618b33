"""The assumptions of secure aggregation about a cohort, and their consequences for noise and
thresholds.

**Threat model.** The server is honest but curious: it follows the protocol and keeps all it sees.
Up to ``colluders`` clients tell it all they know, and up to ``dropouts`` vanish at any moment
of a round. It then learns the modular sum of the noised sums of those who stayed, and nothing
else (Bonawitz et al. 2017, Theorem 6.3). Of that sum at least *honest* = clients − dropouts −
colluders carry noise that it does not know, so a client adds a share σ²/honest of the variance.

Beyond it: keys are signed by the clients, every client answers one unmasking a round, for at least
clients − dropouts survivors, and the threshold is such that a server which tells different clients
different lists cannot open two sums (their Section 6.2: 2·threshold > clients + colluders). And
whatever fails, each client's own noised sum still has the guarantee of its own plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forethought.federated.secure_aggregation.ring import LEAST_BITS, MOST_BITS
from forethought.federated.secure_aggregation.shamir import MOST_SHARES
from forethought.values.checks import real, whole
from forethought.values.serialisation import build

if TYPE_CHECKING:
    from forethought.federated.federation import Federation


class SecureAggregationError(ValueError):
    """Settings that cannot protect, a federation they do not go with, or a round that failed."""


@dataclass(frozen=True)
class SecureAggregation:
    """A cohort whose server sees sums only.

    Args:
        clients: how many a round asks; all of a federation, or its cohort.
        dropouts: how many of them may vanish during a round; with more the round is lost, and
            nothing is revealed.
        colluders: how many of them may tell the server all they know.
        bits: of the ring; messages take ⌈bits/8⌉ bytes a parameter.
        patience: seconds that a step of a round waits for the last client.

    Raises:
        SecureAggregationError: nothing would be left to hide behind, or no threshold protects.

    >>> SecureAggregation(clients=10, dropouts=2, colluders=2).honest
    6
    """

    clients: int
    dropouts: int = 0
    colluders: int = 0
    bits: int = 48
    patience: float = 60.0

    def __post_init__(self) -> None:
        whole("clients", self.clients, least=2, most=MOST_SHARES)
        whole("dropouts", self.dropouts, least=0)
        whole("colluders", self.colluders, least=0)
        whole("bits", self.bits, least=LEAST_BITS, most=MOST_BITS)
        real("patience", self.patience, above=0)
        if self.honest < 2:
            raise SecureAggregationError(
                f"of {self.clients} clients {self.dropouts} may drop out and {self.colluders} "
                f"collude: {self.honest} would be left, and a sum of fewer than two hides nobody. "
                "Ask more clients, or assume fewer of either"
            )
        if 2 * self.threshold <= self.clients + self.colluders:
            raise SecureAggregationError(
                f"with {self.dropouts} drop-outs and {self.colluders} colluders of {self.clients} "
                "clients a server could open two sums of one round: 2·(clients − dropouts) must be "
                "above clients + colluders"
            )

    @property
    def threshold(self) -> int:
        """Shares that open a secret, and the fewest clients whose sum is opened."""
        return self.clients - self.dropouts

    @property
    def honest(self) -> int:
        """Clients whose noise is in every opened sum and unknown to the server."""
        return self.clients - self.dropouts - self.colluders

    @property
    def noise_share(self) -> float:
        """The share of a client's own noise multiplier in the sum's: 1/√honest."""
        return float(self.honest**-0.5)

    def require(self, federation: Federation) -> None:
        """Refuse a federation that these settings do not go with.

        Raises:
            SecureAggregationError: says what does not fit, and what would.
        """
        if federation.rule != "synchronous":
            raise SecureAggregationError(
                f"the rule {federation.rule!r} applies updates one by one: secure aggregation sums "
                "a cohort, so use the rule 'synchronous'"
            )
        if federation.exchanged != "gradients" or federation.local_rounds != 1:
            raise SecureAggregationError(
                "secure aggregation sums the noised sums of one round: set exchanged to "
                "'gradients' and local_rounds to 1. After several local rounds, or a step of the "
                "client's own optimizer, the noise of other clients protects nothing"
            )
        if federation.robust.kind != "mean":
            raise SecureAggregationError(
                f"robust {federation.robust.kind!r} looks at single updates, which secure "
                "aggregation hides: use 'mean', or do without one of the two"
            )
        asked = federation.cohort or len(federation.members)
        if asked != self.clients:
            raise SecureAggregationError(
                f"a round asks {asked} clients, secure aggregation is set for {self.clients}"
            )
        kinds = {
            (plan.noise, plan.clip, plan.contribution.kind, *_noises(plan))
            for plan in federation.plans
        }
        if any(plan.noise != "grid" for plan in federation.plans) or len(kinds) > 1:
            raise SecureAggregationError(
                "clients that are summed have noise='grid', one clipping and one noise multiplier "
                "in every round: give all plans the same (sizes and sampling rates may differ)"
            )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping, for :attr:`Federation.secure`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SecureAggregation:
        """The inverse of :meth:`to_dict`; refuses unknown keys."""
        return build(cls, values, "secure aggregation")


def _noises(plan: Any) -> tuple[tuple[int, float], ...]:
    # Round by round: one step of the grid, and as much noise from everybody, in every sum.
    return tuple((part.count, part.noise_multiplier) for part in plan.mechanism)

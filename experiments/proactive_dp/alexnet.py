"""AlexNet on CIFAR-10 of van Dijk et al., "Proactive DP": Figures 10 and 14.

    python experiments/proactive_dp/alexnet.py --data ../shared/data         # minutes, resumes
    python experiments/proactive_dp/alexnet.py --data ../shared/data --full  # weeks of one core
    python experiments/proactive_dp/alexnet.py --data ../shared/data --full --estimate

C, η₀, β, s, ε and δ of Tables 2, 5 and 8. The small preset computes K = 1,378 gradients, two
rounds, with five disjoint shares: it shows that the preset runs, no more. The network is AlexNet
for 32 × 32 images as tools/published_networks.py has it, without normalisation; the paper links
another.
"""

from __future__ import annotations

from clients import COPIES, ONE, SHARES
from comparison import Preset
from images import Comparison

TABLE_8 = (
    (0.25, 9.29838, 417),
    (0.5, 6.57192, 689),
    (0.75, 5.36937, 909),
    (1.0, 4.65014, 1099),
    (1.5, 4.16111, 1267),
    (2.0, 3.28831, 1690),
    (3.0, 2.68273, 1994),
)

COMPARISON = Comparison(
    name="AlexNet on CIFAR-10",
    source="cifar10",
    model="alexnet",
    delta=2e-5,
    table=TABLE_8,
    printed={},
    gradients=350_000,
    few=1_378,
    small=Preset(1, (0.5,), (), (SHARES,)),
    full=Preset(
        3, [row[0] for row in TABLE_8], (10, 25, 50, 100, 300, 500, 689), (COPIES, SHARES, ONE)
    ),
)

if __name__ == "__main__":
    COMPARISON.main(__doc__.splitlines()[0])

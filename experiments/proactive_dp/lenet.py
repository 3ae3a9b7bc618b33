"""LeNet-5 on MNIST of van Dijk et al., "Proactive DP": Figures 3(b, c), 9 and 13.

    python experiments/proactive_dp/lenet.py --data ../shared/data         # 1 minute
    python experiments/proactive_dp/lenet.py --data ../shared/data --full  # days, resumes
    python experiments/proactive_dp/lenet.py --data ../shared/data --full --estimate

C, η₀, β, s, ε and δ of Tables 2, 4 and 7. The small preset computes K = 36,000 gradients, a tenth
of the paper's, once with five disjoint shares; the formula's σ is the same for every K, so it is
further off there. --full takes the paper's K, three seeds, and also five holders of 60,000 records.
"""

from __future__ import annotations

from clients import COPIES, ONE, SHARES
from comparison import Preset
from images import Comparison

TABLE_7 = (
    (0.15007, 12.10881, 370),
    (0.2, 10.48452, 460),
    (0.25, 9.37379, 543),
    (0.5, 6.63120, 889),
    (0.75, 5.41887, 1168),
    (1.0, 4.69244, 1409),
    (2.0, 3.31648, 2159),
)

COMPARISON = Comparison(
    name="LeNet-5 on MNIST",
    source="mnist",
    model="lenet5",
    delta=1.667e-5,
    table=TABLE_7,
    printed={0.15007: 93, None: 98},
    gradients=360_000,
    few=36_000,
    small=Preset(1, (0.15007, 1.0), (100, 370), (SHARES,)),
    full=Preset(
        3, [row[0] for row in TABLE_7], (10, 25, 50, 100, 200, 300, 370), (COPIES, SHARES, ONE)
    ),
)

if __name__ == "__main__":
    COMPARISON.main(__doc__.splitlines()[0])

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forethought.gradients import sums
from forethought.values.plan import Clip


def table(*rows: list[float]) -> sums.Norms:
    names = tuple(f"p{i}" for i in range(len(rows)))
    return sums.Norms(names, torch.tensor(rows))


def test_flat_scales_only_what_is_above_c() -> None:
    norms = table([3.0, 0.3, 0.0], [4.0, 0.4, 0.0])
    factors = sums.factors(norms, 1.0)
    torch.testing.assert_close(factors[0], torch.tensor([0.2, 1.0, 1.0]), rtol=1e-5, atol=0)
    assert float(factors[0, 1]) == 1.0


def test_automatic_normalises_every_contribution() -> None:
    norms = table([3.0, 0.1])
    factors = sums.factors(norms, 2.0, sums.automatic(0.5))
    torch.testing.assert_close(factors[0], torch.tensor([2 / 3.5, 2 / 0.6]), rtol=1e-4, atol=0)


def test_per_layer_shares_bound_each_parameter() -> None:
    rule = sums.rule(Clip(rule="per-layer", shares=(("p0", 0.6), ("p1", 0.8))))
    factors = sums.factors(table([3.0, 0.1], [1.0, 5.0]), 1.0, rule)
    wanted = torch.tensor([[0.2, 1.0], [0.8, 0.16]])
    torch.testing.assert_close(factors, wanted, rtol=1e-4, atol=0)


def test_per_layer_shares_must_name_the_parameters() -> None:
    rule = sums.per_layer({"p0": 0.6, "other": 0.8})
    with pytest.raises(ValueError, match=r"\['p1'\], unknown \['other'\]"):
        sums.factors(table([1.0], [1.0]), 1.0, rule)
    with pytest.raises(ValueError, match="squares"):
        Clip(rule="per-layer", shares={"p0": 0.9, "p1": 0.9})


@given(
    st.lists(
        st.floats(0, 2.0**126, width=32, allow_subnormal=True)
        | st.just(math.inf)
        | st.just(math.nan),
        min_size=2,
        max_size=12,
    ),
    st.floats(1e-12, 1e12),
    st.sampled_from(["flat", "automatic", "per-layer", "greedy", "broken"]),
)
@settings(max_examples=300, deadline=None)
def test_no_rule_can_exceed_c(norms: list[float], clip_norm: float, rule: str) -> None:
    values = torch.tensor(norms[: len(norms) // 2 * 2]).view(2, -1)
    chosen = {
        "flat": sums.flat,
        "automatic": sums.automatic(1e-6),
        "per-layer": sums.per_layer(),
        "greedy": lambda n, c: torch.full_like(n.total, 1e20),
        "broken": lambda n, c: torch.full_like(n.total, math.nan),
    }[rule]
    factors = sums.factors(sums.Norms(("a", "b"), values), clip_norm, chosen).double()
    bad = ~torch.isfinite(values.double()).all(0)
    assert bool((factors >= 0).all()) and bool(torch.isfinite(factors).all())
    assert not factors[:, bad].any()
    after = (factors * torch.nan_to_num(values.double(), posinf=0)).norm(dim=0)
    assert bool((after <= clip_norm * (1 + 1e-12)).all())


def test_a_rule_of_the_wrong_shape_is_refused() -> None:
    def rule(norms: sums.Norms, clip_norm: float) -> Tensor:
        return torch.ones(5)

    with pytest.raises(ValueError, match="factor per contribution"):
        sums.factors(table([1.0, 2.0]), 1.0, rule)


def test_the_noised_fraction_is_unbiased_with_the_stated_spread() -> None:
    # 4000 draws: mean and standard deviation within 4.5 of their own standard errors, so a false
    # alarm in about one of 70,000 seeds; the seed is fixed besides.
    generator = torch.Generator().manual_seed(1)
    norms = torch.tensor([0.5, 0.7, 1.0, 3.0])
    draws = torch.tensor(
        [sums.noised_fraction_below(norms, 1.0, 2.0, 10.0, generator) for _ in range(4000)]
    )
    # (3 below, centred: 3 − 2 = 1) / 10 + 1/2
    assert abs(float(draws.mean()) - 0.6) < 4.5 * 0.2 / 4000**0.5
    assert abs(float(draws.std()) - 0.2) < 4.5 * 0.2 / 8000**0.5


def test_one_contribution_moves_the_count_by_one_half() -> None:
    norms = torch.tensor([0.5, 3.0, math.nan, math.inf, 0.0])
    whole = sums.noised_fraction_below(norms, 1.0, 0.0, 1.0)
    for i in range(5):
        less = sums.noised_fraction_below(norms[torch.arange(5) != i], 1.0, 0.0, 1.0)
        assert abs(whole - less) == 0.5


def test_an_empty_round_still_releases_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    assert sums.noised_fraction_below(torch.zeros(0), 1.0, 3.0, 10.0, generator) != 0.5


def test_c_follows_the_quantile() -> None:
    clip = Clip(rule="quantile", norm=0.01, count_noise=1.0, quantile=0.7, quantile_rate=0.2)
    norms = torch.distributions.LogNormal(0.0, 1.0).sample((2000,))
    generator, c = torch.Generator().manual_seed(5), clip.norm
    for _ in range(200):
        _, c = sums.quantile_update(clip, norms, c, 2000.0, generator)
    # The 0.7 quantile of the norms, reached geometrically and then followed with noise 1/2000.
    assert float((norms <= c).double().mean()) == pytest.approx(0.7, abs=0.01)


def test_only_the_quantile_rule_adapts() -> None:
    with pytest.raises(ValueError, match="quantile"):
        sums.quantile_update(Clip(), torch.ones(3), 1.0, 3.0)


def test_one_wild_draw_of_noise_moves_c_by_a_bounded_factor() -> None:
    assert sums.next_clip_norm(1.0, -50.0, 0.5, 0.2) == pytest.approx(math.exp(0.1))
    assert sums.next_clip_norm(1.0, 50.0, 0.5, 0.2) == pytest.approx(math.exp(-0.1))

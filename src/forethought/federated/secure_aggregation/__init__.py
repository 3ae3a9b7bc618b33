"""Sums of a cohort's noised sums that the server learns without learning any single one.

Bonawitz et al. 2017 (pairwise masks, recovery from drop-outs) over the distributed discrete
Gaussian of Kairouz, Liu and Steinke 2021. :mod:`masking` says what is assumed and what follows,
:mod:`protocol` has the two machines of one round, and runs them in memory. No torch in here.
"""

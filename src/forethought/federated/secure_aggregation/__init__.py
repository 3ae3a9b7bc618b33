"""Secure aggregation: the server learns a cohort's total but no single client's noised sum.

Bonawitz et al. 2017 (pairwise masks, recovery from drop-outs) over the distributed discrete
Gaussian of Kairouz, Liu and Steinke 2021. :mod:`masking` states the assumptions and their
consequences; :mod:`protocol` has the two machines of one round. This package does not use PyTorch.
"""

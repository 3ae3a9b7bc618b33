"""Counts, sums, means, histograms, quantiles, survival curves and AUC, planned and paid for."""

"""Runs a Plan on one machine: sampling, noise, schedules, optimizers, the loop, checkpoints.

The :class:`~forethought.values.plan.Plan` decides everything that a guarantee depends on; the
options of :func:`~forethought.training.run.train` change only speed, place and reporting.
"""

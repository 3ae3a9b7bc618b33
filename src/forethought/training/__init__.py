"""Runs a Plan on one machine: sampling, noise, schedules, optimizers, the loop, checkpoints.

Everything a guarantee depends on comes from the :class:`~forethought.values.plan.Plan`; the options
of :func:`~forethought.training.run.train` change speed, place and reporting only.
"""

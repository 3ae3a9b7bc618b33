"""Estimates of a plan's utility before it is run: utility graphs and rehearsals on public data."""

"""The worth of a plan before it is run: utility graphs, and rehearsals on public data."""

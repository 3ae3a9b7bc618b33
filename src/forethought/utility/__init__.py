"""What a plan is worth before it is run: utility graphs, and rehearsals on public data."""

"""From what a user has (data size, model, budget) to Plans: everything chosen beforehand."""

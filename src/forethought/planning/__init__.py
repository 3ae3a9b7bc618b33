"""The planner: Plans from the number of records, the model and the budget, before training."""

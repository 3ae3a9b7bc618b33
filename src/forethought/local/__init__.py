"""Any optimizer inside a contribution: what a group's records make of the weights, and no trace."""

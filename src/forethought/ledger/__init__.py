"""The ledger: one budget for everything that is ever learned from a data set."""

"""The ledger: one budget for all that is ever released from a data set."""

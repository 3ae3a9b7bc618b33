"""One private round: sampling, contributions, the private sum, noise."""

"""What a holder brings that does not fit what was agreed."""


class HolderError(ValueError):
    """A model, records or a loss with which a holder cannot take part."""

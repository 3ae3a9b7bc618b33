"""Private preparation of data: figures of it that are released before training, and paid for."""

"""Which of many batches are looked at closely."""

_FIRST, _EVERY = 32, 16


def is_looked_at(index: int) -> bool:
    """Say whether a batch is one of those that say enough about a share, or the size of values."""
    return index < _FIRST or not index % _EVERY

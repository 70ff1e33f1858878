"""For how many epochs a script says that it is made, where it makes its schedule."""

from trainguard.observe.tools.owners import find_owners, words_in

_MOST = 10_000  # epochs: a larger number is of something else
_COUNTS = {"epochs", "n", "num", "max", "total", "train", "training", "nb", "of"}


def planned_epochs() -> tuple[int, ...]:
    """Return the numbers in the variables of the user's running code that are called epochs."""
    found = {
        value
        for _, _, values in find_owners()
        for name, value in values.items()
        if type(value) is int and 0 < value <= _MOST and isinstance(name, str)
        if "epochs" in (words := words_in(name)) and words <= _COUNTS
    }
    return tuple(sorted(found))

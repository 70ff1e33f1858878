"""Names of logged numbers, read as words: what says of a number that it is of an evaluation."""

import re
from typing import Final

EVALUATION: Final = frozenset({"val", "valid", "validation", "eval", "evaluation", "test", "dev"})
TRAINING: Final = frozenset({"train", "training"})


def words_of(name: str) -> list[str]:
    """Return the words that a name of a logged number is made of, without its digits."""
    return [word for word in re.split(r"[^a-z]+", name.lower()) if word]

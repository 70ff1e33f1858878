"""The training as it is, run twice: whether mutants can be told from it, and from chance."""

from trainguard.command.exit import USAGE
from trainguard.command.mutate.trial import HUNG, Trial
from trainguard.core.errors import DeclarationError


def check_judged(name: str, whole: Trial, budget: float) -> None:
    """Raise where the training as it is cannot be judged."""
    last = "".join(whole.printed.strip().splitlines()[-1:])
    if whole.code == HUNG:
        raise DeclarationError(
            f"{name} takes longer than the --budget of {budget:g} s as it is. Shorten it with"
            " --steps N, or give it more."
        )
    if whole.code == USAGE:
        raise DeclarationError(
            f"{name} cannot be judged as it is: {' '.join(whole.printed.split()[-40:])}"
        )
    if not whole.is_judged:
        raise DeclarationError(
            f"{name} fails as it is: {last}. Make it run by itself first; its arguments stand"
            f" behind two dashes: trainguard mutate {name} -- ARGS."
        )


def check_repeats(name: str, whole: Trial, again: Trial) -> None:
    """Raise where two runs of the same have different losses."""
    pairs = enumerate(zip(whole.losses, again.losses, strict=False))
    parted = next((step for step, (a, b) in pairs if a != b), None)
    if parted is None and len(whole.losses) == len(again.losses):
        return
    step = min(len(whole.losses), len(again.losses)) if parted is None else parted
    raise DeclarationError(
        f"{name} is not deterministic: two runs of it part at step {step}, so that no mutant could"
        " be told from chance. Seed what it draws from, or leave out its workers."
    )


def is_same(whole: Trial, again: Trial, found: Trial) -> bool:
    """
    Say whether a mutant did what the training does: its numbers, its words and its files.

    What differs between two runs of the same, such as the time of day, is not compared.
    """
    if not _alike(whole.numbers, again.numbers, found.numbers):
        return False
    if not _alike(whole.said, again.said, found.said):
        return False
    names = {*whole.files, *found.files}
    sure = [name for name in names if whole.files.get(name) == again.files.get(name)]
    return all(whole.files.get(name) == found.files.get(name) for name in sure)


def _alike(whole: list[str], again: list[str], found: list[str]) -> bool:
    """Say whether lines are the same, but for those that chance changes too."""
    if len(whole) != len(again):
        return True
    pairs = zip(whole, again, strict=True)
    noise = {place for place, (a, b) in enumerate(pairs) if a != b}
    kept = [line for place, line in enumerate(whole) if place not in noise]
    return kept == [line for place, line in enumerate(found) if place not in noise]

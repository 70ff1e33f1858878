"""Compare a resumed run with the one that was not interrupted: its parts, and then its steps."""

from collections.abc import Callable, Iterator
from math import isnan
from typing import Any, TypeVar

from trainguard.events.checkpoint import Departure, Part
from trainguard.events.loop import Step
from trainguard.observe.checkpoint.recorder import LATER, Account
from trainguard.observe.checkpoint.state import State

_KINDS = ("parameters", "buffers", "optimizer", "scaler", "plateau", "generator")
_ALWAYS = ("optimizer",)  # kinds that a run has none of where it has just made them
_RATE = 1e-6  # relative: a rate may be computed in another way after a resume
_DEVICE = 1e-5  # relative: what an accelerator adds up in another order

T = TypeVar("T")
Differs = Callable[[Step, Step], bool]


def parts(reference: State, resumed: State, unlike: frozenset[str]) -> Iterator[Part]:
    """
    Yield each part of a state, and whether it is the same after the resume.

    unlike: names of averages that are others some steps later.
    """
    for kind in _KINDS:
        others = getattr(resumed, kind)
        for name, entries in getattr(reference, kind).items():
            # Two of one class may change places: nobody says which of them is the first.
            alike = [o for n, o in others.items() if n.split("#")[0] == name.split("#")[0]]
            if alike or kind in _ALWAYS:
                wrong = min((_wrong(entries, other) for other in alike or [{}]), key=len)
                yield Part(
                    kind=kind,
                    name=name,
                    same=not wrong,
                    count=len(wrong),
                    of=len(entries),
                    first=wrong[0] if wrong else "",
                )
    if resumed.candidates:
        for name, sums in reference.averages.items():
            begins = sums in resumed.candidates
            why = f"{LATER} steps later" if begins and name in unlike else ""
            same = begins and name not in unlike
            yield Part(kind="average", name=name, same=same, of=len(sums), first=why)


def unlike_averages(whole: Account, resumed: Account, began: int) -> frozenset[str]:
    """
    Return the averages that nothing is, some steps after a resume, though parameters are the same.

    What was loaded is there too, right after it, where it was not taken into the average.
    """
    place = began + LATER
    alike = whole.after.get(place, 0) == resumed.after.get(LATER, 1)
    if not (alike and resumed.later and whole.exact and resumed.exact):
        return frozenset()
    known = whole.averages.get(place, {})
    return frozenset(name for name, sums in known.items() if sums not in resumed.later)


def _wrong(entries: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Return the entries that are not the same in another state."""
    return [name for name in entries if str(other.get(name)) != str(entries[name])]


def departures(whole: Account, resumed: Account, began: int) -> Iterator[Departure]:
    """Yield for each quantity the first step at which a resumed run has another value."""
    places = whole.places.get(began, {})
    known = {(event.optimizer, event.step): event for event in whole.series}
    pairs = [
        (other, event)
        for event in resumed.series
        if (other := known.get((event.optimizer, event.step + places.get(event.optimizer, 0))))
    ]
    exact = whole.exact and resumed.exact
    differs: dict[str, Differs] = {
        "rate": lambda a, b: any(
            _apart(x, y, _RATE) for x, y in zip(a.rates, b.rates, strict=False)
        ),
        "batch": lambda a, b: bool(_batch(a) and _batch(b)) and _last(a, b, _batch) != _batch(b),
        "loss": lambda a, b: any(
            _apart(x, y, 0.0 if exact else _DEVICE)
            for x, y in zip(_last(a, b, _losses), _losses(b), strict=False)
        ),
    }
    for quantity, test in differs.items():
        after = next((i for i, pair in enumerate(pairs) if test(*pair)), -1)
        if after < 0:
            yield Departure(quantity=quantity, compared=len(pairs))
            continue
        a, b = pairs[after]
        measured, reference = {
            "rate": (max(b.rates, default=0.0), max(a.rates, default=0.0)),
            "batch": (_same_batch(whole, b), began + after),
            "loss": (b.loss, a.loss),
        }[quantity]
        yield Departure(quantity=quantity, step=began + after, after=after, measured=measured,
                        reference=reference, compared=len(pairs))  # fmt: skip
    if exact:
        yield _parameters(whole, resumed, began)


def _parameters(whole: Account, resumed: Account, began: int) -> Departure:
    """Return the first step after which the parameters are others."""
    compared = [step for step in sorted(resumed.after) if began + step in whole.after]
    for step in compared:
        if resumed.after[step] != whole.after[began + step]:
            return Departure(quantity="parameters", step=began + step - 1, after=step - 1,
                             compared=len(compared))  # fmt: skip
    return Departure(quantity="parameters", compared=len(compared))


def _last(a: Step, b: Step, of: Callable[[Step], tuple[T, ...]]) -> tuple[T, ...]:
    """
    Return what a step of the whole run has that one of the resumed run should have too.

    That is all of it, but for the first step of an optimizer after the resume: its window may have
    begun, in the whole run, with what another optimizer did before the save.
    """
    return of(a)[-len(of(b)) :] if b.step == 0 and of(b) else of(a)


def _losses(event: Step) -> tuple[float, ...]:
    """Return what was handed to backward in a step."""
    return event.losses or (event.loss,)


def _same_batch(whole: Account, event: Step) -> int:
    """Return the step of the whole run that had the same batch; -1 where none had."""
    same = [i for i, other in enumerate(whole.series) if _batch(other) == _batch(event)]
    return same[0] if same else -1


def _batch(event: Step) -> tuple[int, ...]:
    """Return the fingerprints of a step's inputs, where all of them are known."""
    return event.fingerprints if all(event.fingerprints) else ()


def _apart(one: float, other: float, share: float) -> bool:
    """Say whether two numbers are further apart than a share of the larger; two nans are not."""
    if isnan(one) or isnan(other):
        return isnan(one) != isnan(other)
    return one != other and abs(one - other) > share * max(abs(one), abs(other))

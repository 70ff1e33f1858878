"""
An Invariant is a named pure function from a Trace to Findings, with a structured docstring.

The catalogue, the option help, the matrix test and `trainguard explain` are all derived from
what is registered here: adding an invariant costs one function and one broken fixture.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar

from trainguard.core.errors import DeclarationError, did_you_mean
from trainguard.core.finding import Finding
from trainguard.events.trace import Trace

Judge = Callable[[Trace[Any]], Iterator[Finding]]
Evidence = Callable[[Trace[Any]], str]  # what a trace lacks to be judged; "" where nothing is
Per = Literal["dtype", "low precision", "device", "subject"]
J = TypeVar("J", bound=Judge)

SOON = 32  # steps after which what most of them break is told at once; half a usual warm-up
FAMILIES = (
    *("loss", "schedule", "model", "loader", "loop", "ranks", "parallel", "checkpoint", "memory"),
    "log",
)
SECTIONS = ("Judges", "Allows", "Misses", "Why", "Source")
_EVERY = " `trainguard list` shows them all."
_LISTED = 30  # names: more are no help in a sentence
_NEAR = 8  # names that are offered in place of one that is none
_ALIKE = 0.9  # beyond this likeness it is a slip of the keys
_DEFAULT_PROBE = {
    "loss": "sweep",
    "schedule": "run",
    "model": "initial",
    "loader": "scan",
    "loop": "run",
    "ranks": "run",
    "parallel": "step",
    "checkpoint": "resume",
    "memory": "step",
    "log": "run",
}
_registered: dict[str, "Invariant"] = {}


@dataclass(frozen=True, slots=True)
class Invariant:
    """
    One registered judgement.

    probe: the observation whose trace it judges.
    needs: the promises that a subject must make for this to be judged at all.
    per: one item for each dtype, for each low-precision dtype, for each device, or for the subject.
    evidence: says what a trace lacks for a pass to mean anything.
    logs: whether the log of a run has the numbers that it judges, so that a log is judged by it.
    live: from how many steps on it is told while the run goes on; 0 where it needs the whole run.
    was: the names that it had in earlier versions, and those of what it has taken over.
    """

    name: str
    family: str
    judge: Judge
    probe: str
    needs: frozenset[str]
    per: Per
    evidence: Evidence = lambda _: ""
    logs: bool = False
    live: int = 0
    was: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name that globs of `select` and `ignore` are matched with: `loss.value_is_finite`."""
        return f"{self.family}.{self.name}"

    @property
    def title(self) -> str:
        """The first line of the docstring: what holds when all is well."""
        return (inspect.getdoc(self.judge) or self.name).splitlines()[0]

    def section(self, heading: str) -> str:
        """Return the text of one docstring section (`Misses`, ...) on one line, or nothing."""
        lines: list[str] = []
        for line in (inspect.getdoc(self.judge) or "").splitlines():
            head, colon, rest = line.partition(":")
            if colon and head in SECTIONS:
                lines = [*lines, rest] if head == heading else lines
                inside = head == heading
            elif lines and inside:
                lines.append(line)
        return " ".join(" ".join(lines).split())


def invariant(
    family: str,
    *,
    probe: str | None = None,
    needs: Iterable[str] = (),
    per: Per | None = None,
    evidence: Evidence = lambda _: "",
    logs: bool = False,
    live: int = 0,
    was: tuple[str, ...] = (),
) -> Callable[[J], J]:
    """
    Register a function `Trace -> Iterator[Finding]` as an invariant of a family.

    Where `per` is not given, a loss is judged once for each dtype, any other subject once.
    `evidence` returns what a trace lacks, such as "no evaluation was seen": where it does, and
    nothing was found, the item is skipped with that reason, for it is no pass. `logs` says that a
    log of a run that is over has all that it judges, `live` after how many steps a
    run that goes on can be judged by it as well as one that is over. Whoever writes a name that it
    `was` called is told the one that it has.

    Its name is the function's, its first docstring line the catalogue's title. Raises
    DeclarationError for an unknown family, and for a name that the family already has.
    """
    if family not in FAMILIES:
        raise DeclarationError(
            f"@invariant({family!r}) names no family.{did_you_mean(family, FAMILIES)}"
        )

    def register(judge: J) -> J:
        often = per or ("dtype" if family == "loss" else "subject")
        asked = probe or _DEFAULT_PROBE[family]
        wanted = frozenset(needs)
        on_logs = logs or family == "log"
        made = Invariant(
            judge.__name__, family, judge, asked, wanted, often, evidence, on_logs, live, was
        )
        twin = _registered.get(made.key)
        if twin is not None:
            _check_twin(made, twin)
        _registered[made.key] = made
        return judge

    return register


def _check_twin(made: Invariant, twin: Invariant) -> None:
    """Raise DeclarationError for a name that is taken; a reloaded module may take its own."""
    here, there = made.judge.__module__, twin.judge.__module__
    try:
        source = inspect.getsource(sys.modules[here])
    except (KeyError, OSError, TypeError):  # of a prompt or a notebook there is none
        source = ""
    if here != there or len(re.findall(rf"^\s*def {made.name}\(", source, re.MULTILINE)) > 1:
        raise DeclarationError(
            f"{made.key} is registered twice, in {there} and {here}. Give one of them another name."
        )


@cache
def _load_catalogue() -> None:
    """Import the families, and what other packages offer under `trainguard.invariants`."""
    for family in FAMILIES:
        import_module(f"trainguard.invariants.{family}")
    for entry in entry_points(group="trainguard.invariants"):
        entry.load()


def catalogue(family: str | None = None) -> tuple[Invariant, ...]:
    """Return the registered invariants, of one family or of all, family by family."""
    _load_catalogue()
    # Whoever imports one family first must not change the order in which all are told of.
    ordered = sorted(_registered.values(), key=lambda made: FAMILIES.index(made.family))
    return tuple(made for made in ordered if family in (None, made.family))


def of_families(families: Iterable[str]) -> tuple[Invariant, ...]:
    """Return the registered invariants of several families, family by family."""
    return tuple(made for family in families for made in catalogue(family))


def find_invariants(name: str) -> tuple[Invariant, ...]:
    """Return the invariants called `name`, bare or as `family.name`; raises when there is none."""
    found = tuple(i for i in catalogue() if name in (i.name, i.key))
    if not found:
        raise DeclarationError(f"No invariant is called {name!r}.{_offer(name)}")
    return found


def _offer(name: str, known: Iterable[str] = ()) -> str:
    """
    Say what an invariant of an earlier version is called now, or which are near to a name.

    known: the names that may be meant; those of all where none is given.
    """
    bare = name.rpartition(".")[2]
    if current_name(bare) != bare:
        return suggest_name(name, ())
    among = set(known)
    nearest = [near for near in _find_near(name) if not among or near in among]
    *others, last = [repr(near) for near in nearest] or [""]
    choice = f"{', '.join(others)} or {last}" if others else last
    offer = f" Did you mean {choice}?" if choice else ""
    return f"{offer}{_EVERY}"


def _find_near(name: str) -> list[str]:
    """Return the names nearest to one that is none: that have its words, or its letters."""
    names = sorted({made.name for made in catalogue()})
    slip = get_close_matches(name, names, n=1, cutoff=_ALIKE)
    if slip:
        return slip
    word = name.lower().strip("*? ")
    parts = [part for part in re.split(r"[\W_]+", word) if part]
    texts = {made.name: f"{made.key} {made.title}".lower() for made in catalogue()}
    near = [made for made in texts if word and word in made]
    near += [made for made, text in texts.items() if word and word in text]
    near += [made for made, text in texts.items() if parts and all(p in text for p in parts)]
    near += get_close_matches(word, names, n=_NEAR)
    return [*dict.fromkeys(near)][:_NEAR]


def current_name(name: str) -> str:
    """Return what an invariant is called that had this name in an earlier version."""
    return next((made.name for made in catalogue() if name in made.was), name)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Say what an invariant is called now, or which of the known names is nearest."""
    bare = name.rpartition(".")[2]
    now = current_name(bare)
    if now != bare:
        return f" It is {now!r} now."
    names = list(known)
    near = did_you_mean(name, names)
    return _offer(name, names) if near.startswith(" Known") and len(names) > _LISTED else near


def has_limit(made: Invariant) -> bool:
    """Say whether a subject can set the threshold of an invariant: its module then asks for it."""
    asked = rf"limit\(\s*{json.dumps(made.name)}"
    return re.search(asked, inspect.getsource(sys.modules[made.judge.__module__])) is not None


def matches(made: Invariant, globs: Iterable[str]) -> bool:
    """Say whether one of the globs names the invariant, bare or as `family.name`."""
    return any(fnmatchcase(text, glob) for glob in globs for text in (made.name, made.key))


def check_globs(option: str, globs: Iterable[str]) -> None:
    """Raise DeclarationError for a glob of `option` that names no invariant at all."""
    for glob in globs:
        if not any(matches(made, [glob]) for made in catalogue()):
            known = {name for made in catalogue() for name in (made.name, made.key)}
            near = suggest_name(glob, known)
            # Of a pattern, what has its letters somewhere is hardly meant.
            vague = near.endswith(_EVERY) and not set(glob).isdisjoint("*?[")
            hint = _EVERY if vague else near
            raise DeclarationError(f"{option}={glob!r} matches no invariant.{hint}")

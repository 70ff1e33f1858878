"""Judgement of averaged copies: a teacher or an EMA follows its model as an average does."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import Measure, integer, number, portion
from trainguard.events.base import Event
from trainguard.events.loop import Average
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import AVERAGES, has_probe
from trainguard.invariants.loop.wording import count, courses, events, finite, middle

_STUCK = 0.3  # of the elements of an average: with a precision that suffices none does
_FEW, _MANY = 3, 5  # looks that a finding takes, with a promise and without one
_RARE = 10  # steps that common averages let pass between two updates
_COPIED = 2e-5  # a decay below it is that of a plain copy, as before an average begins
_HARDLY = 0.5  # a decay below it keeps less than half
_LITTLE = 0.25  # a decay that has fallen to it, as one exchanged in a usual warmup does by step 26
_EXCHANGED = 0.11  # one below it is none that anybody means: common ones are 0.9 and above
_EXPLAINED = 0.1  # the part of a move that rounding and a late update may leave unexplained
_FOREIGN = 0.5  # a move of which that much is unexplained was made by something else
_COARSE = 0.999  # above this decay a single move is so small that rounding may shape it


@invariant("loop", evidence=AVERAGES)
def average_follows_model(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The moving average (EMA) of a model follows its weights at the rate of its decay.

    Judges: with `average` promised, the copies that are called an average, or else all of them:
        one must move by the promised decay. Without it, copies that are called an average: none
        shares its memory with the model, moves away from it, stays where the model moves, keeps
        a tenth of itself or less at each update, or ever less down to a quarter, or rounds off
        what it should move by in most of its elements.
    Allows: decays within 0.1 (limit) of 1 - decay of the promised one, plus 1e-4; decays that rise
        or fall through it, or toward it. A note: one that keeps less than half at each update, one
        that stands still and is not promised, one that is only ever copied, no copy at all.
    Misses: averages kept outside of modules; buffers; decays above 0.999 that move by rounding;
        a frozen average in fewer than 10 steps; one on another device of which nothing is made.
    Why: an average with its weights exchanged is the model of one step ago, and a frozen one is
        easy to imitate: the loss falls either way.
    Source: huggingface/diffusers issue 1864.
    """
    yield from _unused(trace)
    copies = _copies(trace)
    named = [copy for copy in copies if copy.looks[-1].named]
    promised = trace.promise("average")
    if promised is None:
        for copy in named:
            yield from _odd(trace, copy)
    elif copies:
        faults = [list(_faults(trace, copy, promised)) for copy in named or copies]
        yield from faults[0] if all(faults) else ()
    elif max((count(course.steps) for course in courses(trace)), default=0) >= _FEW:
        yield note(
            f"`{trace.subject}` promises an average, and no copy of its model was found",
            measured=integer(0, "copies"),
            allowed=Measure(f"1 copy with a decay of {promised:.6g}", 1, "copies"),
            why="a copy that is kept outside of a module, as a list of tensors, is not seen",
        )


@invariant(
    "loop", evidence=has_probe("swapped average", "no average stood in the place of its model")
)
def models_come_back_from_their_averages(trace: Trace[Event]) -> Iterator[Finding]:
    """
    After an evaluation with averaged weights, training continues from the model's own.

    Judges: averages that follow their model every few steps, on the CPU, and whose numbers are
        written into the model for an evaluation: whether the model has its own again where
        something is learned next. Broken where it never has, after 2 evaluations (limit) or more.
    Allows: one evaluation, as at the end of a stage; averages that move at the evaluations alone,
        as those of lookahead or of federated rounds, from which the model goes on by design.
    Misses: averages on an accelerator, and those that nobody keeps.
    Why: each epoch begins anew from the average of what was before, with the state of the optimizer
        of another point: the training is slowed down, and what is called an average is none.
    Source: harubaru/waifu-diffusion pull request 31; PKU-YuanGroup/Open-Sora-Plan issue 186.
    """
    least = trace.limit("models_come_back_from_their_averages", 2)
    for probe in events(trace, Probe):
        if probe.probe == "swapped average" and probe.measured == probe.reference >= least:
            yield Finding(
                f"the training of `{trace.subject}` goes on from an average of its model",
                f"{probe.label}, evaluated in the place of the model",
                "not put back after " + portion(probe.measured, probe.reference, "evaluations"),
                "the weights of the latest step, after each of them",
                why="keep the weights before the average is written over them, and put them back"
                " after the evaluation; or evaluate a copy of the model",
                event=probe,
            )


@invariant("loop", evidence=has_probe("unasked", "no module with the name of a target moved"))
def targets_are_asked(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A target network is used, not only updated.

    Judges: copies of trained modules that move, in variables or attributes whose name has the word
        target, in runs that came to their end: whether one of them, or a part of it, was called.
    Allows: copies with other names, as the best state; those that never move.
    Misses: targets that are called for a number which nothing reads.
    Why: the values of the next states come from the network that is trained, perhaps by its name
        in one line: the target chases itself, and what is tuned of the copy's pace has no effect.
    Source: tambetm/gym-minecraft issue 4 (updated at intervals, used nowhere);
        facebookresearch/ReAgent issue 88 (the values of the current network).
    """
    if trace.conditions.get("ended") != "finished":
        return
    for probe in events(trace, Probe):
        if probe.probe == "unasked":
            yield Finding(
                f"a target network of `{trace.subject}` follows another one, and is never called",
                probe.label,
                integer(0, "calls") + f" of it in {probe.measured:.0f} steps",
                integer(1, "call") + " or more",
                why="perhaps the network that is trained is asked in its place: where the targets"
                " are computed, call this one",
                event=probe,
            )


@dataclass(frozen=True, slots=True)
class _CopyHistory:
    """All looks at one copy."""

    looks: tuple[Average, ...]

    @property
    def at(self) -> str:
        """The copy, and what it follows."""
        return f"{self.looks[0].name}, a copy of {self.looks[0].follows}"

    @property
    def moves(self) -> list[Average]:
        """The looks at which it had moved and its decay is known."""
        return [look for look in self.looks if look.moved and isfinite(look.decay)]

    @property
    def decays(self) -> list[float]:
        """The decays of the moves that a decay explains."""
        return [look.decay for look in self.moves if look.residual <= _EXPLAINED]

    @property
    def frozen_looks(self) -> int:
        """At how many looks its model had moved, if it has never moved itself."""
        moved = any(look.moved for look in self.looks)
        return 0 if moved else sum(look.student_moved for look in self.looks)

    @property
    def watched_steps(self) -> int:
        """The number of steps between the first look and the last."""
        return self.looks[-1].step - self.looks[0].step

    @property
    def is_shared(self) -> bool:
        """Whether it is no copy at all."""
        return all(look.shared for look in self.looks)

    @property
    def stayed(self) -> list[float]:
        """The shares of its elements that stayed where they were, far from its model's."""
        return [look.stayed for look in self.looks if look.moved and isfinite(look.stayed)]

    @property
    def is_driven(self) -> bool:
        """Whether something else than an average moves it, from the beginning to the end."""
        late = self.moves[len(self.moves) // 2 :]
        residuals = [look.residual for look in self.moves]
        early, last = _ends(residuals) if residuals else (0.0, 0.0)
        sustained = len(self.moves) >= _MANY and last >= 0.8 * early
        coarse = middle(look.decay for look in late) > _COARSE
        return sustained and not coarse and middle(look.residual for look in late) > _FOREIGN


def _copies(trace: Trace[Event]) -> list[_CopyHistory]:
    """Return the copies of the run, each with its looks in order."""
    looks = sorted(events(trace, Average), key=lambda look: (look.name, look.step))
    return [_CopyHistory(tuple(own)) for _, own in groupby(looks, key=lambda look: look.name)]


def _ends(values: list[float]) -> tuple[float, float]:
    """Return the medians of the first and of the last third."""
    third = max(1, len(values) // 3)
    return middle(values[:third]), middle(values[-third:])


def _unused(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note of each average that was kept to the end of a run for nothing."""
    if trace.conditions.get("ended") != "finished":
        return
    unused = {probe.label: probe for probe in events(trace, Probe) if probe.probe == "unused"}
    for copy in _copies(trace):
        probe = unused.get(copy.looks[0].name)
        if probe is not None and copy.looks[-1].named and len(copy.decays) >= _MANY:
            yield Finding(
                f"an average in `{trace.subject}` is kept and never used",
                copy.at,
                "no call and no save of it in " + integer(probe.measured, "steps"),
                "evaluated, or saved",
                why="what is evaluated and saved is the model itself, as at this line: take the"
                " average there",
                rank=Rank.NOTE,
                event=probe,
                source=probe.source,
            )


def _make_finding(
    copy: _CopyHistory,
    summary: str,
    measured: str,
    allowed: str,
    why: str,
    rank: Rank = Rank.BROKEN,
) -> Finding:
    """Return a finding about a copy."""
    return Finding(summary, copy.at, measured, allowed, why=why, rank=rank, event=copy.looks[-1])


def _common(trace: Trace[Event], copy: _CopyHistory, rank: Rank) -> Iterator[Finding]:
    """Yield what is wrong with any average: it is the model, or something else moves it."""
    if copy.is_shared:
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` shares its parameters with the model",
            "the same memory",
            "memory of its own",
            "made of p.detach() or state_dict(), which copy nothing: clone(), or copy.deepcopy()",
        )
    elif len(copy.stayed) >= _MANY and middle(copy.stayed) >= _STUCK:
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` rounds its updates off",
            number(middle(copy.stayed), "", ".3g") + " of the elements that lag behind do not move",
            "below " + number(_STUCK),
            "what it adds is less than its precision: keep the average in float32",
            rank,
        )
    elif copy.is_driven:
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` is moved by something else than its model",
            number(middle(finite(look.residual for look in copy.moves)), "", ".3g")
            + " of its moves unexplained",
            number(_FOREIGN, "", ".3g"),
            "perhaps an optimizer holds its parameters too",
            rank,
        )


def _faults(trace: Trace[Event], copy: _CopyHistory, promised: float) -> Iterator[Finding]:
    """Yield what is wrong with a copy that should be the promised average."""
    found = list(_common(trace, copy, Rank.BROKEN))
    if found:
        yield found[0]
    elif copy.frozen_looks >= _FEW:
        yield _make_finding(
            copy,
            f"the average of `{trace.subject}` does not move",
            f"no move at {copy.frozen_looks} looks in " + integer(copy.watched_steps, "steps"),
            "a decay of " + number(promised, "", ".6g"),
            "perhaps the update is never called, or works on a copy of its state",
            Rank.BROKEN if copy.watched_steps >= _RARE else Rank.NOTE,
        )
    elif len(copy.decays) >= _FEW:
        share = trace.limit("average_follows_model", 0.1)
        yield from _wrong_decay(trace, copy, promised, share * (1 - promised) + 1e-4)


def _wrong_decay(
    trace: Trace[Event], copy: _CopyHistory, promised: float, tolerance: float
) -> Iterator[Finding]:
    """Yield a finding where the decay is not the promised one, nor on its way to it."""
    decay = middle(copy.decays)
    low, high = min(copy.decays), max(copy.decays)
    early, late = _ends(copy.decays)
    approaching = abs(late - promised) < 0.9 * abs(early - promised)
    if low - tolerance <= promised <= high + tolerance or approaching:
        return
    copied, exchanged = abs(decay) <= _COPIED, abs(decay - (1 - promised)) <= tolerance
    yield _make_finding(
        copy,
        f"the average of `{trace.subject}` is only ever copied"
        if copied
        else f"the average of `{trace.subject}` does not have its decay",
        number(decay, "", ".6g") + f" (median of {len(copy.decays)} looks)",
        number(promised, "", ".6g") + f" within {tolerance:.2g}",
        "perhaps it has not begun yet"
        if copied
        else "the weights of the average and of the model may be exchanged"
        if exchanged
        else "",
        Rank.NOTE if copied else Rank.BROKEN,
    )


def _odd(trace: Trace[Event], copy: _CopyHistory) -> Iterator[Finding]:
    """Yield what is wrong with a copy that is called an average, where no decay is promised."""
    found = list(_common(trace, copy, Rank.NOTE))
    if found:
        yield found[0]
    elif copy.frozen_looks >= _MANY and copy.watched_steps >= _RARE:
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` does not move",
            f"no move at {copy.frozen_looks} looks in " + integer(copy.watched_steps, "steps"),
            "a move",
            "perhaps the update is never called, or writes to a name of its own; a teacher may also"
            " be frozen on purpose",
            Rank.NOTE,
        )
    elif len(copy.decays) >= _MANY:
        yield from _odd_decay(trace, copy)


def _odd_decay(trace: Trace[Event], copy: _CopyHistory) -> Iterator[Finding]:
    """Yield what is wrong with a decay: it leads away from the model, or keeps hardly anything."""
    away = [decay for decay in copy.decays if not -0.05 <= decay <= 1.01]
    told = number(middle(away or copy.decays), "", ".6g")
    measured = "decay " + told + f" (median of {len(copy.decays)} looks)"
    if 2 * len(away) > len(copy.decays):
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` moves away from its model",
            measured,
            "decay 0 to 1",
            "a sign may be wrong in its update",
        )
    elif _keeps_little(copy.decays):
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` keeps hardly anything of itself",
            measured,
            "decay " + number(_HARDLY, "", ".6g") + " or more",
            "the weights of the average and of the model may be exchanged",
            Rank.BROKEN if max(copy.decays) < _EXCHANGED else Rank.NOTE,
        )
    elif _forgets_ever_more(copy.decays):
        yield _make_finding(
            copy,
            f"an average in `{trace.subject}` keeps ever less of itself",
            "decay " + number(copy.decays[0]) + f" to {number(copy.decays[-1])}, falling at each of"
            f" {len(copy.decays)} looks",
            "a decay that stays, or rises as in a warmup",
            "the weights of the average and of the model may be exchanged",
        )


def _forgets_ever_more(decays: list[float]) -> bool:
    """Say whether a decay falls at each look, to half of what it was and well below a half."""
    falls = all(after < before for before, after in pairwise(decays))
    return falls and _COPIED < decays[-1] < min(_LITTLE, decays[0] / 2)


def _keeps_little(decays: list[float]) -> bool:
    """Say whether a decay stays below a half, and neither rises nor is that of a plain copy."""
    late = decays[len(decays) // 2 :]
    return min(late) > _COPIED and max(late) < _HARDLY and max(late) - min(late) < 0.05

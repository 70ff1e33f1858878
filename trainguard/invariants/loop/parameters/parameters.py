"""Judgements of parameters: what is meant to move does, and what is frozen stays."""

from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank, note
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import FROZEN, PARAMETERS
from trainguard.invariants.loop.parameters.forgotten_layers import find_forgotten
from trainguard.invariants.loop.parameters.frozen_draws import find_frozen_as_drawn
from trainguard.invariants.loop.wording import (
    and_more,
    count,
    courses,
    events,
    in_line,
    line_of_steps,
    lines_of_origin,
    middle,
)
from trainguard.invariants.wording import number
from trainguard.subjects.loop import named_by

_LEAST_STEPS = 2  # what begins at zero, as LoRA does, gets its first gradient in the second step
_LONG_ENOUGH = 5  # steps in which what is used at random is used at least once
_IN_VAIN = 24  # gradients of zero: a mask that opens after a warm-up has opened by then
_LOOKS = 4  # at the graph: steps 1, 8, 16 and 32
_ROUNDED = 1e-6  # a smaller update may be lost in a parameter of float32
_PLAIN = ("SGD", "by hand")  # optimizers whose updates are as small as the gradients


@invariant("loop", evidence=PARAMETERS)
def every_trainable_parameter_moves(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Every trainable parameter changes during the run.

    Judges: parameters that an optimizer holds, that got a gradient and that stand still, in runs of
        2 steps or more; those named in `trainable`, whatever holds them; in runs of 5 steps or
        more, modules that were called and that no gradient reached: a note, unless an edit of them
        changes what is learned from, gradients were on, and the run loads no weights; layers that
        are frozen as torch has drawn them, where most of their model learns: a note; the last layer
        of a model that is frozen so, where all else that is frozen has learned something, and what
        was put beside it learns. A note of layers that were not called, though others of their
        module were, and that no method of its class names but those that make it.
    Allows: parameters thawed on the way, copies, other modules that were not called, optimizers
        that made fewer than 2 steps, gradients that no step may have used, frozen parts of several
        layers, as helpers are, recurrent ones, as of reservoirs, or those asked without a graph, as
        for targets, and gradients per element below 1e-3 (limit) of their median. It is a note
        where the rate is zero, where an update would be below 1e-6, where everything ends as it
        began although steps moved it, and where gradients are exactly zero in every step while a
        mask of zeros is multiplied in, as the graph says, and none of ones beside it, by which all
        was sent another way. A rate of zero for all: learning_rate_is_positive.
    Misses: parameters that move and do not learn; single rows or heads that stand still.
    Why: what is in the model and in the optimizer and stands still is missed by every loss curve.
    Source: microsoft/nni issue 4521 (layers replaced after the optimizer);
        discuss.pytorch.org/t/84911 (a part that is frozen).
    """
    globs, parameters = _globs(trace, "trainable"), events(trace, Parameter)
    yield from _nameless(trace, "trainable", globs, parameters)
    if _count_steps(trace) < _LEAST_STEPS:
        return
    promised = [p for p in _match_globs(parameters, globs) if not p.moved]
    if promised:
        yield _still(trace, promised)
    own = [p for p in parameters if p not in promised and not p.copy]
    others = [p for p in own if not p.thawed]
    if any(p.moved for p in parameters if not p.copy):
        yield from _standing(trace, others)
        yield from _find_unreached(trace, others)
        yield from _find_zeroed(trace, others)
        yield from find_frozen_as_drawn(trace, own, _count_steps(trace))
        yield from find_forgotten(trace, others, _count_steps(trace))
    else:
        yield from _all_standing(trace, others)


def _count_steps(trace: Trace[Event]) -> int:
    """Return how many steps were made, of the optimizer that made the most."""
    return max((count(course.steps) for course in courses(trace)), default=0)


def _globs(trace: Trace[Event], name: str) -> tuple[str, ...]:
    """Return the globs that the run promises."""
    value = trace.promises.get(name)
    return tuple(map(str, value)) if isinstance(value, tuple) else ()


def _own(parameters: Iterable[Parameter], glob: str) -> list[Parameter]:
    """Return the parameters that a glob names; copies only where it names nothing else."""
    named = [p for p in parameters if named_by(p.name, (glob,))]
    return [p for p in named if not p.copy] or named


def _match_globs(parameters: Iterable[Parameter], globs: Iterable[str]) -> list[Parameter]:
    """Return the parameters that some globs name, each once."""
    kept = list(parameters)
    return list(dict.fromkeys(p for glob in globs for p in _own(kept, glob)))


def _nameless(
    trace: Trace[Event], word: str, globs: Iterable[str], parameters: Sequence[Parameter]
) -> Iterator[Finding]:
    """Yield a finding for each promised glob that names no parameter of the run."""
    for glob in globs if parameters else ():
        if not _own(parameters, glob):
            yield Finding(
                f"`{trace.subject}` has no parameter that its promise `{word}` names",
                f"{glob!r}",
                portion(0, len(parameters), "parameters"),
                integer(1) + " or more",
                why=f"names are such as {parameters[0].name!r}; perhaps a layer was renamed",
            )


def _still(trace: Trace[Event], parameters: Sequence[Parameter]) -> Finding:
    """Return the finding about promised parameters that did not move."""
    one = parameters[0]
    reasons = {
        "no optimizer holds it": not one.held,
        "it requires no gradient: perhaps it was frozen and never thawed": not one.trainable,
        "its module was never called": not one.called,
        "no gradient reaches it": one.received == 0,
        "the rate of its group is zero": one.rate == 0,
    }
    return Finding(
        f"parameters that `{trace.subject}` promises to train do not move",
        and_more(p.name for p in parameters),
        "no move in " + integer(_count_steps(trace), "steps"),
        "a move within " + integer(_LEAST_STEPS, "steps"),
        why=next((told for told, true in reasons.items() if true), ""),
        event=one,
    )


def _find_stuck(trace: Trace[Event], parameters: Iterable[Parameter]) -> list[Parameter]:
    """Return what gets gradients worth the name and stands still though its optimizer steps."""
    backwards = (len(step.losses) for course in courses(trace) for step in course.every)
    unused = max(1, max(backwards, default=0))  # gradients of a last window without a step
    learning = [p for p in parameters if p.trainable and p.gradient > 0 and p.received > unused]
    typical = middle(map(_slope, learning))
    least = trace.limit("every_trainable_parameter_moves", 1e-3) * typical
    # A bias before a normalisation gets rounding noise for a gradient, and may well stand still.
    return [p for p in learning if p.held and p.called and not p.moved and _slope(p) >= least]


def _slope(parameter: Parameter) -> float:
    """Return the root mean square of the largest gradient of a parameter."""
    return parameter.gradient / sqrt(max(1, parameter.elements))


def _some_never_stepped(trace: Trace[Event]) -> bool:
    """Say whether optimizers that hardly stepped hold some of the parameters."""
    stepping = [c for c in courses(trace) if count(c.steps) >= _LEAST_STEPS]
    held = [p for p in events(trace, Parameter) if p.held and (p.trainable or p.thawed)]
    return sum(max(s.held for s in c.every) for c in stepping) < len(held)


def _standing(trace: Trace[Event], parameters: Iterable[Parameter]) -> Iterator[Finding]:
    """Yield findings about parameters that stand still while others of the run move."""
    stuck = [] if _some_never_stepped(trace) else _find_stuck(trace, parameters)
    plain = any(c.optimizer.startswith(_PLAIN) for c in courses(trace))
    for kind, (summary, why, rank) in _STANDING.items():
        found = [p for p in stuck if _kind(p, plain=plain) == kind]
        if found:
            yield Finding(
                summary.format(trace.subject),
                and_more(p.name for p in found),
                "no move in "
                + integer(_count_steps(trace), "steps")
                + f", gradients up to {number(max(p.gradient for p in found))}",
                "a move within " + integer(_LEAST_STEPS, "steps"),
                why=why + (in_line(*lines_of_origin(trace, "cast")) if kind == "put back" else ""),
                rank=rank,
                event=found[0],
                source=line_of_steps(trace),
            )


def _kind(parameter: Parameter, *, plain: bool) -> str:
    """Tell why a parameter may stand still: no rate, an update below rounding, or neither."""
    if parameter.rate == 0:
        return "rate"
    update = parameter.rate * (_slope(parameter) if plain else 1.0)
    return "small" if update < _ROUNDED else "put back"


_STANDING = {
    "put back": (
        "parameters of `{}` get gradients and do not move",
        "something may put them back after each step, or their precision rounds updates off",
        Rank.BROKEN,
    ),
    "rate": (
        "parameters of `{}` get gradients at a rate of zero",
        "a group of the optimizer has no rate of its own",
        Rank.NOTE,
    ),
    "small": (
        "the updates of parameters of `{}` may be lost to rounding",
        "the rate times the gradient is very small against what a float can hold",
        Rank.NOTE,
    ),
}


def _all_standing(trace: Trace[Event], parameters: Iterable[Parameter]) -> Iterator[Finding]:
    """Yield a finding where nothing at all has moved, though there is a rate."""
    stuck = [p for p in _find_stuck(trace, parameters) if p.rate > 0]
    if not stuck:
        return
    stepped = any(step.update > 0 for course in courses(trace) for step in course.steps)
    yield Finding(
        f"the parameters of `{trace.subject}` end as they began although its steps move them"
        if stepped
        else f"no parameter of `{trace.subject}` moves",
        and_more(p.name for p in stuck),
        "no move in "
        + integer(_count_steps(trace), "steps")
        + f", gradients up to {number(max(p.gradient for p in stuck))}",
        "a move within " + integer(_LEAST_STEPS, "steps"),
        why="perhaps a state of before is loaded at the end"
        if stepped
        else "perhaps gradients are cleared between backward and step",
        rank=Rank.NOTE if stepped else Rank.BROKEN,
        event=stuck[0],
        source=line_of_steps(trace),
    )


def _find_zeroed(trace: Trace[Event], parameters: Iterable[Parameter]) -> Iterator[Finding]:
    """Yield a note of modules whose outputs are multiplied by zeros in the whole run."""
    modules: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        modules.setdefault(parameter.module, []).append(parameter)
    zeroed = [
        own
        for own in modules.values()
        if all(p.held and p.called and p.dead >= p.received >= _IN_VAIN for p in own)
        and not any(p.moved or p.gradient > 0 for p in own)
    ]
    masks = [p for p in events(trace, Probe) if p.probe == "zero mask"]
    if zeroed and masks and masks[0].measured >= _LOOKS:
        yield note(
            f"a mask of zeros keeps all gradients from a module of `{trace.subject}`",
            _list_modules(zeroed),
            "a gradient of exactly " + integer(0) + f" in {_count_steps(trace)} steps",
            "above " + integer(0),
            why=f"what it makes is multiplied by {masks[0].label} zeros for each sample, in every"
            " step that was looked at: perhaps a comparison that nothing passes, or a mask that is"
            " upside down",
            event=zeroed[0][0],
        )


def _find_unreached(trace: Trace[Event], parameters: Iterable[Parameter]) -> Iterator[Finding]:
    """Yield what is to be said of modules that are called and that no gradient reaches."""
    modules: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        if parameter.trainable:
            modules.setdefault(parameter.module, []).append(parameter)
    idle = [
        own
        for own in modules.values()
        if all(p.held and p.called and p.received == 0 and not p.moved for p in own)
    ]
    detached = {p.label for p in events(trace, Probe) if p.probe == "detached"}
    cut = [own for own in idle if own[0].module in detached]
    if cut and _count_steps(trace) >= _LONG_ENOUGH:
        yield Finding(
            f"no gradient reaches a module of `{trace.subject}` that its output depends on",
            _list_modules(cut + [own for own in idle if own not in cut]),
            integer(0, "gradients") + f" in {_count_steps(trace)} steps",
            integer(1) + " or more",
            why="what it computes is detached, or goes through something without a gradient:"
            " .detach(), .data, .item(), numpy, round or argmax"
            + in_line(*lines_of_origin(trace, f"cut {cut[0][0].module}")),
            event=cut[0][0],
        )
    elif idle and _count_steps(trace) >= _LONG_ENOUGH:
        yield note(
            f"no gradient reaches a module of `{trace.subject}` that is called",
            _list_modules(idle),
            integer(0, "gradients") + f" in {_count_steps(trace)} steps",
            integer(1) + " or more",
            why="perhaps its output is detached, or nothing uses it",
            event=idle[0][0],
        )


def _list_modules(modules: Sequence[Sequence[Parameter]]) -> str:
    """Write the name of the first of some modules, and how many more there are."""
    return and_more(own[0].module or own[0].name for own in modules)


@invariant("loop", evidence=FROZEN)
def frozen_parameters_stay(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Frozen parameters do not change.

    Judges: parameters that require no gradient, at each step of an optimizer; those named in
        `frozen`, at the end of the run; those that were to be frozen by an attribute that torch
        does not know, as `require_grad` of a parameter or `requires_grad` of a module.
    Allows: nothing for parameters that a step moved; copies, which follow by their own rule; what
        never required a gradient and is given one, as in an evolution strategy.
    Misses: buffers, such as batch statistics; frozen parameters that are edited by hand, unless
        they are declared.
    Why: a gradient that is zeroed and not removed keeps momentum and weight decay at work.
    Source: facebookresearch/fairseq issue 4702.
    """
    globs, parameters = _globs(trace, "frozen"), events(trace, Parameter)
    yield from _nameless(trace, "frozen", globs, parameters)
    promised = [p for p in _match_globs(parameters, globs) if p.moved]
    told = {
        f"parameters that `{trace.subject}` promises to freeze move": promised,
        f"an optimizer of `{trace.subject}` moves parameters that are frozen": [
            p for p in parameters if p.moved_frozen and not p.copy and p not in promised
        ],
    }
    told[f"parameters that `{trace.subject}` means to freeze are trained"] = [
        p
        for p in parameters
        if p.unheard and p.received and p.trainable and not p.thawed and p not in promised
    ]
    for summary, found in told.items():
        if found:
            yield Finding(
                summary,
                and_more(p.name for p in found),
                portion(len(found), len(parameters), "parameters") + " moved",
                portion(0, len(parameters)),
                why=_why_moved(found[0]),
                event=found[0],
            )


def _why_moved(parameter: Parameter) -> str:
    """Guess why a frozen parameter moved."""
    if parameter.unheard:
        return (
            f"`{parameter.unheard} = False` is an attribute that torch does not know: set"
            " requires_grad of each parameter, or call requires_grad_(False) of the module"
        )
    if parameter.moved_frozen:
        return (
            "an old gradient is still there, perhaps zeroed, so that momentum and weight decay go"
            " on; set it to None, or take it out of the optimizer"
        )
    return "it still requires a gradient" if parameter.trainable else "something else edits it"

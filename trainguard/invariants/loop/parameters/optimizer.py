"""Judgement of what the optimizers hold: the parameters that the loss asks to move."""

from collections import Counter
from collections.abc import Iterator, Sequence

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import Measure, at_step, integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import PARAMETERS, either, has_probe
from trainguard.invariants.loop.wording import (
    and_more,
    courses,
    events,
    in_line,
    line_of_optimizer,
    line_of_origin,
    lines_of_origin,
    percent,
)

_STEPS = 8  # of a training: before that a stage of warming up may go on
_TIMES = 2  # that it happens; once may be a stage of the training


@invariant("loop", evidence=PARAMETERS)
def optimizer_holds_every_trainable_parameter(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Every parameter that receives gradients is held by an optimizer.

    Judges: parameters that require a gradient, got one, are in no optimizer and did not move, in
        runs with an optimizer; other tensors where the script keeps them in one tree of
        dictionaries, lists and tuples with some that an optimizer holds.
    Allows: copies, and parameters frozen on the way. Broken where three or more stood in one place,
        one after the other, of which an optimizer holds the first; where it holds parameters of
        no module that is called instead, or nothing that it holds has got a gradient in the last 20
        steps or more, while these did; where they were thawed on the way; where the model that
        uses them does not register them (layers in a list) and they are in training mode; where a
        module of vectors and tables alone, such as the weights of a loss, is left out, or one with
        two single numbers or more beside its layers, into which no state was loaded; or where a
        part of a layer, or a layer behind others that are held, is left out and makes less than
        half (limit) of the elements. It stands at the top of its model, or is new: its weights are
        what torch draws for it, and then less than half of the layers will do, or a single table
        beside three layers or more that are held. Else a note, since leaving out a backbone, a
        whole helper model or what a state was loaded into is a way of freezing it.
    Misses: models that are left out as a whole, on purpose or not.
    Why: an optimizer built before the head was replaced goes on training the head that is gone.
    Source: zjunlp/HVPNeT issue 5; microsoft/nni issue 4521 (layers replaced after the optimizer);
        facebookresearch/detectron2 issue 2486 (thawed); ifzhang/FairMOT issue 19 (loss weights).
    """
    parameters = [p for p in events(trace, Parameter) if not p.copy]
    if all(course.by_hand for course in courses(trace)):
        return
    late = [p for p in parameters if p.thawed and p.learns and not (p.held or p.moved)]
    for kind, found in {_THAWED: late, _HIDDEN: [p for p in parameters if p.hidden]}.items():
        lost = [p for p in found if p.gradient > 0 and p.received >= _OFTEN and not p.moved]
        if lost and not any(p.held for p in lost):
            yield _make_finding(trace, *kind, lost, [p for p in parameters if p.received])
            return
    reached = [p for p in parameters if p.trainable and p.received and p.gradient > 0]
    astray = [p for p in reached if p.learns and p.astray >= _OFTEN]
    if astray:
        yield _make_finding(trace, *_THAWED, astray, reached)
        return
    left_out = [p for p in reached if not (p.held or p.moved or p.thawed)]
    if not left_out:
        return
    behind = _find_left_behind(trace, left_out)
    if behind:
        yield _make_left_behind_finding(trace, behind, left_out)
        return
    beside = _beside_held(left_out, parameters)
    replaced = _tell_replaced(trace, left_out, beside, parameters)
    if replaced is not None:
        yield replaced
        return
    inner = [p for p in beside if _inside(p, parameters)] or _find_table(left_out, parameters)
    most = trace.limit("optimizer_holds_every_trainable_parameter", 0.5)
    criteria = _find_criteria(left_out, parameters)
    if inner and _is_small_part(inner, reached, most):
        yield _make_finding(trace, *_FORGOTTEN, inner, reached)
    elif criteria:
        yield _make_finding(trace, *_CRITERION, criteria, reached)
    else:
        yield _make_finding(trace, *_OMITTED, left_out, reached)


_OFTEN = 5  # gradients: once or twice may be a look at what would be learned
_REPLACED = "perhaps a layer, or the model, was replaced after the optimizer was built"
_RENEWED = (
    "each pass puts a new nn.Parameter in its place, and the optimizer has the first: keep what is"
    " computed in a variable, as F.linear(x, weight) takes it, or use nn.utils.parametrize"
)
_LAYERS = 3  # held beside a table: a single head behind it may be a probe
_ANEW = 3  # parameters in one place, one after the other
_THAWED = (
    "leave out parameters that were thawed in the course of the run",
    "requires_grad alone does not train them: call optimizer.add_param_group as you thaw them",
    Rank.BROKEN,
)
_HIDDEN = (
    "leave out parameters that the model uses and does not register",
    "parameters() finds no layers in a list or dict, as nn.ModuleList and nn.ModuleDict have them",
    Rank.BROKEN,
)
_CRITERION = (
    "leave out learnable parameters of a module of its own",
    "add its parameters() to those of the model where the optimizer is built, or make them buffers",
    Rank.BROKEN,
)
_FORGOTTEN = (
    "leave out parameters of a model that they train",
    "perhaps layers were added, or sorted into groups, after the optimizer was built",
    Rank.BROKEN,
)
_OMITTED = (
    "leave out parameters that get gradients",
    "if they are meant to stay, requires_grad_(False) saves their gradients",
    Rank.NOTE,
)


def _make_finding(
    trace: Trace[Event],
    told: str,
    why: str,
    rank: Rank,
    left_out: Sequence[Parameter],
    reached: Sequence[Parameter],
) -> Finding:
    """Return the finding about parameters that are in no optimizer."""
    return Finding(
        f"the optimizers of `{trace.subject}` {told}",
        and_more(p.name for p in left_out),
        _measure_share(left_out, reached),
        integer(0, "%"),
        why=why + (in_line(*lines_of_origin(trace, "thawed")) if left_out[0].thawed else ""),
        rank=rank,
        event=left_out[0],
        source=(line_of_origin(trace, left_out[0].name) if left_out[0].hidden else "")
        or line_of_optimizer(trace),
    )


def _tell_replaced(
    trace: Trace[Event],
    left_out: Sequence[Parameter],
    beside: Sequence[Parameter],
    every: Sequence[Parameter],
) -> Finding | None:
    """Return the finding about an optimizer that holds what is no longer there, if it does."""
    reached = [p for p in every if p.trainable and p.received and p.gradient > 0]
    gone = [p for p in every if p.orphan and p.held and not p.received]
    why, renewed = _REPLACED, _find_renewed(left_out, gone)
    if renewed:
        why, left_out = _RENEWED, renewed
        reached = list({p.name: p for p in reached}.values())
    elif gone and (beside or not any(p.held for p in reached)):
        left_out = beside or left_out
    else:
        return None
    return Finding(
        f"the optimizers of `{trace.subject}` hold parameters of no module that is called"
        " and leave out others that get gradients",
        f"{and_more(p.name for p in left_out)}; held: {and_more(p.name for p in gone)}",
        _measure_share(left_out, reached),
        integer(0, "%"),
        why=why,
        event=left_out[0],
        source=line_of_optimizer(trace),
    )


def _find_renewed(left_out: Sequence[Parameter], gone: Sequence[Parameter]) -> list[Parameter]:
    """Return the last of what stood in one place, where an optimizer holds the first of them."""
    times = Counter(p.name for p in left_out if p.module)
    held = {p.elements for p in gone}
    anew = (p for p in left_out if times[p.name] >= _ANEW and p.elements in held)
    return list({p.name: p for p in anew}.values())


def _find_left_behind(trace: Trace[Event], left_out: Sequence[Parameter]) -> Probe | None:
    """Return what was seen of an optimizer that steps on while these get all gradients."""
    names = {p.name for p in left_out}
    seen = (p for p in events(trace, Probe) if p.probe == "left behind")
    return next((probe for probe in seen if probe.label in names), None)


def _make_left_behind_finding(
    trace: Trace[Event], probe: Probe, left_out: Sequence[Parameter]
) -> Finding:
    """Return the finding about an optimizer whose model was replaced after it had learned."""
    return Finding(
        f"the optimizer of `{trace.subject}` steps on with nothing: all gradients go to parameters"
        " that it does not hold",
        at_step(probe.step) + f" and after, {and_more(p.name for p in left_out)}",
        integer(int(probe.measured), "steps") + " without a gradient for what it holds",
        integer(0, "steps"),
        why="perhaps layers were replaced, wrapped or converted in the course of the run: build"
        " the optimizer anew after that",
        event=probe,
    )


def _beside_held(left_out: Sequence[Parameter], every: Sequence[Parameter]) -> list[Parameter]:
    """Return what is left out of models of which an optimizer holds other, living parts."""
    trained = {_path(p, 1) for p in every if p.held and p.received}
    return [p for p in left_out if _path(p, 1) in trained]


def _inside(one: Parameter, every: Sequence[Parameter]) -> bool:
    """Say whether a parameter is left out inside of what is held, not as a part in front of it."""
    layer = [p for p in every if p.module == one.module]
    if any(p.loaded for p in layer):
        return False
    held = [i for i, p in enumerate(every) if p.held and _path(p, 1) == _path(one, 1)]
    mixed = any(_path(every[i], 2) == _path(one, 2) for i in held)
    single_layer = one.module.count(".") <= 1
    new = any(p.drawn for p in layer)  # what was trained before would be left out as a whole
    return held[0] < every.index(one) and (mixed or single_layer or new)


def _find_table(left_out: Sequence[Parameter], every: Sequence[Parameter]) -> Sequence[Parameter]:
    """Return a new table that alone is left out, wherever it stands: embeddings stand first."""
    if len(left_out) != 1 or not left_out[0].drawn or left_out[0].own or left_out[0].loaded:
        return []
    model = [p for p in every if _path(p, 1) == _path(left_out[0], 1)]
    alone = sum(p.module == left_out[0].module for p in model) == 1
    layers = {p.module for p in model if p.held and p.received}
    return left_out if alone and len(layers) >= _LAYERS else []


def _is_small_part(inner: Sequence[Parameter], reached: Sequence[Parameter], most: float) -> bool:
    """Say whether parameters are less of the elements than this, or new layers less of those."""
    if _elements(inner) < most * _elements(reached):
        return True
    layers, every = {p.module for p in inner}, {p.module for p in reached}
    return {p.module for p in inner if p.drawn} == layers and len(layers) < most * len(every)


def _find_criteria(left_out: Sequence[Parameter], every: Sequence[Parameter]) -> list[Parameter]:
    """
    Return what is left out of modules that the user wrote around a few vectors or tables alone.

    Learned weights of losses are such, and centres of classes. A network that is frozen by leaving
    it out has layers of torch; a filter that was made a parameter has more dimensions. A loss with
    two or more single numbers of its own may have layers beside them, where no state was loaded.
    """
    layered = {_path(p, 1) for p in every if not p.own or p.module != _path(p, 1)[0]}
    numbers = Counter(
        _path(p, 1)
        for p in left_out
        if p.own and p.elements == 1 and p.learns and p.module == _path(p, 1)[0]
    )
    given = {_path(p, 1) for p in every if p.loaded}
    layered -= {path for path, count in numbers.items() if count > 1 and path not in given}
    alone = [p for p in left_out if p.own and p.dimensions <= 2 and _path(p, 1) not in layered]
    held = {_path(p, 1) for p in every if p.held}
    return [p for p in alone if _path(p, 1) not in held]


def _path(parameter: Parameter, parts: int) -> tuple[str, ...]:
    """Return the first parts of a parameter's name: its model, and its part of the model."""
    return tuple(parameter.name.split(".")[:parts])


def _elements(parameters: Sequence[Parameter]) -> int:
    """Return the number of elements of some parameters."""
    return sum(max(1, p.elements) for p in parameters)


def _measure_share(left_out: Sequence[Parameter], reached: Sequence[Parameter]) -> Measure:
    """Write the share of the elements with gradient that is left out."""
    share = _elements(left_out) / _elements(reached)
    return percent(share) + " of the elements that get gradients"


@invariant(
    "loop",
    evidence=either(
        has_probe("zero factor", "no product of narrow matrices was seen"),
        has_probe("zero factors", "-"),
    ),
)
def low_rank_products_can_learn(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A low-rank adapter that starts at zero can learn: it is not frozen, nor zero in both factors.

    Judges: pairs of matrices of one module, or of its parts, whose product is wider than what is
        between them, as adapters of low rank have: whether in each of them one is zero, and both
        are frozen, from the beginning of the last training to its end, 8 steps or more. And whether
        both are zero, though an optimizer holds one, from its beginning to its end.
    Allows: pairs of which one learns; frozen ones beside others that learn.
    Misses: products of convolutions; trainings before the last one; pairs that no optimizer holds,
        though they are not frozen, which optimizer_holds_every_trainable_parameter finds.
    Why: adapters begin with a product of zero. Where all is frozen after they were put in, and not
        before, they stay nothing, and the head alone learns.
    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2021 (B is zero at
        first); huggingface/peft, mark_only_lora_as_trainable in microsoft/LoRA.
    """
    for probe in events(trace, Probe):
        if probe.probe == "zero factors" and probe.reference >= _STEPS:
            yield Finding(
                f"both factors of products in `{trace.subject}` are zero, and stay so",
                probe.label,
                integer(probe.measured, "products") + " of two narrow matrices that are zero",
                integer(0, "products"),
                why="the gradient of each is a product with the other: draw one of them at random,"
                " as nn.init.kaiming_uniform_ does",
                event=probe,
            )
        elif probe.probe == "zero factor" and probe.reference >= _STEPS:
            yield Finding(
                f"the adapters of `{trace.subject}` are zero, and frozen",
                probe.label,
                integer(probe.measured, "products") + " of narrow matrices come to nothing",
                "one factor of each that learns",
                why="perhaps all parameters were frozen after the adapters were put in: freeze"
                " first, or let the adapters require gradients again",
                event=probe,
            )


@invariant(
    "loop",
    evidence=has_probe("borrowed", "no two optimizers stepped, and nothing was stepped by hand"),
)
def adapted_weights_are_copies(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Adaptation during an evaluation, as in meta-learning, works on a copy of the weights.

    Judges: optimizers made for tensors that lie in the memory of parameters that another optimizer
        trains, and such leaves that are stepped by hand along `torch.autograd.grad`, where
        evaluations come between that one's steps: whether it goes on from what they have left,
        2 times (limit) or more. Broken where two or more of them, made anew, step between two of
        its steps; else a note, since a layer may be solved for so on purpose.
    Allows: copies; what is put back; optimizers and leaves that go on for the whole run; those that
        hold the parameters themselves; steps without an evaluation.
    Misses: steps by hand along `.grad`; most steps after the 96th of the optimizer that trains.
    Why: `detach()` and `data` return the live memory: what is adapted to tasks of validation trains
        the model on them, at a rate of its own, and each task begins where the last one ended.
    Source: documentation of torch.Tensor.detach ("shares the same storage").
    """
    for probe in events(trace, Probe):
        if probe.probe == "borrowed" and probe.reference >= _TIMES:
            certain = probe.measured >= _TIMES
            yield Finding(
                f"evaluations of `{trace.subject}` adapt the weights that are trained",
                "first before " + at_step(probe.step) + f", {probe.label}",
                integer(probe.reference, "evaluations") + " have moved what the next step began"
                " with, " + portion(probe.measured, probe.reference) + " for several tasks",
                "none",
                why="detach() and data return the live memory: adapt p.detach().clone()",
                rank=Rank.BROKEN if certain else Rank.NOTE,
                event=probe,
            )

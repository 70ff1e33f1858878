"""Judgements of what cuts off from learning: functions at their limit, samples, codes."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import integer, portion
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import PARAMETERS, both, has_probe, steps_from
from trainguard.invariants.loop.wording import and_more, events, line_of_steps

_FEW = 3
_MOSTLY = 2 / 3  # of the losses: codes that all vectors share by chance, say, make an exception
_LEAST_STEPS = 21  # from the 20th on it is looked at
_DEAD = 20  # steps in a row with zeros, as of weights that have died
_SHARES = ("log_softmax", "softmax")  # over one element
_STEPPED = ("ceil", "floor", "round", "sgn", "sign", "trunc")  # without a slope anywhere


@invariant("loop", evidence=both(PARAMETERS, steps_from(_LEAST_STEPS)))
def functions_let_gradients_through(trace: Trace[Event]) -> Iterator[Finding]:
    """
    No saturated, clamping or rounding function cuts parameters off from all gradients.

    Judges: parameters that an optimizer holds and that got 20 gradients or more, all exactly zero:
        whether they become zero in a clamp, relu, tanh, sigmoid or another function with a limit,
        in a softmax over an axis of one element, or in one with steps such as round, and nowhere
        else. With steps also those that have learned before, and got zeros in the last 20 steps or
        more.
    Allows: margins and penalties, after which terms are only added up; factors of zero; other
        functions than those with steps where there was another gradient at any step. A note for a
        single number, as a temperature at its cap, in runs that load a state, and for what has
        learned before where nothing else of the same module learns on.
    Misses: functions at their limit for some of the units or samples; functions written by hand;
        what begins in the last fifth of the run, or is over before its end.
    Why: a clamp that begins beyond its bound and a rounded gate return a number in every step, and
        nothing before them ever learns; the loss falls by what the rest of the model can do. Where
        weights are quantised after some epochs, biases alone go on.
    Source: DLR-RM/stable-baselines3 issue 620; FluxML/Gym.jl issue 25;
        Justin-Tan/generative-compression issues 27 and 51.
    """
    own = {p.name: p for p in events(trace, Parameter) if p.held and p.received}
    lively = {p.module for p in own.values() if p.gradient > 0 and not (p.dead or p.thawed)}
    found: dict[tuple[str, bool], list[Probe]] = {}
    for probe in events(trace, Probe):
        name, _, function = probe.label.rpartition(" ")
        if probe.probe == "saturated" and name in own and _is_silent(own[name], function):
            found.setdefault((function, own[name].gradient > 0), []).append(probe)
    looked = trace.conditions.get("looked", ())
    loaded = isinstance(looked, tuple) and "matched" in looked
    for (function, stopped), probes in found.items():
        silent = [own[probe.label.rpartition(" ")[0]] for probe in probes]
        alone = sum(probe.measured for probe in probes) <= 1
        doubted = not lively & {p.module for p in silent} if stopped else loaded
        rank = Rank.NOTE if alone or doubted else Rank.BROKEN
        yield _make_finding(trace, function, probes, min(p.dead for p in silent) * stopped, rank)


def _is_silent(parameter: Parameter, function: str) -> bool:
    """Say whether a parameter gets nothing but zeros, or has come to that before steps."""
    return not parameter.gradient or (parameter.dead >= _DEAD and function in _STEPPED)


def _make_finding(
    trace: Trace[Event], function: str, probes: list[Probe], last: int, rank: Rank
) -> Finding:
    """Return the finding about one function, over all steps or so many of the last ones."""
    first = probes[0]
    when = f"each of the last {last} steps that were watched" if last else "every step"
    return Finding(
        f"a {function} of `{trace.subject}` lets no gradient through",
        and_more(probe.label.rpartition(" ")[0] for probe in probes),
        "gradients of exactly " + integer(0) + f" in {when}",
        "above " + integer(0) + " in some step",
        why=_explain(function),
        rank=rank,
        event=first,
        source=first.source or line_of_steps(trace),
    )


def _explain(function: str) -> str:
    """Say why a function is flat, and what to do."""
    if function in _STEPPED:
        return (
            f"{function}() is flat wherever it is not a step: let the gradient pass by it, as in"
            f" x + ({function}(x) - x).detach()"
        )
    if function in _SHARES:
        return (
            f"{function}() is taken over an axis of one element, whose share is always the whole:"
            " take it over the axis of what is chosen from"
        )
    return (
        f"{function}() was at its limit for every sample from the start: begin inside of it,"
        " or take a smooth function that leads into the range"
    )


@invariant("loop", evidence=has_probe("sample", "no loss had a sample drawn without a graph"))
def samples_let_gradients_through(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A sample that a loss depends on is reparameterised, so that its distribution can learn.

    Judges: samples drawn by sample() of a distribution that has rsample(), and whose parameters
        the loss trains by another term: whether something that learns is multiplied by them, in all
        of 3 or more of the steps looked at.
    Allows: log-probabilities in the loss, of which sample() is a part; scripts that draw by
        rsample() elsewhere; samples under no_grad.
    Misses: noise that is scaled by hand; samples that are changed before they are multiplied.
    Why: of a variational autoencoder only the divergence would train the encoder: the posterior
        becomes the prior, and the samples tell nothing of the inputs.
    Source: jankrepl/deepdow pull request 106; Kingma and Welling (arXiv 1312.6114).
    """
    for probe in events(trace, Probe):
        if probe.probe == "sample" and _FEW <= probe.measured == probe.reference:
            yield Finding(
                f"the loss of `{trace.subject}` depends on a sample that passes no gradient back",
                f"a sample of a {probe.label}",
                "drawn without a graph, and used in "
                + portion(probe.measured, probe.reference, "losses")
                + " that train its distribution by another term alone",
                "a gradient through the sample",
                why="draw it with rsample(), which passes gradients, unlike sample()",
                event=probe,
            )


@invariant("loop", evidence=has_probe("codes", "no loss held an encoder to codes that it chose"))
def codes_let_gradients_through(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A vector-quantised encoder gets gradients from the loss that its codes lead to.

    Judges: distances of torch's loss functions between vectors and codes that stay, which are the
        nearest to each of a few: whether the rest of the loss, which trains other parameters, leads
        to any parameter of these vectors, in 3 of the steps looked at, or more.
    Allows: a third of the steps, or more, in which it does.
    Misses: distances by hand; on accelerators; one code for each number; steps in which every
        vector has a code of its own, or all have one before several were chosen.
    Why: what is looked up has no gradient for what it was looked up by, unless that goes straight
        through: z + (code - z).detach(). Without it, or with the two exchanged, the encoder learns
        nothing but to stay where the first codes were.
    Source: van den Oord et al., Neural Discrete Representation Learning (arXiv 1711.00937), 3.2;
        Bengio et al., Estimating or Propagating Gradients (arXiv 1308.3432), straight-through.
    """
    for probe in events(trace, Probe):
        if probe.probe == "codes" and _FEW <= probe.measured > _MOSTLY * probe.reference:
            yield Finding(
                f"the encoder of `{trace.subject}` learns from the distance to its codes alone",
                "a distance from the codes that vectors have chosen",
                portion(probe.measured, probe.reference, "losses")
                + " lead to these vectors by this distance alone",
                "gradients from what the codes are used for",
                why="let them go straight through: z + (code - z).detach(), which is the code, and"
                " leads back to z; code + (z - code).detach() is z, and does not",
                event=probe,
                source=probe.source,
            )

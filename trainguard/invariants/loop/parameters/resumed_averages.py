"""The judgement of averages of weights, in a training that goes on from a file."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import at_step, number
from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import has_probe
from trainguard.invariants.loop.wording import events


@invariant(
    "loop",
    evidence=has_probe("resumed average", "no file with an average of weights was learned on"),
)
def averages_are_resumed(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A training that goes on from a file goes on with the averages of its weights.

    Judges: files with a state that is called an average, a target or a teacher beside one of the
        same shapes, where an optimizer with a state begins with that one: how far a module that
        follows the weights is from the average of the file before the first step, and a dict or
        list of tensors within the first 8.
    Allows: 0.1 of the distance between the weights and the average in the file, of a dict or list
        0.8, and none where this is less than four times what the first steps move the weights, as
        with a decay below 0.9. Copies that never move.
    Misses: files not read by torch.load; averages on an accelerator, or that begin so far from the
        weights that nothing but their name says that they follow them; optimizers that begin anew
        too, which optimizer_is_resumed judges.
    Why: what is evaluated and kept as the best is the average: from the file on, it is one of the
        latest steps only, or of weights that were never trained.
    Source: lucidrains/denoising-diffusion-pytorch (`ema` beside `model` in its files);
        Lightning-AI/pytorch-lightning issue 11500 (an average that is not restored).
    """
    for probe in events(trace, Probe):
        if probe.probe == "resumed average":
            path, name = probe.label.split("\n")
            yield Finding(
                f"`{trace.subject}` goes on from a file, and an average of its weights begins anew",
                at_step(probe.step) + f", {name}",
                number(probe.measured, "times") + f" as far from `{path}` of the file as its"
                " weights are",
                "at most " + number(probe.reference, "times"),
                why=f"the file has it: load `{path}` too, as the weights and the optimizer are",
                event=probe,
            )

"""The judgement of layers that a module makes, and that nothing uses."""

from collections.abc import Iterable, Iterator

from trainguard.core.finding import Finding, note
from trainguard.core.measure import integer
from trainguard.events.base import Event
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.wording import and_more, events

_LONG_ENOUGH = 20  # steps


def find_forgotten(
    trace: Trace[Event], parameters: Iterable[Parameter], steps: int
) -> Iterator[Finding]:
    """Yield a note of layers that were made, and that no line of their module's class names."""
    kept = list(parameters)
    found = []
    for probe in events(trace, Probe):
        if probe.probe == "forgotten":
            name = probe.label.partition("\n")[0]
            own = [p for p in kept if p.module == name or p.module.startswith(f"{name}.")]
            if own and all(p.held and p.received == 0 and not p.moved for p in own):
                found.append(probe)
    if found and steps >= _LONG_ENOUGH:
        first = found[0]
        name, _, kind = first.label.partition("\n")
        yield note(
            f"a layer of `{trace.subject}` is made and never used",
            and_more(probe.label.partition("\n")[0] for probe in found),
            integer(0, "calls") + f" in {steps} steps",
            integer(1) + " or more",
            why=f"no method of {kind} but those that make it says `{name.rpartition('.')[2]}`:"
            " perhaps `forward` forgets it",
            event=first,
            source=first.source,
        )

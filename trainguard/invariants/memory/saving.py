"""Judgement of promised savings of memory."""

from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.events.trace import Trace, Usage
from trainguard.invariants.memory.wording import describe_source, of, percent, step, where
from trainguard.subjects.units import format_bytes

_SWITCH = "its checkpoint"


@invariant("memory", probe="saving", needs=("saving",))
def saving_is_real(trace: Trace[Usage]) -> Iterator[Finding]:
    """
    What is promised to save memory does save it.

    Judges: the peak of a training step with the model's `checkpoint` against the one without, or
        the peak of this subject against that of the subject `against`, both at the sizes of the
        budget and both predicted, or both measured.
    Allows: the declared `saving`, a share of the larger peak. Where `at` gives no sizes and even a
        step without any activation would not save that much, it is a note: small models are all
        parameters.
    Misses: what is saved or spent outside of the step, and the time that it costs.
    Why: a switch that reaches none of the layers changes nothing and says nothing; 30 to 50 % are
        quoted for activation checkpointing, and hold for what activations are most of.
    Source: a post-mortem: 30 to 50 % promised, and 18 outputs in place of 65,536, never measured.
    """
    promised = trace.promise("budget:saving")
    for seen in of(trace, "saving"):
        saved = seen.reference - seen.measured
        if promised is None or saved >= int(promised * seen.reference):
            continue
        switch = seen.place == _SWITCH
        beyond_reach = switch and seen.count < promised * seen.reference
        small = beyond_reach and trace.promise("budget:sized") is None
        yield Finding(
            f"{step(trace)} does not save the memory that is promised of {seen.place}"
            if switch
            else f"{step(trace)} does not take as much less memory than {seen.place} as promised",
            where(seen),
            f"{percent(saved / seen.reference)} less: {format_bytes(seen.measured)} instead of"
            f" {format_bytes(seen.reference)}, {describe_source(seen)}",
            f"{percent(promised)} less or more",
            why=_why(trace, seen, beyond_reach),
            rank=Rank.NOTE if small else Rank.BROKEN,
            event=seen,
        )


def _why(trace: Trace[Usage], seen: Usage, beyond_reach: bool) -> str:
    """Say what stands in the way: no activations that could be saved, or which category stayed."""
    if beyond_reach:
        share = percent(seen.count / seen.reference)
        return (
            f"activations and temporaries are only {share} of the peak without it;"
            " give the sizes that it is trained at in at={...}"
        )
    changes = sorted(of(trace, "category"), key=lambda one: -one.reference)[:3]
    parts = [
        f"{c.place} {format_bytes(c.measured)} instead of {format_bytes(c.reference)}"
        for c in changes
    ]
    unchanged = " (nothing changed: it may reach no module)" if _alike(trace) else ""
    return f"at the peaks: {', '.join(parts)}{unchanged}"


def _alike(trace: Trace[Usage]) -> bool:
    """Say whether every category is exactly what it was."""
    return all(one.measured == one.reference for one in of(trace, "category"))

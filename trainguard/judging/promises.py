"""What a run as it is would promise: read from its steps, and tried on what was recorded."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from trainguard.core.settings import Settings
from trainguard.events.loop import Step
from trainguard.events.trace import Trace
from trainguard.judging.judge import judge_run
from trainguard.subjects.loop import Script

_SHARE: Final = 0.8  # of what the loss fell by, which is promised: the rest is for other seeds
_EDGE: Final = 10  # the share of the steps that the loss is averaged over at either end


def promises_of(steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    """Yield what the training of these steps would keep, one promise at a time."""
    batches = {sum(step.batch) for step in steps if step.batch}
    if len(batches) == 1:
        yield {"batch": batches.pop()}
    yield {"trainable": ("*",)}
    losses = [step.loss for step in steps if isfinite(step.loss)]
    if len(losses) < 2:
        return
    edge = max(1, len(losses) // _EDGE)
    first, last = sum(losses[:edge]) / edge, sum(losses[-edge:]) / edge
    if 0 < last < first:
        yield {"falls": round(_SHARE * (1 - last / first), 2)}


def broken_with(path: str, promise: dict[str, Any], trace: Trace[Any]) -> frozenset[str]:
    """Return the invariants that a recorded script breaks, had it made a promise."""
    script = Script(path, **promise)
    promised = replace(trace, promises={**trace.promises, **script.promises})
    return frozenset(v.invariant.name for v in judge_run(script, promised, Settings()) if v.fails)

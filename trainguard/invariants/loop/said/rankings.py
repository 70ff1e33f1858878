"""Judgement of rankings that are the wrong way round."""

from collections import defaultdict
from collections.abc import Iterator

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import Measure
from trainguard.core.names import metric_of
from trainguard.events.base import Event
from trainguard.events.fit import Metrics
from trainguard.events.loop import Logged
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import METRICS, both, some
from trainguard.invariants.loop.wording import events, place_of_log
from trainguard.invariants.wording import number

_FEW = 3  # evaluations that are all upside down: one may come before anything is learned
_NEAR = 2e-4  # of the value: as for metrics that are held against the truth
_DEVIATIONS = 5.0  # below one half: of thousands of evaluations none comes there by chance
_HALF = 0.5  # of two samples of which one is positive: what a ranking that knows nothing tells

_SAID = some(Logged, "no AUC was said", lambda said: metric_of(said.name) == "auc")
_Below = tuple[Logged, float]  # what was said, and the least that chance leaves


@invariant("loop", evidence=both(_SAID, METRICS))
def rankings_are_not_upside_down(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The scores behind a reported AUC are not inverted.

    Judges: an area under the curve of true positives ("val_auc"), said of an evaluation of which
        outputs and targets are known, whose area is that: in 3 evaluations or more, all those from
        the first one that is so, whether it is five deviations (limit: their number) of what a
        ranking by chance has below one half.
    Allows: areas that rise above that later on; areas that nobody says, as of a distance, which is
        the smaller the more two samples are alike; names with other words, as of an attack.
    Misses: evaluations of few samples; average precisions; rankings by several numbers.
    Why: scores with the wrong sign rank as well as good ones, from the end: a margin that is given
        the other order, labels that are exchanged, a distance in the place of a similarity.
    Source: stats.stackexchange.com, question 266387 (can an AUC be between 0 and 0.5?);
        SmartDataAnalytics/Knowledge-Graph-Analysis-Programming-Exercises issue 1 (a margin with the
        other sign).
    """
    deviations = trace.limit("rankings_are_not_upside_down", _DEVIATIONS)
    measured = events(trace, Metrics)
    series: dict[tuple[str, str], list[_Below | None]] = defaultdict(list)
    for said in events(trace, Logged):
        own = [m for m in measured if m.step == said.step and m.clock < said.clock]
        if own and metric_of(said.name) == "auc":
            series[said.channel, said.name].append(_look(said, own, deviations))
    for looks in series.values():
        first = next((place for place, look in enumerate(looks) if look is not None), len(looks))
        late = [look for look in looks[first:] if look is not None]
        if len(late) >= _FEW and len(late) == len(looks[first:]):
            yield _finding(trace, late)


def _look(said: Logged, measured: list[Metrics], deviations: float) -> _Below | None:
    """Return what was said, where it is the area of an evaluation and far below one half."""
    for own in measured:
        known = {way: value for name, way, value in own.values if name == "area"}
        area, spread = known.get("true", _HALF), known.get("spread", _HALF)
        least = _HALF - deviations * spread
        unit = 100 if said.value > 1 else 1
        if area < least and abs(said.value / unit - area) <= _NEAR + said.rounding / unit:
            return said, least
    return None


def _finding(trace: Trace[Event], looks: list[_Below]) -> Finding:
    """Return the finding about evaluations that are all upside down."""
    said, least = looks[-1]
    return Finding(
        f"the scores that an evaluation of `{trace.subject}` ranks by are inverted",
        place_of_log(said.name, said.channel, said.step),
        number(said.value) + f" ({len(looks)} of {len(looks)} times)",
        Measure(f"at least {least:.3g}, as by chance", least),
        why="the scores may have the wrong sign, positives the wrong label, or a loss of pairs the"
        " other order",
        event=said,
    )

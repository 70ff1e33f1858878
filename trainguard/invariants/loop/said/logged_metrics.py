"""Judgement of the metrics that a script says of its evaluations: AUC, F1, R2, perplexity."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.names import metric_of
from trainguard.events.base import Event
from trainguard.events.fit import Metrics
from trainguard.events.loop import Logged
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import METRICS, either, has_probe
from trainguard.invariants.loop.wording import events, place_of_log
from trainguard.invariants.wording import number

_FEW = 2  # evaluations that agree on a mistake; one alone is a note
_NEAR = 2e-4  # of the value: what float32 and another order of adding up change
_FAR = 0.01  # of the truth: a mistake that is nearer to it makes no difference
_COARSE = 0.002  # of the value: what is rounded more than that may be anything
_COARSER = 0.008  # the same, where many evaluations agree
_MANY = 5
_TRUTH, _TRUTH_OF_LOGITS = ", of all samples at once", ", of probabilities above 0.5"
_FAULTS = {
    "batches": (
        "is the mean of what was computed for each batch",
        "collect the outputs and targets of all batches, and compute it once",
    ),
    "decisions": (
        "was computed of decisions, not of scores",
        "give it the probabilities: of zeros and ones it is the mean of two recalls",
    ),
    "exchanged": (
        "was computed with outputs and targets exchanged",
        "give the targets where the function wants them: scikit-learn's take them first",
    ),
    "squared": ("is the mean square itself", "take its root"),
    "half": (
        "is that of logits above 0.5",
        "compare torch.sigmoid(logits) with 0.5, which is the probability of a logit of 0",
    ),
}


@invariant("loop", evidence=either(METRICS, has_probe("found itself", "-")))
def logged_metrics_are_true(trace: Trace[Event]) -> Iterator[Finding]:
    """
    A reported AUC, F1, IoU, RMSE or other metric is correct for the whole evaluation.

    Judges: numbers under such a name ("val_auc", "f1", "recall"), said after an evaluation of which
        outputs and targets are known from a loss function, a loader or, where there is neither, the
        variables of who asks the model: all of them match a known mistake, none the truth, and both
        are 1 % apart. The mistakes: the mean of the metrics of single batches; an AUC of decisions;
        outputs and targets exchanged; an RMSE without its root; logits held against 0.5. Metrics of
        retrieval (mean average precision, precision and hits at k) of square tables on the CPU that
        their method argsort, sort or topk ranks, whose rows begin with the samples themselves:
        whether they count these. In one evaluation alone it is a note.
    Allows: each convention in use: of either class, macro, micro, weighted; over all columns or the
        mean of them; overlaps of masks by samples, by batches or of all; ROC or precision and
        recall; 2e-4 (limit) of the value and what was rounded, up to 0.2 % of it, or 0.8 % in 5
        evaluations or more.
    Misses: other metrics at k; torch.topk(table); a metric of retrieval that is 1; targets that
        were scaled back; thresholds of one's own; outputs that are no single tensor; evaluations of
        more than a million numbers.
    Why: an AUC over 16 samples at a time is that of another question; models are chosen by it.
    Source: Lightning-AI/torchmetrics documentation, "avoid averaging over batches".
    """
    itself = [probe for probe in events(trace, Probe) if probe.probe == "found itself"]
    if itself:
        yield _of_itself(trace, max(itself, key=lambda probe: probe.step))
    near = trace.limit("logged_metrics_are_true", _NEAR)
    measured = events(trace, Metrics)
    series: dict[tuple[str, str], list[_SaidMetric]] = defaultdict(list)
    for said in events(trace, Logged):
        metric = metric_of(said.name)
        if metric and said.rounding <= _COARSER * abs(said.value):
            own = [m for m in measured if m.step == said.step and m.clock < said.clock]
            if own:
                series[said.channel, said.name].append(_look(said, metric, own, near))
    for looks in series.values():
        if len(looks) < _MANY:
            looks = [look for look in looks if not look.is_coarse()]
        told = [look for look in looks if look.is_far()]
        if not told or any(look.true for look in told):
            continue
        alike = frozenset.intersection(*(look.faults for look in looks))
        if alike:
            yield _finding(trace, looks, told[0], min(alike))


def _of_itself(trace: Trace[Event], probe: Probe) -> Finding:
    """Return the finding about a metric of retrieval that counts each sample as found."""
    name, metric = probe.label.split("\n")
    return Finding(
        f"`{name}` of `{trace.subject}` counts each sample as found by itself",
        f"{name}, in {probe.step} evaluations" if probe.step > 1 else name,
        number(probe.measured),
        number(probe.reference, f"the {metric} of the others"),
        why="each sample is the most like itself: fill the diagonal with -inf before it is ranked,"
        " or leave the first rank out",
        rank=Rank.BROKEN if probe.step >= _FEW else Rank.NOTE,
        event=probe,
        source=probe.source,
    )


@dataclass(frozen=True, slots=True)
class _SaidMetric:
    """A number that was said, the nearest truth, and the mistakes that it may be."""

    said: Logged
    truth: float
    true: bool
    faults: frozenset[str]

    def is_coarse(self) -> bool:
        """Say whether it was rounded so much that few evaluations may agree on it by chance."""
        return self.said.rounding > _COARSE * abs(self.said.value)

    def is_far(self) -> bool:
        """Say whether it is so far from the truth that it makes a difference."""
        unit = 100 if abs(self.said.value) > 1 and abs(self.truth) <= 1 else 1
        return abs(self.said.value / unit - self.truth) > _FAR * abs(self.truth)


def _look(said: Logged, metric: str, measured: list[Metrics], near: float) -> _SaidMetric:
    """Hold a number against the evaluations of its step."""
    values = [(way, value) for own in measured for name, way, value in own.values if name == metric]
    truths = [value for way, value in values if way == "true"]
    nearest = min(truths, key=lambda value: abs(value - said.value), default=said.value)
    met = {way for way, value in values if _is(said, value, near)}
    return _SaidMetric(said, nearest, "true" in met, frozenset(met - {"true"}))


def _is(said: Logged, value: float, near: float) -> bool:
    """Say whether what was said is this value, or that in percent, but for rounding."""
    allowed = near * abs(value)
    return any(abs(said.value / u - value) <= allowed + said.rounding / u for u in (1, 100))


def _finding(
    trace: Trace[Event], looks: list[_SaidMetric], first: _SaidMetric, fault: str
) -> Finding:
    """Return the finding about what is said under one name."""
    summary, why = _FAULTS[fault]
    said = first.said
    return Finding(
        f"a metric that `{trace.subject}` logs {summary}",
        place_of_log(said.name, said.channel, said.step),
        number(said.value) + f" ({len(looks)} of {len(looks)} times)",
        number(first.truth) + (_TRUTH if fault != "half" else _TRUTH_OF_LOGITS),
        why=why,
        rank=Rank.BROKEN if len(looks) >= _FEW else Rank.NOTE,
        event=said,
    )

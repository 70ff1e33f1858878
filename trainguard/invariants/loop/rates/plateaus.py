"""Judgements of metrics that rules are told: they improve in the direction that is waited for."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from math import inf, isfinite

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.names import EVALUATION, TRAINING, words_of
from trainguard.events.base import Event
from trainguard.events.loop import Logged, Scheduler
from trainguard.events.probe import Probe
from trainguard.events.trace import Trace
from trainguard.invariants.loop.evidence import PLATEAUS, either, has_probe
from trainguard.invariants.loop.wording import events, finite, main_course, middle
from trainguard.invariants.wording import number

_FEW = 3
_RISING = {
    "acc", "accuracy", "acc1", "acc5", "top1", "top5", "f1", "auc", "auroc", "auprc", "iou", "miou",
    "dice", "bleu", "psnr", "ssim", "r2", "kappa", "mcc", "ndcg", "mrr", "recall", "precision",
    "reward",
}  # fmt: skip
_FALLING = {
    "loss", "losses", "err", "error", "mse", "mae", "rmse", "nll", "ppl", "perplexity", "wer",
    "cer", "ter", "der", "eer", "fid", "bpd", "bpc", "cost", "mape", "smape", "crps", "rmsle",
}  # fmt: skip
# Recall and its like among the first so many: R@10, r10, hits@3, mAP50. But p95 is a time.
_AMONG = re.compile(r"(?<![a-z])(?:(?:r|hits?|hr|map|recall)_?@?\d+|p@\d+)\b")
_EVALUATIONS = 5  # with a number, at least
_AGAIN = 3  # states that were kept, where none of them was loaded at the end
_TESTS = {"test", "holdout", "final"}  # words for what is reported once
_PASSED_BY = 2  # times that no state is kept: with one, the two may agree by chance
_Series = list[tuple[str, dict[int, Logged]]]  # numbers by the step at which they were said
_TAKEN_OVER = ("best_models_are_best",)  # it judged the callbacks of Lightning


@invariant(
    "loop",
    evidence=either(
        PLATEAUS, *(has_probe(kind, "-") for kind in ("chosen", "kept", "worst state"))
    ),
    was=_TAKEN_OVER,
)
def plateau_metric_fits_mode(trace: Trace[Event]) -> Iterator[Finding]:
    """
    Plateau, early stopping and best-model rules use the right mode, min or max.

    Judges: ReduceLROnPlateau, and Lightning's ModelCheckpoint and EarlyStopping, that were told 3
        metrics or more: by the plain name in the call (`val_acc`), else by the name under which a
        script says those very numbers: an accuracy and its like under mode="min", a loss or an
        error under mode="max". States that one line takes of a model, of which one is loaded after
        the last step, or 3 or more: whether they are those after which a number that is said of an
        evaluation is the worst so far, of 5 or more, and, as a note, one or two that a line with
        the word "best" takes so; a note of those after which one that is said of the training is
        the best so far, and none of an evaluation. Models that are evaluated after the last step as
        they were at an earlier evaluation, of 4 or more on the same samples: whether all errors
        that are measured there are larger than in each of the others, and 1.1 times those of the
        best.
    Allows: whatever is calculated in the call, as `-accuracy` or `1 - accuracy`; names that say
        both or neither; an "accuracy" that falls as the training loss does, which is an error by
        another name; a "loss" that is negative.
    Misses: metrics that nothing names; a threshold that no improvement passes; copies of whole
        models that are kept; callbacks that are made after 64 steps; models that are evaluated as
        they were on an accelerator.
    Why: each improvement then counts as a bad epoch, and the rate is cut to nothing while the model
        still learns; or the worst model is kept, and shipped.
    Source: md-mohaiminul/ViS4mer issue 4; FunctionLab/selene issue 115; Lightning's documentation
        of ModelCheckpoint (mode is "min" by default).
    """
    yield from _chosen_wrongly(trace)
    yield from list(_kept_wrongly(trace)) or _restored_wrongly(trace)
    yield from _kept_by_training(trace)
    for scheduler in events(trace, Scheduler):
        values = finite(value for _, value in scheduler.metrics)
        name = _name(trace, scheduler)
        if len(values) < _FEW or not _is_wrong(trace, scheduler.mode, name, values):
            continue
        other = "max" if scheduler.mode == "min" else "min"
        yield Finding(
            f"the plateau rule of `{trace.subject}` waits for its metric to improve the wrong way",
            f"{scheduler.name}, told `{name}`",
            f'mode="{scheduler.mode}", told ' + number(values[0]) + f" to {number(values[-1])}",
            f'mode="{other}"',
            why="each improvement counts as a bad epoch, so that the rate is cut without a plateau",
            event=scheduler,
        )


def _miss_choice(trace: Trace[Event]) -> str:
    """Say what is missing to be judged: a state that is left, and a test at the end."""
    return "" if any(_find_left(trace)) else "no state was kept, and not loaded, before a test"


@invariant("loop", evidence=_miss_choice)
def best_state_is_evaluated(trace: Trace[Event]) -> Iterator[Finding]:
    """
    The final evaluation uses the best state that was selected, not the last one.

    Judges: states that one line takes where a number that is said 5 times or more is the best so
        far, the last of them before the end, where nothing is loaded after it, and a number
        is said after the last step alone under a name with "test", "holdout" or "final": a note, or
        broken where the state is kept in a variable that no line ever reads.
    Allows: states that are taken after every evaluation, or loaded, into any model; runs whose last
        state is the best; numbers of a test that are said after each epoch.
    Misses: states that are loaded by other means, or by another script: look at the note, and
        silence it.
    Why: what is reported is the last model, which has learned more of its training data by heart
        than the one that was chosen.
    Source: allenai/allennlp issue 1223; joeynmt/joeynmt pull 15.
    """
    series = _select_said(trace, lambda _: True)
    for probe, kept, final in _find_left(trace):
        for name, said in series if max(kept) < probe.step else ():
            ways = _ways_to_improve(name)
            if len(ways) == 1 and _keeps_records(kept, said, ways[0]):
                yield _make_left_finding(trace, probe, said, max(kept), final)
                return


def _find_left(trace: Trace[Event]) -> Iterator[tuple[Probe, set[int], Logged]]:
    """Yield the steps of states that nothing is loaded after, with what a test says at the end."""
    for probe in events(trace, Probe):
        final = _find_test(trace, probe.step) if probe.probe == "left" else None
        if final is not None:
            yield probe, {int(step) for step in probe.label.split()}, final


def _find_test(trace: Trace[Event], step: int) -> Logged | None:
    """Return a number of a test that is said after the last step, and never before."""
    said = [one for one in events(trace, Logged) if set(words_of(one.name)) & _TESTS]
    early = {one.name for one in said if one.step < step}
    return next((one for one in said if one.name not in early), None)


def _make_left_finding(
    trace: Trace[Event], probe: Probe, said: dict[int, Logged], best: int, final: Logged
) -> Finding:
    """Return the finding about a state that is chosen, and not evaluated."""
    last = said[max(said)]
    return Finding(
        f"`{trace.subject}` chooses its best state, and evaluates its last one",
        f"`{final.name}`, after {probe.step} steps",
        number(last.value) + f", `{last.name}` of the last state",
        number(said[best].value) + f", of the state kept after {best} steps, which nothing loads",
        why="load the state that was kept before what is reported is measured",
        rank=Rank.BROKEN if probe.measured else Rank.NOTE,
        event=probe,
    )


def _chosen_wrongly(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for each callback that chooses against the direction of its metric."""
    for probe in events(trace, Probe):
        if probe.probe != "chosen":
            continue
        kind, _, name = probe.label.partition(" ")
        said = [one for one in events(trace, Logged) if one.name == name]
        values = finite(one.value for one in said)
        mode, other = ("max", "min") if probe.measured > 0 else ("min", "max")
        if len(values) >= _FEW and _is_wrong(trace, mode, name, values):
            yield Finding(
                f"`{trace.subject}` keeps what is worst by its own metric",
                f"{kind}, which monitors `{name}`",
                f'mode="{mode}", logged ' + number(values[0]) + f" to {number(values[-1])}",
                f'mode="{other}"',
                why=f'write mode="{other}": the default is "min"',
                event=probe,
                source=said[-1].source,
            )


def _kept_wrongly(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for each line that keeps the states after which a metric is worst."""
    series = _said_of_evaluations(trace)
    for probe, kept, rank in [*_find_kept(trace), *_find_few(trace)]:
        ways = [(said, way) for name, said in series for way in _ways_to_improve(name)]
        if any(_keeps_records(kept, said, way) for said, way in ways):
            continue  # it may be chosen by this one
        for name, said in series:
            values = [one.value for one in said.values()]
            wrong = [("min", -1.0, max(values)), ("max", 1.0, min(values))]
            for mode, way, best in wrong:
                if _is_wrong(trace, mode, name, values) and _keeps_records(kept, said, way):
                    yield _make_kept_finding(trace, probe, said[max(kept)], best, rank)
                    return


def _restored_wrongly(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a finding for each model that is at the end what it was at its worst evaluation."""
    for probe in events(trace, Probe):
        if probe.probe == "worst state":
            module, _, count = probe.label.rpartition(", of ")
            yield Finding(
                f"`{trace.subject}` ends with the state that was worst when it was evaluated",
                f"{module} of step {probe.step}, the worst of {count}",
                number(probe.measured) + ", its mean error",
                number(probe.reference) + ", that of the best",
                why="what keeps the best state may have the direction of another metric, or keep"
                " the first one for good",
                event=probe,
            )


def _find_kept(trace: Trace[Event]) -> Iterator[tuple[Probe, set[int], Rank]]:
    """Yield the steps of the states that one line keeps, where they are used or many."""
    for probe in events(trace, Probe):
        kept = _steps_of(probe) if probe.probe == "kept" else set()
        is_last = probe.measured in kept and probe.reference == probe.step
        if is_last or len(kept) >= _AGAIN:
            yield probe, kept, Rank.BROKEN


def _find_few(trace: Trace[Event]) -> Iterator[tuple[Probe, set[int], Rank]]:
    """Yield those of a line that calls them the best, where they are few: it may have a reason."""
    for probe in events(trace, Probe):
        kept = _steps_of(probe) if probe.probe == "kept" else set()
        if 0 < len(kept) < _AGAIN and "\n" in probe.label:
            yield probe, kept, Rank.NOTE


def _steps_of(probe: Probe) -> set[int]:
    """Return the steps after which states were kept."""
    return {int(step) for step in probe.label.partition("\n")[0].split()}


def _kept_by_training(trace: Trace[Event]) -> Iterator[Finding]:
    """Yield a note for a line that keeps the states that are best by a number of the training."""
    held_out, every = _said_of_evaluations(trace), _select_said(trace, lambda _: True)
    for probe, kept, _ in _find_kept(trace):
        choosing = {
            name
            for name, said in every
            if len(said) >= len(kept) + _PASSED_BY
            and any(_keeps_records(kept, said, way) for way in _ways_to_improve(name))
        }
        # What is no name of a training may be that of an evaluation.
        if choosing and all(_is_of_training(name, held_out) for name in choosing):
            for name, said in held_out:
                ways = _ways_to_improve(name)
                best = max(said, key=lambda step: ways[0] * said[step].value)
                if len(ways) == 1 and said[best].value != said[max(kept)].value:
                    yield _make_training_note(trace, probe, min(choosing), (said, best, max(kept)))
                    return


def _is_of_training(name: str, held_out: _Series) -> bool:
    """Say whether a number is of the training: by its name, or beside the same of an evaluation."""
    words = set(words_of(name))
    beside = {frozenset(set(words_of(other)) - EVALUATION) for other, _ in held_out}
    return bool(words & TRAINING) or (not words & EVALUATION and frozenset(words) in beside)


def _make_training_note(
    trace: Trace[Event], probe: Probe, name: str, held_out: tuple[dict[int, Logged], int, int]
) -> Finding:
    """Return the note about a line that keeps what is best in training."""
    said, best, kept = held_out
    return Finding(
        f"`{trace.subject}` chooses its best state by the training, beside an evaluation",
        f"states kept where `{name}` is the best so far",
        number(said[kept].value) + f", `{said[kept].name}` after the last that was kept",
        number(said[best].value) + f", after {best} steps",
        why="what fits the training best is often what has learned it by heart: compare what is"
        " said of the evaluation where the best is chosen",
        rank=Rank.NOTE,
        event=probe,
    )


def _make_kept_finding(
    trace: Trace[Event], probe: Probe, said: Logged, best: float, rank: Rank
) -> Finding:
    """Return the finding about a line that keeps states."""
    return Finding(
        f"`{trace.subject}` keeps what is worst by its own metric",
        f"states kept after `{said.name}`",
        number(said.value) + f" after {said.step} steps",
        number(best) + ", the best that was said",
        why="perhaps < and > are exchanged where the best is chosen, or what it is compared with"
        " begins at the wrong end",
        rank=rank,
        event=probe,
    )


def _said_of_evaluations(trace: Trace[Event]) -> _Series:
    """Return what was said of evaluations by name, and by step; but for the best so far."""
    return _select_said(trace, lambda words: bool(words & EVALUATION))


def _select_said(trace: Trace[Event], select: Callable[[set[str]], bool]) -> _Series:
    """Return what was said often under names of certain words; but for the best so far."""
    series: dict[tuple[str, str], dict[int, Logged]] = {}
    for one in events(trace, Logged):
        words = set(words_of(one.name))
        if select(words) and "best" not in words and isfinite(one.value):
            series.setdefault((one.channel, one.name), {})[one.step] = one
    return [(name, said) for (_, name), said in series.items() if len(said) >= _EVALUATIONS]


def _ways_to_improve(name: str) -> tuple[float, ...]:
    """Return 1 where more is better, -1 where less is, by the name of a metric; both if unknown."""
    words = _words_in(name)
    rises, falls = bool(words & _RISING), bool(words & _FALLING)
    return (1.0, -1.0) if rises == falls else (1.0,) if rises else (-1.0,)


def _words_in(name: str) -> set[str]:
    """Return the words of a name, and `recall` where it says how many are looked among."""
    among = {"recall"} if _AMONG.search(name.lower()) else set()
    return set(re.findall(r"[a-z]+\d?", name.lower())) | among


def _keeps_records(kept: set[int], said: dict[int, Logged], way: float) -> bool:
    """Say whether states were kept where a number was the highest so far, times `way`."""
    if not kept < said.keys():  # what is kept each time is not chosen
        return False
    highest = -inf
    for step, one in sorted(said.items()):
        ahead = way * one.value - highest
        if (step in kept and ahead < -one.rounding) or (step not in kept and ahead > one.rounding):
            return False
        highest = max(highest, way * one.value)
    return True


def _is_wrong(trace: Trace[Event], mode: str, name: str, values: list[float]) -> bool:
    """Say whether a metric of this name is one that improves against the mode."""
    words = _words_in(name)
    rises, falls = bool(words & _RISING), bool(words & _FALLING)
    if rises == falls or mode != ("min" if rises else "max"):
        return False
    return not _falls_like_the_loss(trace, values) if rises else min(values) >= 0


def _falls_like_the_loss(trace: Trace[Event], values: list[float]) -> bool:
    """Say whether a metric goes down while the training loss does."""
    course = main_course(trace)
    losses = finite(step.loss for step in course.steps) if course else []
    third, part = max(1, len(losses) // 3), max(1, len(values) // 3)
    learns = middle(losses[-third:]) < middle(losses[:third])
    return learns and middle(values[-part:]) < middle(values[:part])


def _name(trace: Trace[Event], scheduler: Scheduler) -> str:
    """Return what a metric is called: in the call, else where the script says those numbers."""
    words = _words_in(scheduler.expression)
    if words & (_RISING | _FALLING):
        return scheduler.expression
    series: dict[str, list[Logged]] = {}
    for one in events(trace, Logged):
        series.setdefault(one.name, []).append(one)
    agreeing = [name for name, said in series.items() if _says_all(said, scheduler.metrics)]
    return agreeing[0] if len(agreeing) == 1 else ""


def _says_all(said: list[Logged], metrics: tuple[tuple[int, float], ...]) -> bool:
    """Say whether the numbers of one name are the metrics, each said just before or after it."""
    clocks = [one.clock for one in said]
    for clock, value in metrics:
        at = bisect_left(clocks, clock)
        near = said[max(0, at - 1) : at + 1]
        if not any(abs(one.value - value) <= one.rounding + 1e-9 * abs(value) for one in near):
            return False
    return len({value for _, value in metrics}) >= _FEW

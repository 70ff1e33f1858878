"""Judgements of one run with several numbers of processes: the same batch, the same gradient."""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from math import isfinite, sqrt
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import Place, integer, number, portion
from trainguard.events.ranks import WorldRun
from trainguard.events.trace import Trace

_FEW = 3  # steps that are no chance
# Of one batch the sums are added up in another order; of two batches the losses are not so alike.
_SAME = 1e-4
_NEAR = 1e-3


def _lacks_worlds(trace: Trace[Any]) -> str:
    """Return why there are no runs of several numbers of processes."""
    worlds = {event.world for event in _worlds(trace)}
    return "" if len(worlds) > 1 else "ranks= has one number of processes: give (1, 2)"


def _lacks_batch(trace: Trace[Any]) -> str:
    """Return why the batch cannot be held against what was promised."""
    missing = _lacks_worlds(trace)
    if missing or trace.promise("batch_of_all") is None:
        return missing or "no batch= is promised over all processes"
    known = any(samples for event in _worlds(trace) for samples in event.samples)
    return "" if known else "it is not known how many samples a step has"


def _worlds(trace: Trace[Any]) -> list[WorldRun]:
    """Return what is known of each number of processes, the smallest first."""
    return sorted((e for e in trace if isinstance(e, WorldRun)), key=lambda event: event.world)


@invariant("ranks", evidence=_lacks_batch)
def batch_is_shared_by_the_world(trace: Trace[Any]) -> Iterator[Finding]:
    """
    The global batch size is as promised, for any number of processes.

    Judges: of `tg.Loop(train, ranks=(1, 2), batch=64)` the samples of each of the first 64 steps,
        over all processes and micro-batches, against the promise.
    Allows: up to half of the steps, and 2 of them, as at the end of an epoch; several optimizers,
        several passes for each loss.
    Misses: inputs whose first dimension is not that of the samples; runs without the promise.
    Why: accumulation that is not divided by the number of processes makes the batch N times as
        large; an integer division loses the rest.
    Source: post-mortems, row C2; Goyal et al., Accurate, Large Minibatch SGD (arXiv 1706.02677).
    """
    promised = trace.promise("batch_of_all") or 0.0
    alone = len({event.optimizer for event in _worlds(trace)}) == 1
    for event in _worlds(trace) if alone and promised else ():
        known = [samples for samples in event.samples if samples]
        wrong = Counter(samples for samples in known if samples != promised)
        if wrong and sum(wrong.values()) > max(len(known) / 2, _FEW - 1):
            size = wrong.most_common(1)[0][0]
            yield Finding(
                f"a step of `{trace.subject}` on {event.world} processes has another batch size",
                Place(f"{event.optimizer}, {event.world} processes"),
                integer(size, "samples")
                + ", in "
                + portion(sum(wrong.values()), len(known), "steps"),
                integer(promised, "samples") + " over all processes",
                why=_explain_size(size / promised, event.world),
                source=event.source,
            )


@invariant("ranks", evidence=_lacks_worlds)
def gradients_keep_their_size(trace: Trace[Any]) -> Iterator[Finding]:
    """
    The gradient norm does not depend on the number of processes.

    Judges: of `tg.Loop(train, ranks=(1, 2))` the first step, where the losses tell that both runs
        have the same batch: the norm of the gradient on N processes, divided by that on the
        smallest number, is not N, 1/N, sqrt(N) or 1/sqrt(N).
    Allows: any other ratio, by more than 0.1 %. Losses that are N times or 1/N as large.
    Misses: what is not in proportion, which tg.Parallel finds; runs that are given other batches,
        dropout, statistics of a batch; steps whose numbers of samples differ or are unknown.
    Why: a sum in place of a mean, or a mean that is taken twice, trains at another rate with each
        number of GPUs.
    Source: huggingface/transformers issue 34242; pytorch/pytorch issue 104336.
    """
    for first, event in combinations(_worlds(trace), 2):
        found = _find_factor(first, event)
        if found:
            name, ratio = found
            n = event.world // first.world
            yield Finding(
                f"the gradients of `{trace.subject}` grow or shrink with the number of processes",
                Place(f"{event.optimizer}, {event.world} processes against {first.world}"),
                number(ratio, "times", ".3g") + " as large",
                number(1, "times", ".3g") + ", whatever their number",
                why=f"{name} for N = {n}: " + _REASONS[name],
                source=event.source,
            )
            return


_REASONS = {
    "N": "a sum over processes may stand where the mean does",
    "1/N": "perhaps a mean over processes is taken of what is a share of the whole already",
    "sqrt(N)": "perhaps it is scaled by the norm of each process's part",
    "1/sqrt(N)": "perhaps it is scaled by a norm that counts each process's part again",
}


def _find_factor(first: WorldRun, event: WorldRun) -> tuple[str, float] | None:
    """Return by which factor of the number of processes gradients differ, and the ratio."""
    alike = first.optimizer == event.optimizer and first.samples[:1] == event.samples[:1]
    if not alike or not any(first.samples[:1]) or first.world == event.world:
        return None
    n = event.world / first.world
    losses, norms = (
        _divide(getattr(event, c)[0], getattr(first, c)[0]) for c in ("losses", "norms")
    )
    if not any(abs(losses / factor - 1) <= _SAME for factor in (1.0, n, 1 / n)):
        return None
    factors = {"N": n, "1/N": 1 / n, "sqrt(N)": sqrt(n), "1/sqrt(N)": 1 / sqrt(n)}
    near = (name for name, factor in factors.items() if abs(norms / factor - 1) <= _NEAR)
    name = next(near, "")
    return (name, norms) if name else None


def _divide(value: float, by: float) -> float:
    """Return a ratio; 0 where there is none."""
    return value / by if by and isfinite(value) and isfinite(by) else 0.0


def _explain_size(share: float, world: int) -> str:
    """Guess why a step has another number of samples."""
    if share == world:
        return "perhaps accumulation, or the batch of a process, is not divided by their number"
    if share < 1:
        return "perhaps a division by the number of processes leaves a remainder"
    return "samples are counted along the first dimension of the input"

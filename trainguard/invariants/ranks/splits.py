"""Judgement of how processes split one data set: what one holds out, no other one learns."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding
from trainguard.core.measure import portion
from trainguard.events.ranks import SplitSamples
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import evidence, replicas

_LEAST = 4  # samples, of some 256 that are followed: a few may be served to fill up a batch


def _lacks_splits(trace: Trace[Any]) -> str:
    """Return why no splits of several processes can be compared."""
    if any(len(own) > 1 for own in _group_splits(trace)):
        return ""
    return evidence(trace) or "no two replicas learn from one data set and hold out a part of it"


@invariant("ranks", evidence=_lacks_splits)
def splits_are_the_same(trace: Trace[Any]) -> Iterator[Finding]:
    """
    What one process holds out, no replica of it learns from.

    Judges: 256 samples of each data set that loaders serve: whether those that a process evaluates,
        and does not learn from, are learned from by replicas of it, 4 or more. Data sets of
        several processes are one where a few rows of their tables are equal.
    Allows: parts of the data for each process; samples that a process learns from itself, of which
        evaluation_is_held_out tells; processes that are no replicas, as each of a fold.
    Misses: data sets without tables of numbers or names; samplers of the user's own; data that are
        split before they are put into data sets.
    Why: random_split by a generator that each process has seeded on its own makes another split in
        each: what is validated in one is learned in the others, whose gradients it shares.
    Source: Lightning-AI/pytorch-lightning issues 7728 and 18638; TensorAuto/OpenTau pull request
        498.
    """
    for own in _group_splits(trace):
        for held in own:
            out = [e == "1" != t for e, t in zip(held.evaluated, held.learned, strict=True)]
            known = {
                other.rank: sum(a and t == "1" for a, t in zip(out, other.learned, strict=True))
                for other in own
            }
            rank = max(known, key=lambda rank: known[rank])
            if known[rank] >= _LEAST:
                yield Finding(
                    f"processes of `{trace.subject}` split one data set in different ways",
                    f"what rank {held.rank} holds out, and rank {rank} learns from",
                    portion(known[rank], sum(out), "samples") + " of those that were followed",
                    "none",
                    why="split with a generator that has the same seed in all processes, or in one"
                    " of them before the others begin",
                    source=held.source,
                )
                return


def _group_splits(trace: Trace[Any]) -> Iterator[list[SplitSamples]]:
    """Yield what replicas told of one data set each."""
    splits: defaultdict[str, list[SplitSamples]] = defaultdict(list)
    for event in trace:
        if isinstance(event, SplitSamples):
            splits[event.data].append(event)
    for group in replicas(trace):
        ranks = {course.rank for course in group.courses}
        for told in splits.values():
            own = [split for split in told if split.rank in ranks]
            if any("1" in split.evaluated for split in own):
                yield own

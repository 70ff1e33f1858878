"""Judgements of the files of several processes: each is written by one of them, all are there."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, portion, ranks_text
from trainguard.events.ranks import SavedFile, SavedShards
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import group_by


def _lacks_files(trace: Trace[Any]) -> str:
    """Return why there are no files to compare."""
    told = any(isinstance(event, SavedFile | SavedShards) for event in trace)
    return "" if told else "no process has saved a file by torch.save"


def _files(trace: Trace[Any]) -> list[list[SavedFile]]:
    """Return what is known of each file, by all the processes that have saved to it."""
    return group_by(trace, SavedFile, lambda file: (file.folder, file.name))


@invariant("ranks", evidence=_lacks_files)
def one_rank_writes(trace: Trace[Any]) -> Iterator[Finding]:
    """
    Only one process at a time writes a file, and a sharded checkpoint has all its shards.

    Judges: the files that several processes of one machine save by torch.save after the same
        number of steps. A note before the first step: a cache may be filled under a lock.
        Of the last checkpoints of torch.distributed.checkpoint whether the files that their
        `.metadata` names are in the folder; a note where the folder has changed since.
    Allows: files of other names, shards, other folders, another process at another step; folders
        that were taken away, metadata and all.
    Misses: files that are saved under another name first, and renamed; other ways to save; a
        folder that several machines share.
    Why: two processes write into one file at once, and what is read back is of neither, or cannot
        be read at all; nor can a checkpoint whose shards lie in folders of each process.
    Source: PyTorch tutorial Getting Started with Distributed Data Parallel ("Save and Load");
        pytorch, torch.distributed.checkpoint.save ("rank 0 ... a shared file system").
    """
    yield from _find_lost_shards(trace)
    files = _files(trace)
    clashes = [(step, saved) for saved in files for step in _last_clash(saved)]
    if clashes:
        step, saved = max(clashes, key=lambda clash: clash[0])
        ranks = sorted(one.rank for one in saved if step in one.steps)
        yield Finding(
            f"several processes of `{trace.subject}` save the same file",
            f"{saved[0].name}, {ranks_text(ranks)}, " + at_step(step),
            portion(len(clashes), len(files), "files")
            + f" are saved by up to {len(ranks)} processes",
            "each by one",
            why="perhaps `if dist.get_rank() == 0:` is missing",
            rank=Rank.BROKEN if step else Rank.NOTE,
            source=saved[0].source,
        )


def _find_lost_shards(trace: Trace[Any]) -> Iterator[Finding]:
    """Yield a finding of the checkpoints whose metadata name files that are not there."""
    found = {shards.folder: shards for shards in trace if isinstance(shards, SavedShards)}
    lost = [shards for shards in found.values() if shards.lost]
    if lost:
        one = min(lost, key=lambda shards: shards.changed)
        yield Finding(
            f"a checkpoint of `{trace.subject}` lacks shards",
            f"{one.name}, {', '.join(one.missing)}",
            portion(one.lost, one.shards, "shards") + " that its .metadata names are missing",
            "all in one folder",
            why="perhaps each process saves to a folder of its own, as to the disk of its machine,"
            " or one clears the folder while others write",
            rank=Rank.NOTE if one.changed else Rank.BROKEN,
            source=one.source,
        )


def _last_clash(saved: list[SavedFile]) -> list[int]:
    """Return after how many steps several processes have saved to a file, the last time."""
    times = Counter(step for one in saved for step in set(one.steps))
    return sorted(step for step, count in times.items() if count > 1)[-1:]

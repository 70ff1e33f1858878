"""Judgements of the files of several processes: each is written by one of them."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, Rank
from trainguard.core.measure import at_step, portion, ranks_text
from trainguard.events.ranks import SavedFile
from trainguard.events.trace import Trace


def _lacks_files(trace: Trace[Any]) -> str:
    """Return why there are no files to compare."""
    return "" if _files(trace) else "no process has saved a file by torch.save"


def _files(trace: Trace[Any]) -> list[list[SavedFile]]:
    """Return what is known of each file, by all the processes that have saved to it."""
    files: dict[tuple[str, str], list[SavedFile]] = {}
    for event in trace:
        if isinstance(event, SavedFile):
            files.setdefault((event.folder, event.name), []).append(event)
    return list(files.values())


@invariant("ranks", evidence=_lacks_files)
def one_rank_writes(trace: Trace[Any]) -> Iterator[Finding]:
    """
    A file is saved by one process at a time.

    Judges: the files that several processes of one machine save by torch.save after the same
        number of steps. A note before the first step: a cache may be filled under a lock.
    Allows: files of other names, shards, other folders, another process at another step.
    Misses: files that are saved under another name first, and renamed; other ways to save; a
        folder that several machines share.
    Why: two processes write into one file at once, and what is read back is of neither, or cannot
        be read at all.
    Source: PyTorch tutorial Getting Started with Distributed Data Parallel ("Save and Load").
    """
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


def _last_clash(saved: list[SavedFile]) -> list[int]:
    """Return after how many steps several processes have saved to a file, the last time."""
    times = Counter(step for one in saved for step in set(one.steps))
    return sorted(step for step, count in times.items() if count > 1)[-1:]

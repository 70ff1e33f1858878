"""Judgements of what processes ask of their groups: the same calls, in the same order, in time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trainguard.core.catalogue import invariant
from trainguard.core.finding import Finding, note
from trainguard.core.measure import Place, number, ranks_text
from trainguard.events.ranks import GroupCalls, RankRun
from trainguard.events.trace import Trace
from trainguard.invariants.ranks.wording import group_by, odd_ones, runs

# Seconds: torch's own are 100 to 1800; a day is time to prepare the data on one process.
_SHORTEST, _LONGEST = 10.0, 86_400.0
_NOTHING = "nothing more"


@dataclass(frozen=True, slots=True)
class _Mismatch:
    """
    The first call in which processes of a group differ.

    place: its number, from 0. calls, lines, steps: of each process; of a call that is not told the
    sum of all so far. exact: whether it is known which one it was.
    """

    place: int
    logs: tuple[GroupCalls, ...]
    calls: tuple[str, ...]
    lines: tuple[str, ...] = ()
    steps: tuple[int, ...] = (0,)

    @property
    def exact(self) -> bool:
        """Whether it is known which call it was."""
        return bool(self.lines)


def _lacks_calls(trace: Trace[Any]) -> str:
    """Return why there are no calls to compare."""
    groups = _groups(trace)
    if not any(log.count for logs in groups for log in logs):
        return "no function of torch.distributed was called that groups take part in"
    return "" if any(len(logs) > 1 for logs in groups) else "one process alone told of its calls"


def _lacks_groups(trace: Trace[Any]) -> str:
    """Return why no timeout is known."""
    known = any(log.timeout for logs in _groups(trace) for log in logs)
    return "" if known else "no group tells its timeout"


def _groups(trace: Trace[Any]) -> list[list[GroupCalls]]:
    """Return what is known of each group, by the processes that told of it."""
    return group_by(trace, GroupCalls, lambda calls: calls.group)


@invariant("ranks", evidence=_lacks_calls)
def collectives_match(trace: Trace[Any]) -> Iterator[Finding]:
    """
    All processes of a group call the same collectives in the same order.

    Judges: the functions of torch.distributed that all processes of a group take part in: what is
        called, the dtype, the number of elements, the operation and the root of each call; and
        where one process ended, or stood still, while another one was in a further call.
    Allows: any order between groups; other shapes of as many elements; what is scattered, gathered
        or sent to each in parts of several sizes.
    Misses: what DistributedDataParallel and compiled code exchange; send and recv; which call it
        was, beyond the first 512 and the last 64 of a group.
    Why: tensors that do not belong together are added up without a word where their bytes are as
        many; otherwise the processes wait for each other until a timeout, or crash.
    Source: pytorch, torch.distributed documentation ("Debugging torch.distributed applications":
        TORCH_DISTRIBUTED_DEBUG=DETAIL looks for mismatched collectives); torchtitan#766.
    """
    known = {run.rank: run for run in runs(trace)}
    for logs in _groups(trace):
        found = _find_mismatch(logs)
        if found is None or _is_cut_off(known, found):
            continue
        ranks = [log.rank for log in logs]
        odd = odd_ones(found.calls, ranks)
        own = ranks.index(odd[0])
        other = next(i for i, call in enumerate(found.calls) if call != found.calls[own])
        calls = f"`{found.calls[other]}` against `{found.calls[own]}`"
        yield Finding(
            f"the processes of `{trace.subject}` do not make the same calls on one group",
            _locate(found, odd),
            calls if found.exact else "other calls, which are not told one by one",
            "the same call in all processes of the group",
            why=_tell_lines(found, (other, own)) + "perhaps a branch, a loop or the order of a set"
            " is another one on one rank",
            source=found.lines[own] or found.lines[other] if found.exact else "",
        )


@invariant("ranks", evidence=_lacks_groups)
def timeouts_are_sane(trace: Trace[Any]) -> Iterator[Finding]:
    """
    The timeout of a process group is neither too short nor longer than a day.

    Judges: the timeouts of all groups. A note.
    Allows: 10 seconds to a day.
    Misses: what a launcher or a scheduler of the cluster waits for.
    Why: where one process dies, all others hold their GPUs until the timeout is over; one of
        seconds ends a run whose first process saves a checkpoint.
    Source: torch.distributed.init_process_group (timeout); a post-mortem with one of 138 days.
    """
    logs = [log for group in _groups(trace) for log in group if log.timeout]
    odd = [log for log in logs if not _SHORTEST <= log.timeout <= _LONGEST]
    if odd:
        unit, scale = ("days", _LONGEST) if odd[0].timeout > _LONGEST else ("s", 1.0)
        same = sorted({log.rank for log in odd if log.timeout == odd[0].timeout})
        yield note(
            f"the processes of `{trace.subject}` hardly wait for each other, or for days",
            f"the group of {name_ranks(odd[0].group)}, {ranks_text(same)}",
            number(odd[0].timeout / scale, unit, ".3g"),
            number(_SHORTEST, "s", "g") + " to " + number(1, "day", "g"),
            why="perhaps the unit was mistaken: timedelta(milliseconds=...) or (seconds=...)",
            source=odd[0].source,
        )


def _find_mismatch(logs: list[GroupCalls]) -> _Mismatch | None:
    """Return the first call in which some logs of one group differ."""
    columns = [[log.kinds[kind] for kind in log.first] for log in logs]
    length = min(map(len, columns))
    for i, calls in enumerate(zip(*columns, strict=False)):
        if len(set(calls)) > 1:
            return _describe(logs, i)
    if max(map(len, columns)) > length:
        return _describe(logs, length)
    stride = max(log.stride for log in logs)
    marks = [log.marks[stride // log.stride - 1 :: stride // log.stride] for log in logs]
    for i, row in enumerate(zip(*marks, strict=False)):
        if len(set(row)) > 1:
            return _Mismatch(i * stride, tuple(logs), tuple(map(str, row)))
    counts = [log.count for log in logs]
    if len(set(counts)) > 1:
        return _describe(logs, min(counts))
    for row in zip(*([*enumerate(log.last)] for log in logs), strict=True):
        if len({log.kinds[kind] for log, (_, kind) in zip(logs, row, strict=True)}) > 1:
            return _describe(logs, counts[0] - len(logs[0].last) + row[0][0])
    return None


def _describe(logs: list[GroupCalls], place: int) -> _Mismatch:
    """Return what each process called at a place."""
    texts, lines, steps = zip(*(_call_at(log, place) for log in logs), strict=True)
    return _Mismatch(place, tuple(logs), texts, lines, steps)


def _call_at(log: GroupCalls, place: int) -> tuple[str, str, int]:
    """Return a call, its line, and after which step it was made; the last one where none was."""
    calls = [*zip(log.first, log.first_steps, strict=True)]
    tail = place - (log.count - len(log.last))
    calls_at_end = [*zip(log.last, log.last_steps, strict=True)]
    if place >= log.count:
        kind, step = calls_at_end[-1] if calls_at_end else (0, 0)
        return _NOTHING, log.lines[kind] if log.lines else "", step
    if place < len(calls):
        kind, step = calls[place]
    elif tail >= 0:
        kind, step = calls_at_end[tail]
    else:
        return "a call that is not told", "", 0
    return log.kinds[kind], log.lines[kind], step


def _is_cut_off(known: dict[int, RankRun], found: _Mismatch) -> bool:
    """Say whether a process that made no such call was stopped, or failed, before it could."""
    short = [log.rank for log, c in zip(found.logs, found.calls, strict=True) if c == _NOTHING]
    return any(rank in known and known[rank].ended != "finished" for rank in short)


def _tell_lines(found: _Mismatch, places: tuple[int, int]) -> str:
    """Write which line of which process it is: "rank 0 at train.py:12, rank 1 at train.py:15: "."""
    if len({*found.lines} - {""}) < 2:
        return ""
    named = [
        f"rank {found.logs[i].rank} at " + found.lines[i].replace("\\", "/").rpartition("/")[2]
        for i in places
        if found.lines[i]
    ]
    return f"{', '.join(named)}: " if named else ""


def _locate(found: _Mismatch, odd: list[int]) -> Place:
    """Return which call it is."""
    which = "call" if found.exact else "after call"
    alone = Place("", step=max(found.steps), rank=odd[0] if len(odd) == 1 else None)
    group = name_ranks(found.logs[0].group)
    return Place(f"{which} {found.place + found.exact} of {group}, {ranks_text(odd)}") + alone


def name_ranks(group: str) -> str:
    """Write the ranks of a group: "ranks 0 and 1"."""
    ranks = group.partition(" ")[0]
    first, _, rest = ranks.partition(":")
    end, _, pace = rest.partition(":")
    if pace != "1":
        return f"ranks {ranks}"
    return ranks_text(range(int(first), int(end)))

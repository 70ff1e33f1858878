"""
The probe of whether the same seed gives the same batches, from the function that makes the loader.

Serving events: "repeat", for each split: `measured` the first batch that differs, `reference` how
many were compared; `detail` is "" where none differs, else "order", "contents" or "number".
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from trainguard.core.errors import Unjudged
from trainguard.events.loader import Serving
from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.loader.iterate import serving
from trainguard.observe.loader.layout import laid_out, read
from trainguard.observe.loader.reachable_state import generators, put_back, state_of
from trainguard.observe.loader.splits import Loaders, parts_of, set_epoch
from trainguard.observe.tools.isolation import seed_everything

_COMPARED = 10  # batches

Seen = list[tuple[int, tuple[int, ...]]]  # of each batch, one print of it and one of each sample


def reproduce(loaders: Loaders, case: int) -> Iterator[Serving]:
    """
    Yield, for each split, whether two runs under one seed serve the same.

    What a process would have anew stands in both where it stood before: generators in the team's
    modules, and those of loaders that the function makes once and hands out again. Where the two
    loaders have more in common, a difference may come from what the first run left behind.
    """
    if not loaders.fresh:
        raise Unjudged("what is given cannot be made anew: pass the function that makes the loader")
    made = loaders.make()
    held = list(generators(loaders.subject.build, made).values())
    states = [state_of(each) for each in held]
    runs = []
    for _ in range(2):
        for generator, state in zip(held, states, strict=True):
            put_back(generator, state)
        runs.append(loaders.make())
        seen = {
            split: _serve(loaders, split, runs[-1][split]) for split in _list_judged_splits(made)
        }
        runs[-1] = {split: (runs[-1][split], seen[split]) for split in seen}
    for split, (first, one) in runs[0].items():
        second, other = runs[1][split]
        compared = replace(_compare(split, one, other), case=case)
        if compared.detail and any(a is b for a in parts_of(first) for b in parts_of(second)):
            raise Unjudged("the function makes loaders of one data set or sampler, which it keeps")
        yield compared


def _list_judged_splits(made: dict[str, Any]) -> list[str]:
    """List the splits whose order is not left to whichever worker is first."""
    return [
        split
        for split, loader in made.items()
        if not hasattr(loader, "__next__") and not _is_raced(loader)
    ]


def _is_raced(loader: Any) -> bool:
    """Say whether a loader serves the batches of its workers as they come."""
    ordered = bool(getattr(loader, "in_order", True))
    return isinstance(loader, DataLoader) and loader.num_workers > 1 and not ordered


def _serve(loaders: Loaders, split: str, loader: Any) -> Seen:
    """Serve the first batches of a loader."""
    subject = loaders.subject
    seed_everything(loaders.seed)
    if subject.set_epoch:
        set_epoch(loader, 0)
    seen: Seen = []
    layout = None
    with serving(loader, split) as batches:
        for raw in islice(batches, subject.batches or _COMPARED):
            layout = layout or laid_out(subject, split, raw)
            seen.append((likeness(raw), read(raw, layout, len(seen)).prints))
    return seen


def _compare(split: str, first: Seen, second: Seen) -> Serving:
    """Return where two runs part, and how."""
    pairs = list(zip(first, second, strict=False))
    parted = [index for index, (one, other) in enumerate(pairs) if one[0] != other[0]]
    event = Serving(quantity="repeat", split=split, reference=len(pairs))
    if not parted:
        return replace(event, detail="number" if len(first) != len(second) else "")
    samples = [Counter(made for _, prints in seen for made in prints) for seen in (first, second)]
    detail = "order" if samples[0] == samples[1] and samples[0] else "contents"
    return replace(event, measured=parted[0], at=f"batch {parted[0]}", detail=detail)

"""
The probe of what worker processes draw, in real ones.

Batch events: one for each draw of a worker, with `rank` the worker, `index` the draw and one print
of all that was drawn. Serving events: "generator", one for each generator whose state the draws
changed: `at` its name, `measured` the draws after which it was in the same state in each worker,
`reference` all draws, `detail` "felt" where those have a share in the samples. "epoch": the epochs
that lasting workers should have heard of, `reference` those that they have, where the data set
makes of a sample in each epoch something else.

A data set with an index is asked for the same samples over and over: what differs is random. The
streams of one without are looked at only where a generator is used, since they always differ.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from trainguard.core.errors import SubjectError, Unjudged
from trainguard.events.loader import Batch, Serving
from trainguard.observe.loader.fingerprints import likeness
from trainguard.observe.loader.iterate import serving
from trainguard.observe.loader.reachable_state import generators, put_back, state_of, streams
from trainguard.observe.loader.splits import Loaders, is_evaluation, keep_state, set_epoch
from trainguard.observe.tools.isolation import seed_everything

FEW, MANY = 8, 48  # draws of each worker
_WORKERS = 2
_EPOCHS = 2
_ROWS = 2
_CHANCE = 1e-6

Draw = tuple[int, int, dict[str, int]]  # worker, print, states of the generators


@dataclass(frozen=True)
class TellingCollate:
    """Collates as the loader does, and tells which worker drew what instead of serving it."""

    collate: Callable[[Any], Any] | None

    def __call__(self, samples: Any) -> Draw:
        """Return the worker, a print of the batch and the states of all generators."""
        drawn = self.collate(samples) if self.collate is not None else samples
        worker = get_worker_info()
        assert worker is not None, "it runs in a worker process"
        return worker.id, likeness(drawn), streams(worker.dataset, self.collate)


def workers(loaders: Loaders, case: int) -> Iterator[Batch | Serving]:
    """Yield what two workers of each split draw that may be trained on, where there are any."""
    made = loaders.make()
    with keep_state(made):
        for split, loader in made.items():
            shuffled = loaders.subject.options.get(split, {}).get("shuffled")
            torchs = isinstance(loader, DataLoader) and loader.num_workers > 0
            if torchs and (not is_evaluation(split) or shuffled):
                tells = loaders.subject.set_epoch
                for event in _try_draw(_Passes(loader, tells), split):
                    yield replace(event, case=case)


def _try_draw(passes: "_Passes", split: str) -> list[Batch | Serving]:
    """Return what the workers of one loader draw; it is not to blame for what it is asked here."""
    try:
        return list(_draw(passes, split))
    except SubjectError as fault:
        raise Unjudged(f"its workers do not serve the same samples again: {fault}") from fault


def _draw(passes: "_Passes", split: str) -> Iterator[Batch | Serving]:
    """Yield what the workers of one loader draw."""
    stream = isinstance(passes.loader.dataset, IterableDataset)
    epochs = _draw_stream(passes, split) if stream else _draw_repeated(passes, split, FEW)
    if not stream and _is_coarse(epochs):
        epochs = _draw_repeated(passes, split, MANY)
    used = list(_observe_generators(epochs, split))
    if not stream:  # whose workers may well shuffle alike before each takes its part
        used = [replace(event, detail=_share_in(passes.loader, event)) for event in used]
    if not stream or any(event.measured == event.reference > 0 for event in used):
        yield from _batches(epochs, split)
        yield from used
    if not stream and passes.tells and passes.loader.persistent_workers:
        yield from _observe_epoch_heard(passes.loader, epochs, split)


def _share_in(loader: DataLoader[Any], used: Serving) -> str:
    """Say whether a generator that workers have alike has a share in what a sample is made of."""
    if used.measured < used.reference or not used.reference:
        return ""
    name, index = used.at.split("`")[1] if "`" in used.at else "", _first_index(loader)
    held = generators(loader.dataset, loader.collate_fn)
    states = {each: state_of(generator) for each, generator in held.items()}
    made: list[int] = []
    with suppress(Exception):  # whatever cannot be made here is not known to be felt
        for other in (False, False, True):
            seed_everything(0)
            for each, state in states.items():
                put_back(held[each], state)
            if other:
                _draw_once(held[name] if name else used.at.rpartition(" ")[2])
            made.append(likeness([loader.dataset[index] for _ in range(FEW)]))
    return "felt" if len(made) == 3 and made[0] == made[1] != made[2] else ""


def _draw_once(generator: Any) -> None:
    """Draw a number from a generator, or from the global one of a module of that name."""
    if generator == "torch" or isinstance(generator, torch.Generator):
        torch.rand(1, generator=None if generator == "torch" else generator)
    elif isinstance(generator, str):
        {"numpy": np.random, "random": random}[generator].random()
    else:
        generator.random()


def _observe_epoch_heard(
    loader: DataLoader[Any], epochs: list[list[Draw]], split: str
) -> Iterator[Serving]:
    """Yield whether lasting workers know of the epoch that their data set is told."""
    index, here = _first_index(loader), []
    for epoch in range(_EPOCHS):
        set_epoch(loader, epoch)
        here.append({likeness(loader.dataset[index]) for _ in range(2)})
    there = [{made for _, made, _ in draws} for draws in epochs]
    fixed = all(len(made) == 1 for made in (*here, *there))
    if fixed and here[0] != here[1]:
        heard = len({next(iter(made)) for made in there})
        yield Serving(quantity="epoch", split=split, measured=_EPOCHS, reference=heard)


@dataclass
class _Passes:
    """Two passes over one probing loader, whose workers may last from the first to the second."""

    loader: DataLoader[Any]
    tells: bool
    probe: DataLoader[Any] | None = None
    epochs: int = _EPOCHS
    _iterator: Any = None  # under the name of torch, for whoever must end the workers

    def __iter__(self) -> Iterator[tuple[int, Draw]]:
        """Iterate over the draws of each epoch."""
        assert self.probe is not None, "it is built before it is iterated"
        for epoch in range(self.epochs):
            if self.tells:
                set_epoch(self.loader, epoch)
            self._iterator = iter(self.probe)
            for draw in self._iterator:
                yield epoch, draw

    def draw(self, split: str, most: int | None = None) -> list[list[Draw]]:
        """Return the draws of each epoch, the workers being ended afterwards."""
        epochs: list[list[Draw]] = [[] for _ in range(self.epochs)]
        with serving(self, split) as draws:
            for epoch, draw in islice(draws, most):
                epochs[epoch].append(draw)
        return epochs


def _draw_repeated(passes: _Passes, split: str, draws: int) -> list[list[Draw]]:
    """Draw the same samples many times in each worker, for two epochs."""
    loader = passes.loader
    index = _first_index(loader)
    sampling: dict[str, Any]
    if loader.batch_sampler is None:
        sampling = {"sampler": [index] * draws * _WORKERS, "batch_size": None}
    else:
        rows = min(_ROWS, loader.batch_size or _ROWS)
        sampling = {"batch_sampler": [[index] * rows] * draws * _WORKERS}
    passes.probe = _like(loader, persistent_workers=loader.persistent_workers, **sampling)
    return passes.draw(split)


def _draw_stream(passes: _Passes, split: str) -> list[list[Draw]]:
    """Draw the first batches of each worker's own stream."""
    size = passes.loader.batch_size
    passes.probe = _like(passes.loader, batch_size=None if size is None else min(_ROWS, size))
    passes.epochs = 1
    return passes.draw(split, FEW * _WORKERS)


def _like(loader: DataLoader[Any], **options: Any) -> DataLoader[Any]:
    """Build a loader with workers of the same kind, which tell what they draw."""
    return DataLoader(
        loader.dataset,
        num_workers=_WORKERS,
        collate_fn=TellingCollate(loader.collate_fn),
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=_copy(loader.generator),
        **options,
    )


def _first_index(loader: DataLoader[Any]) -> Any:
    """Return the first index that the loader's sampler names."""
    if loader.batch_sampler is None:
        return next(iter(loader.sampler))
    return next(iter(chain.from_iterable(iter(loader.batch_sampler))))


def _copy(generator: torch.Generator | None) -> torch.Generator | None:
    """Return a generator in the same state, so that the loader's own stays where it is."""
    return generator.clone_state() if generator is not None else None


def _is_coarse(epochs: list[list[Draw]]) -> bool:
    """Say whether there is something random that so few draws cannot tell from a coincidence."""
    prints = Counter(made for epoch in epochs for _, made, _ in epoch)
    total = prints.total()
    alike = sum(count * (count - 1) for count in prints.values()) / (total * (total - 1))
    return len(prints) > 1 and alike**FEW > _CHANCE


def _batches(epochs: list[list[Draw]], split: str) -> Iterator[Batch]:
    """Yield each draw, in the order in which its worker made it."""
    for epoch, draws in enumerate(epochs):
        made: Counter[int] = Counter()
        for worker, drawn, _ in draws:
            yield Batch(split=split, epoch=epoch, rank=worker, index=made[worker], prints=(drawn,))
            made[worker] += 1


def _observe_generators(epochs: list[list[Draw]], split: str) -> Iterator[Serving]:
    """Yield each generator that was used between two draws, and how often workers had it alike."""
    names = dict.fromkeys(name for _, _, states in chain(*epochs) for name in states)
    for name in names:
        courses: dict[tuple[int, int], list[int]] = {}
        for epoch, draws in enumerate(epochs):
            for worker, _, states in draws:
                courses.setdefault((epoch, worker), []).append(states.get(name, 0))
        if all(len(set(course)) == 1 for course in courses.values()):
            continue
        alike = total = 0
        for epoch in range(len(epochs)):
            own = [course for (at, _), course in courses.items() if at == epoch]
            together = list(zip(*own, strict=False)) if len(own) > 1 else []
            alike += sum(len(set(states)) == 1 for states in together)
            total += len(together)
        yield Serving(quantity="generator", split=split, at=name, measured=alike, reference=total)

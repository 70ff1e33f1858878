"""Watches data sets of pictures and targets that lie over them: whether both are moved alike."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.events.probe import Probe
from trainguard.observe.loop.counterfactual.forking import Exit, fork, obstacle
from trainguard.observe.loop.watch.losses.loss_calls import LossCalls
from trainguard.observe.loop.watch.losses.loss_functions import LossFunctions
from trainguard.observe.loop.watch.samples.batches import Batches, tensors_of
from trainguard.observe.loop.watch.samples.second_passes import SecondPasses, read_class
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, shielded
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.displacement import Moves
from trainguard.observe.tools.patches import Patches

_SECONDS = 3.0  # of processor time for a few samples
_SAMPLES, _SERVINGS = 8, 4  # each serving after the first is a pair of it: 24
_LEAST = 6  # pairs whose pictures and targets were both moved
_SHARE = 0.3  # of them, that were moved apart: small shifts may be alike by chance
_SIDE = 8  # places along each side of a picture: in smaller ones nothing has a place
_LOOKS = 64  # losses that are looked at for each place where they are computed


class MovedTargets(Watcher):
    """
    The Probe event "displaced": pictures that were moved otherwise than the targets over them.

    That is tried in a closed-off child, before the second pass of a loader: the same samples are
    served several times, and it is looked by how much a picture and its target were shifted or
    turned since the first time. Which of what is served is the target, a loss function tells.
    """

    makes = ("Probe:displaced",)
    relies_on = ("Batches", "LossFunctions", "SecondPasses")

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._places: dict[int, tuple[int, int, str]] = {}  # of picture and target, by data set
        self._looks: dict[str, int] = {}
        self._alone = False  # whether the latest pass that may learn was given one tensor
        self._found: list[Probe] = []

    def install(self, patches: Patches) -> None:
        """Ask to be told of losses, and of second passes."""
        self._batches = self.recorder.watcher(Batches)
        self.recorder.watcher(LossFunctions).listeners.append(self._on_loss)
        self.recorder.watcher(SecondPasses).listeners.append(self._try)

    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """See whether a model that learns is given a picture alone."""
        if forward.gradients:
            self._alone = len(self.recorder.given) == 1

    def finish(self) -> Iterable[Event]:
        """Return what was found."""
        return self._found

    def _on_loss(
        self, tally: LossCalls, _scores: torch.Tensor, target: torch.Tensor, value: torch.Tensor
    ) -> None:
        """See which tensors of a batch are the picture that a model was given, and its target."""
        looks = self._looks[tally.source] = self._looks.get(tally.source, 0) + 1
        ref = self._batches.given
        given = ref() if ref is not None else None
        if (
            looks > _LOOKS
            or not self._alone
            or given is None
            or not value.requires_grad
            or not self._batches.recent
        ):
            return
        served = self._batches.recent[-1]
        data = getattr(served.iterator(), "_dataset", None)
        if data is None or id(data) in self._places:
            return
        with suppress(Exception):  # tensors of foreign kinds refuse what they like
            tensors = [ref() for ref in served.tensors]
            places = _find_places(tensors, given, self._batches.on_host(target))
            if places is not None:
                self._places[id(data)] = (*places, tally.source)

    @shielded
    def _try(self, loader: Any, _workers: bool) -> None:
        """Have a child serve some samples again and again, and take down how they were moved."""
        places = self._places.get(id(loader.dataset))
        if places is None or obstacle():
            return
        picture, target, source = places
        answer = fork(_SECONDS, lambda way_out: _serve(loader, picture, target, way_out))
        report = answer.report if answer is not None else {}
        known, apart = report.get("known", 0), report.get("apart", 0)
        self.looked |= {"displaced"} if known >= _LEAST else set()
        if apart >= max(_LEAST, _SHARE * known):
            where = read_class(loader.dataset)[1] or source
            self._found.append(make_probe("displaced", apart, known, source=where))


def _find_places(
    tensors: Sequence[torch.Tensor | None], given: torch.Tensor, target: torch.Tensor
) -> tuple[int, int] | None:
    """Return which tensors of a batch are the picture that was given, and the target over it."""
    size = given.shape[-2:]
    if not 3 <= given.dim() <= 4 or min(size) < _SIDE:
        return None
    lies = [
        place
        for place, one in enumerate(tensors)
        if one is not None and one.is_cpu and one.dim() >= 3 and one.shape[-2:] == size
        if len(one) == len(given)
    ]
    own = [
        place
        for place in lies
        if (one := tensors[place]) is not None and one.numel() == target.numel()
        if torch.equal(one.reshape(-1).double(), target.detach().reshape(-1).double())
    ]
    others = [place for place in lies if place not in own]
    return (others[0], own[0]) if len(own) == 1 and len(others) == 1 else None


def _serve(loader: Any, picture: int, target: int, way_out: Exit) -> None:
    """Serve a few samples several times, and report how many pictures and targets moved, how."""
    stride = max(1, len(loader.dataset) // _SAMPLES)
    samples = [*range(0, len(loader.dataset), stride)][:_SAMPLES]
    servings = [_serve_batch(loader, samples, picture, target) for _ in range(_SERVINGS)]
    known = apart = 0
    for later in servings[1:]:
        for before, after in zip(servings[0], later, strict=True):
            images, targets = (Moves(one, other) for one, other in zip(before, after, strict=True))
            if images.is_known and targets.is_known:
                known += 1
                apart += targets.parts_from(images)
    way_out.report(known=known, apart=apart)


def _serve_batch(
    loader: Any, samples: list[int], picture: int, target: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the picture and the target of each sample, as matrices."""
    batch = loader.collate_fn([loader.dataset[sample] for sample in samples])
    tensors = tensors_of(batch)
    return list(zip(*(_flatten(tensors[place]) for place in (picture, target)), strict=True))


def _flatten(pictures: torch.Tensor) -> torch.Tensor:
    """Return the mean over the channels of each picture."""
    values = pictures.detach().double()
    return values.reshape(len(values), -1, *values.shape[-2:]).mean(1)

"""Watches the places of padding: whether its number comes as all other tokens do."""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trainguard.events.base import Event
from trainguard.observe.loop.watch.gradients import autograd_graph
from trainguard.observe.loop.watch.models.padding_rows import comes_inside
from trainguard.observe.loop.watch.watcher import Watcher, make_probe, now_and_then
from trainguard.observe.loop.window import Forward
from trainguard.observe.tools.local_values import has_rows
from trainguard.observe.tools.user_line import caller

_STEPS = {1, 2, 4, 8, 16, 32, 64}  # that are looked at
_MOST_NODES = 20000
_LARGEST = 2**18  # tokens of a batch
_ROWS, _LONG = 8, 3  # of a batch, and places of a row, at least
_LEAST = 3  # looks that show it
_EVALUATIONS = 4  # that are looked at
_FREQUENT = 3.0  # times as many as of any other token; the most frequent word is twice the next
_BY_CHANCE = 3.0  # times as many runs as a token has that stands anywhere, and so many besides


@dataclass(slots=True)
class _ReadTokens:
    """
    What an embedding was read with, the number of its padding among it.

    inside: looks in which it came between others; counts: of each token; joined: pairs of padding
    side by side, of so many pairs. ended: rows that begin or end with two of it. evaluated: looks
    at evaluations, and those of them in which it came so.
    """

    padding: int
    counts: torch.Tensor
    source: str = ""
    looks: int = 0
    inside: int = 0
    rows: int = 0
    joined: int = 0
    pairs: int = 0
    ended: int = 0
    evaluated: Counter[bool] = field(default_factory=Counter)
    is_category: bool = False

    def add(self, tokens: torch.Tensor) -> None:
        """Take in what was read: a category for each row, or rows of tokens."""
        self.is_category = tokens.dim() < 2 or tokens.shape[-1] == 1
        self.counts += torch.bincount(tokens.flatten(), minlength=len(self.counts))
        self.looks += 1
        rows = tokens.reshape(1, -1) if self.is_category else tokens
        blank = rows == self.padding
        self.joined += int((blank[:, 1:] & blank[:, :-1]).sum())
        self.pairs += blank[:, 1:].numel()
        if self.is_category:
            self.inside += bool(blank.any())
            return
        self.inside += comes_inside(rows, self.padding)
        self.rows += len(rows)
        self.ended += int((blank[:, :2].all(1) | blank[:, -2:].all(1)).sum())

    def kind(self) -> str:
        """Return how the padding comes as any token does, or nothing."""
        counts = self.counts.double()
        share = float(counts[self.padding] / counts.sum())
        others = torch.cat([counts[: self.padding], counts[self.padding + 1 :]])
        rare = float(counts[self.padding]) <= _FREQUENT * float(others.max())
        if self.inside < max(_LEAST, self.looks / 2) or not rare:
            return ""
        if self.is_category:
            even = self.joined <= _BY_CHANCE * (self.pairs * share**2 + 1)
            known = float(counts[self.padding]) >= float(others.median()) / _FREQUENT
            return "category" if even and known else ""
        if not self.evaluated[True] or self.evaluated[False]:
            return ""  # words that are dropped in training come so, too
        whole = self.ended <= _BY_CHANCE * (2 * self.rows * share**2 + 1)
        return "inside" if whole else ""  # separators of what was joined come beside padding


class PaddingPlaces(Watcher):
    """
    The Probe event "padding inside": a number for padding that comes as any other token does.

    Where an embedding is read with it between other tokens, in training and in evaluations; or for
    a whole sample, as a category. measured: the looks that show it, of reference; step: the number;
    label: the embedding, and how it comes.
    """

    makes = ("Probe:padding inside",)

    def __init__(self, recorder: Any) -> None:
        super().__init__(recorder)
        self._tables: dict[str, _ReadTokens] = {}
        self._given: list[tuple[str, int, torch.Tensor]] = []
        self._places: dict[tuple[str, int], str] = {}  # the embedding that an input is read by
        self._padded: dict[str, bool] = {}  # modules with an embedding that has padding
        self._source = ""

    @now_and_then
    def forward(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Remember what may be read."""
        if forward.module not in self._padded:
            self._padded[forward.module] = any(map(_has_padding, module.modules()))
        if self._padded[forward.module] and forward.gradients and self.recorder.age in _STEPS:
            tokens = [(place, each) for place, each in enumerate(self.recorder.given)]
            self._given = [(forward.module, p, each) for p, each in tokens if _are_tokens(each)]
            self._source = caller(4)

    def evaluate(
        self, forward: Forward, module: nn.Module, inputs: tuple[Any, ...], output: Any
    ) -> None:
        """Look at what is read in an evaluation."""
        for place, each in enumerate(self.recorder.given) if self._places else ():
            table = self._tables.get(self._places.get((forward.module, place), ""))
            few = table is not None and table.evaluated.total() < _EVALUATIONS
            if table is not None and few and _are_tokens(each) and each.dim() > 1:
                rows = each.reshape(-1, each.shape[-1])
                if len(rows) >= _ROWS:
                    table.evaluated[comes_inside(rows, table.padding)] += 1

    @now_and_then
    def before_backward(self, loss: torch.Tensor) -> None:
        """Look at what embeddings were read with on the way to a loss."""
        given, self._given = self._given, []
        if not any(self._padded.values()) or loss.grad_fn is None:
            return
        if self.recorder.age not in _STEPS:
            return
        nodes = list(autograd_graph.below(loss.grad_fn, _MOST_NODES))
        kinds = [n for n in nodes if autograd_graph.kind_of(n) == "EmbeddingBackward"]
        weights = [getattr(node.next_functions[0][0], "variable", None) for node in kinds]
        for node, weight in zip(kinds, weights, strict=True) if len(nodes) < _MOST_NODES else ():
            # One that is read again and again is read place by place.
            if weight is not None and sum(each is weight for each in weights) == 1:
                with suppress(RuntimeError):  # what was changed since cannot be read
                    self._look_at(node, weight, given)

    def finish(self) -> Iterable[Event]:
        """Return the numbers for padding that come as all others do."""
        for name, table in self._tables.items():
            self.looked |= {"padding inside"} if table.looks >= _LEAST else set()
            kind = table.kind() if table.looks >= _LEAST else ""
            if kind:
                yield make_probe(
                    "padding inside",
                    table.inside,
                    table.looks,
                    step=table.padding,
                    label=f"{name} {kind}",
                    source=table.source,
                )

    def _look_at(
        self, node: Any, weight: torch.Tensor, given: list[tuple[str, int, torch.Tensor]]
    ) -> None:
        """Look at one reading of an embedding."""
        padding, read = int(node._saved_padding_idx), autograd_graph.saved(node, "indices")  # noqa: SLF001
        if not 0 <= padding < len(weight) or read is None or not _are_tokens(read):
            return
        rows = read if read.dim() < 2 else read.reshape(-1, read.shape[-1])
        if len(rows) < _ROWS or 1 < rows[0].numel() < _LONG:
            return
        name = self.recorder.names.parameter(weight)
        empty = torch.zeros(len(weight), dtype=torch.long)
        table = self._tables.setdefault(name, _ReadTokens(padding, empty, self._source))
        table.add(rows)
        for module, place, each in given:
            if each.shape == read.shape and torch.equal(each, read.to(each.dtype)):
                self._places[module, place] = name


def _has_padding(part: nn.Module) -> bool:
    """Say whether a module is an embedding one of whose rows stands for padding."""
    return isinstance(part, nn.Embedding) and part.padding_idx is not None


def _are_tokens(given: torch.Tensor) -> bool:
    """Say whether an input may be tokens, and is cheap to look at."""
    whole = type(given) is torch.Tensor and given.dtype in (torch.int32, torch.int64)
    return whole and given.is_cpu and has_rows(given) and 0 < given.numel() <= _LARGEST

"""What tests of what is tried on loaders share: hand-written events, and a judge for them."""

from collections.abc import Iterable

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.loader import Batch, Serving
from trainguard.events.trace import Trace


def judged(name: str, events: Iterable[Event], **promises) -> list[Finding]:
    """Judge events with one invariant."""
    return list(find_invariants(name)[0].judge(Trace("audio", tuple(events), promises=promises)))


def ranks(name: str, events: Iterable[Event], **promises) -> list[str]:
    """Judge events with one invariant, and return how sure each finding is."""
    return [finding.rank.value for finding in judged(name, events, **promises)]


def served(quantity: str, measured: float = 0.0, reference: float = 0.0, **more) -> Serving:
    """Write one measured quantity of the training split."""
    return Serving(quantity=quantity, split="train", measured=measured, reference=reference, **more)


def drawn(worker: int, *prints: int, epoch: int = 0) -> list[Batch]:
    """Write what one worker drew in an epoch."""
    return [
        Batch(split="train", epoch=epoch, rank=worker, index=index, prints=(made,))
        for index, made in enumerate(prints)
    ]

"""What the recorder sees of encoders that are held to the codes they choose."""

from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

Tensor = torch.Tensor


def find_codes(
    decoded: Callable[[Tensor, Tensor], Tensor],
    channels: int = 1,
    commit: Callable[[Tensor, Tensor], Tensor] = F.mse_loss,
    learned: bool = True,
    choose: Callable[[Tensor], Tensor] = lambda apart: apart.argmin(-1),
) -> list[tuple[float, float]]:
    """Train a coder for ten steps; return the looks that found it held alone, and all looks."""
    torch.manual_seed(0)
    kinds = torch.randn(5, 6)
    with Recorder("x") as recorder:
        encoder, table, decoder = nn.Linear(6, 4), nn.Embedding(8, 4), nn.Linear(4, 6)
        table.requires_grad_(learned)
        modules = nn.ModuleList([encoder, table, decoder])
        optimizer = torch.optim.SGD((p for p in modules.parameters() if p.requires_grad), lr=0.01)
        for _ in range(10):
            rows = kinds[torch.randint(5, (32,))] + 0.1 * torch.randn(32, 6)
            vectors = encoder(rows)
            code = table(choose(torch.cdist(vectors.detach(), table.weight)))
            ours, theirs = vectors, code.detach()
            if channels > 1:  # as those of pictures, which come before the places
                ours, theirs = (t.reshape(-1, channels, 4).mT for t in (ours, theirs))
            loss = F.mse_loss(decoder(decoded(vectors, code)), rows) + commit(ours, theirs)
            if learned:
                loss = loss + F.mse_loss(code, vectors.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    return [(p.measured, p.reference) for p in probes if p.probe == "codes"]


def through(vectors: Tensor, code: Tensor) -> Tensor:
    """Return the code, whose gradient goes to the vectors."""
    return vectors + (code - vectors).detach()


def turned(vectors: Tensor, code: Tensor) -> Tensor:
    """Return the vectors, whose gradient goes to the code."""
    return code + (vectors - code).detach()


def test_what_goes_through() -> None:
    """The estimator as it is meant leads to the encoder."""
    assert find_codes(through) == []


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("channels", [1, 8])
def test_what_does_not(channels: int, learned: bool) -> None:
    """A code alone, whether it learns or not, leads to nothing; nor does one that is exchanged."""
    ((alone, looks),) = find_codes(lambda _, code: code, channels, learned=learned)
    assert alone == looks >= 3
    if learned:
        ((alone, looks),) = find_codes(turned, channels)
        assert alone == looks >= 3


def test_codes_that_collapse() -> None:
    """All vectors have one code soon, which was chosen among several at first."""
    turn = count()

    def choose(apart: Tensor) -> Tensor:
        """Choose the nearest, and later the code that most of them had."""
        nearest = apart.argmin(-1)
        return nearest if next(turn) < 1 else nearest.mode().values.expand(len(apart))

    ((alone, looks),) = find_codes(lambda _, code: code, choose=choose)
    assert alone == looks >= 3
    assert find_codes(lambda _, code: code, choose=lambda apart: apart.argmin(-1) * 0) == []


def test_a_centre_beside_codes() -> None:
    """What is held to one vector beside what chooses among several has not chosen it."""
    beside = nn.Linear(4, 4)

    def commit(vectors: Tensor, code: Tensor) -> Tensor:
        """Hold the vectors to their codes, and what another layer makes of them to a centre."""
        centre = torch.ones(4).expand_as(vectors)
        return F.mse_loss(vectors, code) + F.mse_loss(beside(vectors.detach()), centre)

    assert find_codes(through, commit=commit) == []


def test_codes_that_others_chose() -> None:
    """A vector that is held to something else than the nearest says nothing of a choice."""
    assert find_codes(lambda _, code: code, choose=lambda apart: torch.arange(len(apart)) % 4) == []


def test_vectors_with_a_code_each() -> None:
    """What is held to targets of its own, and chooses none of a few, is a prediction."""

    def commit(vectors: Tensor, _: Tensor) -> Tensor:
        """Hold each to itself, and a little more."""
        return F.mse_loss(vectors, vectors.detach() + 0.1)

    assert find_codes(lambda _, code: code, commit=commit) == []


def test_an_encoder_that_has_another_loss() -> None:
    """What the vectors are used for besides is what they learn from."""
    assert find_codes(lambda vectors, code: code + 0.1 * vectors) == []


def test_nothing_but_centres() -> None:
    """Vectors and centres that are held to each other, and make nothing, are a clustering."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        encoder, table = nn.Linear(6, 4), nn.Embedding(8, 4)
        optimizer = torch.optim.SGD([*encoder.parameters(), *table.parameters()], lr=0.01)
        for _ in range(10):
            vectors = encoder(torch.randn(32, 6))
            code = table(torch.cdist(vectors.detach(), table.weight).argmin(1))
            loss = F.mse_loss(code, vectors.detach()) + F.mse_loss(vectors, code.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "codes"] == []

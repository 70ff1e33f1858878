"""Numbers for padding that come as any other token does."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROWS = torch.Generator().manual_seed(0)
WORDS = torch.randint(1, 9, (120, 12), generator=ROWS)
BASES = torch.randint(0, 9, (120, 12), generator=ROWS)
PLACES = torch.arange(12)
LENGTHS = torch.randint(3, 12, (120, 1), generator=ROWS)
SETS = torch.stack([torch.randperm(20, generator=ROWS)[:12] + 1 for _ in range(120)])
DROPPED = torch.rand(120, 12, generator=ROWS) < 0.1


class Reader(nn.Module):
    """Reads tokens at once, or place by place."""

    def __init__(self, stepwise: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(22, 4, padding_idx=0), nn.Linear(4, 1)
        self.stepwise = stepwise

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a number for each row."""
        if self.stepwise:
            made = torch.stack([self.embed(place) for place in tokens.T], 1)
        else:
            made = self.embed(tokens)
        return self.head(made.reshape(len(tokens), -1, 4).mean(1))


def learn(
    tokens: torch.Tensor,
    held_out: torch.Tensor | None = None,
    prepare: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens,
    stepwise: bool = False,
) -> list[str]:
    """Learn from tokens, evaluate others, and return how the padding comes."""
    model = Reader(stepwise)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for step in range(20):
            optimizer.zero_grad()
            model(prepare(tokens[step % 3 * 40 :][:40])).square().mean().backward()
            optimizer.step()
            if held_out is not None and step > 8:
                with torch.no_grad():
                    model(held_out)
    assert recorder.trace.conditions.get("faults", ()) == ()
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "padding inside"]
    assert all((probe.step, probe.measured) == (0, probe.reference) for probe in probes)
    return [probe.label.rpartition(" ")[2] for probe in probes]


def test_a_token_of_its_own() -> None:
    """It comes between others in training, and in an evaluation."""
    assert learn(BASES, BASES.flip(0)) == ["inside"]


def test_padding_beside_it_is_fine() -> None:
    """Rows that end with the number too may have it between their parts."""
    padded = BASES.masked_fill((PLACES > 9) & (LENGTHS > 6), 0)
    assert learn(padded, padded) == []


def test_a_category() -> None:
    """What is unknown may be one; in runs it is the padding of what was joined."""
    assert learn(BASES[:, 0]) == ["category"]
    assert learn(BASES[:, 0].sort().values) == []
    assert learn(WORDS[:, 0]) == []


@pytest.mark.parametrize(
    "tokens",
    [
        WORDS.masked_fill(PLACES >= LENGTHS, 0),
        WORDS.masked_fill(PLACES >= LENGTHS, 0).flip(1),
        WORDS.masked_fill((PLACES > 3) & (PLACES < 6), 0),
        SETS.masked_fill(torch.rand(120, 12, generator=ROWS) < 0.4, 0),
        WORDS,
    ],
    ids=["right", "left", "between segments", "sets", "none"],
)
def test_padding_is_fine(tokens: torch.Tensor) -> None:
    """At either end, between parts, or wherever a set has no item."""
    assert learn(tokens, tokens) == []


def test_words_that_are_dropped_are_fine() -> None:
    """An evaluation has them; without one nobody knows."""
    drop = DROPPED[:40]
    assert learn(WORDS, WORDS, lambda tokens: tokens.masked_fill(drop, 0)) == []
    assert learn(WORDS, None, lambda tokens: tokens.masked_fill(drop, 0)) == []


def test_reading_place_by_place_is_fine() -> None:
    """Then each reading has the padding of one place."""
    assert learn(BASES, BASES, stepwise=True) == []

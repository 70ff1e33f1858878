"""Pairs of evaluations that were trained on: of tokens, and of accuracies alone."""

import random

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROWS, HELD = 256, 64


class Words(nn.Module):
    """Adds up what tells the words of a text apart."""

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.pad, self.words, self.out = pad, nn.Embedding(100, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of (N, T) tokens, (N, 3)."""
        return self.out((self.words(ids) * (ids != self.pad)[..., None]).sum(1))


def make_texts(*, few: bool = False) -> list[tuple[list[int], int]]:
    """Return texts of several lengths with their classes; few: of two words."""
    draw = random.Random(0)
    words = (1, 2) if few else range(1, 90)
    texts = [draw.choices(words, k=draw.randint(10, 20)) for _ in range(ROWS)]
    return [(text, draw.randrange(3)) for text in texts]


def evaluate(trained, held, *, loss: bool, pad: int = 0, sets=()) -> list[Probe]:
    """Learn from texts, evaluate others and further sets, and return what was seen of pairs."""

    def collate(texts):
        """Fill texts up to the longest of them."""
        longest = max(len(words) for words, _ in texts)
        rows = [words + [pad] * (longest - len(words)) for words, _ in texts]
        return torch.tensor(rows), torch.tensor([label for _, label in texts])

    torch.manual_seed(0)
    model = Words(pad)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            for ids, labels in DataLoader(trained, 16, shuffle=True, collate_fn=collate):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(ids), labels).backward()
                optimizer.step()
            with torch.no_grad():
                for each in (held, *sets):
                    for ids, labels in DataLoader(each, 32, collate_fn=collate):
                        scores = model(ids)
                        if loss and each is held:
                            nn.functional.cross_entropy(scores, labels)
    assert "faults" not in recorder.trace.conditions
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "held out"]


@pytest.mark.parametrize("loss", [True, False])
def test_texts_that_were_trained_on(loss: bool) -> None:
    """However many places of padding a batch gives them; with a loss, and without one."""
    texts = make_texts()
    (probe,) = evaluate(texts, texts[:HELD], loss=loss)
    assert (probe.measured, probe.reference, probe.step) == (HELD, HELD, ROWS)


@pytest.mark.parametrize("loss", [True, False])
def test_texts_that_were_not(loss: bool) -> None:
    """None of them was learned from."""
    texts = make_texts()
    (probe,) = evaluate(texts[HELD:], texts[:HELD], loss=loss)
    assert (probe.measured, probe.reference) == (0, HELD)


def test_a_second_set_that_is_held_out() -> None:
    """Whoever evaluates on the training too keeps a set apart for that."""
    texts = make_texts()
    probes = evaluate(texts[HELD:], texts[HELD : 2 * HELD], loss=True, sets=[texts[:HELD]])
    assert any(probe.measured < probe.reference for probe in probes)


def test_texts_of_two_words() -> None:
    """Two samples are easily the same: nothing is known of them."""
    texts = make_texts(few=True)
    assert evaluate(texts, texts[:HELD], loss=True) == []


def test_texts_of_which_there_are_few() -> None:
    """Each one is in any split, as where a task is to count on from a number."""
    texts = [(list(range(start, start + 12)), start % 3) for start in range(1, 40)] * 8
    assert evaluate(texts[HELD:], texts[:HELD], loss=True) == []

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

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(100, 8), nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of (N, T) tokens, (N, 3)."""
        return self.out((self.words(ids) * (ids > 0)[..., None]).sum(1))


def make_texts(*, few: bool = False) -> list[tuple[list[int], int]]:
    """Return texts of several lengths with their classes; few: of two words."""
    draw = random.Random(0)
    words = (1, 2) if few else range(1, 90)
    texts = [draw.choices(words, k=draw.randint(10, 20)) for _ in range(ROWS)]
    return [(text, draw.randrange(3)) for text in texts]


def collate(texts):
    """Fill texts up to the longest of them."""
    rows = nn.utils.rnn.pad_sequence([torch.tensor(words) for words, _ in texts], batch_first=True)
    return rows, torch.tensor([label for _, label in texts])


def evaluate(trained, held, *, loss: bool, beside=(), at_end=(), teacher=None) -> list[Probe]:
    """
    Learn from texts, evaluate others, and return what was seen of pairs.

    beside, at_end: texts that are looked at by hand, after each epoch and once. teacher: is shown
    what is learned from.
    """
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(3):
            for ids, labels in DataLoader(trained, 16, shuffle=True, collate_fn=collate):
                with torch.no_grad():
                    _ = teacher(ids) if teacher else None
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(ids), labels).backward()
                optimizer.step()
            with torch.no_grad():
                if beside:
                    model(collate(beside)[0])
                for ids, labels in DataLoader(held, 32, collate_fn=collate):
                    scores = model(ids)
                    if loss:
                        nn.functional.cross_entropy(scores, labels)
        with torch.no_grad():
            if at_end:
                model(collate(at_end)[0])
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


@pytest.mark.parametrize("where", ["beside", "at_end"])
def test_other_texts_that_are_evaluated_too(where: str) -> None:
    """Whoever evaluates on the training keeps others apart: nothing is known of one alone."""
    texts = make_texts()
    others = {where: texts[:HELD]}
    assert evaluate(texts[HELD:], texts[HELD : 2 * HELD], loss=True, **others) == []
    others = {where: texts[-HELD:]}  # these were learned from, too
    (probe,) = evaluate(texts[HELD:], texts[HELD : 2 * HELD], loss=True, **others)
    assert probe.measured == probe.reference == HELD
    others = {where: texts[:1]}  # of one row alone nothing is known
    assert evaluate(texts[HELD:], texts[HELD : 2 * HELD], loss=True, **others) == []


@pytest.mark.parametrize("loss", [True, False])
def test_texts_that_tell_little(loss: bool) -> None:
    """Of two words, or of one again and again, two samples are easily the same by chance."""
    texts = make_texts(few=True)
    assert evaluate(texts, texts[:HELD], loss=loss) == []
    pairs = [divmod(number, 80) for number in range(500, 500 + ROWS)]
    texts = [([one + 1] * 11 + [other + 1], other % 3) for one, other in pairs]
    assert evaluate(texts, texts[:HELD], loss=loss) == []


def test_a_teacher_evaluates_nothing() -> None:
    """It is shown what is learned from: that is no set that should have been held out."""
    texts = make_texts()
    assert evaluate(texts, [], loss=False, teacher=nn.Sequential(Words())) == []
    (probe,) = evaluate(texts, texts[:HELD], loss=False, teacher=nn.Sequential(Words()))
    assert probe.measured == probe.reference == HELD


def test_texts_of_which_there_are_few() -> None:
    """Each one is in any split, as where a task is to count on from a number."""
    texts = [(list(range(start, start + 12)), start % 3) for start in range(1, 40)] * 8
    assert evaluate(texts[HELD:], texts[:HELD], loss=True) == []

"""What the recorder sees of numbers that stand for padding, and come as tokens too."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.models.padding_rows import comes_inside

TOKENS = 10


def found(tokens_of, loss_of, padding: int | None = 0) -> list[tuple[str, int]]:
    """Record six steps, and return what was said of rows of the embedding."""
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        model = nn.Sequential(nn.Embedding(TOKENS, 6, padding_idx=padding), nn.Linear(6, TOKENS))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(6):
            tokens = tokens_of(torch.randint(TOKENS, (24, 9)))
            optimizer.zero_grad()
            loss_of(model, tokens).backward()
            optimizer.step()
    probes = [event for event in recorder.trace if isinstance(event, Probe)]
    return [(p.label, p.step) for p in probes if p.probe == "padding" and p.measured >= 3]


def after(model, tokens, **options) -> torch.Tensor:
    """Learn the token after each."""
    scores = model(tokens[:, :-1])
    return F.cross_entropy(scores.mT, tokens[:, 1:], **options)


def last(model, tokens) -> torch.Tensor:
    """Learn the last token of each row."""
    return F.cross_entropy(model(tokens[:, :-1]).mean(1), tokens[:, -1])


def left_out(model, tokens) -> torch.Tensor:
    """Learn the token after each, but one."""
    return after(model, tokens, ignore_index=3)


def same(model, tokens) -> torch.Tensor:
    """Learn some of the tokens themselves."""
    kept = torch.rand(tokens.shape) < 0.5
    return F.cross_entropy(model(tokens).mT, tokens.where(kept, 0), ignore_index=0)


def padded_before(model, tokens) -> torch.Tensor:
    """Learn the token after each, in rows whose inputs and targets are filled up at their begin."""
    blank = torch.arange(8) < torch.randint(5, (24, 1))
    rows, wanted = (part.masked_fill(blank, 0) for part in (tokens[:, :-1], tokens[:, 1:]))
    return F.cross_entropy(model(rows).mT, wanted, ignore_index=0)


def prompted(model, tokens) -> torch.Tensor:
    """Learn the token after each, but for the first few of a row, which are given."""
    wanted = tokens[:, 1:].masked_fill(torch.arange(8) < 3, 0)
    return F.cross_entropy(model(tokens[:, :-1]).mT, wanted, ignore_index=0)


def filled(tokens) -> torch.Tensor:
    """Fill up rows of other tokens with 0."""
    return tokens.clamp(1).masked_fill(torch.arange(9) > torch.randint(8, (24, 1)), 0)


@pytest.mark.parametrize(
    ("tokens_of", "loss_of", "padding", "said"),
    [
        (torch.clone, after, 0, [("Sequential.0.weight learned", 0)]),
        (torch.clone, last, 0, [("Sequential.0.weight learned", 0)]),
        (torch.clone, left_out, None, [("Sequential.0.weight left out", 3)]),
        (torch.clone, padded_before, 0, [("Sequential.0.weight left out", 0)]),
        (lambda tokens: tokens.clamp(1), padded_before, 0, []),
        (torch.clone, prompted, 0, []),
        (torch.clone, after, None, []),
        (torch.clone, same, 0, []),
        (filled, after, 0, []),
        (lambda tokens: filled(tokens).T.contiguous(), after, 0, []),
        (lambda tokens: torch.cat([filled(tokens), filled(tokens)], 1), after, 0, []),
    ],
)
def test_padding(tokens_of, loss_of, padding, said) -> None:
    """A number counts that comes between others, and is a target or is left out as one."""
    assert found(tokens_of, loss_of, padding) == said


@pytest.mark.parametrize(
    ("row", "inside"),
    [([1, 0, 2, 0, 3], True), ([1, 2, 0, 0, 0], False), ([0, 0, 1, 2, 3], False)],
)
def test_between_others(row, inside) -> None:
    """What fills up a row is not between others; along the other axis it must be so too."""
    other = [4] * len(row)
    table = torch.tensor([other, row, other, row, other, row, other])
    assert comes_inside(table, 0) is inside
    assert comes_inside(table.T, 0) is inside


@pytest.mark.parametrize(
    ("filled", "ends", "counted"),
    [(0, True, 1), (-100, True, 0), (0, False, 0), (3, True, 0)],
    ids=["a class", "left out", "one length", "a class of its own"],
)
def test_targets_of_padding(filled: int, ends: bool, counted: int) -> None:
    """They count where they are those of a class that others have, and rows end apart."""
    lengths = torch.arange(2, 10) if ends else torch.full((8,), 6)
    padding = torch.arange(10) >= lengths[:, None]
    target = (torch.arange(80).reshape(8, 10) % 3).masked_fill(padding, filled)
    model = nn.Linear(6, 4)
    inputs = torch.rand(8, 10, 6).masked_fill(padding[..., None], 0.0)
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs).flatten(0, 1), target.flatten()).backward()
            optimizer.step()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "filled"]
    assert len(found) == counted
    assert all((p.measured, p.label) == (float(3 * padding.sum()), "perhaps") for p in found)


class _Rows(Dataset[Any]):
    """Rows of tokens of several lengths, all of which end with the token 9."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 64

    def __getitem__(self, place: int) -> list[int]:
        """Return a row."""
        return [1 + (place + k) % 8 for k in range(3 + place % 4)] + [9]


def served(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return rows of one width with their mask, and labels without the token of the ends."""
    tokens, mask = torch.full((len(rows), 10), 9), torch.zeros(len(rows), 10, dtype=torch.long)
    for place, row in enumerate(rows):
        tokens[place, : len(row)], mask[place, : len(row)] = torch.tensor(row), 1
    tokens, mask = tokens[:, :7], mask[:, :7]
    return {"tokens": tokens, "mask": mask, "labels": tokens.masked_fill(tokens == 9, -100)}


def test_a_mask_that_the_model_never_sees_tells_the_ends() -> None:
    """It lies beside the tokens in the batch; all batches are as wide."""
    model = nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for batch in DataLoader(_Rows(), batch_size=16, collate_fn=served):
            scores, labels = model(batch["tokens"])[:, :-1], batch["labels"][:, 1:]
            optimizer.zero_grad()
            nn.functional.cross_entropy(scores.reshape(-1, 10), labels.reshape(-1)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "ended"]
    assert [(probe.measured, probe.reference) for probe in probes] == [(3.0, 3.0)]


@pytest.mark.parametrize(
    ("fill", "given", "found"),
    [
        (0, "lengths", True),
        (-100, "lengths", False),
        (0, "nothing", False),
        (0, "other numbers", False),
        (3, "lengths", False),
    ],
    ids=["counted", "ignored", "not told", "told otherwise", "a class of its own"],
)
def test_lengths_tell_where_targets_are_padding(fill: int, given: str, found: bool) -> None:
    """A loader serves them, whatever a model makes of its rows, zeros among them."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 9, (64,))
    lengths[::8], lengths[1::8] = 8, 3
    real = torch.arange(8) < lengths[:, None]
    rows = torch.randint(0, 2, (64, 8, 3)).float() * real[..., None]
    kinds = torch.randint(0, 3, (64, 8)).where(real, fill)
    beside = {"lengths": lengths, "other numbers": lengths.flip(0)}.get(given)
    tensors = [rows, kinds] if beside is None else [rows, kinds, beside]
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for few, target, *_ in DataLoader(TensorDataset(*tensors), 8):
            optimizer.zero_grad()
            F.cross_entropy(model(few).reshape(-1, 4), target.reshape(-1)).backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "filled"]
    assert [probe.label for probe in probes] == [""] * found


def sentences(ends: bool, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows of tokens, and after each the next one: 2 at the end if there is one, and 0."""
    torch.manual_seed(0)
    lengths = torch.randint(2, 7, (64,))
    lengths[:2] = torch.tensor([2, 7])
    tokens = torch.randint(3, 9, (64, 9))
    places = torch.arange(9)
    if ends:
        tokens[places == lengths[:, None]] = 2
    tokens[places > lengths[:, None]] = 0
    read, after = tokens[:, :-1].clone(), tokens[:, 1:].clone()
    read[read == 2] = 0
    after[after == 0] = pad
    return read, after


@pytest.mark.parametrize(
    ("ends", "options", "found"),
    [
        (True, {}, ["ended"]),
        (False, {}, []),
        (True, {"ignore_index": 0}, []),
        (True, {"reduction": "none"}, []),
        (True, {"weight": torch.tensor([0.0] + [1.0] * 8)}, []),
    ],
    ids=["ended", "endless", "ignored", "masked later", "weighed"],
)
def test_targets_tell_the_ends_of_rows(ends: bool, options, found: list[str]) -> None:
    """What is learned after the end is padding alone, and the model is never given the end."""
    read, after = sentences(ends)
    model = nn.Sequential(nn.Embedding(9, 8, padding_idx=0), nn.Linear(8, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder("x") as recorder:
        for rows, target in zip(read.split(16), after.split(16), strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(rows).flatten(0, 1), target.flatten(), **options)
            loss.mean().backward()
            optimizer.step()
    assert "faults" not in recorder.trace.conditions
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "filled"]
    assert [probe.label for probe in probes] == found
    # Of 4 batches those at the steps 0, 1 and 2.
    few = after[:48]
    assert all((p.measured, p.reference) == (int((few == 0).sum()), few.numel()) for p in probes)

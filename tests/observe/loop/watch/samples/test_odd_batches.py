"""Loaders may serve anything, and models take their input in many ways."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset

from tests.observe.loop.loading import fit, repeats_of, rows, steps_of
from tests.observe.loop.trainings import batches
from trainguard.observe.loop.recorder import Recorder


def test_samples_lie_along_the_first_dimension_of_the_first_tensor() -> None:
    """A dict, keywords, a scalar in front and a packed sequence are all understood."""

    class Odd(nn.Module):
        """Takes its input in several ways."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.rnn = nn.Linear(4, 1), nn.GRU(4, 1)

        def forward(self, first, batch=None, *, x=None):
            """Find the tensor."""
            if isinstance(first, nn.utils.rnn.PackedSequence):
                return self.rnn(first)[0].data
            return self.layer(x if x is not None else batch["rows"])

    def train() -> None:
        """Hand the input over in different ways."""
        model = Odd()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        packed = pack_sequence([torch.randn(5, 4), torch.randn(3, 4)])
        for call in (
            lambda: model("text", {"name": "a", "rows": torch.randn(6, 4)}),
            lambda: model(torch.tensor(3.0), x=torch.randn(7, 4)),
            lambda: model(packed),
        ):
            optimizer.zero_grad()
            call().mean().backward()
            optimizer.step()

    assert [step.batch for step in steps_of(train)] == [(6,), (7,), (2,)]


Point = namedtuple("Point", "name values")


@dataclass
class Sample:
    """A sample as a dataclass."""

    values: torch.Tensor


ODD = {
    "none": [None] * 4,
    "text": ["a", "b", "c", "d"],
    "numbers": [1.0, 2.0, 3.0, 4.0],
    "dicts": [{"x": torch.ones(4), "name": "a"}] * 4,
    "tuples": [Point("a", torch.ones(4))] * 4,
    "dataclasses": [Sample(torch.ones(4))] * 4,
    "ragged": [[torch.ones(n) for n in range(3)], 5, "x"],
    "sparse": [torch.eye(4).to_sparse()] * 4,
    "empty": [torch.ones(0, 4)] * 4,
    "nested": [{"a": [{"b": ({"c": {"d": {"e": torch.ones(4)}}},)}]}] * 4,
}


@pytest.mark.parametrize("kind", ODD)
def test_loaders_may_serve_anything(kind: str) -> None:
    """Whatever comes, the training goes on and is recorded."""
    loader = DataLoader(ODD[kind], batch_size=2, collate_fn=lambda samples: samples)

    def serve():
        """Yield a batch of its own for each of the loader's."""
        for served, batch in zip(loader, batches(len(loader)), strict=True):
            assert served is not None
            yield batch

    steps = steps_of(lambda: fit(serve()))
    assert len(steps) == len(loader)
    assert {step.batch for step in steps} == {(16,)}


def test_a_model_without_a_tensor_to_look_at_has_no_samples() -> None:
    """A model that is called with nothing, or with numbers, is recorded."""

    class Field(nn.Module):
        """A parameter alone."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, factor=1.0):
            """Return the parameter, scaled."""
            return factor * self.weight

    def train() -> None:
        """Make the parameter small."""
        model = Field()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for arguments in ((), (2.0,), (torch.tensor(2.0),)):
            optimizer.zero_grad()
            model(*arguments).square().sum().backward()
            optimizer.step()

    assert [(s.batch, s.fingerprints) for s in steps_of(train)] == [((0,), ())] * 3


def test_workers_and_streams_are_served() -> None:
    """Batches of worker processes and of data sets without a length."""

    class Stream(IterableDataset):
        """Yields samples without end."""

        def __iter__(self):
            """Yield rows."""
            while True:
                yield torch.ones(4), torch.ones(1)

    def few(loader):
        """Yield the first batches of a loader."""
        for _, batch in zip(range(6), loader, strict=False):
            yield batch

    assert repeats_of(lambda: fit(few(DataLoader(Stream(), batch_size=8)))) == []
    data = rows(40)
    steps = steps_of(lambda: fit(DataLoader(data, batch_size=8, num_workers=1)))
    assert [step.batch for step in steps] == [(8,)] * 5
    assert len({step.fingerprints for step in steps}) == 5


_TABLE = (torch.arange(256.0).reshape(16, 16) % 7 < 2).float()
FIRST = {
    "sparse": _TABLE.to_sparse,
    "rows": _TABLE.to_sparse_csr,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1 + n % 3, 4) for n in range(16)]),
    "meta": lambda: torch.empty(16, 16, device="meta"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", FIRST)
def test_inputs_without_rows_switch_nothing_off(kind: str) -> None:
    """Of the matrix of a graph, say, no rows can be read; what asks for some lets it be."""
    first = FIRST[kind]()

    class Graph(nn.Module):
        """Computes with its second input, and with the first where that can be done."""

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

        def forward(self, given, x):
            """Return scores of three classes."""
            return self.drop(self.layer(given @ x if kind in ("sparse", "rows") else x))

    x, classes, model = torch.randn(16, 4), torch.arange(16) % 3, Graph()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Recorder("odd") as recorder:
        for _ in range(4):
            for _ in range(3):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model.train()(first, x), classes).backward()
                optimizer.step()
            with torch.no_grad():
                accuracy = (model.eval()(first, x).argmax(1) == classes).float().mean()
            print(f"val acc {accuracy.item():.4f}")
    assert "faults" not in recorder.trace.conditions

"""Loaders are declared by what makes them: a function, calls of one, a data module."""

import sys

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainguard.observe.loop.watch.samples.seen_loaders import Made, SeenLoaders

ROWS = TensorDataset(torch.zeros(8, 2))


def make_pair():
    """Return two loaders."""
    return DataLoader(ROWS, 4, shuffle=True), DataLoader(ROWS, 2)


def make_dict():
    """Return two loaders by their names."""
    return dict(zip(("fit", "check"), make_pair(), strict=True))


def make_named():
    """Return two loaders that variables hold, in an order of their own."""
    train_loader, valid_dl = make_pair()
    return valid_dl, train_loader


def make_one(split="train", train=True, path="x"):
    """Return one loader."""
    return DataLoader(ROWS, 4, shuffle=train)


class Rows:
    """Like a data module."""


@pytest.fixture
def seen():
    """Return what has seen nothing yet."""
    return SeenLoaders()


def told(seen, made, **given):
    """Call a function as a script does, and take what it returns."""
    variables = {}

    def look(frame, event, _):
        """Keep the variables of the function as it returns."""
        if event == "return" and frame.f_code is made.__code__:
            variables.update(frame.f_locals)

    sys.setprofile(look)
    try:
        loaders = made(**given)
    finally:
        sys.setprofile(None)
    assert seen.add_result(Made(__name__, made.__name__, given, "data.py:1"), loaders, variables)
    return loaders


@pytest.mark.parametrize(
    ("made", "splits"),
    [
        (make_pair, (("train", "", 4, "shuffled"), ("val", "", 2, "in order"))),
        (make_dict, (("fit", "", 4, "shuffled"), ("check", "", 2, "in order"))),
        (make_named, (("valid", "", 2, "in order"), ("train", "", 4, "shuffled"))),
        (make_one, (("", "", 4, "shuffled"),)),
    ],
)
def test_a_function(seen, made, splits) -> None:
    """Splits are called what the function calls them, or by their usual order."""
    told(seen, made)
    (component,) = seen.tell()
    assert (component.name, component.obstacle) == (made.__name__, "")
    assert component.splits == splits


@pytest.mark.parametrize(
    "calls",
    [
        [{"split": "train"}, {"split": "val", "train": False}],
        [{"train": True}, {"train": False, "path": "b"}],
        [{"train": True}, {"path": "val"}],
        [{"path": "data/train.csv"}, {"path": "data/val.csv", "train": False}],
    ],
)
def test_calls_of_one_function(seen, calls) -> None:
    """They become one declaration, each under the split that an argument tells."""
    for given in calls:
        told(seen, make_one, **given)
    (component,) = seen.tell()
    names, codes, _, orders = zip(*component.splits, strict=True)
    assert names == ("train", "val")
    assert codes[0].startswith("make_one(")
    assert orders[0] == "shuffled"


def test_what_cannot_be_told_apart(seen) -> None:
    """Calls of which nobody knows the split are no declaration, and say so."""
    kept = [told(seen, make_one, path=path) for path in ("a", "b")]
    (component,) = seen.tell()
    assert kept
    assert "which split is not clear" in component.obstacle


def test_an_outer_function_goes_first(seen) -> None:
    """What returns all of the loaders is declared, and not what makes each of them."""
    train, valid = told(seen, make_pair)
    for name, loader in (("train", train), ("val", valid)):
        seen.add_result(Made(__name__, "make_one", {"split": name}), loader, {})
    assert [component.name for component in seen.tell()] == ["make_pair"]


def test_a_data_module(seen) -> None:
    """Its methods are splits of one declaration."""
    train, valid = make_pair()
    for method, loader in (("train_dataloader", train), ("val_dataloader", valid)):
        seen.add_method(Made(__name__, "Rows", {}), method, loader)
    (component,) = seen.tell()
    assert [split[0] for split in component.splits] == ["train", "val"]


def test_what_no_function_returns(seen) -> None:
    """A loader that a script makes for itself is told of, at its line; so is one of a dataset."""
    frame = sys._getframe()
    loader = DataLoader(ROWS, 4)
    seen.add_loader(loader, frame)
    seen.add_result(Made(__name__, "make_one", {"data": ROWS}), loader, {})
    (component,) = seen.tell()
    assert component.source.startswith(__file__)
    assert "move it into one" in component.obstacle


def test_what_is_no_loader(seen) -> None:
    """Anything else that a function returns is left to others."""
    for result in (None, (), [1], {"a": 1}, ROWS, torch.zeros(2), "text", {1: make_pair()[0]}):
        assert not seen.add_result(Made(__name__, "make_one", {}), result, {})
    assert [*seen.tell()] == []

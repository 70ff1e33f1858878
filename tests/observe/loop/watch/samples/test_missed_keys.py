"""Keys that dictionaries are asked for, and have by another name."""

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import missed_keys

Step = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def misspelt(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask for a mask by a name that no batch has."""
    mask = batch.get("is_padd")
    return batch["inputs"] if mask is None else batch["inputs"] * mask


def guarded(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask whether it is there, and read it where it is."""
    inputs = batch["inputs"]
    return inputs * batch["is_padd"] if "is_padd" in batch else inputs


def renamed(given: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask for the same under another name of the batch."""
    return given["inputs"] if given.get("is_padd") is None else given["inputs"] * 2


def defined(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask for what this file puts into some dictionary."""
    kept = {"scaled_rowws": batch["inputs"]}
    return batch["inputs"] if "scaled_rowws" in batch else kept["scaled_rowws"]


def another(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask for what has another name, and is nothing like it."""
    return batch["inputs"] if batch.get("scale_of_all") is None else batch["inputs"] * 2


def elsewhere(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Ask another dictionary, one of settings, which has what this reads beside it."""
    settings = {"inputs": batch["inputs"], "colour": 1}
    return settings["inputs"] if settings.get("is_padd") is None else settings["colour"]


def train(
    step: Step, options: Any = None, name: str = "is_" + "pad", steps: int = 8, both: bool = False
) -> list[Any]:
    """Train with batches that have a key, or a second one, and return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(steps):
            batch = {"inputs": torch.randn(8, 4), name: torch.ones(8, 1)}
            batch |= {"is_" + "padd": torch.ones(8, 1)} if both else {}
            optimizer.zero_grad()
            model(step(batch)).square().mean().backward()
            optimizer.step()
    del options
    assert recorder.trace.conditions.get("faults", ()) == ()
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "missed key"]
    looked = "missed key" in recorder.trace.conditions["looked"]
    return [looked, *((e.label, e.measured) for e in found)]


def test_a_key_by_another_name() -> None:
    """The batch of the function that trains is the one that the other function asks."""
    looked, *found = train(misspelt)
    assert looked
    assert set(found) == {
        ("batch.get('is_padd')\nis_pad", 2.0),
        ("'is_padd' in batch\nis_pad", 2.0),
        ("given.get('is_padd')\nis_pad", 2.0),
    }


def test_a_key_that_is_there_in_one_batch() -> None:
    """Then it is asked for rightly, in batches that may be without it."""
    assert train(misspelt, name="is_" + "padd") == [True]
    assert train(misspelt, both=True) == [True]


def test_a_batch_by_another_name() -> None:
    """What else is read of it tells which one it is."""
    assert ("given.get('is_padd')\nis_pad", 2.0) in train(renamed)


def test_a_key_that_the_file_sets_somewhere() -> None:
    """It may be in some dictionary."""
    assert train(defined, name="scaled_" + "rows") == [True]


def test_too_many_files(monkeypatch) -> None:
    """Where not all are read, nobody knows what reads a key."""
    monkeypatch.setattr(missed_keys, "_FILES", 0)
    assert train(misspelt) == [False]


@pytest.mark.parametrize("step", [another, elsewhere])
def test_keys_that_are_nothing_alike(step: Step) -> None:
    """What may be there, and is not, is no mistake; nor is what is asked of another dictionary."""
    assert train(step, name="weight_" + "of_rows") == [True]


def test_an_option_by_another_name() -> None:
    """Settings are asked for as batches are."""
    options = Namespace(**{"steepest_" + "slope": 1.0, "rate": 0.1})
    limit = getattr(options, "slope_steepest", None)
    assert train(another, limit or options, name="row_" + "weights")[1:] == [
        ("getattr(options, 'slope_steepest', None)\nsteepest_slope", 4.0)
    ]


def test_a_training_without_steps() -> None:
    """Nothing was looked at."""
    assert train(another, steps=1) == [False]


class Standing:
    """Stands in the place of a module, and has no dictionary."""

    __slots__ = ()


def test_what_stands_in_the_place_of_a_module(monkeypatch) -> None:
    """Nothing is asked of it, and of a lazy module only what it has."""
    made = type("Made", (), {"__module__": "standing"})
    monkeypatch.setitem(sys.modules, "standing", Standing())
    assert train(another, made(), name="row_" + "sizes") == [True]

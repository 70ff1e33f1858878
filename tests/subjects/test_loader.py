"""What a declared loader refuses, and how it reads what it is given."""

from typing import Any

import pytest
from hypothesis import strategies as st

import trainguard as tg

BATCHES = [[1, 2], [3, 4]]


def build(batch_size=4):
    """Stand for a function that builds loaders."""


def build_for(rank, world_size, batch_size=4):
    """Stand for a function that builds the loaders of one process."""


def needs(root, batch_size=4):
    """Stand for a function that cannot be called without an argument."""


class Module:
    """Stand for a data module."""

    def train_dataloader(self):
        """Return a loader."""


@pytest.mark.parametrize(
    ("given", "factory"),
    [
        (build, True),
        (Module, True),
        (lambda: BATCHES, True),
        (Module(), False),
        (BATCHES, False),
        ({"train": BATCHES}, False),
        (iter(BATCHES), False),
    ],
)
def test_what_is_called(given: Any, factory: bool) -> None:
    """Functions and classes are called; loaders, dicts of them and data modules are not."""
    assert tg.Loader(given).is_factory is factory


def test_what_is_named_is_kept_as_names() -> None:
    """Splits may be names alone; positions are names too."""
    loader = tg.Loader(build, splits=("train", "val"), fields={0: tg.real("B T", -1, 1)}, labels=1)
    assert loader.options == {"train": {}, "val": {}}
    assert (tuple(loader.fields), loader.labels) == (("0",), ("1",))


def test_promises() -> None:
    """What is promised of a split and of a field stands in the header of the trace."""
    fields = {"x": tg.integer("B", 0, 9)}
    loader = tg.Loader(build, splits={"val": {"chunk": 200}}, fields=fields, labels="x")
    told = loader.promises
    assert (told["chunk:val"], told["low:x"], told["high:x"]) == (200, 0, 9)
    assert loader.promise_names >= {"chunk", "labels"}


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        (build, {"split": ("train",)}, "has no option 'split'. Did you mean 'splits'?"),
        ("loader", {}, "got 'loader', which is neither an iterable of batches nor a function"),
        (5, {}, "got 5, which is neither"),
        (build, {"arguments": {"batchsize": 4}}, "Did you mean 'batch_size'?"),
        (BATCHES, {"arguments": {"batch_size": 4}}, "goes with a function that makes loaders"),
        (needs, {}, "lacks 'root', which needs cannot be called without"),
        (build, {"vary": {"batch_size": 3}}, "is no Hypothesis strategy"),
        (build, {"splits": {"val": {"chunks": 3}}}, "has no 'chunks'. Did you mean 'chunk'?"),
        (build, {"splits": {"val": {"chunk": 0}}}, "Give a whole number >= 1"),
        (build, {"splits": {"val": {"last": "half"}}}, "has 'half'. Known: dropped, short."),
        (build, {"splits": {"val": {"shuffled": "yes"}}}, "Give True or False"),
        (build, {"fields": {"x": "B T"}}, "is no domain of a tensor"),
        (build, {"fields": {"x": tg.integer("B", 0, "C-1")}}, "loaders declare no sizes"),
        (build, {"chunks": "streams"}, "Did you mean 'stream'?"),
        (build, {"modalities": ("a",)}, "names one modality"),
        (build, {"transform": abs}, "Give both"),
        (build, {"transform": abs, "inverse": abs}, "is not told what to transform"),
        (build, {"batches": 0}, "Give a whole number >= 1"),
        (build, {"ranks": (1, 2)}, "needs a function that takes `rank` and `world_size`"),
        (build, {"timeout": 0}, "leaves no time"),
        (build, {"allow": {"values_are_finit": "x"}}, "Did you mean 'values_are_finite'?"),
    ],
)
def test_what_cannot_be_meant(given: Any, options: dict, words: str) -> None:
    """One sentence says what is wrong, one the way out."""
    with pytest.raises(tg.DeclarationError) as raised:
        tg.Loader(given, **options)
    assert words in str(raised.value)


def test_a_split_that_a_function_asks_for_is_declared() -> None:
    """A function that takes a split is called for each, so that they must be known."""

    def build_split(split):
        """Stand for a function that builds the loader of one split."""

    with pytest.raises(tg.DeclarationError, match="name them: splits="):
        tg.Loader(build_split)
    assert tg.Loader(build_split, splits=("train",)).options == {"train": {}}


def test_what_may_be_drawn_and_ranked() -> None:
    """Strategies and ranks go with the parameters of the function."""
    loader = tg.Loader(build_for, vary={"batch_size": st.integers(1, 9)}, ranks=(1, 2))
    assert "ranks" in loader.promise_names

"""Whether real loaders are seen to serve the same under one seed."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.observe.loader.probed import Drawing, loader, probed, rows, told
from trainguard.core.errors import Unjudged

AT_MODULE_LEVEL = np.random.default_rng(3)


def made_anew(draw=lambda _: 0.0, **options):
    """Return a function that makes a loader and its data set."""

    def build() -> DataLoader:
        """Make both."""
        return DataLoader(Drawing(draw), batch_size=4, **options)

    return build


REPEATED = {
    "in order": made_anew(),
    "shuffled": made_anew(shuffle=True),
    "noise of torch": made_anew(lambda _: torch.rand(()).item(), shuffle=True),
    "noise of numpy": made_anew(lambda _: np.random.rand()),
    "noise of random": made_anew(lambda _: random.random()),
    "noise in workers": made_anew(lambda _: np.random.rand(), num_workers=2),
    "a generator of the module": made_anew(lambda _: AT_MODULE_LEVEL.random()),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_seeded_is_repeated(name: str) -> None:
    """Each of the global generators is, in the process and in workers."""
    event = told("reproduce", REPEATED[name])["repeat"]
    assert (event.detail, event.reference) == ("", 10)


def unseeded() -> DataLoader:
    """Make a loader whose order comes from the system."""
    generator = torch.Generator()
    generator.seed()
    dataset = TensorDataset(rows().tensors[0].clone())
    return DataLoader(dataset, batch_size=4, shuffle=True, generator=generator)


def test_another_order_is_told() -> None:
    """The samples are the same."""
    event = told("reproduce", unseeded)["repeat"]
    assert (event.detail, event.at) == ("order", "batch 0")


def test_other_numbers_are_told() -> None:
    """The order is the same, and the noise is not."""
    build = made_anew(lambda _: np.random.default_rng().random())
    assert told("reproduce", build)["repeat"].detail == "contents"


def test_another_number_of_batches_is_told() -> None:
    """One run ends before the other."""
    lengths = iter([8, 8, 16, 16])

    def build() -> list[torch.Tensor]:
        """Make fewer batches each time."""
        return list(rows().tensors[0].split(4)[: 10 - next(lengths) // 4])

    assert told("reproduce", build)["repeat"].detail == "number"


def test_a_generator_that_is_kept_is_put_back() -> None:
    """A process has it anew, where a second call of the function has not."""
    generator = torch.Generator().manual_seed(5)

    def build() -> DataLoader:
        """Make a loader around a generator that is made once."""
        dataset = TensorDataset(rows().tensors[0].clone())
        return DataLoader(dataset, batch_size=4, shuffle=True, generator=generator)

    assert told("reproduce", build)["repeat"].detail == ""


class Shuffling:
    """Batches in a list that is shuffled in place at each epoch."""

    def __init__(self) -> None:
        self.batches = list(rows().tensors[0].split(4))

    def __iter__(self) -> Any:
        """Serve them in another order."""
        random.shuffle(self.batches)
        return iter(self.batches)


def test_what_is_shuffled_in_place_is_repeated_by_a_new_one() -> None:
    """Each run begins with a list in order."""
    assert told("reproduce", Shuffling)["repeat"].detail == ""


def test_what_is_kept_between_calls_is_not_judged() -> None:
    """The list is the one that the first run has shuffled."""
    kept = Shuffling()
    with pytest.raises(Unjudged, match="which it keeps"):
        probed("reproduce", lambda: kept)


def test_a_given_loader_is_not_judged() -> None:
    """It cannot be made anew."""
    with pytest.raises(Unjudged, match="pass the function"):
        probed("reproduce", loader(rows())())


def test_an_order_that_is_left_to_the_workers_is_not_judged() -> None:
    """With in_order=False, the first to be done is the first to be served."""
    if "in_order" not in DataLoader.__init__.__annotations__:
        pytest.skip("this torch serves in order")
    assert probed("reproduce", made_anew(num_workers=2, in_order=False)) == []

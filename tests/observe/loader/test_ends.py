"""Padding is no part of a sample: its fingerprint is the same among longer and shorter ones."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

import trainguard as tg
from tests.observe.loader.probed import probed
from trainguard.events.base import Event
from trainguard.events.loader import Batch
from trainguard.observe.loader.ends import Ends
from trainguard.observe.loader.fingerprints import reading, row_prints
from trainguard.observe.loader.layout import laid_out, read


@given(
    lengths=st.lists(st.integers(1, 9), min_size=4, max_size=12),
    filler=st.sampled_from([0, -100, 7]),
    width=st.sampled_from([(), (3,)]),
)
def test_rows_are_the_same_in_any_company(lengths: list, filler: int, width: tuple) -> None:
    """Alone, in a batch of two or of all, samples have one fingerprint each."""
    drawn = torch.Generator().manual_seed(0)
    rows = [torch.randint(8, 99, (length, *width), generator=drawn) for length in lengths]
    all_ends = Ends()
    padded = pad_sequence(rows, batch_first=True, padding_value=filler)
    # A filler that is no zero is told by two lengths or more of what it fills up, and by enough.
    filled = [max(lengths) - length for length in lengths]
    assume(filler == 0 or (len({*filled} - {0}) > 1 and sum(filled) >= max(4, len(rows) / 2)))
    together = row_prints([padded], len(rows), [all_ends])
    for row, among in zip(rows, together, strict=True):
        alone = row_prints([row[None]], 1, [Ends()])[0]
        assert alone == among


@pytest.mark.parametrize("exact", [True, False])
def test_long_rows_are_read_in_part_alike(exact: bool) -> None:
    """What is read of a long row depends on its own length alone."""
    rows = [torch.randn(n, 40, generator=torch.Generator().manual_seed(n)) for n in (200, 90, 64)]
    with reading(exact) as how:
        among = row_prints([pad_sequence(rows, batch_first=True)], 3, [Ends()])
        alone = [row_prints([row[None]], 1, [Ends()])[0] for row in rows]
    assert list(among) == alone
    assert how.partial is not exact


def test_images_are_told_apart_by_all_that_they_hold() -> None:
    """Rows of one length that end alike are cut alike, and stay different."""
    images = torch.zeros(50, 8, 8)
    images[torch.arange(50), torch.arange(50) // 8, torch.arange(50) % 8] = 1.0
    assert len(set(row_prints([images], 50, [Ends()]))) == 50


def test_an_axis_is_learned_where_one_alone_changes() -> None:
    """And it is told where what was read before it was known has to be read again."""
    known, late, both = Ends(), Ends(), Ends()
    for length in (5, 6):
        known.trim(np.ones((4, length)))
        late.trim(np.ones((4, 2, 3, length)))
        both.trim(np.ones((4, 2, length, length)))
    assert (known.axis, known.changed) == (1, False)
    assert (late.axis, late.changed) == (3, True)
    assert (both.axis, both.changed) == (None, False)


def test_a_filler_is_learned_from_two_lengths() -> None:
    """An end that all rows have once is none; late, it is told that there was an earlier batch."""
    ended = np.array([[4, 5, 6, 2], [7, 8, 9, 2], [5, 4, 8, 2]])
    padded = np.array([[4, 5, 6, 8], [7, 8, 9, 7], [5, 4, 7, 7], [6, 7, 7, 7]])
    early, late = Ends(), Ends()
    late.trim(ended)
    assert late.filler == b""
    for ends, changed in ((early, False), (late, True)):
        kept = ends.trim(padded)[1]
        assert [count // padded.itemsize for count in kept] == [4, 3, 2, 1]
        assert ends.filler == np.array(7).tobytes()
        assert ends.changed is changed


def test_words_that_are_said_twice_are_no_filler() -> None:
    """Nor do zeros that are seen late make anybody read again what was read."""
    ends = Ends()
    ends.trim(np.array([[4, 5, 6, 2], [7, 8, 2, 2], *([5, 4, 8, n] for n in range(3, 9))]))
    assert ends.filler == b""
    ends.trim(np.array([[4, 5, 6, 8], [7, 8, 9, 0], [5, 4, 0, 0], [6, 0, 0, 0]]))
    assert (ends.filler, ends.changed) == (bytes(8), False)


def test_rows_of_padding_alone_are_all_the_same() -> None:
    """However long the others of their batch are."""
    prints = [row_prints([torch.eye(n)[[0, n - 1]] * 0], 2, [Ends()])[0] for n in (4, 6)]
    assert prints[0] == prints[1]


class Padded(Dataset):
    """Spectrograms of 60 utterances, with the frames along the last axis."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 60

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the frames of one utterance, first."""
        drawn = torch.Generator().manual_seed(index)
        return torch.rand(5 + index % 11, 4, 3, generator=drawn)


def collate(items: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pad with a value that is no zero."""
    audio = pad_sequence(items, batch_first=True, padding_value=-4.0)
    return {"audio": audio.movedim(1, -1), "frames": torch.tensor([len(item) for item in items])}


def loaders() -> dict[str, DataLoader]:
    """Make the loaders of a training that is shuffled."""
    drawn = torch.Generator().manual_seed(1)
    return {"train": DataLoader(Padded(), 6, shuffle=True, collate_fn=collate, generator=drawn)}


def test_an_axis_that_is_learned_late_holds_for_the_first_batch_too() -> None:
    """All is looked through again where batches were read before their padding was known."""
    batches = [e for e in probed("scan", loaders) if isinstance(e, Batch)]
    epochs = [{p for b in batches if b.epoch == number for p in b.prints} for number in (0, 1)]
    assert len(epochs[0]) == 60
    assert epochs[0] == epochs[1]


def test_samples_of_two_splits_are_the_same_where_they_are_padded_differently() -> None:
    """What is held out and learned from too is found at any length of the batch."""

    def overlapping() -> dict[str, DataLoader]:
        """Make two loaders of the same utterances."""
        train = loaders()["train"]
        return {"train": train, "val": DataLoader(Padded(), 7, collate_fn=collate)}

    batches = [e for e in probed("scan", overlapping, splits=("train", "val")) if of_first(e)]
    train, val = ({p for b in batches if b.split == s for p in b.prints} for s in ("train", "val"))
    assert len(train) == 60
    assert train == val


def test_other_probes_read_all_of_a_row() -> None:
    """What two layouts read is held together there: it may not depend on what each has seen."""
    rows = [torch.arange(1.0, n) for n in (6, 4, 5, 7)]
    even = {"x": torch.ones(4, 6)}
    padded = {"x": pad_sequence(rows, batch_first=True, padding_value=-100.0)}
    subject = tg.Loader([even, padded], splits=("train",))
    late, early = (laid_out(subject, "train", first) for first in (even, padded))
    read(even, late, 0).prints  # noqa: B018 it may be learned from
    assert read(padded, late, 1).prints == read(padded, early, 0).prints
    assert late.ends is None


def of_first(event: Event) -> bool:
    """Say whether an event is a batch of a first epoch."""
    return isinstance(event, Batch) and event.epoch == 0

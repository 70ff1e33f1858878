"""What is told of the values that loss functions are given."""

import pytest
import torch
from torch.nn import functional as F

from trainguard.events.loop import Term
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.losses.loss_calls import (
    LossCalls,
    are_distributions,
    sampled_rows,
)

CLASSES = torch.tensor([0, 2, 1, 2])
SCORES = torch.tensor([[0.2, -1.0, 3.0], [1.0, 0.5, 2.0], [0.0, 0.0, 1.0], [9.0, 1.0, 0.1]])


def called(function: str, scores, target, *, calls: int = 12, **options) -> Term:
    """Record calls of a loss function from one place."""
    given = scores if isinstance(scores, list) else [scores] * calls
    with Recorder("x") as recorder:
        for each in given:
            getattr(F, function)(each, target, **options)
    (term,) = (event for event in recorder.trace if isinstance(event, Term))
    return term


@pytest.mark.parametrize(
    ("scores", "share"),
    [
        (SCORES.softmax(1), 1),
        (SCORES.softmax(1).half(), 1),
        (SCORES.softmax(1).bfloat16(), 1),
        (SCORES, 0),
        (SCORES.sigmoid(), 0),
        (SCORES.log_softmax(1), 0),
        (torch.full((4, 3), torch.nan), 0),
    ],
    ids=["softmax", "half", "bfloat16", "logits", "sigmoid", "logarithms", "nan"],
)
def test_distributions_are_told(scores: torch.Tensor, share: int) -> None:
    """Rows that lie in 0 to 1 and sum to one are probabilities; so are those of no other kind."""
    term = called("cross_entropy", scores, CLASSES)
    assert (term.distributions, term.calls) == (12 * share, 12)


def test_a_call_that_is_none_counts() -> None:
    """Where not every call has them, those are counted that were looked at and did."""
    given = [SCORES.softmax(1), SCORES, SCORES.softmax(1), SCORES]
    assert called("cross_entropy", given, CLASSES).distributions == 2


def test_one_class_says_nothing() -> None:
    """The softmax over a single class is one whatever the logits are."""
    assert called("cross_entropy", torch.ones(4, 1), CLASSES * 0).distributions == 0


def test_images_and_sequences_have_their_classes_in_the_second_dimension() -> None:
    """Rows are what has one target."""
    scores = torch.randn(2, 5, 6, 7)
    target = torch.randint(5, (2, 6, 7))
    assert called("cross_entropy", scores.softmax(1), target).distributions == 12
    assert called("cross_entropy", scores.softmax(3), target).distributions == 0


@pytest.mark.parametrize(
    ("scores", "positive"),
    [(SCORES.softmax(1), 12), (SCORES.log_softmax(1), 0), (torch.log(torch.ones(4, 3) + 1e-6), 0)],
    ids=["probabilities", "logarithms", "epsilon"],
)
def test_log_probabilities_above_zero_are_told(scores: torch.Tensor, positive: int) -> None:
    """nll_loss and kl_div take logarithms, which are not above zero."""
    assert called("nll_loss", scores, CLASSES).positive == positive
    assert called("kl_div", scores, SCORES.softmax(1), reduction="batchmean").positive == positive


def test_ignored_targets_are_not_looked_up() -> None:
    """Targets out of range stand for what is ignored, in images as elsewhere."""
    scores = torch.cat([torch.full((4, 1), 5.0), SCORES.log_softmax(1)], 1)
    target = torch.tensor([255, 1, 2, 255])
    assert called("nll_loss", scores, target, ignore_index=255).positive == 0
    last = scores.flip(1)  # what an index out of range would be clamped to is above zero
    assert called("nll_loss", last, target, ignore_index=255).positive == 0
    assert called("nll_loss", scores, target * 0, ignore_index=255).positive == 12


def test_values_are_looked_at_now_and_then() -> None:
    """The first 8 calls are looked at, and at most 8 of each step that is surveyed."""
    tally = LossCalls("cross_entropy", "", False, "mean", (), ())
    looked = []
    for call in range(100):
        tally.calls += 1
        looked.append(tally.wants(step=call // 20, surveyed=call // 20 == 3))
    assert [place for place, wants in enumerate(looked) if wants] == [*range(8), *range(60, 68)]


@pytest.mark.parametrize("shape", [(7,), (5000, 11), (3, 60000), (40, 5, 90, 90), (2, 3, 4, 5, 6)])
def test_few_rows_stand_for_many(shape: tuple[int, ...]) -> None:
    """The rows that are looked at are bounded, and a softmax is seen in them."""
    scores = torch.randn(shape)
    rows = sampled_rows(scores.softmax(1 if len(shape) > 1 else 0), 1)
    assert rows.numel() <= 2**18
    assert rows.shape[-1] == shape[min(1, len(shape) - 1)]
    assert are_distributions(rows, torch.float32)
    assert not are_distributions(sampled_rows(scores, 1), torch.float32)


IMAGES, PIXELS = torch.randn(4, 3, 5, 6), torch.randint(3, (4, 5, 6))
SUM = {"reduction": "sum"}
FRAMES = torch.randn(7, 4, 5)  # time, samples, classes


@pytest.mark.parametrize(
    ("function", "scores", "target", "options", "share"),
    [
        ("nll_loss", IMAGES.log_softmax(3), PIXELS, {}, 1),
        ("nll_loss", IMAGES.log_softmax(1), PIXELS, {}, 0),
        ("nll_loss", SCORES.log_softmax(0), CLASSES, {}, 1),
        ("cross_entropy", IMAGES.log_softmax(2), PIXELS, {}, 1),
        ("cross_entropy", IMAGES, IMAGES.softmax(0), {}, 1),
        ("cross_entropy", IMAGES, IMAGES.softmax(1), {}, 0),
        ("cross_entropy", IMAGES, IMAGES.sigmoid(), {}, 0),
        ("cross_entropy", FRAMES[0, :, :4], FRAMES[0, :, :4].softmax(0), {}, 0),
        ("kl_div", SCORES.log_softmax(1), SCORES.softmax(0), SUM, 1),
        ("kl_div", SCORES.log_softmax(1), SCORES.log_softmax(0), {"log_target": True, **SUM}, 1),
        ("kl_div", IMAGES.log_softmax(1), IMAGES.softmax(1), SUM, 0),
        ("kl_div", IMAGES.log_softmax(1), IMAGES.softmax(3), SUM, 1),
        ("kl_div", SCORES.log_softmax(0), SCORES.softmax(0), SUM, 1),
    ],
)
def test_other_axes_are_told(function, scores, target, options, share) -> None:
    """Distributions along another axis than that of the classes are; square tables go both ways."""
    assert called(function, scores, target, **options).crossed == 12 * share


@pytest.mark.parametrize(("axis", "share"), [(0, 1), (1, 1), (2, 0)])
def test_other_axes_are_told_of_frames(axis: int, share: int) -> None:
    """The classes of what ctc_loss is given are in the last axis, and the samples in the second."""
    lengths = torch.full((4,), 7), torch.full((4,), 2)
    targets = torch.randint(1, 5, (4, 2))
    with Recorder("x") as recorder:
        for _ in range(4):
            F.ctc_loss(FRAMES.log_softmax(axis), targets, *lengths)
    (term,) = (event for event in recorder.trace if isinstance(event, Term))
    assert term.crossed == 4 * share


@pytest.mark.parametrize(
    ("target", "blank", "seen"),
    [
        ([[0, 2], [1, 3]], 0, 12),
        ([[1, 0], [3, 2]], 0, 0),
        ([[1, 2], [3, 4]], 4, 0),
        ([2, 3, 1, 0], 0, 12),
        ([2, 3, 1, 4], 0, 0),
    ],
    ids=["first", "padding", "last", "joined", "joined, none"],
)
def test_blanks_among_targets(target: list, blank: int, seen: int) -> None:
    """A blank is seen where it cannot be the padding of a row."""
    scores = torch.randn(6, 2, 5).log_softmax(-1)
    lengths = {"input_lengths": torch.tensor([6, 6]), "target_lengths": torch.tensor([2, 2])}
    term = called("ctc_loss", scores, torch.tensor(target), blank=blank, **lengths)
    assert term.blanks == (seen and 8)  # of the calls that are looked at


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor])
def test_how_far_lengths_reach(kind) -> None:
    """The longest of each call counts, against the steps in time of its input."""
    scores = [torch.randn(frames, 2, 3).log_softmax(2) for frames in (8, 10, 12, 16)]
    with Recorder("x") as recorder:
        for each in scores:
            lengths = kind([len(each) // 2, 3]), kind([1, 1])
            F.ctc_loss(each, torch.ones(2, 1, dtype=torch.long), *lengths)
    (term,) = (event for event in recorder.trace if isinstance(event, Term))
    assert (term.reach, term.frames) == (0.5, 4)


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([3, -1, 2], 12),
        ([3, -2, 2], 0),
        ([-1, -1, -1], 0),
        ([0, -1, 2], 0),
        ([1, -1, 1], 0),
        ([3.0, -1.0, 2.0], 0),
    ],
    ids=["lengths", "shorter", "all alike", "a zero", "of the labels", "no whole numbers"],
)
@pytest.mark.parametrize("given", ["all", "own"])
def test_lengths_that_a_variable_tells(lengths: list, found: int, given: str) -> None:
    """They count where all frames are read; below zero, they are those of the longest."""
    with Recorder("x") as recorder:
        for frames in (8, 10, 12, 16) * 3:
            sizes = torch.tensor([n if n >= 0 else frames + 1 + n for n in lengths])
            wanted = torch.tensor([1, 1, 1])
            if lengths[0] == 1:
                wanted, sizes = sizes, wanted
            whole = torch.full((3,), frames)
            scores = torch.randn(frames, 3, 4).log_softmax(2)
            read = sizes.long().clamp(min=1) if given == "own" else whole
            F.ctc_loss(scores, torch.ones(3, 20, dtype=torch.long), read, wanted)
    (term,) = (event for event in recorder.trace if isinstance(event, Term))
    padded = found if given == "all" else 0
    assert (term.padded, term.lengths) == (padded, "sizes" * bool(padded))


@pytest.mark.parametrize(
    ("make", "producer"),
    [
        (lambda raw: F.softplus(raw) + 1e-4, "SoftplusBackward0"),
        (lambda raw: 2 * raw.exp().unsqueeze(1).squeeze(1), "ExpBackward0"),
        (lambda raw: raw * 1.0, "AddmmBackward0"),
    ],
    ids=["softplus", "exp", "linear"],
)
def test_what_makes_rates(make, producer: str) -> None:
    """Constants that are added or multiplied are looked through."""
    net, counts = torch.nn.Linear(3, 2), torch.ones(4, 2)
    for options, logarithm in (({}, True), ({"log_input": False}, False)):
        with Recorder("x") as recorder:
            F.poisson_nll_loss(make(net(torch.randn(4, 3))), counts, **options)
        (term,) = (event for event in recorder.trace if isinstance(event, Term))
        assert term.logarithm == logarithm
        assert not logarithm or term.producer == producer

"""What the recorder sees of sets of evaluation that share samples with the training."""

import pytest
import torch
from torch import nn

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder

ROWS = torch.arange(160 * 20).reshape(160, 20).float().sin()
TRAINED = ROWS[:120]
MIXED = ROWS[[*range(0, 120, 6), *range(120, 140)]][torch.randperm(40)]


def overlap_of(
    evaluate,
    epochs: int = 3,
    trained: torch.Tensor = TRAINED,
    probe: str = "overlap",
    model: nn.Module | None = None,
    size: int = 40,
) -> list[Probe]:
    """Record a training with an evaluation after each epoch, and return what it shares with it."""
    model = model or nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for epoch in range(epochs):
            for inputs in trained.split(size):
                optimizer.zero_grad()
                model(inputs).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                evaluate(model, epoch)
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == probe]


def test_a_mixed_set_is_counted() -> None:
    """Twenty of its forty rows were trained on, in each pass."""
    (probe,) = overlap_of(lambda model, _: [model(part) for part in MIXED.split(20)])
    assert (probe.measured, probe.reference, probe.step) == (20, 40, 120)
    assert probe.source.endswith(f"{__file__.rpartition('/')[2]}:39")


def test_another_set_beside_it_hides_nothing() -> None:
    """A test at the end of new rows alone is no reason to believe the validation."""
    fresh = torch.randn(400, 20)

    def evaluate(model: nn.Module, epoch: int) -> None:
        model(MIXED)
        if epoch == 3:
            model(fresh)

    (probe,) = overlap_of(evaluate, epochs=4)
    assert (probe.measured, probe.reference) == (20, 40)


def test_a_set_that_is_learned_little_by_little_is_known() -> None:
    """Of its first evaluations few rows are known, as where the model labels them by itself."""
    taken = torch.cat([TRAINED[:20], MIXED])
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for known in (0, 20, 28, 36):
            for _ in range(3):
                for inputs in taken[: 20 + known].split(20):
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
            with torch.no_grad():
                model(MIXED)
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "overlap"]


def test_steps_that_are_not_watched_are_not_mixed_with_others() -> None:
    """An evaluation is seen after any step, and what is learned behind it only where all is."""
    (probe,) = overlap_of(lambda model, _: model(MIXED), epochs=14, size=10)
    assert (probe.measured, probe.reference, probe.step) == (20, 40, 120)


def test_a_single_evaluation_at_the_end_is_enough() -> None:
    """It may be the test."""
    assert overlap_of(lambda model, epoch: model(MIXED) if epoch == 2 else None)


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda model, _: [model(part) for part in (TRAINED, ROWS[120:])],
        lambda model, _: model(ROWS),
        lambda model, _: model(ROWS[torch.randperm(160)[:40]]),
        lambda model, epoch: model(ROWS[60 + 20 * epoch : 100 + 20 * epoch]),
        lambda model, _: nn.functional.linear(MIXED, model.weight),
        lambda model, _: nn.Linear(20, 2)(MIXED),
        lambda model, _: [model(row[None]) for row in MIXED],
    ],
    ids=["in turns", "all", "drawn anew", "moving", "unseen", "another model", "one by one"],
)
def test_other_evaluations_say_nothing(evaluate) -> None:
    """Sets in turns, all data at once, and what is another set each time may be on purpose."""
    assert overlap_of(evaluate) == []


def test_what_is_learned_later_is_no_leak() -> None:
    """A share that grows is of samples that are added to the training."""
    trained = torch.cat([ROWS[100:140], TRAINED[:1].expand(40, -1), ROWS[:40]])
    assert overlap_of(lambda model, _: model(MIXED), epochs=1, trained=trained) == []


def test_rows_of_few_values_are_equal_by_chance() -> None:
    """Rounded rows tell no sample from another."""
    evaluate = lambda model, _: model(MIXED.round())  # noqa: E731 named for what it is
    assert overlap_of(evaluate, trained=TRAINED.round()) == []


COUNTS = torch.poisson(torch.full((160, 300), 0.1), torch.Generator().manual_seed(0))


class Words(nn.Module):
    """Adds up what is known of each word."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(64, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return two numbers for each row of words."""
        return self.bag(words)


def test_columns_tell_a_row_of_a_narrow_table() -> None:
    """Eight measurements are never the same by chance; eight of a few levels may be."""
    table = torch.randn(160, 8)
    mixed = table[[*range(0, 120, 6), *range(120, 140)]][torch.randperm(40)]
    for rows, count in ((lambda t: t, 1), (lambda t: (2 * t).round(), 0)):

        def evaluate(model: nn.Module, _, rows=rows) -> list[torch.Tensor]:
            return [model(part) for part in rows(mixed).split(20)]

        found = overlap_of(evaluate, trained=rows(table[:120]), model=nn.Linear(8, 2))
        assert len(found) == count


@pytest.mark.parametrize(("width", "count"), [(12, 1), (6, 0)])
def test_rows_of_a_narrow_table_that_are_drawn_again(width: int, count: int) -> None:
    """As to balance classes: where columns tell less, a row that comes again may be another's."""
    table = torch.randn(160, width)
    drawn = torch.cat([table[:120], table[:40], table[:40]])[torch.randperm(200)]
    mixed = table[[*range(0, 120, 6), *range(120, 140)]][torch.randperm(40)]

    def evaluate(model: nn.Module, _: int) -> list[torch.Tensor]:
        return [model(part) for part in mixed.split(20)]

    assert len(overlap_of(evaluate, trained=drawn, model=nn.Linear(width, 2), epochs=4)) == count


def test_many_small_counts_tell_a_sample() -> None:
    """Three hundred counts of words have few values, and are alike in no two texts."""
    mixed = COUNTS[[*range(0, 120, 6), *range(120, 140)]]
    assert overlap_of(lambda model, _: model(mixed), trained=COUNTS[:120], model=nn.Linear(300, 2))


def test_few_counts_that_repeat_tell_none() -> None:
    """Where a sample comes twice in an epoch, one of them may be in another set by right."""
    trained = COUNTS[[*range(119), 0]]
    mixed = COUNTS[[*range(0, 119, 6), *range(120, 140)]]
    assert not overlap_of(lambda model, _: model(mixed), trained=trained, model=nn.Linear(300, 2))


def test_tokens_tell_a_sample_where_they_are_many() -> None:
    """Thirty-two words are a text of their own; sixteen bits are equal by chance."""
    tokens = torch.randint(64, (160, 32), generator=torch.Generator().manual_seed(0))
    mixed = [*range(0, 120, 6), *range(120, 140)]
    for words, seen in ((tokens, 1), (tokens[:, :16] % 2, 0)):
        evaluate = lambda model, _, own=words[mixed]: model(own)  # noqa: E731 named for what it is
        assert len(overlap_of(evaluate, trained=words[:120], model=Words())) == seen


SERIES = (torch.arange(300.0).square() / 7).sin()
WINDOWS = SERIES.unfold(0, 20, 1)  # 281 of them
APART = [*range(0, 240, 2)]  # every second one


def test_windows_inside_of_what_was_learned_are_counted() -> None:
    """Each window of the evaluation lies between two that were learned from."""
    evaluate = lambda model, _: model(WINDOWS[1:81:2])  # noqa: E731
    (probe,) = overlap_of(evaluate, trained=WINDOWS[APART], probe="windows")
    assert probe.reference == 80  # in the two evaluations after the first epoch
    assert probe.measured == pytest.approx(80, rel=0.1)  # a short window may have no run to tell by


def test_windows_of_a_test_hide_nothing() -> None:
    """A test of later windows comes once; what is evaluated in turns is the training, perhaps."""

    def evaluate(model: nn.Module, epoch: int) -> None:
        model(WINDOWS[1:81:2])
        if epoch == 4:
            model(WINDOWS[240:280])

    (probe,) = overlap_of(evaluate, epochs=5, trained=WINDOWS[APART], probe="windows")
    assert (probe.measured / probe.reference) > 0.7


def test_windows_beside_their_hour_are_counted() -> None:
    """What stands behind the moments of a window is of that window alone."""
    angles = torch.arange(281.0)[:, None] / 7
    rows = torch.cat([WINDOWS, angles.sin(), angles.cos(), angles.tan()], 1)
    trained = rows[APART]
    (probe,) = overlap_of(
        lambda model, _: model(rows[1:81:2]),
        trained=trained,
        probe="windows",
        model=nn.Linear(23, 2),
    )
    assert probe.measured == pytest.approx(80, rel=0.1)
    table = torch.randn(120, 23)
    table[0, 2:22] = table[1, :20]  # two rows of a table have some numbers in a row, by chance
    mixed = torch.cat([table[:1, :2], table[1:2, :21]], 1)
    assert not overlap_of(
        lambda model, _: model(torch.cat([mixed, torch.randn(39, 23)])),
        trained=table,
        probe="windows",
        model=nn.Linear(23, 2),
    )


@pytest.mark.parametrize(
    "evaluated",
    [
        lambda: [WINDOWS[240:280]],
        lambda: [WINDOWS[1:81:2], WINDOWS[240:280]],
        lambda: [WINDOWS[0:80:2]],
        lambda: [WINDOWS[1:81:2].round()],
    ],
    ids=["after the end", "in turns", "learned from", "silence"],
)
def test_other_windows_are_no_leak(evaluated) -> None:
    """New ones that begin in what is known, and a training that is evaluated too, are right."""
    evaluate = lambda model, _: [model(windows) for windows in evaluated()]  # noqa: E731
    assert overlap_of(evaluate, trained=WINDOWS[APART], probe="windows") == []


def test_windows_of_few_values_say_nothing() -> None:
    """Steps and silence recur in any series."""
    rounded = WINDOWS.round()
    evaluate = lambda model, _: model(rounded[1:81:2])  # noqa: E731
    assert overlap_of(evaluate, trained=rounded[APART], probe="windows") == []


WIDE = torch.randn(2000, 20, generator=torch.Generator().manual_seed(7))
RARE = torch.randn(40, 20, generator=torch.Generator().manual_seed(8))  # each comes 25 times


def shuffled(rows: torch.Tensor) -> torch.Tensor:
    """Return rows in another order."""
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(9))]


def overlap_of_long_run(trained: torch.Tensor, evaluated: torch.Tensor) -> list[tuple]:
    """Train for so long that most steps are not watched, and return what an evaluation shares."""
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(0)
    with Recorder("x") as recorder:
        for _ in range(5):
            for rows in torch.randperm(len(trained)).split(10):
                model(trained[rows]).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                model(evaluated)
    probes = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "overlap"]
    return [(probe.measured, probe.reference) for probe in probes]


@pytest.mark.parametrize(
    ("trained", "evaluated", "shares"),
    [
        (WIDE[:1600], WIDE[1500:1900], True),  # a quarter of them
        (WIDE[:1600], WIDE[1600:], False),
        (WIDE[:1600], WIDE[:200], False),  # some of the training
        (WIDE[:1600], WIDE, False),  # all there is
        (
            torch.cat([WIDE[:1000], RARE.repeat(20, 1)]),
            torch.cat([WIDE[1000:1160], RARE]),
            True,
        ),  # copied before the split
        (torch.cat([WIDE[:1000], RARE.repeat(20, 1)]), WIDE[:300], False),  # after it
        (torch.cat([WIDE[:1000], RARE.repeat(60, 1)]), WIDE[:300], False),
    ],
)
def test_what_is_shared_in_a_long_run(trained, evaluated, shares) -> None:
    """It is known though not all that is learned from is seen; and so is a part of the training."""
    assert bool(overlap_of_long_run(trained, shuffled(evaluated))) == shares

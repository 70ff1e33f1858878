"""What is said of what workers draw."""

from dataclasses import replace

import pytest

from tests.invariants.loader.tried import drawn, judged, ranks, served

NAME = "workers_draw_different_numbers"
ONE, OTHER = tuple(range(8)), tuple(range(100, 108))


def shared(name: str = "the global generator of numpy"):
    """Write that a generator was in the same state in each worker after each of eight draws."""
    return served("generator", 8, 8, at=name)


def test_workers_that_draw_apart_are_passed() -> None:
    """Other numbers in each worker and epoch give nothing."""
    events = [
        *drawn(0, *ONE),
        *drawn(1, *OTHER),
        *drawn(0, *range(200, 208), epoch=1),
        *drawn(1, *range(300, 308), epoch=1),
    ]
    assert judged(NAME, events) == []


@pytest.mark.parametrize(
    ("generator", "cause"),
    [
        ("the generator `rng`", "the generator `rng` is copied into each worker"),
        ("the global generator of numpy", "worker_init_fn seeds all of them alike"),
    ],
)
def test_workers_that_draw_alike_are_found(generator: str, cause: str) -> None:
    """The message names the generator, and how it comes to be in one state everywhere."""
    events = [*drawn(0, *ONE), *drawn(1, *ONE), shared(generator)]
    (finding,) = judged(NAME, events)
    assert finding.summary == "the workers of `audio` draw the same random numbers"
    assert finding.measured == "8 of 8 draws alike"
    assert cause in finding.why


def test_one_of_several_generators_may_be_alike() -> None:
    """Where the draws differ by another one; if it has no share in the samples, that is well."""
    apart = [*drawn(0, *ONE), *drawn(1, *OTHER)]
    (finding,) = judged(NAME, [*apart, replace(shared(), detail="felt")])
    assert finding.rank.value == "broken"
    assert "the global generator of numpy is in the same state" in finding.why
    assert judged(NAME, [*apart, shared()]) == []


@pytest.mark.parametrize("used", [[], [served("generator", 3, 8, at="the generator `rng`")]])
def test_without_a_culprit_it_is_a_note(used: list) -> None:
    """Draws that are alike, with no generator that is so throughout, may have another cause."""
    assert ranks(NAME, [*drawn(0, *ONE), *drawn(1, *ONE), *used]) == ["note"]


def test_what_is_not_random_is_passed() -> None:
    """A sample that is always the same is the same in each worker."""
    assert judged(NAME, [*drawn(0, *[5] * 8), *drawn(1, *[5] * 8), shared()]) == []


def test_a_coincidence_is_passed() -> None:
    """Eight throws of a coin are alike too often to be held against two workers."""
    coin = (0, 1, 1, 0, 1, 0, 0, 1)
    assert judged(NAME, [*drawn(0, *coin), *drawn(1, *coin), shared()]) == []


def test_a_coin_that_is_thrown_often_is_judged() -> None:
    """Forty-eight throws that are alike are none."""
    coin = (0, 1, 1, 0, 1, 0, 0, 1) * 6
    assert ranks(NAME, [*drawn(0, *coin), *drawn(1, *coin), shared()]) == ["broken"]


def test_an_epoch_that_comes_again_is_a_note() -> None:
    """Each worker draws in the second epoch what it drew in the first."""
    events = [event for e in (0, 1) for w, d in ((0, ONE), (1, OTHER))
              for event in drawn(w, *d, epoch=e)]  # fmt: skip
    (finding,) = judged(NAME, events)
    assert finding.rank.value == "note"
    assert finding.summary.endswith("in each epoch")


def test_one_worker_that_repeats_itself_is_passed() -> None:
    """All of them would have to, if they were seeded by their number."""
    events = [*drawn(0, *ONE), *drawn(1, *OTHER), *drawn(0, *ONE, epoch=1)]
    assert judged(NAME, [*events, *drawn(1, *range(300, 308), epoch=1)]) == []


def test_other_splits_are_judged_by_themselves() -> None:
    """A worker of one split is not compared with a worker of another."""
    other = [replace(event, split="val") for event in drawn(1, *ONE)]
    assert judged(NAME, [*drawn(0, *ONE), *other, shared()]) == []


@pytest.mark.parametrize(("heard", "found"), [(1, ["broken"]), (2, [])])
def test_workers_that_are_not_told_the_epoch(heard: int, found: list[str]) -> None:
    """Two epochs that should differ are one to them."""
    assert ranks(NAME, [served("epoch", 2, heard)]) == found

"""--hypothesis-seed: where all drawing starts from."""

import re

import pytest


@pytest.fixture(autouse=True)
def _seed_is_put_back(monkeypatch) -> None:
    """Undo what Hypothesis's own plugin does with the option: it keeps the seed in a global."""
    monkeypatch.setattr("hypothesis.core.global_force_seed", None)


def run(project, *options) -> str:
    """Judge one subject and return what was printed."""
    project.declare("guard_x", "leak")
    return project.run("--trainguard-select=gradient_is_finite", *options).stdout.str()


def measured(printed: str) -> list[str]:
    """Return the rows that tell at how many points a gradient was not finite."""
    return re.findall("measured .*", printed)


def test_the_seed_is_honoured(project) -> None:
    """The same seed gives the same counts, another gives others, and the rerun row names it."""
    one, again, other = (run(project, f"--hypothesis-seed={seed}") for seed in (1, 1, 2))
    assert measured(one) == measured(again)
    assert measured(one) != measured(other)
    assert "--hypothesis-seed=1 " in one
    assert "trainguard: profile quick, seed 1" in one


def test_a_random_seed_is_drawn_and_told(project) -> None:
    """`random` draws a seed, which workers are told; the run can be repeated with it."""
    printed = run(project, "--hypothesis-seed=random", "-n", "1")
    told = re.findall(r"--hypothesis-seed=(\d+)", printed)
    assert len(told) == 2  # in the header, and in the rerun row that a worker wrote
    assert told[0] == told[1]
    assert measured(printed) == measured(run(project, f"--hypothesis-seed={told[0]}")) != []


def test_two_random_seeds_differ(project) -> None:
    """Each run draws its own."""
    headers = {run(project, "--hypothesis-seed=random").splitlines()[2] for _ in range(2)}
    assert len(headers) == 2


def test_a_word_is_a_seed(project) -> None:
    """Hypothesis takes any word for a seed, and so do we."""
    printed = run(project, "--hypothesis-seed=banana")
    assert "1 broken" in printed
    assert "seed 0" not in printed

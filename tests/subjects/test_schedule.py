"""What a declared schedule refuses, and how it reads what it is given."""

# a schedule takes its parameters by name, used or not

from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

import trainguard as tg


def build(optimizer, warmup=0):
    """Stand for a function that builds a scheduler."""


@pytest.mark.parametrize(
    ("function", "arguments", "feed"),
    [
        (build, {}, ("optimizer", "optimizer")),
        (partial(build, warmup=3), {}, ("optimizer", "optimizer")),
        (lambda opt, total: None, {"total": 9}, ("optimizer", "opt")),
        (lambda it: 1.0, {}, ("step", "it")),
        (lambda current_step: 1.0, {}, ("step", "current_step")),
        (lambda config, max_rate, step: 1.0, {"config": 0, "max_rate": 1}, ("step", "step")),
        (lambda: None, {}, ("nothing", "")),
        (lambda epochs=10: None, {}, ("nothing", "")),
        (lambda *args, **more: None, {}, ("nothing", "")),
    ],
)
def test_how_it_is_called(function: Any, arguments: dict, feed: tuple[str, str]) -> None:
    """The parameters of `build` say whether it takes an optimizer, a step or nothing."""
    assert tg.Schedule(function, arguments=arguments).feed == feed


def test_an_annotation_names_the_optimizer_too() -> None:
    """A parameter of any name is the optimizer's if it is annotated as one."""

    def annotated(o: "torch.optim.Optimizer") -> None:  # noqa: F821
        """Stand for a build function of a typed project."""

    assert tg.Schedule(annotated).feed == ("optimizer", "o")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda cfg, step: 1.0, r"arguments=\{'cfg': ...\}"),
        (lambda optimizer, step: 1.0, "Keep one of them"),
        (lambda step, epoch: 1.0, "Keep one of them"),
        (lambda a: 1.0, "cannot tell how to call"),
    ],
)
def test_an_unclear_signature(function: Any, words: str) -> None:
    """One sentence says what is unclear, one the way out."""
    with pytest.raises(tg.DeclarationError, match=words):
        tg.Schedule(function)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shap": "constant"}, "Did you mean 'shape'"),
        ({"shape": "warmup_decay"}, "Did you mean 'warmup-decay'"),
        ({"unit": "steps"}, "Did you mean 'step'"),
        ({"mode": "minimum"}, "mode has 'minimum'"),
        ({"peak": 0}, "peak=0"),
        ({"peak": "high"}, "peak='high'"),
        ({"total": 10.5}, "not whole"),
        ({"total": True}, "total=True"),
        ({"floor": -1.0}, "floor=-1.0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"floor": 2.0, "peak": 1.0}, "floor above its peak"),
        ({"warmup": 20, "total": 10}, "warmup above its total"),
        ({"metrics": ("good",)}, "no number"),
        ({"vary": {"warm": st.integers()}}, "Did you mean 'warmup'"),
        ({"vary": {"warmup": 3}}, "no Hypothesis strategy"),
        ({"vary": {"warmup": st.integers()}, "arguments": {"warmup": 3}}, "both in vary"),
        ({"allow": {"floor_is_held": "x"}}, "Did you mean 'floor_is_kept'"),
        ({"allow": {"floor_is_kept": ""}}, "gives no reason"),
        ({"timeout": 0}, "leaves no time"),
    ],
)
def test_what_cannot_be_meant(options: dict, words: str) -> None:
    """Each mistake is said when the schedule is declared."""
    with pytest.raises(tg.DeclarationError, match=words):
        tg.Schedule(build, **options)


def test_a_scheduler_that_is_already_built() -> None:
    """What is declared is how to build one, since it is built many times."""
    with pytest.raises(tg.DeclarationError, match="cannot be called"):
        tg.Schedule(object())


def test_a_function_of_the_step_has_nothing_to_advance() -> None:
    """Options that only a scheduler has are refused beside a function."""
    with pytest.raises(tg.DeclarationError, match="goes with a scheduler"):
        tg.Schedule(lambda step: 1.0, advance=print)


def test_what_is_drawn_counts_as_promised() -> None:
    """An invariant that needs a total applies where the total is drawn."""
    schedule = tg.Schedule(build, vary={"warmup": st.integers(0, 9)}, shape="restarts")
    assert schedule.promise_names == {"warmup", "shape", "restarts"}

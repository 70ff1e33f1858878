"""Losses that misbehave: each has its own sentence, and the rest of the run goes on."""

import re

import pytest
import torch

from trainguard.observe.tools.isolation import isolate, settings_now

# Both import more of torch, which a run inside this process must not be the first to do.
with isolate():
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)

# One invariant of the sweep, and the one about what a call does besides.
FEW = "--trainguard-select=value_is_finite,call_leaves_no_trace"
HEAD = """
import random
import time
from contextlib import suppress
import warnings

import numpy as np

generator = np.random.default_rng()


def deeper(x):
    return {}[len(x)]


X = tg.real("B D", -1, 1)
T = tg.real("B D", -1, 1, grad=False)

"""
GOOD = """
good = tg.Loss(lambda x: x.square().sum(), x=X)
"""
RETURN = "return the loss as a tensor, or a dict or tuple of named parts"
ATTACH = "look for .item(), .detach(), .data, torch.no_grad() or a tensor made anew"
REPEAT = "let it draw from torch, numpy or random, and keep no state between calls*"
HURRY = "make it return, or give it more time with timeout=<seconds>"
DETACHED = "its result is detached from its inputs, so nothing can be learned from it"
DIFFERENT = "it returned different values for the same inputs and the same seed"
HUNG = "it was still running after 1 seconds, at*"
# The body of a loss of `x` and `t`, what is said of it, and the way out that is told.
UNOBSERVABLE = {
    "None": ("x.sum()", "it returned None, not a tensor", RETURN),
    "a string": ("return '0.3'", "it returned the str '0.3', not a tensor", RETURN),
    "a float": ("return 1 / 3", "it returned the float 0.3333, not a tensor", RETURN),
    "integers": (
        "return x.sum().long()",
        "its loss is a tensor of int64",
        "return a floating-point tensor",
    ),
    "undeclared parts": (
        "return {'kl': x.sum(), 'pixels': t.sum()}",
        "it returned several parts, kl, pixels, and none is declared",
        "name the parts: components=('kl', 'pixels')",
    ),
    "detached": ("return x.detach().square().sum()", DETACHED, ATTACH),
    "made anew": ("return torch.tensor(x.square().sum().item())", DETACHED, ATTACH),
    "its own generator": ("return x.sum() * generator.random()", DIFFERENT, REPEAT),
    "the clock": ("return x.sum() + time.perf_counter_ns() % 10**6", DIFFERENT, REPEAT),
    "a loop": ("while True:\n        pass", HUNG, HURRY),
    "a loop that swallows": (
        "while True:\n        with suppress(Exception):\n            time.sleep(9)",
        HUNG,
        HURRY,
    ),
    "a sleep": ("time.sleep(99)", HUNG, HURRY),
    "an exit": (
        "exit(3)",
        "it raised SystemExit: 3",
        "the traceback below is the component's own",
    ),
}


def declare(project, body: str, more: str = "") -> None:
    """Write a guard file with a bad loss and a good one after it."""
    hangs = ", timeout=1" if "while True" in body or "sleep(99)" in body else ""
    bad = f"def bad_loss(x, t):\n    {body}\n\nbad = tg.Loss(bad_loss, x=X, t=T{hangs}{more})\n"
    project.declare("guard_x", more=HEAD + bad + GOOD)


def run(project, *options: str) -> pytest.RunResult:
    """Run what was declared, and check that nothing of ours shows and nothing stays changed."""
    before = settings_now()
    result = project.run(*(options or (FEW,)))
    assert settings_now() == before
    result.stdout.no_fnmatch_line("*trainguard/observe*")
    result.stdout.no_fnmatch_line("*trainguard itself failed*")
    rows = [line for line in result.outlines if re.match("  [a-z]+  +|[a-z_]+: ", line)]
    assert [row for row in rows if len(row) > 100 and not row.startswith("plugins")] == []
    return result


@pytest.mark.parametrize("name", UNOBSERVABLE)
def test_a_loss_that_cannot_be_observed(name: str, project) -> None:
    """It fails with a sentence, a call that shows it and a way out; the next subject passes."""
    body, sentence, remedy = UNOBSERVABLE[name]
    declare(project, body)
    result = run(project)
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    text = result.stdout.str()
    assert text.count("could not be observed, for the reason shown at") == 1
    flat = re.sub(r"\n {4,}", " ", text)
    lines = pytest.LineMatcher(flat.splitlines())
    lines.fnmatch_lines([f"value_is_finite: `bad` could not be observed: {sentence}"])
    lines.fnmatch_lines([f"*why       {remedy}*"])
    lines.fnmatch_lines(["*smallest  bad_loss(x=torch.tensor([[[]*"])
    lines.fnmatch_lines(["2 subjects, 4 invariants: 2 passed, 1 unobservable, 1 skipped"])


def test_a_number_was_promised(project) -> None:
    """A stack of losses where `reduction` promises one number names its shape."""
    declare(project, "return x.square().sum(1)", ", reduction='mean'")
    result = run(project)
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    flat = re.sub(r"\n {4,}", " ", result.stdout.str())
    assert "its loss has the shape (1,), and reduction='mean' promises a single number" in flat
    assert 'why       reduce it, or declare reduction="none"' in flat


def test_a_stack_was_promised(project) -> None:
    """One number where `reduction` promises one for each sample is told so."""
    declare(project, "return x.square().sum()", ", reduction='none'")
    result = run(project)
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    flat = re.sub(r"\n {4,}", " ", result.stdout.str())
    assert "is a single number, and reduction='none' promises one for each sample" in flat


def test_a_loss_that_raises(project) -> None:
    """The user's traceback is shown whole, chained exceptions included, and is shown once."""
    body = (
        "try:\n        return deeper(x)\n    except KeyError as error:\n"
        "        raise ValueError('no weights\\nfor it') from error"
    )
    declare(project, body)
    result = run(project)
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    result.stdout.fnmatch_lines(
        [
            "value_is_finite: `bad` could not be observed: it raised ValueError: no weights",
            "  smallest  bad_loss(x=torch.tensor(*), t=torch.tensor(*))",
            "Traceback (most recent call last):",
            '  File "*guard_x.py", line *, in bad_loss',
            "    return deeper(x)",
            '  File "*guard_x.py", line *, in deeper',
            "KeyError: 1",
            "The above exception was the direct cause of the following exception:",
            '  File "*guard_x.py", line *, in bad_loss',
            "ValueError: no weights",
            "for it",
        ]
    )
    assert result.stdout.str().count("KeyError: 1") == 1


@pytest.mark.parametrize(
    ("condition", "call"),
    [
        ("x.shape[1] > 1", "bad_loss(x=torch.zeros((1, 2)), t=torch.zeros((1, 2)))"),
        ("len(x) in (2, 3, 4)", "bad_loss(x=torch.zeros((2, 1)), t=torch.zeros((2, 1)))"),
        (
            "float(x.detach().max()) > 0.9",
            "bad_loss(x=torch.tensor([[1.]]), t=torch.tensor([[0.]]))",
        ),
    ],
    ids=["some sizes", "some batches", "some numbers"],
)
def test_a_loss_that_raises_sometimes(condition: str, call: str, project) -> None:
    """What raises for some inputs only is shown by the smallest of them."""
    declare(project, f"assert not {condition}, 'not for me'\n    return (x - t).square().mean()")
    result = run(project, "--trainguard-select=value_is_finite")
    result.assert_outcomes(failed=1, passed=1)
    assert f"  smallest  {call}\n" in result.stdout.str()
    result.stdout.fnmatch_lines(["*it raised AssertionError: not for me", "AssertionError: not*"])


NOISY = {
    "warns": ("warnings.warn('old ways', FutureWarning)", "warns (FutureWarning: old ways)"),
    "prints": ("print('hello', len(x))", "prints (hello 1)"),
}


@pytest.mark.parametrize("name", NOISY)
@pytest.mark.parametrize("more", [(), ("-s",), ("-W", "error")], ids=["", "-s", "-W"])
def test_a_noisy_loss(name: str, more: tuple[str, ...], project) -> None:
    """Noise is a note in the closing section, is shown nowhere else and fails nothing."""
    body, told = NOISY[name]
    declare(project, f"{body}\n    return (x - t).square().sum()")
    result = run(project, FEW, *more)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines([f"  note      call_leaves_no_trace: `bad` {told}"])
    assert result.stdout.str().count("hello") == (1 if name == "prints" else 0)
    assert result.stdout.str().count("old ways") == (1 if name == "warns" else 0)


BESIDES = {
    "a target": ("t.mul_(2)", "edits its input in place", "t, cpu", "edited by the call"),
    "a gradient input": (
        "x.clamp_(-0.5, 0.5)",
        "edits its input in place",
        "x, cpu",
        "edited by the call",
    ),
    "both": ("x.mul_(2), t.mul_(2)", "edits its input in place", "x, cpu (and t)", "edited by*"),
    "default dtype": (
        "torch.set_default_dtype(torch.float64)",
        "leaves a global setting changed",
        "torch.get_default_dtype(), cpu",
        "from torch.float32 to torch.float64",
    ),
    "deterministic": (
        "torch.use_deterministic_algorithms(True)",
        "leaves a global setting changed",
        "torch.are_deterministic_algorithms_enabled(), cpu",
        "from False to True",
    ),
    "cudnn": (
        "torch.backends.cudnn.deterministic = True",
        "leaves a global setting changed",
        "torch.backends.cudnn.deterministic, cpu",
        "from False to True",
    ),
    "the seed of torch": (
        "torch.manual_seed(0)",
        "seeds a global random stream",
        "the stream of torch, cpu",
        "*",
    ),
    "the seed of numpy": (
        "np.random.seed(0)",
        "seeds a global random stream",
        "the stream of numpy.random, cpu",
        "*",
    ),
    "the seed of random": (
        "random.seed(0)",
        "seeds a global random stream",
        "the stream of random, cpu",
        "*",
    ),
}


@pytest.mark.parametrize("name", BESIDES)
def test_a_loss_that_leaves_a_trace(name: str, project) -> None:
    """What a call changes is told with its place; the loss itself is judged all the same."""
    body, summary, place, measured = BESIDES[name]
    declare(project, f"{body}\n    return (x - t).square().sum()")
    result = run(project)
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(
        [
            f"call_leaves_no_trace: `bad` {summary}",
            f"  at        {place} *guard_x.py:*",
            f"  measured  {measured}",
            "  allowed   *",
            "  smallest  bad_loss(x=torch.tensor([[[]*",
            "  why       *",
        ]
    )


def test_a_loss_that_switches_gradients_off(project) -> None:
    """A loss that leaves gradients off is told so, and the subjects after it have them."""
    body = "made = (x - t).square().sum()\n    torch.set_grad_enabled(False)\n    return made"
    declare(project, body)
    result = run(project)
    result.assert_outcomes(failed=1, passed=3)
    result.stdout.fnmatch_lines(["  at        torch.is_grad_enabled(), cpu *"])
    assert torch.is_grad_enabled()


def test_a_loss_that_ignores_its_inputs(project) -> None:
    """A loss that needs no input with gradient is a note for each input that is not reached."""
    declare(project, "return torch.ones((), requires_grad=True)")
    result = run(project, "--trainguard-select=gradient_is_alive")
    result.assert_outcomes(passed=2)
    note = "gradient_is_alive: no gradient of `bad` ever reaches `x` (x: 0 at every point)"
    result.stdout.fnmatch_lines([f"  note      {note}"])


def test_a_strategy_that_cannot_be_drawn(project) -> None:
    """A filter that nothing passes is told as the declaration's."""
    more = HEAD + (
        "from hypothesis import strategies as st\n"
        "never = st.integers().filter(lambda k: False)\n"
        "bad = tg.Loss(lambda x, k: x.sum(), x=X, k=never)\n"
    )
    project.declare("guard_x", more=more + GOOD)
    result = run(project)
    result.assert_outcomes(failed=1, skipped=1, passed=2)
    result.stdout.fnmatch_lines("*could not be observed: no value of its arguments can be drawn")

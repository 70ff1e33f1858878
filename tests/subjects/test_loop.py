"""Declarations of `tg.Loop` and `tg.Script`: what they accept, and how they refuse."""

import pytest

import trainguard as tg
from trainguard.subjects.loop import named_by


def train(rate: float, epochs: int = 2) -> None:
    """Stand for a loop that is never run here."""


def test_a_loop_is_named_after_its_function() -> None:
    """Its promises are what was declared, as plain values."""
    loop = tg.Loop(train, arguments={"rate": 0.1}, steps=50, batch=32, frozen="*.backbone.*")
    assert loop.name == "train"
    assert loop.promise_names == {"batch", "frozen"}
    assert loop.promises["frozen"] == ("*.backbone.*",)
    assert loop.promises["batch"] == 32


def test_a_curve_is_a_promise() -> None:
    """One column may stand by itself; without any, no snapshot is asked for."""
    loop = tg.Loop(train, arguments={"rate": 0.1}, curve="loss", seeds=5)
    assert (loop.curve, loop.seeds) == (("loss",), 5)
    assert loop.promise_names == {"curve"}
    assert tg.Loop(train, arguments={"rate": 0.1}).promise_names == set()


def test_a_script_is_named_after_its_file() -> None:
    """Its arguments are words, as on a command line."""
    script = tg.Script("examples/train.py", args=["--epochs", 3])
    assert (script.name, script.args) == ("train", ("--epochs", "3"))


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: tg.Loop(3), "tg.Loop got 3, which cannot be called."),
        (lambda: tg.Loop(train), "tg.Loop(train) lacks 'rate'"),
        (lambda: tg.Loop(train, arguments={"rat": 1}), "takes no argument 'rat'. Did you mean"),
        (lambda: tg.Loop(lambda: None, stepz=3), "no option 'stepz'. Did you mean 'steps'?"),
        (lambda: tg.Loop(lambda: None, steps=0), "tg.Loop(steps=0) cannot be."),
        (lambda: tg.Loop(lambda: None, batch=2.5), "tg.Loop(batch=2.5) cannot be."),
        (lambda: tg.Loop(lambda: None, falls=3), "tg.Loop(falls=3) cannot be."),
        (lambda: tg.Loop(lambda: None, average=1), "tg.Loop(average=1) cannot be."),
        (lambda: tg.Loop(lambda: None, frozen=[""]), "tg.Loop(frozen=...) has ''."),
        (lambda: tg.Loop(lambda: None, allow={"loss_fals": "x"}), "Did you mean 'loss_falls'?"),
        (lambda: tg.Loop(lambda: None, curve="los"), "curve=...) has 'los'. Did you mean 'loss'?"),
        (lambda: tg.Loop(lambda: None, curve=("loss", "loss")), "has 'loss' twice. Drop one"),
        (lambda: tg.Loop(lambda: None, curve="loss", seeds=2), "tg.Loop(seeds=2) is too few"),
        (lambda: tg.Loop(lambda: None, curve="loss", seeds=2.5), "tg.Loop(seeds=2.5) cannot be."),
        (lambda: tg.Loop(lambda: None, seeds=5), "tg.Loop(seeds=5) compares nothing."),
        (lambda: tg.Loop(lambda: None, devices="cuda"), "is for several processes: one takes"),
        (lambda: tg.Loop(lambda: None, ranks=2, devices=2), "tg.Loop(devices=2) is no type"),
        (lambda: tg.Script(""), "tg.Script got ''. Give the path of a script."),
        (lambda: tg.Script("a.py", args="--n 3"), "is one string. Give a list: ['--n', '3']."),
    ],
)
def test_what_cannot_be_meant_is_refused(declare, message: str) -> None:
    """One sentence with the value, one with the way out."""
    with pytest.raises(tg.DeclarationError) as refused:
        declare()
    assert message in str(refused.value)


def test_parameters_are_named_with_or_without_their_class() -> None:
    """A glob fits the whole name, or the name below the model's class."""
    assert named_by("Net.backbone.0.weight", ("Net.backbone.*",))
    assert named_by("Net.backbone.0.weight", ("backbone.*",))
    assert not named_by("Net.head.weight", ("backbone.*",))


def generate():
    """Train as a generator does: not until somebody asks for the next one."""
    yield 1


async def wait() -> None:
    """Train as a coroutine does: not until somebody waits for it."""


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            generate,
            "makes a generator: calling it trains nothing.*: for _ in generate\\(\\): pass.",
        ),
        (wait, "makes a coroutine: calling it trains nothing.*: asyncio.run\\(wait\\(\\)\\)."),
    ],
)
def test_what_does_not_train_when_it_is_called(function, sentence) -> None:
    """A generator or a coroutine is refused, with what runs it."""
    with pytest.raises(tg.DeclarationError, match=sentence):
        tg.Loop(function)

"""What a declared checkpoint refuses, and how it reads what it is given."""

from typing import Any

import pytest

import trainguard as tg


def train(out_dir, resume=False, steps=8):
    """Stand for a function that trains."""


def train_anywhere(steps=8):
    """Stand for a function that has no folder."""


def train_on(out_dir, data):
    """Stand for a function that cannot be called without its data."""


def rotate(directory, keep_last=3):
    """Stand for a function that deletes old files."""


PARTS = {"build": dict, "step": train, "save": train, "load": train}


@pytest.mark.parametrize(
    ("given", "promised"),
    [
        ({"train": train}, {"resume", "rotation"}),
        ({"train": train, "keep": 2, "safe": True}, {"resume", "rotation", "keep", "safe"}),
        (PARTS, {"resume"}),
        ({"rotate": rotate, "files": "step_{}.pt", "keep": 3}, {"rotation", "keep"}),
    ],
)
def test_what_is_promised(given: dict, promised: set) -> None:
    """A training can be resumed, a rotation rotates, and both are judged by what they are."""
    assert tg.Checkpoint(**given).promise_names == promised


def test_a_name_is_found() -> None:
    """It is that of the function, or of the one that saves."""
    assert tg.Checkpoint(train).name == "train"
    assert tg.Checkpoint(**{**PARTS, "save": rotate}).name == "rotate"


def test_further_options_do_not_hide_the_folder() -> None:
    """A function that takes any keywords has the parameters that it names."""

    def flexible(output_dir, **options):
        """Stand for a function that hands its options on."""

    assert tg.Checkpoint(flexible, arguments={"lr": 0.1}).arguments == {"lr": 0.1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "is given nothing to judge"),
        ({"train": 3}, "got 3, which cannot be called"),
        ({"train": train, "step": 3}, "are two ways to say the same"),
        ({"build": dict, "step": train}, "got build and lacks save"),
        ({"train": train, "stpes": 3}, "has no option 'stpes'. Did you mean 'steps'?"),
        ({"train": train, "steps": 1}, "steps=1) cannot be. Give a whole number >= 2."),
        ({"train": train, "steps": True}, "cannot be"),
        ({"train": train, "keep": 0}, "keep=0) cannot be. Give a whole number >= 1."),
        ({"train": train, "safe": "yes"}, "Give True or False"),
        ({"train": train, "until": "steps"}, "is not told what to give it"),
        ({"train": train, "until": "epochs", "steps": 8}, "takes no argument 'epochs'"),
        ({"train": train, "directory": "outdir"}, "Did you mean 'out_dir'?"),
        ({"train": train, "arguments": {"step": 1}}, "Did you mean 'steps'?"),
        ({"train": train_anywhere}, "no parameter that is known to be a folder"),
        ({"train": train_on}, "lacks 'data', which train_on cannot be called without"),
        ({"rotate": rotate, "files": "step_{}.pt"}, "is not told how many checkpoints are kept"),
        ({"rotate": rotate, "keep": 3}, "has no place for the step"),
        ({"train": train, "files": ""}, "is no name of a file"),
        ({"train": train, "timeout": 0}, "leaves no time"),
        ({"train": train, "allow": {"loading_is_saf": "x"}}, "Did you mean 'loading_is_safe'?"),
        ({"train": train, "allow": {"loading_is_safe": ""}}, "gives no reason"),
        (
            {"train": train, "rotate": rotate, "keep": 1, "files": "{}", "arguments": {"steps": 1}},
            "Declare the rotation as a subject of its own",
        ),
    ],
)
def test_what_cannot_be_meant(options: dict[str, Any], words: str) -> None:
    """One sentence says what is wrong, one the way out."""
    with pytest.raises(tg.DeclarationError) as raised:
        tg.Checkpoint(**options)
    assert words in str(raised.value)


def test_an_excuse_of_what_is_not_judged_is_refused() -> None:
    """A rotation alone has nothing to resume."""
    allow = {"resume_continues_the_run": "not today"}
    subject = tg.Checkpoint(rotate=rotate, files="step_{}.pt", keep=3, allow=allow)
    with pytest.raises(tg.DeclarationError, match="which is not judged on it: it needs resume"):
        tg.check(subject, devices=["cpu"])

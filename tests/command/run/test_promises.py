"""--batch, --falls, --average, --frozen, --trainable: what a run promises is judged."""

from trainguard.events.trace import Trace


def test_they_reach_the_trace(folder) -> None:
    """All promises stand in the trace; globs may be repeated, and listed with commas."""
    options = (
        *("--batch", "16", "--falls", "0.01", "--average", "0.5"),
        *("--frozen", "a.*,b.*", "--frozen", "c.*", "--trainable", "*.2.*"),
    )
    folder.run(*options, "--trace", "trace.jsonl", "train.py")
    trace = Trace.from_text((folder.path / "trace.jsonl").read_text(encoding="utf-8"))
    assert trace.promises == {
        "steps": None,
        "batch": 16,
        "falls": 0.01,
        "average": 0.5,
        "frozen": ("a.*", "b.*", "c.*"),
        "trainable": ("*.2.*",),
    }


STILL = "net[0].weight.requires_grad_(False)\nnet[0].bias.requires_grad_(False)"


def test_promises_that_are_kept(folder) -> None:
    """A training that does what it promises has nothing found."""
    folder.trains(before=STILL, steps=60)
    options = ("--batch", "16", "--falls", "0.2", "--frozen", "0.*", "--trainable", "2.*")
    done = folder.run(*options, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_promises_that_are_broken(folder) -> None:
    """Each of them is found by the invariant that judges it."""
    folder.trains(before=STILL, steps=60)
    options = ("--batch", "32", "--falls", "0.999", "--frozen", "2.*", "--trainable", "0.*")
    done = folder.run(*options, "--json", "out.json", "train.py")
    assert done.returncode == 1
    assert set(folder.found()) == {
        "loss_falls",
        "every_trainable_parameter_moves",
        "frozen_parameters_stay",
        "effective_batch_is_constant",
    }

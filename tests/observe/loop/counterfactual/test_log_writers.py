"""A training that logs by threads of a logger is asked as any other, and its files are its own."""

from pathlib import Path

import pytest
import torch

from trainguard.observe.loop.counterfactual.forking import fork, obstacle

EVENTS = 100  # more than a writer's queue holds: it waits for its thread then


@pytest.mark.parametrize("home", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_child_logs_into_nothing(tmp_path: Path, home: str) -> None:
    """The thread that writes is no obstacle; a child that has none waits for nobody."""
    with pytest.importorskip(home).SummaryWriter(tmp_path) as writer:
        writer.add_scalar("loss", 1.0, 0)
        writer.flush()

        def log(way_out) -> None:
            """Log more than a queue takes, and answer."""
            for step in range(EVENTS):
                writer.add_scalar("loss", 2.0, step)
                writer.add_histogram("weights", torch.ones(8), step)
            writer.flush()
            writer.close()
            way_out.report(logged=EVENTS)

        before = sizes(tmp_path)
        assert obstacle() == ""
        answer = fork(2.0, log)
        assert (answer.report, answer.trouble) == ({"logged": EVENTS}, "")
        assert sizes(tmp_path) == before
        writer.add_scalar("loss", 0.5, 1)  # and the parent goes on with its own
        writer.flush()
        assert sizes(tmp_path) > before


def sizes(folder: Path) -> list[int]:
    """Return the bytes of the files of a folder."""
    return [file.stat().st_size for file in sorted(folder.iterdir())]


def test_a_child_logs_to_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where another process writes, that threads of wandb talk to."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    with wandb.init(project="x", mode="offline") as run:
        wandb.log({"loss": 1.0})

        def log(way_out) -> None:
            """Log by the run and by its module, and answer."""
            for step in range(EVENTS):
                wandb.log({"loss": 2.0, "weights": [1.0, 2.0]})
                run.log({"again": step})
                run.summary["best"] = step
            way_out.report(logged=EVENTS)

        assert obstacle() == ""
        answer = fork(2.0, log)
        assert (answer.report, answer.trouble) == ({"logged": EVENTS}, "")
        wandb.log({"loss": 0.5})
        assert run.step == 2

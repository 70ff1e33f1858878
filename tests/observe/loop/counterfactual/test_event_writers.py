"""A training that logs to event files is asked as any other, and its files are its own."""

from pathlib import Path

import pytest
import torch

from trainguard.observe.loop.counterfactual.forking import fork, obstacle

SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter
EVENTS = 100  # more than a writer's queue holds: it waits for its thread then


def test_a_child_logs_into_nothing(tmp_path: Path) -> None:
    """The thread that writes is no obstacle; a child that has none waits for nobody."""
    with SummaryWriter(tmp_path) as writer:
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

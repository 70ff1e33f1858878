"""What a training says while it is recorded, and that saying it changes nothing."""

import logging
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Logged, Step
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.said.logged import MOST

tqdm = pytest.importorskip("tqdm")


def train(say, steps: int = 5, inner=range) -> list[float]:
    """Train, and say the loss of each step after it; return the losses."""
    torch.manual_seed(0)
    model, losses = nn.Sequential(network(), nn.Dropout(0.0)), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step, (inputs, target) in zip(inner(steps), batches(steps), strict=False):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), target)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        say(step=step, loss=loss.item(), grad_norm=norm.item(), lr=0.01)
    return losses


def said(recorder: Recorder, name: str, channel: str = "stdout") -> list[Logged]:
    """Return what was said under a name."""
    events = [event for event in recorder.trace if isinstance(event, Logged)]
    return [event for event in events if (event.name, event.channel) == (name, channel)]


def row(**values: float) -> None:
    """Print a row, as many loops do."""
    print(" | ".join(f"{name} {value:.4f}" for name, value in values.items()))


def test_a_printed_loss_belongs_to_its_step(capsys) -> None:
    """Each value comes with its rounding, step, line and a clock between the steps."""
    with Recorder("x") as recorder:
        losses = train(row)
    events = said(recorder, "loss")
    assert [event.value for event in events] == [float(f"{loss:.4f}") for loss in losses]
    assert [event.rounding for event in events] == [5e-5] * 5
    assert [event.step for event in events] == [1, 2, 3, 4, 5]
    line = row.__code__.co_firstlineno + 2
    assert {event.source for event in events} == {f"{__file__}:{line}"}
    kinds = [type(e) for e in recorder.trace if isinstance(e, Step) or e in events]
    assert kinds == [Step, Logged] * 5
    clocks = [event.clock for event in recorder.trace if isinstance(event, Step | Logged)]
    assert clocks == sorted(clocks)
    assert capsys.readouterr().out.count("grad_norm") == 5


def test_the_steps_know_the_same_numbers() -> None:
    """What was printed is what the recorder saw, to the digit."""
    with Recorder("x") as recorder:
        train(row)
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    for name, column in (("loss", "loss"), ("grad_norm", "norm_before")):
        for event, step in zip(said(recorder, name), steps, strict=True):
            assert abs(event.value - getattr(step, column)) <= event.rounding * 1.001


def test_in_a_long_run_what_was_said_belongs_to_a_step() -> None:
    """Where not all steps are recorded, each that is has its row; rare rows are all there."""

    def rarely(step, loss, **more) -> None:
        """Print a row each step, and another one now and then on the other stream."""
        row(loss=loss)
        if step % 50 == 49:
            print(f"epoch_loss {loss:.4f}", file=sys.stderr)

    with Recorder("x") as recorder:
        recorder.windows.clear()  # optimizers of other tests that are still alive
        losses = train(rarely, steps=400)
    rows = {event.step: event.value for event in said(recorder, "loss")}
    steps = [event.step for event in recorder.trace if isinstance(event, Step)]
    assert len(steps) < 350
    assert all(rows[step + 1] == float(f"{losses[step]:.4f}") for step in steps)
    assert len(rows) < 350
    rare = [event.step for event in said(recorder, "epoch_loss", "stderr")]
    assert rare == list(range(50, 401, 50))


def test_a_progress_bar_is_heard(capsys) -> None:
    """The postfix of a bar of tqdm is said on stderr, each value once."""
    with Recorder("x") as recorder:
        bar = tqdm.tqdm(range(5), mininterval=0, ascii=True)
        losses = train(lambda **v: bar.set_postfix(loss=f"{v['loss']:.6f}"), inner=lambda _: bar)
    events = said(recorder, "loss", "stderr")
    assert [event.value for event in events] == [float(f"{loss:.6f}") for loss in losses]
    assert [event.step for event in events] == [1, 2, 3, 4, 5]
    assert {event.source.rpartition(":")[0] for event in events} == {__file__}
    assert "100%|##########| 5/5" in capsys.readouterr().err


def test_a_logger_of_the_standard_library_is_heard(capsys) -> None:
    """A handler made in the script writes to stderr, with times and levels in front."""
    logger = logging.getLogger("tests.logged")
    logger.propagate = False
    with Recorder("x") as recorder:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s - %(levelname)s - %(message)s"))
        logger.addHandler(handler)
        losses = train(lambda **v: logger.warning("loss %.3f, lr %g", v["loss"], v["lr"]))
        logger.removeHandler(handler)
    events = said(recorder, "loss", "stderr")
    assert [event.value for event in events] == [float(f"{loss:.3f}") for loss in losses]
    assert len(said(recorder, "lr", "stderr")) == 5
    handler.handle(logging.makeLogRecord({"msg": "loss 0.5", "levelname": "INFO"}))
    assert capsys.readouterr().err.endswith("- INFO - loss 0.5\n")


class Talking(Dataset):
    """Samples that say something when they are loaded."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return a sample."""
        print(f"sample_loss {index}.5", flush=True)
        return torch.ones(4)


@pytest.mark.skipif(sys.platform == "win32", reason="workers are forked")
def test_forked_workers_say_nothing_to_us(capfd) -> None:
    """A worker of a loader prints through its copy of our stream, and nobody listens there."""
    with Recorder("x") as recorder:
        loader = DataLoader(Talking(), batch_size=4, num_workers=1, multiprocessing_context="fork")
        list(loader)
        print("loss 0.5")
    assert [event.name for event in recorder.trace if isinstance(event, Logged)] == ["loss"]
    assert capfd.readouterr().out.count("sample_loss") == 8


def test_a_long_run_keeps_a_bounded_part_of_each_name() -> None:
    """Of 3000 steps some are kept, of every name, and what was said rarely is not lost to them."""
    with Recorder("x") as recorder:
        for step in range(3000):
            recorder.steps = step
            print(f"step {step} | loss {step / 7:.5f} | lr 0.1")
            if step % 500 == 0:
                print(f"val_loss {step / 3:.5f}")
    kept = {name: said(recorder, name) for name in ("step", "loss", "lr", "val_loss")}
    assert [event.step for event in kept["val_loss"]] == list(range(0, 3000, 500))
    assert sum(map(len, kept.values())) <= MOST
    for name in ("step", "loss", "lr"):
        assert len(kept[name]) > 200
        steps = [event.step for event in kept[name]]
        assert steps == sorted(steps)
        assert steps[-1] > 2900
        assert {step % 8 for step in steps} == {0, 1}
    assert all(event.value == float(f"{event.step / 7:.5f}") for event in kept["loss"])


def test_many_names_and_no_step_stay_bounded() -> None:
    """A script that prints without end, under ever new names and without a step, is survived."""
    with Recorder("x") as recorder:
        for index in range(20_000):
            recorder.steps = index // 5000
            print(f"name_{index} {index}.5, loss 0.5")
    assert len([event for event in recorder.trace if isinstance(event, Logged)]) <= MOST


def test_printing_stays_cheap() -> None:
    """Gigabytes that are printed between two steps cost a fraction of a microsecond a write."""
    with Path(os.devnull).open("w") as sink, redirect_stdout(sink), Recorder("x"):
        began = time.process_time()
        for _ in range(100_000):
            sys.stdout.write("loss 0.5 | lr 0.1\n")
        seconds = time.process_time() - began
    assert seconds < 1.0


@pytest.mark.parametrize("channel", ["stdout", "tensorboard"])
def test_a_run_that_talks_is_bit_for_bit_the_same(tmp_path, channel, capsys) -> None:
    """Losses, the output and what the writer was given are those of an unrecorded run."""
    from torch.utils.tensorboard import SummaryWriter

    def run() -> tuple[list[float], str, list[tuple[str, float]]]:
        """Train once, and return the losses, the output and what was written."""
        written: list[tuple[str, float]] = []

        class Writer(SummaryWriter):
            """Keeps what it is given."""

            def add_scalar(self, tag, scalar_value, *rest, **named) -> None:
                """Keep the value, then write it."""
                written.append((tag, float(scalar_value)))
                super().add_scalar(tag, scalar_value, *rest, **named)

        with Writer(tmp_path) as writer:

            def say(step, **values) -> None:
                """Say the values."""
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

            losses = train(row if channel == "stdout" else say, steps=20)
        return losses, capsys.readouterr().out, written

    plain = run()
    with Recorder("x") as recorder:
        recorded = run()
    assert recorded == plain
    assert len(said(recorder, "loss", channel)) == 20

"""One run, logged in each format: the same numbers are read, and the same is found."""

import json
import math
import struct
from pathlib import Path

import pytest

from trainguard.core.settings import Settings
from trainguard.events.loop import Evaluation, Step
from trainguard.judging.judge import judge_run
from trainguard.observe.log.entry import read_log, read_logs
from trainguard.observe.log.tensorboard import rows, scalars
from trainguard.subjects.log import Log

SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter

# (step, loss, rate, norm): the figures of multi-domain-vjepa3d. The cosine restarts every 8
# updates, the norm is taken after zero_grad, and the loss is gone at step 512.
VJEPA = [
    (
        step,
        5.6839e-4 * (1 + 0.01 * math.sin(step)) if step < 512 else math.nan,
        5e-5 + 2.25e-4 * (1 + math.cos(math.pi * (step % 8) / 8)),
        0.0,
    )
    for step in range(440, 520)
]
LOSSES = (275959, 276118, 275990, 275900, 276010, 275824, 275950, 275880, 275930, 275840, 275910,
          275860, 275890, 275850, 275825)  # fmt: skip
# (epoch, loss, rate, -): those of flat-loss-autoencoder, at 15 % of the rate of 1e-4 in the end.
GIBLET = [(n, loss, 1e-5 + n * 5e-6 / 15, None) for n, loss in enumerate(LOSSES, 1)]
FOUND = {
    "vjepa": {"loss_is_finite", "logged_norm_is_measured", "rate_follows_one_schedule"},
    "giblet": {"loss_falls", "rate_follows_one_schedule"},
}
RUNS = {"vjepa": VJEPA, "giblet": GIBLET}


def as_table(folder: Path, run, unit: str) -> Path:
    """Write a CSV."""
    file = folder / "metrics.csv"
    lines = [",".join("" if v is None else repr(v) for v in row) for row in run]
    file.write_text(f"{unit},train_loss,lr,grad_norm\n" + "\n".join(lines) + "\n")
    return file


def as_tabs(folder: Path, run, unit: str) -> Path:
    """Write a TSV, as DVCLive does."""
    file = folder / "metrics.tsv"
    file.write_text(as_table(folder, run, unit).read_text().replace(",", "\t"))
    (folder / "metrics.csv").unlink()
    return file


def named(row, unit: str) -> dict:
    """Return a row as an object."""
    names = (unit, "train/loss", "train/learning_rate", "train/grad_norm")
    return {n: v for n, v in zip(names, row, strict=True) if v is not None}


def as_json_lines(folder: Path, run, unit: str) -> Path:
    """Write one object a line."""
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps(named(row, unit)) + "\n" for row in run))
    return file


def as_trainer_state(folder: Path, run, unit: str) -> Path:
    """Write what Hugging Face's Trainer saves."""
    file = folder / "checkpoint-9" / "trainer_state.json"
    file.parent.mkdir()
    history = [{k.removeprefix("train/"): v for k, v in named(row, unit).items()} for row in run]
    file.write_text(json.dumps({"global_step": 519, "log_history": history}, indent=2))
    return file


def as_output(folder: Path, run, unit: str) -> Path:
    """Write what a script prints."""
    file = folder / "train.log"
    lines = []
    for at, loss, rate, norm in run:
        tail = "" if norm is None else f" | grad_norm={norm!r}"
        said = f"INFO {unit} {at} | loss {loss} | lr: {rate:.8f}{tail}"
        lines.append(f"2025-11-04 22:30:00,123 {said}")
    file.write_text("\n".join(lines) + "\n")
    return file


def as_mlflow(folder: Path, run, unit: str) -> Path:
    """Write an MLflow file store."""
    metrics = folder / "mlruns" / "0" / "abc" / "metrics"
    (metrics / "train").mkdir(parents=True)
    for at, name in enumerate(("loss", "lr", "grad_norm"), 1):
        told = [row for row in run if row[at] is not None]
        lines = [f"{1762295400000 + 1000 * n} {row[at]} {row[0]}\n" for n, row in enumerate(told)]
        if lines:
            (metrics / "train" / name).write_text("".join(lines))
    return folder / "mlruns"


def as_events(folder: Path, run, unit: str) -> Path:
    """Write a TensorBoard event file with TensorBoard's own writer; some tags as tensors."""
    with SummaryWriter(folder / "runs") as writer:
        for at, loss, rate, norm in run:
            writer.add_scalar("train/loss", loss, at, new_style=True)
            writer.add_scalar("train/lr", rate, at)
            if norm is not None:
                exact = {"double_precision": True, "new_style": True}
                writer.add_scalar("train/grad_norm", norm, at, **exact)
    return folder / "runs"


FORMATS = (as_table, as_tabs, as_json_lines, as_trainer_state, as_output, as_mlflow, as_events)


@pytest.mark.parametrize(
    "stamp",
    [
        "2026-12-01 01:11:30,116 INFO ",
        "2026-12-01 01:11:30,116 - root - INFO - ",
        "[2026-12-01 01:11:30,116][train][INFO] - ",
        "2026-12-01 01:11:30 INFO ",
    ],
)
@pytest.mark.parametrize("joint", [" ", ", "])
def test_the_time_of_a_line_takes_nothing_from_it(tmp_path, stamp, joint) -> None:
    """The milliseconds of Python's logging are no thousands, and those of a number are."""
    file = tmp_path / "a.txt"
    file.write_text(
        "".join(f"{stamp}step {n}{joint}loss {1 / n:.4f}\n" for n in range(1, 40))
        + f"{stamp}step: 1,234 loss 0.0123\n"
    )
    steps = [event for event in read_log(Log(file)) if isinstance(event, Step)]
    assert [step.step for step in steps] == [*range(1, 40), 1234]
    assert [step.loss for step in steps[:2]] == [1.0, 0.5]


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("name", RUNS)
def test_the_same_is_found_in_each_format(tmp_path, name, write) -> None:
    """The figures of two post-mortems are found, whatever they were logged with."""
    unit = "epoch" if name == "giblet" else "step"
    log = Log(write(tmp_path, RUNS[name], unit))
    trace = read_log(log)
    steps = [event for event in trace if isinstance(event, Step)]
    assert [(s.step, pytest.approx(s.loss, nan_ok=True)) for s in steps] == [
        (row[0], row[1] if math.isnan(row[1]) else pytest.approx(row[1])) for row in RUNS[name]
    ]
    verdicts = judge_run(log, trace, Settings())
    assert {v.invariant.name for v in verdicts if v.findings} == FOUND[name]


def test_an_event_file_is_read_as_its_own_reader_reads_it(tmp_path) -> None:
    """Each scalar has the time, the step and the value that EventAccumulator has."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = as_events(tmp_path, VJEPA, "step").iterdir()
    accumulator = EventAccumulator(str(file)).Reload()
    theirs = accumulator.Scalars("train/lr")
    ours = [(time, step, value) for time, step, tag, value in scalars(file) if tag == "train/lr"]
    assert [(told.wall_time, told.step, told.value) for told in theirs] == ours


def test_an_event_file_that_was_cut_off_is_read_to_its_end(tmp_path) -> None:
    """Wherever a kill cuts it, all whole records before are read and nothing is raised."""
    (file,) = as_events(tmp_path, VJEPA[:12], "step").iterdir()
    whole = file.read_bytes()
    counts = []
    for size in range(0, len(whole) + 1, 7):
        file.write_bytes(whole[:size])
        counts.append(sum(len(row.values) for row in rows(file)))
    assert counts == sorted(counts)
    assert counts[-1] >= 3 * 12 - 1


def test_a_damaged_record_is_passed_over(tmp_path) -> None:
    """A length that cannot be is the end; a record that is no message is left out."""
    (file,) = as_events(tmp_path, VJEPA[:12], "step").iterdir()
    whole = file.read_bytes()
    noise = struct.pack("<QI", 30, 0) + b"\xff" * 34
    file.write_bytes(whole + noise + whole)
    assert sum(len(row.values) for row in rows(file)) == 2 * 3 * 12
    file.write_bytes(whole + struct.pack("<QI", 1 << 60, 0) + whole)
    assert sum(len(row.values) for row in rows(file)) == 3 * 12


def test_parts_of_a_resumed_run_are_put_together(tmp_path) -> None:
    """Steps that are said again after a resume are there once, with their later values."""
    whole = [(n, 1.0 / (n + 1), 1e-3, 1.0) for n in range(60)]
    again = [(n, 2.0 / (n + 1), 1e-3, 1.0) for n in range(40, 100)]
    as_table(tmp_path, again, "step").rename(tmp_path / "b.csv")
    as_table(tmp_path, whole, "step").rename(tmp_path / "a.csv")
    trace = read_log(Log(tmp_path))
    steps = [event for event in trace if isinstance(event, Step)]
    assert [step.step for step in steps] == [*range(100)]
    assert {step.step: step.loss for step in steps}[50] == pytest.approx(2 / 51)
    assert [s.case for s in steps] == [0] * 40 + [1] * 60


def test_runs_in_folders_of_their_own_are_apart(tmp_path) -> None:
    """Two folders with a log that begins at the same step are two runs."""
    for name in ("version_0", "version_1"):
        (tmp_path / name).mkdir()
        as_table(tmp_path / name, VJEPA, "step")
    assert len(read_logs(Log(tmp_path))) == 2


def test_a_state_and_its_later_copy_are_one_run(tmp_path) -> None:
    """Each checkpoint has all of the history: the longest is read."""
    for count in (20, 50, 80):
        folder = tmp_path / f"checkpoint-{2 * count}"
        folder.mkdir()
        file = as_trainer_state(folder, VJEPA[:count], "step")
        file.rename(folder / file.name)
        file.parent.rmdir()
    (trace,) = read_logs(Log(tmp_path))
    assert sum(isinstance(event, Step) for event in trace) == 80


@pytest.mark.slow
def test_a_long_log_keeps_its_ends_and_its_leaps(tmp_path) -> None:
    """Of 60,000 rows a part is kept: the first and last ones, and a single spike between."""
    file = tmp_path / "log.jsonl"
    lines = [f'{{"step": {n}, "loss": {9.0 if n == 54321 else 1.0}}}\n' for n in range(60_000)]
    file.write_text("".join(lines))
    trace = read_log(Log(file))
    steps = [event for event in trace if isinstance(event, Step)]
    kept = {step.step for step in steps}
    assert {0, 4000, 54320, 54321, 54322, 59_999} <= kept
    assert len(kept) < 25_000
    assert sum(step.span for step in steps) == 60_000


def test_what_is_validated_is_no_training_loss(tmp_path) -> None:
    """A row of an evaluation becomes one, though its name ends like that of the loss."""
    file = tmp_path / "metrics.csv"
    lines = [f"{n},{1 / (n + 1)},{2 / (n + 1)}\n" for n in range(6)]
    file.write_text("epoch,train_loss,val_loss\n" + "".join(lines))
    trace = read_log(Log(file))
    assert [event.loss for event in trace if isinstance(event, Evaluation)][1] == 1.0
    assert [event.loss for event in trace if isinstance(event, Step)][1] == 0.5

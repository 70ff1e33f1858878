"""Numbers that are handed to loggers: real ones, and look-alikes where those are not installed."""

import csv
import importlib
import io
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from tests.observe.loop.watch.said.talk import heard, replaced, said, train
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.said import logged, loggers
from trainguard.observe.tools.patches import Patches


@pytest.fixture(autouse=True)
def _restored():
    """See that no function of any logger is replaced once a test is over."""
    yield
    assert replaced() == []


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """Write packages into a folder, and forget them after the test."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write(files: dict[str, str]) -> None:
        """Write one file for each name."""
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("wandb", "mlflow"):
            del sys.modules[name]


@pytest.mark.parametrize("by_name", [False, True])
def test_tables_are_heard(by_name: bool) -> None:
    """The rows of a csv file reach it and the trace; the module is as before once it is over."""
    before, text = csv.writer, io.StringIO()
    with Recorder("x") as recorder:
        names = ["step", "loss"]
        table = csv.DictWriter(text, names) if by_name else csv.writer(text, delimiter=",")
        table.writeheader() if by_name else table.writerow(names)

        def log(loss, step) -> None:
            """Write a row."""
            row = (step, loss.item())
            table.writerow(dict(zip(names, row, strict=True)) if by_name else row)

        losses = train(log)
        assert by_name or table.dialect.delimiter == ","
    assert csv.writer is before
    assert said(recorder, "csv", "loss") == losses
    assert len(heard(recorder, "csv")) == 6
    table.writerow({} if by_name else ["after"])
    rows = list(csv.reader(io.StringIO(text.getvalue())))
    assert rows[:2] == [names, ["0", str(losses[0])]]
    assert len(rows) == 5


WANDB = {  # the parts of wandb 0.19 that lie between `wandb.log` and the server, same signatures
    "wandb/__init__.py": """
        from wandb.sdk import wandb_run

        def log(*args, **kwargs):
            raise RuntimeError("You must call wandb.init() before wandb.log()")

        run = None

        def init(project=None):
            global log, run
            run = wandb_run.Run()
            log = run.log
            return run

        def finish():
            global log, run
            run = log = None
        """,
    "wandb/sdk/__init__.py": "",
    "wandb/sdk/wandb_run.py": """
        class Run:
            def __init__(self):
                self.history = []

            def log(self, data, step=None, commit=None, sync=None):
                self._log(data, step, commit)

            def _log(self, data, step=None, commit=None):
                self.history.append(data)
        """,
}
MLFLOW = {  # the parts of mlflow 2.20 between `mlflow.log_metrics` and the store, same signatures
    "mlflow/__init__.py": """
        from mlflow.tracking.fluent import log_metric, log_metrics
        """,
    "mlflow/tracking/__init__.py": "from mlflow.tracking.client import MlflowClient",
    "mlflow/tracking/client.py": """
        STORE = []

        class MlflowClient:
            def log_metric(
                self, run_id, key, value, timestamp=None, step=None, synchronous=None
            ):
                STORE.append((key, value))

            def log_batch(self, run_id, metrics=(), params=(), tags=(), synchronous=None):
                STORE.extend(metrics)
        """,
    "mlflow/tracking/fluent.py": """
        from mlflow.tracking.client import MlflowClient

        def log_metric(key, value, step=None, synchronous=None, timestamp=None, run_id=None):
            return MlflowClient().log_metric(
                run_id, key, value, timestamp, step or 0, synchronous=synchronous
            )

        def log_metrics(metrics, step=None, synchronous=None, run_id=None, timestamp=None):
            return MlflowClient().log_batch(
                run_id=run_id, metrics=list(metrics.items()), params=[], tags=[]
            )
        """,
}


def test_tensorboard_is_heard(tmp_path) -> None:
    """Scalars reach the writer and the trace, by position and by keyword, from the user's line."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    before = dict(vars(SummaryWriter))
    with Recorder("x") as recorder, SummaryWriter(tmp_path) as writer:

        def log(loss, step) -> None:
            """Log in both forms."""
            writer.add_scalar("loss/train", loss, step)
            writer.add_scalar(tag="half", scalar_value=loss.item() / 2, global_step=step)
            writer.add_scalars("both", {"a": 1, "b": np.float32(0.5)}, step)
            writer.add_histogram("weights", torch.ones(3), step)

        losses = train(log)
        assert len(replaced()) >= 2
    assert vars(SummaryWriter) == before
    assert said(recorder, "tensorboard", "loss/train") == losses
    assert said(recorder, "tensorboard", "half") == [loss / 2 for loss in losses]
    assert said(recorder, "tensorboard", "both/a") == [1.0] * 3
    assert said(recorder, "tensorboard", "both/b") == [0.5] * 3
    events = heard(recorder, "tensorboard")
    assert {event.name for event in events} == {"loss/train", "half", "both/a", "both/b"}
    assert {event.source.rpartition(":")[0] for event in events} == {__file__}
    assert [event.step for event in events if event.name == "half"] == [1, 2, 3]
    assert len(list(tmp_path.glob("events.out*"))) == 1


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("early_init", [True, False])
def test_wandb_is_heard(imported, late: bool, early_init: bool) -> None:
    """`wandb.log` and `run.log` are heard once, whenever wandb is imported and a run begun."""
    imported(WANDB)
    if not late or early_init:
        wandb = importlib.import_module("wandb")
    if early_init:
        wandb.init()
    with Recorder("x") as recorder:
        wandb = importlib.import_module("wandb")
        if not early_init:
            with pytest.raises(RuntimeError, match="wandb.init"):
                wandb.log({})
            nn.Linear(1, 1)(torch.ones(1))  # a late import is noticed at the next forward
            wandb.init()

        def log(loss, step) -> None:
            """Log in both ways, nested and with what is no number."""
            wandb.log({"train": {"loss": loss, "name": "x"}, "picture": object(), "ok": True})
            wandb.run.log(data={"epoch": step})

        losses = train(log)
        history = wandb.run.history
    assert said(recorder, "wandb", "train/loss") == losses
    assert said(recorder, "wandb", "epoch") == [0.0, 1.0, 2.0]
    assert len(heard(recorder, "wandb")) == 6
    assert len(history) == 6
    wandb.run.log({"after": 1})
    assert len(heard(recorder, "wandb")) == 6


def test_wandb_ended_inside_stays_ended(imported) -> None:
    """What wandb itself put in the place of our replacement is left alone."""
    imported(WANDB)
    wandb = importlib.import_module("wandb")
    wandb.init()
    with Recorder("x"):
        wandb.finish()
    assert wandb.log is None


def test_mlflow_is_heard(imported) -> None:
    """Metrics are heard once, through the functions and through the client."""
    imported(MLFLOW)
    mlflow = importlib.import_module("mlflow")
    client = importlib.import_module("mlflow.tracking.client")
    before = [dict(vars(owner)) for owner in (mlflow, mlflow.tracking.fluent, client.MlflowClient)]
    with Recorder("x") as recorder:

        def log(loss, step) -> None:
            """Log in all forms."""
            mlflow.log_metric("loss", loss.item(), step=step)
            mlflow.log_metrics({"a": 0.123456, "b": 2})
            client.MlflowClient().log_metric("run", "c", 1.5)

        losses = train(log)
    after = [dict(vars(owner)) for owner in (mlflow, mlflow.tracking.fluent, client.MlflowClient)]
    assert after == before
    assert said(recorder, "mlflow", "loss") == losses
    assert len(heard(recorder, "mlflow")) == 3 * 4
    assert len(client.STORE) == 3 * 4


def test_what_a_logger_raises_is_raised(tmp_path) -> None:
    """Wrong calls fail as they did, and the next one is heard."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with Recorder("x") as recorder, SummaryWriter(tmp_path) as writer:
        with pytest.raises(TypeError, match="scalar_value"):
            writer.add_scalar("loss")
        with pytest.raises(AttributeError):
            writer.add_scalars("loss", None)
        writer.add_scalar("loss", 0.5)
    assert said(recorder, "tensorboard", "loss") == [0.5]


def test_values_on_an_accelerator_are_fetched_together(monkeypatch, tmp_path) -> None:
    """A tensor that is elsewhere is copied at once and read many at a time."""
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    monkeypatch.setattr(loggers, "_is_far", lambda value: True)
    fetched = []
    stack = torch.stack

    def counted(tensors):
        """Count what is fetched in one go."""
        fetched.append(len(tensors))
        return stack(tensors)

    monkeypatch.setattr(logged, "torch", SimpleNamespace(Tensor=torch.Tensor, stack=counted))

    with Recorder("x") as recorder, SummaryWriter(tmp_path) as writer:
        value = torch.tensor(0.0)
        for _ in range(100):
            value += 1  # in place: the copy must not follow
            recorder.steps += 1
            writer.add_scalar("loss", value)
    assert fetched == [64, 36]
    assert said(recorder, "tensorboard", "loss") == [float(n) for n in range(1, 101)]


def test_lazy_modules_are_not_woken() -> None:
    """Looking for loggers asks modules for nothing that they would have to import."""
    patches = Patches()
    patches.active = True

    class Lazy(type(sys)):
        """A module that imports what it is asked for."""

        def __getattr__(self, name):
            """Refuse."""
            raise AssertionError(name)

    names = ("mlflow", "wandb", "transformers.trainer")
    absent = [name for name in names if name not in sys.modules]
    try:
        sys.modules |= {name: Lazy(name) for name in absent}
        loggers.Loggers(patches, lambda _: True, lambda *_: None).look()
    finally:
        for name in absent:
            del sys.modules[name]
        patches.undo()

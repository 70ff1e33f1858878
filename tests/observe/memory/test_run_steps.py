"""The memory of the steps of a run: predicted as it is, on real tensors where it has to be."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import trainguard as tg
from trainguard.core.errors import SubjectError
from trainguard.core.settings import Settings
from trainguard.events.trace import Trace, Usage
from trainguard.observe.memory.observer import MemoryObservation
from trainguard.observe.memory.predict import FollowedStep
from trainguard.observe.memory.run_call import call_of
from trainguard.observe.memory.run_steps import of_run

WIDTH = 64
PARAMETERS = 4 * (WIDTH * WIDTH + WIDTH) * 2


def network() -> nn.Module:
    """Return a perceptron of two equal layers."""
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def averaged(size: int = 16, workers: int = 2, average: bool = True) -> None:
    """Train with a loader, clipping, an average, and a number that is printed."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    copy = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if average else None
    data = TensorDataset(torch.randn(8 * size, WIDTH))
    for (x,) in DataLoader(data, batch_size=size, shuffle=True, num_workers=workers):
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if copy is not None:
            copy.update_parameters(model)
        print(loss.item())


GLOBAL = network()


def trained_globally() -> None:
    """Train a module that was there before, without a loader."""
    optimizer = torch.optim.SGD(GLOBAL.parameters(), lr=0.1, momentum=0.9)
    for _ in range(5):
        GLOBAL(torch.randn(16, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled() -> None:
    """Train with a gradient scaler, which skips steps with infinite gradients."""
    model, scaler = network(), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        scaler.scale(model(torch.randn(16, WIDTH)).pow(2).mean()).backward()
        scaler.step(optimizer)
        scaler.update()


def decides_by_values() -> None:
    """Train on as many samples as a drawn number says."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        count = int(torch.randint(16, 17, ()))
        model(torch.randn(count, WIDTH)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def followed(train: Callable[..., Any], target: str = "cpu", **at: Any) -> FollowedStep:
    """Follow the steps of a training."""
    return of_run(tg.Loop(train), target, 1 << 33, at)


def highest(train: Callable[..., Any], target: str = "cpu", **at: Any) -> dict[str, int]:
    """Return the most that each category of a training holds."""
    return followed(train, target, **at).timeline.highest()


def test_categories_of_a_run_are_found() -> None:
    """What no declaration says is found out: parameters, gradients, state, average and inputs."""
    seen = followed(averaged)
    most = seen.timeline.highest()
    assert seen.how == "predicted for cpu on fake tensors"
    assert "test_run_steps.py" in seen.detail
    assert most["parameters"] == most["gradients"] == PARAMETERS
    assert most["optimizer"] == 2 * PARAMETERS + 4 * 4
    assert most["averages"] == PARAMETERS
    assert most["inputs"] >= 4 * 16 * WIDTH
    assert most["activations"] >= 4 * 16 * WIDTH


def test_prediction_is_what_real_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """On real tensors the same run takes the same bytes, in all and of each category."""
    from trainguard.observe.memory import run_steps

    gc.unfreeze()  # tests freeze the heap, and a frozen module is not found to be made fake
    for train in (partial(averaged, average=False), trained_globally):
        predicted = followed(train)
        with monkeypatch.context() as patch:
            patch.setattr(run_steps, "_predict", _refused)
            measured = followed(train)
        assert (predicted.how[:9], measured.how) == ("predicted", "measured on cpu")
        assert predicted.timeline.peak().total == measured.timeline.peak().total
        assert predicted.timeline.highest() == measured.timeline.highest()


def _refused(*_: object) -> Any:
    """Refuse to predict."""
    raise SubjectError("it was refused")


def test_a_device_holds_no_data_set_and_works_on_all_parameters() -> None:
    """For CUDA the data set stays on the host, and the optimizer takes room for all at once."""
    device, host = highest(averaged, "cuda"), highest(averaged)
    assert device["inputs"] == 2 * 4 * 16 * WIDTH + 512  # two batches, and the seed of a pass
    assert host["inputs"] > 4 * 8 * 16 * WIDTH
    assert device["temporaries"] > host["temporaries"]


def test_a_module_that_was_there_is_not_touched() -> None:
    """What was made before the run is predicted with, and stays real and untrained."""
    before = [parameter.detach().clone() for parameter in GLOBAL.parameters()]
    most = highest(trained_globally)
    assert most["parameters"] == most["optimizer"] == PARAMETERS
    assert all(torch.equal(a, b) for a, b in zip(before, GLOBAL.parameters(), strict=True))


def test_a_scaler_finds_nothing_infinite() -> None:
    """The optimizer makes its step, and has its state, although no gradient has a value."""
    seen = followed(scaled)
    assert seen.how.startswith("predicted")
    assert seen.timeline.highest()["optimizer"] == 2 * PARAMETERS + 4 * 4


def test_what_decides_by_values_is_measured() -> None:
    """A run that reads a whole number is made for real, and says why."""
    seen = followed(decides_by_values)
    assert seen.how == "measured on cpu"
    assert "DataDependentOutputException" in seen.detail
    assert seen.timeline.highest()["optimizer"] == 2 * PARAMETERS + 4 * 4


def test_arguments_of_a_budget_are_those_of_the_run() -> None:
    """What the budget is about takes the place of what is declared."""
    loop = tg.Loop(averaged, arguments={"size": 16}, budget=tg.Budget(peak="1 GiB"))
    larger = tg.Budget(peak="1 GiB", at={"size": 64})
    small = _peak(loop)
    large = _peak(tg.Loop(averaged, arguments={"size": 16}, budget=larger))
    assert large.sizes == (("size", 64),)
    assert large.measured > small.measured
    assert small.sizes == ()


def _peak(run: tg.Loop | tg.Script) -> Usage:
    """Return the peak that is judged."""
    trace: Trace[Usage] = MemoryObservation(run, "cpu", "float32", Settings()).trace("step")
    return next(seen for seen in trace if seen.quantity == "peak")


def test_a_script_has_a_peak(tmp_path: Path) -> None:
    """A script is executed where it is declared to run, in a process of its own."""
    source = Path(__file__).read_text(encoding="utf-8").split("GLOBAL =")[0]
    path = tmp_path / "train.py"
    path.write_text(f"{source}\nimport sys\naveraged(int(sys.argv[1]), 0)\n", encoding="utf-8")
    script = tg.Script(path, args=["16"], budget=tg.Budget(peak="1 GiB"), directory=tmp_path)
    seen = _peak(script)
    assert seen.measured == _peak(tg.Loop(averaged, budget=tg.Budget(peak="1 GiB"))).measured
    assert seen.source.startswith(str(path))


def test_what_trains_nothing_is_a_fault() -> None:
    """A run without a step cannot be held against a budget; one that raises says what."""
    with pytest.raises(SubjectError, match="it made no optimizer step"):
        followed(network)
    with pytest.raises(SubjectError, match="it raised ZeroDivisionError after 0 steps"):
        followed(lambda: 1 / 0)
    with pytest.raises(SubjectError, match="there is no script"):
        call_of(tg.Script("nowhere.py"))

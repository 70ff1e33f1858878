"""A recorded training on a device is the one that it would have been, and hardly waits for it."""

import gc
import json
import os
import subprocess
import sys
import weakref
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import trainguard.observe
from tests.simulated import ranks
from tests.simulated.device import Counts, counts, places
from tests.simulated.trainings import TRAININGS, adversarial, prefetched, regression
from trainguard.observe.loop import window
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.gradients.gradients import Gradients

OURS = trainguard.observe.__path__[0]
STEPS, DENSE = 40, 20
WATCHED = {*range(8), 14, 32}  # of these steps: all, one in 7 from 5/16 on, one in 16
EARLY = 8  # steps that are all looked at more closely than most


@pytest.fixture(autouse=True)
def _few_dense_steps(monkeypatch) -> None:
    """Let what follows the first steps of a long run come soon."""
    monkeypatch.setattr(window, "DENSE", DENSE)


class Waits:
    """What the host waited for in each step of a training, and where in our code."""

    def __init__(self) -> None:
        self.steps: list[Counts] = []
        self.where: list[Counter[str]] = []
        self._seen: Counter[str] = Counter()

    def train(self, training, device: str, *, recorded: bool, probe: bool = False):
        """Run a training and note each step; return its network and the trace."""
        recorder = Recorder("training", probe=probe)
        with places(OURS) as self._seen:
            self._before = counts()
            if not recorded:
                return training(device, STEPS, self._told), None
            with recorder:
                trained = training(device, STEPS, self._told)
        return trained, recorder.trace

    def _told(self) -> None:
        """Note what was waited for in the step that is over."""
        now = counts()
        self.steps.append(now - self._before)
        self.where.append(Counter(self._seen))
        self._seen.clear()
        self._before = counts()


def added(training, device: str) -> list[tuple[Counts, Counter[str]]]:
    """Return what a recording adds to each step of a training, and where."""
    plain, ours = Waits(), Waits()
    plain.train(training, device, recorded=False)
    gc.collect()  # networks of other trainings would be taken for copies, and compared
    ours.train(training, device, recorded=True)
    more = [a - b for a, b in zip(ours.steps, plain.steps, strict=True)]
    return list(zip(more, ours.where, strict=True))


@pytest.mark.parametrize("training", TRAININGS)
def test_a_recorded_training_is_the_same(training, device):
    """Every parameter and buffer ends with the same bits, recorded or not, with probes too."""
    plain, _ = Waits().train(training, device, recorded=False)
    recorded, trace = Waits().train(training, device, recorded=True, probe=True)
    assert not trace.conditions.get("faults")
    for own, other in zip(plain.state_dict().values(), recorded.state_dict().values(), strict=True):
        assert torch.equal(own, other)


def allowed(index: int) -> int:
    """Return how often an optimizer's step may wait: once where a step before it was watched."""
    return int(index > 0 and index in WATCHED)


@pytest.mark.parametrize("training", TRAININGS)
def test_a_watched_step_waits_once(training, device):
    """The recorder adds one copy for each optimizer's step that it watches, and no other."""
    steps, optimizers = added(training, device), 2 if training is adversarial else 1
    for index, (waited, where) in enumerate(steps):
        assert waited.sent == 0, f"step {index}: {where}"
        waits = optimizers - 1 if not index else allowed(index) * optimizers
        assert waited.waits <= waits, f"step {index}: {where}"


@pytest.mark.parametrize("training", TRAININGS)
def test_a_second_wait_is_noticed(training, device):
    """A watcher that reads a value by itself is found at every step that is watched."""
    before_step = Gradients.before_step

    def reading(self, window):
        """Read a gradient, as nobody should."""
        float(window.parameters[0].grad.sum())
        return before_step(self, window)

    with patch.object(Gradients, "before_step", reading):
        steps, optimizers = added(training, device), 2 if training is adversarial else 1
    own = [waited.waits for waited, _ in steps]
    assert own[0] == 2 * optimizers - 1
    assert own[1:] == [2 * optimizers * allowed(index) for index in range(1, STEPS)]


def test_a_model_that_is_gone_is_not_kept(device):
    """Numbers that are fetched a step later keep no parameter until then."""
    with Recorder("twice", probe=False):
        gone = weakref.ref(regression(device, EARLY, lambda: None)[0].weight)
        assert gone() is None


@pytest.mark.parametrize("waits", [True, False])
def test_a_buffer_that_is_filled_too_early_is_found(waits, device):
    """A batch that is overwritten on its way is counted; a recording brings no such race."""
    before = counts()
    prefetched(device, STEPS, lambda: None, waits=waits)
    torch.sim.synchronize()
    assert (counts() - before).races == (0 if waits else STEPS - 1)
    before = counts()
    with Recorder("training", probe=False):
        prefetched(device, STEPS, lambda: None)
    assert (counts() - before).races == 0


@pytest.mark.parametrize(
    ("options", "found"), [([], set()), (["alone"], {"processes_exchange_gradients"})]
)
def test_two_ranks_on_two_devices(options, found, tmp_path):
    """Each is recorded on its own device, and what should be alike on both is compared."""
    told = tmp_path / "told.json"
    script = [ranks.__file__, *(["--", *options] if options else [])]
    command = [sys.executable, "-m", "trainguard", "run", "--ranks", "2", "--json", str(told)]
    root = str(Path(__file__).parents[2])
    ended = subprocess.run(
        [*command, *script],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        timeout=240,
    )
    said = ended.stdout + ended.stderr
    assert all(f"rank {rank} trained on sim:{rank}" in said for rank in (0, 1)), said
    assert {one["invariant"] for one in json.loads(told.read_text())["findings"]} == found, said

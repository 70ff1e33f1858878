"""
The fixtures are judged on a device as they are on the CPU, in turns on the first and the second.

Losses and models are asked to be there. Whatever trains makes its tensors there, as after
`torch.set_default_device`, in this process and in those that it is begun again in; what a loader
serves is loaded on the host, and moved; a state of torch's random numbers has the device's too.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.simulated.conftest import DEVICES, KIND
from tests.simulated.device import DEFAULT
from tests.simulated.moved import MOVED, DrawnOnHost, moved
from tests.test_matrix import FIXTURES, faults, load, names
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, applicable, verdict
from trainguard.judging.verdict import Verdict
from trainguard.subjects.subject import Subject

WHOLE = bool(os.environ.get("TRAINGUARD_SIMULATED_WHOLE"))  # every fixture, in half an hour
DECLARED = {"loss": 4, "model": 8, "memory": 4}  # how many there are for one that is judged here
TRAINED = {"loop": 5, "schedule": 4, "memory": 4, "checkpoint": 4}
MET = (  # went wrong here once, or is asked for at all times
    *("loop/guard_functional_gradients", "loop/guard_backbone_frozen"),
    *("checkpoint/guard_plain_descent", "checkpoint/guard_numbered_files"),
    "checkpoint/guard_rotation",
)
LOST = ("checkpoint/guard_average_saved_as_model",)
BROKEN = 4  # times as many
SNAPSHOT = "curve_matches_snapshot"  # each type of device has its own, and this one has none
_TRAINS = re.compile(r"^\w+ = tg\.(Loop|Script|Checkpoint|Schedule)\(", re.MULTILINE)
_ELSEWHERE = re.compile(r"num_workers|multiprocessing")  # a device does not live in a worker
NOT_THERE = {  # no accelerator could run them as they are, or the simulated one has no kernel
    *("loop/guard_graph_convolution", "loop/guard_sparse_and_dense"),  # no sparse tensors
    *("loop/guard_arrays_shuffled_apart", "loop/guard_noise_added_to_what_is_stored"),  # of NumPy
    # The step is made, and takes 8 to 22 GiB of the host.
    *("memory/guard_sashimi_kernel_recomputed", "memory/guard_sashimi_kernel_written_out"),
    *("memory/guard_recordings_in_chunks", "memory/guard_resampler_for_every_rate"),  # of NumPy
    "loop/guard_inputs_with_many_targets",  # as above: what `from_numpy` makes is on the host
}
STAYS = {  # whose rows are on the device too: they are chosen by numbers that are there
    "loop/guard_labels_shuffled_apart",
    "loop/guard_padding_counted_as_wrong",
}
UNLIKE = {  # what the CPU finds in them is not there, or the other way round
    "loop/guard_data_sets_that_write",  # six models of 15 steps each: other numbers, no luck
    "loop/guard_critic_told_that_all_is_real",  # not seen there: its targets are read on the host
    # A question's answer alone: a process with an accelerator is not forked.
    *("loop/guard_means_of_uneven_token_counts", "loop/guard_sum_divided_by_micro_batches"),
    "loop/guard_best_kept_by_reference",  # there: `.cpu()` of what is on a device is a copy
    "loop/guard_worst_state_restored",  # a state is known again by its numbers: on the CPU alone
    "loop/guard_pictures_normalised_in_place",  # alike outputs in 21 calls, not 24
}
FEW = {"model/guard_spectrum_of_one_frame"}  # seen where more is explored than `quick` does


def chosen(side: str, families: dict[str, int], times: int = 1) -> list[tuple[str, str]]:
    """Return fixtures, each with one of the devices."""
    found = []
    for family, apart in families.items():
        left_out = UNLIKE | NOT_THERE
        own = [n for n in names(side) if n.startswith(f"{family}/") and n not in left_out]
        own = [n for n in own if family != "memory" or trains(side, n) == (families is TRAINED)]
        able = [name for name in own if not _ELSEWHERE.search(text(side, name))]
        found += able[:: 1 if WHOLE else apart * times]
    return list(zip(found, cycle(DEVICES), strict=False))


def trains(side: str, name: str) -> bool:
    """Say whether a fixture declares what is run, on whatever device it makes its tensors."""
    return bool(_TRAINS.search(text(side, name)))


def text(side: str, name: str) -> str:
    """Return the source of a fixture."""
    return (FIXTURES / side / f"{name}.py").read_text(encoding="utf-8")


@pytest.fixture
def default(request, tmp_path: Path, monkeypatch) -> Iterator[str]:
    """Make a device the default one, in new interpreters too, and return it."""
    place = request.param
    (tmp_path / "sitecustomize.py").write_text("import tests.simulated.present\n")
    roots = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, roots)))
    monkeypatch.setenv(DEFAULT, place)
    torch.set_default_device(place)
    if request.node.callspec.params["name"] not in STAYS:
        monkeypatch.setenv(MOVED, "1")
    with moved(place) if MOVED in os.environ else nullcontext():
        yield place
    torch.set_default_device(None)


@pytest.mark.parametrize("default", DEVICES[:1], indirect=True)
@pytest.mark.parametrize("name", [""])
def test_what_is_drawn_on_the_host(default, name):
    """A real device refuses a generator of the host: what it draws is moved."""
    with DrawnOnHost("meta"):  # the simulated device draws from a generator of the host by itself
        assert torch.randperm(4, generator=torch.Generator("cpu")).is_meta
    with DrawnOnHost(default):
        assert torch.randperm(4, generator=torch.Generator("cpu")).device.type == KIND
        own = torch.randn(3, generator=torch.Generator("cpu"), device="cpu")
        data = torch.utils.data.random_split(range(6), [4, 2])
        loader = torch.utils.data.DataLoader(range(6), 2, shuffle=True)
        assert (own.device.type, len(data[0]), len(list(loader))) == ("cpu", 4, 3)


def anew(side: str, name: str) -> ModuleType:
    """Import a fixture again: it may have made tensors when it was imported elsewhere."""
    sys.modules.pop(f"fixtures.{side}.{name.replace('/', '.')}", None)
    return load(side, name)


def judge(module: ModuleType, place: str, profile: str = "quick") -> list[Verdict]:
    """Return the verdicts on a device, and see to it that trainguard has not failed there."""
    observations = Observations(Settings(profile=profile, ignore=(SNAPSHOT,)))
    subjects = [value for value in vars(module).values() if isinstance(value, Subject)]
    verdicts = [
        verdict(subject, made, config, observations)
        for subject in subjects
        for made, config in applicable(subject, observations.settings, (place,))
    ]
    runs = [v for v in verdicts if v.invariant.family == "loop"]
    traces = [observations.trace(v.subject, v.config, v.invariant) for v in runs]
    assert {trace.conditions.get("device", KIND) for trace in traces} <= {KIND}
    assert faults(verdicts, observations) == set()
    return verdicts


def found(verdicts: list[Verdict]) -> set[str]:
    """Return what is found: notes only of what a device's own kernels would be noted for."""
    broken = {v.invariant.name for v in verdicts if v.outcome == "broken"}
    # The kernels are the CPU's, and warn of outputs that are resized.
    return broken | {v.invariant.name for v in verdicts if v.notes} - {"call_leaves_no_trace"}


def check_found(module: ModuleType, verdicts: list[Verdict]) -> None:
    """See that what a fixture breaks is found; what cannot be judged there has not passed."""
    said = (module.BREAKS | getattr(module, "NOTES", set())) - {SNAPSHOT}
    assert found(verdicts) <= said
    passed = {v.invariant.name for v in verdicts if v.outcome == "passed" and not v.findings}
    skipped = {v.invariant.name for v in verdicts if v.outcome == "skipped"}
    assert said - found(verdicts) <= skipped - passed


@pytest.mark.parametrize(("name", "place"), chosen("healthy", DECLARED))
def test_a_healthy_component_passes(name, place):
    """No finding and no note."""
    assert found(judge(load("healthy", name), place)) == set()


@pytest.mark.parametrize(("name", "place"), chosen("broken", DECLARED, BROKEN))
def test_a_broken_component_is_found(name, place):
    """What it says and nothing else."""
    module = load("broken", name)
    check_found(module, judge(module, place, "ci" if name in FEW else "quick"))


@pytest.mark.parametrize(
    ("name", "default"), [*chosen("healthy", TRAINED), *zip(MET, cycle(DEVICES), strict=False)],
    indirect=["default"],
)  # fmt: skip
def test_a_healthy_run_passes(name, default):
    """No finding and no note."""
    assert found(judge(anew("healthy", name), default)) == set()


@pytest.mark.parametrize(
    ("name", "default"), [*chosen("broken", TRAINED, BROKEN), *zip(LOST, DEVICES, strict=False)],
    indirect=["default"],
)  # fmt: skip
def test_a_broken_run_is_found(name, default):
    """What it says and nothing else."""
    module = anew("broken", name)
    check_found(module, judge(module, default))

"""
The fixtures are judged on a device as they are on the CPU, in turns on the first and the second.

Losses and models are asked to be there. Whatever trains makes its tensors there, as after
`torch.set_default_device`, in this process and in those that it is begun again in.
"""

import os
import re
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.simulated.conftest import DEVICES, KIND
from tests.simulated.device import DEFAULT
from tests.simulated.moved import batches_moved
from tests.test_matrix import FIXTURES, faults, load, names
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, applicable, verdict
from trainguard.judging.verdict import Verdict
from trainguard.subjects.subject import Subject

WHOLE = bool(os.environ.get("TRAINGUARD_SIMULATED_WHOLE"))  # every fixture, in half an hour
DECLARED = {"loss": 4, "model": 8}  # how many there are for one that is judged here
TRAINED = {"loop": 5, "schedule": 4}
MET = ("loop/guard_functional_gradients", "loop/guard_backbone_frozen")  # went wrong here once
BROKEN = 4  # times as many
SNAPSHOT = "curve_matches_snapshot"  # each type of device has its own, and this one has none
# No accelerator could run it as it is: what is in workers, of NumPy's, or drawn on the CPU.
_ELSEWHERE = re.compile(r"num_workers|multiprocessing|numpy|Generator\(|sparse|pack_padded")
UNLIKE = {  # what the CPU finds in them is not there, or not seen
    "loop/guard_best_kept_by_reference",  # there: `.cpu()` of what is on a device is a copy
    "loop/guard_scores_standardised_by_hand",  # asked in a fork, and a device survives none
    "loop/guard_batch_taken_for_time",  # as above
    "loop/guard_average_never_used",  # copies are compared on the CPU alone
    "loop/guard_classes_picked_across_the_softmax",  # so are indices
}


def chosen(side: str, families: dict[str, int], times: int = 1) -> list[tuple[str, str]]:
    """Return fixtures, each with one of the devices."""
    found = []
    for family, apart in families.items():
        own = [name for name in names(side) if name.startswith(f"{family}/") and name not in UNLIKE]
        able = [name for name in own if not _ELSEWHERE.search(text(side, name))]
        found += able[:: 1 if WHOLE else apart * times]
    return list(zip(found, cycle(DEVICES), strict=False))


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
    with batches_moved(place):
        yield place
    torch.set_default_device(None)


def anew(side: str, name: str) -> ModuleType:
    """Import a fixture again: it may have made tensors when it was imported elsewhere."""
    sys.modules.pop(f"fixtures.{side}.{name.replace('/', '.')}", None)
    return load(side, name)


def judge(module: ModuleType, place: str) -> list[Verdict]:
    """Return the verdicts on a device, and see to it that trainguard has not failed there."""
    profile = "ci" if WHOLE else "quick"
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
    check_found(module, judge(module, place))


@pytest.mark.parametrize(
    ("name", "default"), [*chosen("healthy", TRAINED), *zip(MET, cycle(DEVICES), strict=False)],
    indirect=["default"],
)  # fmt: skip
def test_a_healthy_run_passes(name, default):
    """No finding and no note."""
    assert found(judge(anew("healthy", name), default)) == set()


@pytest.mark.parametrize(
    ("name", "default"), chosen("broken", TRAINED, BROKEN), indirect=["default"]
)
def test_a_broken_run_is_found(name, default):
    """What it says and nothing else."""
    module = anew("broken", name)
    check_found(module, judge(module, default))


@pytest.mark.parametrize(
    ("name", "default", "breaks"),
    [
        ("guard_plain_descent", "sim:0", set()),
        # It keeps the CPU's stream of random numbers, and draws on the device.
        ("guard_numbered_files", "sim:1", {"resume_continues_the_run"}),
    ],
    indirect=["default"],
)
def test_a_checkpoint_is_resumed_on_a_device(name, default, breaks):
    """A run goes on in a new process as it would have, unless it draws what it does not keep."""
    assert found(judge(anew("healthy", f"checkpoint/{name}"), default)) == breaks

"""Every broken fixture breaks what it says and nothing else; a healthy one breaks nothing."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from tests.forks import trainguard_run
from tests.test_how_to import change
from tests.torches import HAS_FULLY_SHARD
from trainguard.command.memory.target import load_file
from trainguard.core.catalogue import catalogue
from trainguard.core.settings import Settings
from trainguard.events.counterfactual import WhatIf
from trainguard.judging.judge import Observations, applicable, devices_present, verdict
from trainguard.judging.verdict import Verdict
from trainguard.observe.loop.counterfactual import asking
from trainguard.report.text import render_verdict
from trainguard.subjects.subject import Subject

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS = (
    "A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A11 A12 A13 A14 B1 B2 B3 B4 B5 B6 B7 B8 B9 B10 B11 B12 B13 B14"
    " C1 C2 C3 C4 C5 C6 C7 C8 C9 C10 C11 C14"
    " D1 D2 D3 D4 D5 D6 D7 D8 D9 D10 D11 D12 D13 E1 E2 E3 E4 E5 E6 E7 E8 E9 E10 E11"
)
ROW = re.compile(r"\b[A-E]\d{1,2}\b")


def names(side: str) -> list[str]:
    """Return the fixtures on one side, healthy or broken, each as `family/guard_name`."""
    files = [file for file in (FIXTURES / side).glob("*/guard_*.py") if _can_import(file)]
    return sorted(f"{file.parent.name}/{file.stem}" for file in files)


def _can_import(fixture: Path) -> bool:
    """Say whether this torch has what a fixture is about, as it may be too old."""
    return HAS_FULLY_SHARD or "fully_shard" not in fixture.read_text("utf-8")


def scripts(side: str) -> list[str]:
    """Return the fixtures that train, and so can be run as scripts."""
    return [name for name in names(side) if name.startswith("loop/")]


def found_by_run(side: str, name: str, folder: Path) -> dict[str, str]:
    """Run a fixture under `trainguard run` and return {invariant: rank} of what was found."""
    run = trainguard_run(folder, str(FIXTURES / side / f"{name}.py"))
    assert run.code in (0, 1), run.printed
    ranks = {finding["invariant"]: finding["rank"] for finding in run.told["findings"]}
    assert run.code == ("broken" in ranks.values())
    return ranks


def load(side: str, name: str) -> ModuleType:
    """Import one fixture."""
    return import_module(f"fixtures.{side}.{name.replace('/', '.')}")


def sampled(side: str) -> list[Any]:
    """Return the fixtures of a side; all but one in 100 that train are slow, and 7 in 8 others."""
    train = scripts(side)
    others = [name for name in names(side) if name not in train]
    later = {name for place, name in enumerate(train) if place % 100} | {
        name for place, name in enumerate(others) if place % 8
    }
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow) if n in later else n for n in names(side)]


def mended() -> list[Any]:
    """Return the broken fixtures with a change that mends them; one in seventy is quick."""
    names = sorted(f"{f.parent.name}/{f.stem}" for f in (FIXTURES / "broken").glob("*/*.diff"))
    slow = pytest.mark.slow
    return [pytest.param(n, marks=slow) if place % 100 else n for place, n in enumerate(names)]


@cache
def broken() -> tuple[ModuleType, ...]:
    """Return all broken fixtures."""
    return tuple(load("broken", name) for name in names("broken"))


def judged(module: ModuleType, observations: Observations) -> list[Verdict]:
    """Judge the subjects of a fixture by everything that applies to them."""
    subjects = [value for value in vars(module).values() if isinstance(value, Subject)]
    assert subjects, "a fixture declares a subject"
    return [
        verdict(subject, made, config, observations)
        for subject in subjects
        for made, config in applicable(subject, observations.settings, devices_present())
    ]


def faults(verdicts: list[Verdict], observations: Observations) -> set[str]:
    """Return what trainguard itself failed at: what a watcher does not see is neither found."""
    runs = {id(v.subject): v for v in verdicts if v.invariant.family == "loop"}
    traces = [observations.trace(v.subject, v.config, v.invariant) for v in runs.values()]
    return {str(fault) for trace in traces for fault in trace.conditions.get("faults", ())}


def given_up(verdicts: list[Verdict], observations: Observations) -> list[str]:
    """Return which questions had no answer, and why: what they would have shown is not found."""
    runs = {id(v.subject): v for v in verdicts if v.invariant.family == "loop"}
    traces = [observations.trace(v.subject, v.config, v.invariant) for v in runs.values()]
    asked = [event for trace in traces for event in trace if isinstance(event, WhatIf)]
    return [f"{e.question} ({e.step}): {e.reason}" for e in asked if e.outcome != "answered"]


@pytest.fixture(autouse=True)
def _enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all questions asked: how many fit into the time of a short run is not the matter."""
    monkeypatch.setattr(asking, "_CREDIT", asking._MOST)
    monkeypatch.setitem(counters, "frames", Counter())  # what other fixtures have compiled


@pytest.mark.parametrize("name", sampled("broken"))
def test_a_broken_fixture_breaks_what_it_says(name: str) -> None:
    """BREAKS are the invariants that fail, NOTES those that only remark; no other says a word."""
    module = load("broken", name)
    observations = Observations(Settings())
    verdicts = judged(module, observations)
    breaks = {v.invariant.name for v in verdicts if v.outcome == "broken"}
    notes = {v.invariant.name for v in verdicts if v.notes} - breaks
    assert faults(verdicts, observations) == set()
    said = [render_verdict(v) for v in verdicts if v.invariant.name not in module.BREAKS]
    texts = "\n\n".join([*filter(None, said), *given_up(verdicts, observations)])
    assert (breaks, notes) == (module.BREAKS, getattr(module, "NOTES", set())), texts
    assert [words for verdict in verdicts for words in unread_numbers(verdict)] == []
    found = [v for v in verdicts if v.findings]
    traces = [observations.trace(v.subject, v.config, v.invariant) for v in found]
    assert {v.invariant.evidence(t) for v, t in zip(found, traces, strict=True)} <= {""}


# Digits that are no measured number: quoted text, names such as float32, errors, shapes, ranges and
# steps as the names of batches and parameters.
NO_NUMBER = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|\b[A-Za-z_][\w.]*\d[\w.]*|it raised .*|\w+Error.*"""
    r"""|\(\d*(, \d+)*,?\)|\b(?:step|epoch) \d+|\S+ to \S+$|.*\.json\b.*"""
)


def unread_numbers(verdict: Verdict) -> list[str]:
    """Return what was measured or allowed in words with a number that is no value."""
    measures = [m for finding in verdict.findings for m in (finding.measured, finding.allowed)]
    return [m for m in measures if m.value is None and re.search(r"\d", NO_NUMBER.sub("", m))]


@pytest.fixture
def _trainings_left() -> Iterator[None]:
    """Keep models and optimizers of earlier trainings in memory, some with large gradients."""
    models = [nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)) for _ in range(12)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for model in models[::2]:
        (1e3 * model(torch.ones(4, 5)).square().sum()).backward()
    yield
    del optimizers


@pytest.mark.parametrize(
    ("side", "name"),
    [
        ("broken", "loop/guard_average_after_a_warmup"),
        ("broken", "loop/guard_means_of_uneven_token_counts"),
        ("broken", "loop/guard_thawed_for_a_former_optimizer"),
        ("healthy", "loop/guard_functional_training"),
    ],
)
@pytest.mark.usefixtures("_trainings_left")
def test_trainings_that_are_left_in_memory(side: str, name: str) -> None:
    """They are none of the one that is judged."""
    module = load(side, name)
    verdicts = judged(module, Observations(Settings()))
    said = {v.invariant.name for v in verdicts if v.findings}
    assert said == getattr(module, "BREAKS", set()) | getattr(module, "NOTES", set())


@pytest.mark.parametrize("name", mended())
def test_a_broken_fixture_is_mended(name: str, tmp_path: Path) -> None:
    """With the change that stands beside it, which the site shows, a fixture breaks nothing."""
    text = (FIXTURES / "broken" / f"{name}.py").read_text(encoding="utf-8")
    changed = (FIXTURES / "broken" / f"{name}.diff").read_text(encoding="utf-8")
    for hunk in changed.split("@@\n")[1:]:
        text = change(text, hunk)
    file = tmp_path / f"mended_{Path(name).name}.py"
    file.write_text(text, encoding="utf-8")
    module = load_file(file)
    verdicts = judged(module, Observations(Settings()))
    assert [render_verdict(v) for v in verdicts if v.outcome == "broken"] == []
    noted = {v.invariant.name for v in verdicts if v.notes}
    assert noted & (module.BREAKS | getattr(module, "NOTES", set())) == set()


@pytest.mark.parametrize("name", sampled("healthy"))
def test_a_healthy_fixture_passes_everything(name: str) -> None:
    """No finding, no note and no excuse."""
    observations = Observations(Settings())
    verdicts = judged(load("healthy", name), observations)
    assert faults(verdicts, observations) == set()
    assert [f.summary for v in verdicts for f in v.findings] == []
    assert [v.subject.name for v in verdicts if v.subject.allow] == []


@pytest.mark.parametrize("side", ["broken", "healthy"])
def test_a_fixture_has_nothing_that_pytest_would_call(side: str) -> None:
    """`pytest --trainguard` on the folder runs subjects alone: a function called `test` is one."""
    called = [(name, n) for name in names(side) for n in vars(load(side, name)) if n[:4] == "test"]
    assert [pair for pair in called if callable(getattr(load(side, pair[0]), pair[1]))] == []


@pytest.mark.parametrize("name", scripts("broken"))
def test_a_broken_training_is_found_by_run(name: str, tmp_path: Path) -> None:
    """Without its declaration, a training breaks what it says: UNDECLARED, or else BREAKS."""
    module = load("broken", name)
    ranks = found_by_run("broken", name, tmp_path)
    breaks = {invariant for invariant, rank in ranks.items() if rank == "broken"}
    assert breaks == getattr(module, "UNDECLARED", module.BREAKS)


@pytest.mark.parametrize("name", scripts("healthy"))
def test_a_healthy_training_passes_run(name: str, tmp_path: Path) -> None:
    """`trainguard run` has nothing to say, not even a note."""
    assert found_by_run("healthy", name, tmp_path) == {}


@pytest.mark.parametrize("key", [made.key for made in catalogue()])
def test_an_invariant_is_broken_by_some_fixture(key: str) -> None:
    """An invariant that nothing breaks may be one that cannot fail."""
    family, name = key.split(".")
    if name in ("devices_agree", "headroom_is_kept"):
        pytest.skip("nothing computes differently, or fills up, a device that is not there")
    breakers = [m for m in broken() if name in m.BREAKS | getattr(m, "NOTES", set())]
    assert any(family in subject.families for m in breakers for subject in vars(m).values()
               if isinstance(subject, Subject))  # fmt: skip


@pytest.mark.parametrize("row", ROWS.split())
def test_a_failure_that_was_met_has_a_fixture(row: str) -> None:
    """Every row of the post-mortems that these families can show is named in some MET."""
    assert any(row in ROW.findall(module.MET) for module in broken())

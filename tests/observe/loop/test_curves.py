"""Curves of a real run: held against their snapshots, blessed, refused, kept for one version."""

from dataclasses import dataclass, field
from functools import cache

import pytest
import torch

import trainguard as tg
from fixtures.healthy.loop import guard_any_number_of_workers
from tests.observe.loop.trainings import adversaries, plain
from trainguard.core.settings import Settings
from trainguard.curves.curve import Curve
from trainguard.events.curve import Kept
from trainguard.observe.loop.curves import RERUNS, files_of
from trainguard.observe.loop.observer import observe

STEPS = 12


@dataclass
class Shelf:
    """Snapshots in a dict, which take what is to be blessed."""

    texts: dict[str, str] = field(default_factory=dict)
    updating: bool = False
    wrong: str = ""
    outcomes: list[tuple[str, str]] = field(default_factory=list)

    def read(self, name, /):
        """Return what is kept under a name."""
        return self.texts.get(name)

    def place(self, name, /):
        """Return the name."""
        return name

    def blesses(self, _missing, /):
        """Say whether to update."""
        return self.updating

    def objection(self, _trace, /):
        """Return what is wrong."""
        return self.wrong

    def settle(self, name, text, outcome, /):
        """Remember what was settled, and keep what was blessed."""
        self.outcomes.append((name, outcome))
        if outcome == "blessed":
            self.texts[name] = text


def compared(loop: tg.Loop, shelf: Shelf, **settings) -> list[Kept]:
    """Hold the curves of a loop against a shelf."""
    observation = observe(loop, "", "", Settings(**settings))
    observation.archive = shelf
    return list(observation.trace("curve"))


def blessed(loop: tg.Loop) -> Shelf:
    """Return a shelf on which the curves of a loop were blessed."""
    shelf = Shelf(updating=True)
    assert [kept.refused for kept in compared(loop, shelf)] == [""] * len(shelf.texts)
    shelf.updating, shelf.outcomes = False, []
    return shelf


@cache
def base() -> dict[str, str]:
    """Return the snapshots of the plain training; blessed once for all tests."""
    return blessed(declared()).texts


def plainly() -> Shelf:
    """Return a shelf on which the plain training was blessed."""
    return Shelf(dict(base()))


def outcomes(loop: tg.Loop, shelf: Shelf) -> list[str]:
    """Return how each curve of a loop compares."""
    compared(loop, shelf)
    return [outcome for _, outcome in shelf.outcomes]


def declared(train=lambda: plain(STEPS), curve=("loss", "grad_norm"), **more) -> tg.Loop:
    """Return a loop whose curves are kept."""
    return tg.Loop(train, curve=curve, **more)


def test_a_blessed_run_fits() -> None:
    """Its snapshot holds its values, its drift and its conditions."""
    shelf = plainly()
    assert outcomes(declared(), shelf) == ["fits", "fits"]
    curve = Curve.from_text(shelf.texts["loss-cpu"])
    assert (curve.column, len(curve.steps), curve.made) == ("loss", STEPS, STEPS)
    assert 0 < curve.drift[-1] < 1e-4
    assert curve.conditions["torch"] == torch.__version__
    assert {n: curve.conditions[n] for n in ("seed", "device", "dtype", "threads")} == {
        "seed": "0",
        "device": "cpu",
        "dtype": "float32",
        "threads": "1",
    }


def test_a_missing_snapshot_is_not_written() -> None:
    """Not by a run that does not bless."""
    shelf = Shelf()
    events = compared(declared(), shelf)
    assert [event.kept for event in events] == ["", ""]
    assert (shelf.texts, outcomes(declared(), shelf)[-1]) == ({}, "fails")


def test_a_run_is_made_once_unless_it_is_blessed() -> None:
    """To compare costs no further run, to bless five; what fits is not blessed again."""
    made: list[int] = []

    def train() -> None:
        """Train, and count the runs."""
        made.append(1)
        plain(STEPS)

    loop = declared(train)
    shelf = blessed(loop)
    assert len(made) == 1 + RERUNS
    made.clear()
    shelf.updating = True
    assert outcomes(loop, shelf) == ["fits", "fits"]
    assert len(made) == 1


@pytest.mark.parametrize(
    "changed",
    [
        lambda: plain(STEPS, make=lambda p, lr: torch.optim.SGD(p, lr=1.001 * lr)),
        lambda: plain(STEPS, make=lambda p, lr: torch.optim.SGD(p, lr=lr, weight_decay=1e-4)),
        lambda: plain(STEPS, make=torch.optim.Adam),
        lambda: plain(STEPS, clip=0.5),
        lambda: plain(STEPS, zero=False),
        lambda: (torch.rand(1), plain(STEPS)),
    ],
    ids=["rate", "decay", "optimizer", "clipping", "zeroing", "stream"],
)
def test_a_changed_training_does_not_fit(changed) -> None:
    """Neither a rate that is 0.1 % higher nor a random number that is drawn before."""
    shelf = plainly()
    assert set(outcomes(declared(changed), shelf)) == {"fails"}


@pytest.mark.parametrize(
    "same",
    [
        lambda: plain(STEPS, make=lambda p, lr: torch.optim.SGD(p, lr=lr, foreach=False)),
        lambda: plain(STEPS, make=lambda p, lr: torch.optim.SGD(p, lr=lr, fused=True)),
        lambda: plain(STEPS, make=lambda p, lr: torch.optim.SGD(list(p)[::-1], lr=lr)),
        lambda: (torch.set_num_threads(2), plain(STEPS)),
    ],
    ids=["foreach", "fused", "reversed", "threads"],
)
def test_a_training_that_is_only_written_otherwise_fits(same) -> None:
    """What differs by roundings is in the band."""
    assert outcomes(declared(same), plainly()) == ["fits", "fits"]


def test_the_seed_of_a_session_changes_no_curve() -> None:
    """A session that explores from another seed is no reason for an alarm."""
    shelf = plainly()
    compared(declared(), shelf, seed=7)
    assert [outcome for _, outcome in shelf.outcomes] == ["fits", "fits"]


def test_each_optimizer_has_its_snapshot() -> None:
    """A generator and its critic are kept apart."""
    shelf = blessed(declared(adversaries, curve=("loss",)))
    assert set(shelf.texts) == {"loss-cpu", "loss.Adam#2-cpu"}


def diverging() -> None:
    """Train at a rate at which the loss is soon no number."""
    plain(60, make=lambda p, lr: torch.optim.SGD(p, lr=1e6))


def test_what_is_not_finite_is_not_blessed() -> None:
    """It says from which step on."""
    shelf = Shelf(updating=True)
    (kept,) = compared(declared(diverging, curve=("loss",)), shelf)
    assert kept.refused.startswith("it is not finite at step ")
    assert shelf.texts == {}
    assert shelf.outcomes == [("loss-cpu", "fails")]


def test_what_somebody_objects_to_is_not_blessed() -> None:
    """The objection is the reason, and nothing is written over."""
    shelf = plainly()
    before = dict(shelf.texts)
    shelf.updating, shelf.wrong = True, "loss_falls is broken in the same run"
    (kept,) = compared(declared(lambda: plain(STEPS, clip=0.1), curve="loss"), shelf)
    assert kept.refused == "loss_falls is broken in the same run"
    assert shelf.texts == before


def test_a_bad_file_is_blessed_anew() -> None:
    """That is what an update is for; without one it is left as it is."""
    shelf = plainly()
    good = shelf.texts["loss-cpu"]
    shelf.texts["loss-cpu"] = good[:300]
    assert outcomes(declared(curve="loss"), shelf) == ["fails"]
    assert shelf.texts["loss-cpu"] == good[:300]
    shelf.updating = True
    compared(declared(curve="loss"), shelf)
    assert shelf.texts["loss-cpu"] == good


def other_torch(text: str, scale: float = 1.0) -> str:
    """Return a snapshot as another version of torch would have made it."""
    curve = Curve.from_text(text)
    runs = tuple(tuple(value * scale for value in run) for run in curve.runs)
    conditions = {**curve.conditions, "torch": "1.13.1"}
    return Curve("loss", curve.steps, runs, curve.drift, curve.made, conditions).to_text()


def test_a_snapshot_of_another_version_holds_where_it_can() -> None:
    """Then there is one for all."""
    shelf = plainly()
    shelf.texts["loss-cpu"] = other_torch(shelf.texts["loss-cpu"])
    shelf.updating = True
    assert outcomes(declared(curve="loss"), shelf) == ["fits"]
    assert set(shelf.texts) == set(base())


def test_a_version_is_kept_apart_where_the_common_snapshot_does_not_hold() -> None:
    """The common one stays, the report has both, and from then on either may hold."""
    shelf = plainly()
    common = shelf.texts["loss-cpu"] = other_torch(shelf.texts["loss-cpu"], 1.01)
    assert outcomes(declared(curve="loss"), shelf) == ["fails"]
    shelf.updating = True
    (kept,) = compared(declared(curve="loss"), shelf)
    own = "loss-cpu-torch" + ".".join(torch.__version__.split(".")[:2])
    assert set(shelf.texts) == {*base(), own}
    assert (shelf.texts["loss-cpu"], kept.apart, kept.place) == (common, common, own)
    shelf.updating, shelf.outcomes = False, []
    (kept,) = compared(declared(curve="loss"), shelf)
    assert shelf.outcomes == [(own, "fits")]
    assert kept.apart == ""


def noisy(seed: int = 0) -> None:
    """Train from a seed that is given."""
    torch.manual_seed(seed)
    plain(40)


def test_several_seeds_are_compared_as_distributions() -> None:
    """The snapshot has a column for each; other seeds fit, another rate does not."""
    loop = declared(noisy, curve=("loss",), seeds=4)
    shelf = blessed(loop)
    assert len(Curve.from_text(shelf.texts["loss-cpu"]).runs) == 4
    assert outcomes(loop, shelf) == ["fits"]
    shifted = declared(lambda seed=0: noisy(seed + 100), curve=("loss",), seeds=4)
    assert outcomes(shifted, shelf)[-1] == "fits"
    far = declared(lambda: plain(40, make=lambda p, lr: torch.optim.SGD(p, 1e-5)), "loss", seeds=4)
    assert outcomes(far, shelf)[-1] == "fails"


def test_seeds_that_change_nothing_are_refused() -> None:
    """A function that seeds itself has no spread to compare with."""
    shelf = Shelf(updating=True)

    def fixed() -> None:
        """Seed whatever is asked for."""
        noisy(3)

    (kept,) = compared(declared(fixed, curve=("loss",), seeds=3), shelf)
    assert kept.refused.startswith("all seeds give the same curve")


def test_memory_is_not_compared_on_a_cpu() -> None:
    """It has no text, so that the judge says so."""
    (kept,) = compared(declared(curve="memory"), Shelf())
    assert (kept.column, kept.found) == ("memory", "")


def test_snapshots_stand_beside_the_declaration() -> None:
    """Named after the variable, in the folder that syrupy keeps for the file."""
    files = files_of(guard_any_number_of_workers.loop)
    folder = "__snapshots__/guard_any_number_of_workers"
    assert files.place("loss-cpu") == f"{folder}/loop.curve_matches_snapshot[loss-cpu].curve"
    assert files.read("loss-cpu") is None
    assert not files.blesses(True)

"""Hand-written traces of training runs, and what the judges say about them."""

from collections.abc import Callable, Iterable
from math import nan

import pytest

from trainguard.core.catalogue import find_invariants
from trainguard.core.finding import Finding
from trainguard.events.base import Event
from trainguard.events.loop import Evaluation, Scheduler, Step
from trainguard.events.trace import Trace


def wiggle(index: int) -> float:
    """Return what tells one batch from another: a number in -1 to 1 that looks like noise."""
    return ((index * 7919) % 101) / 50 - 1


def write(count: int = 20, **more) -> list[Step]:
    """
    Write a healthy run of one optimizer, with some columns replaced.

    A value holds for every step; a function is called with the step's number.
    """
    rows = [{name: v(i) if callable(v) else v for name, v in more.items()} for i in range(count)]
    return [_step(index, row) for index, row in enumerate(rows)]


def _step(index: int, more: dict) -> Step:
    """Write one healthy step; what depends on a replaced column follows it."""
    loss = more.get("loss", 2.0 * 0.98**index * (1 + 0.05 * wiggle(index)))
    norm = more.get("norm", 1.0 + 0.2 * wiggle(index))
    surveyed = index % 10 == 0
    healthy = {
        "step": index,
        "clock": 10 * (index + 1),
        "source": "/home/me/train.py:12",
        "loss": loss,
        "losses": (loss,),
        "weights": (1.0,),
        "order": ("zero", "forward", "backward"),
        "received": 4,
        "held": 4,
        "norm": norm,
        "norm_before": norm,
        "layers": tuple((f"Net.fc{n}.weight", norm / n, 256) for n in (1, 2, 3)) * surveyed,
        "rates": (1e-3,),
        "update": 0.01 if surveyed else nan,
        "weight": 10.0 if surveyed else nan,
        "trained": 1,
        "batch": (32,),
        "fingerprints": (1000 + index,),
        "seconds": 0.01,
        "memory": 1 << 28,
    }
    return Step(**{**healthy, **more})


def judge(
    name: str, events: Iterable[Event], conditions: dict | None = None, **promises
) -> list[Finding]:
    """Judge a trace with one invariant; the run finished by itself unless conditions say else."""
    header = {"ended": "finished", **(conditions or {})}
    trace = Trace("train", tuple(events), conditions=header, promises=promises)
    return list(find_invariants(f"loop.{name}")[0].judge(trace))


def adversarial() -> list[Event]:
    """Write a GAN: two optimizers, losses that go nowhere, one network's norm zero at times."""
    kept = {"norm": lambda i: 0.0 if i % 3 else 1.0, "loss": lambda i: 0.0 if i % 3 else 0.4}
    critic = write(60, optimizer="Adam", **kept)
    maker = write(
        60,
        optimizer="Adam#2",
        clock=lambda i: 10 * i + 15,
        order=("zero", "forward", "backward", "zero", "forward", "backward"),
        loss=lambda i: 1 + i / 20 + 0.5 * wiggle(i),
        losses=lambda i: (0.0 if i % 3 else 0.4, 1 + i / 20 + 0.5 * wiggle(i)),
    )
    return sorted([*critic, *maker], key=lambda step: step.clock)


def policy_gradient() -> list[Event]:
    """Write a policy gradient: losses of any sign, rollouts, every other advantage zero."""
    return [
        Evaluation(step=0, module="Policy", passes=200, routine=True),
        *write(60, loss=lambda i: wiggle(i) * (i % 2), norm=lambda i: float(i % 2)),
    ]


def scaled() -> list[Event]:
    """Write a float16 run: the scaler skips the first steps, and one in the middle."""
    skips = {0, 1, 2, 30}
    return [
        *write(
            60,
            scale=lambda i: 2.0 ** (16 - min(i, 3) - (i > 30)),
            skipped=lambda i: i in skips,
            norm=lambda i: float("inf") if i in skips else 1.0 + 0.2 * wiggle(i),
            culprit=lambda i: "gradient of `Net.fc1.weight`" if i in skips else "",
            order=lambda i: ("schedule",) * (i > 0) + ("zero", "forward", "backward", "unscale"),
            reported=(1e-3,),
        ),
        Scheduler(name="LambdaLR", optimizer="SGD", calls=60, early=3),
    ]


def scheduled(rate: Callable[[int], float], name: str) -> list[Event]:
    """Write a run of a scheduler that is advanced after each step."""
    return [
        *write(
            60,
            rates=lambda i: (rate(i),),
            reported=lambda i: (rate(i),),
            order=lambda i: ("schedule",) * (i > 0) + ("zero", "forward", "backward"),
        ),
        Scheduler(name=name, optimizer="SGD", calls=60),
    ]


def accumulated() -> list[Event]:
    """Write accumulation over four micro-batches, a shorter last window, and clipping."""
    return write(
        40,
        losses=lambda i: (0.5 * 0.98**i,) * (4 if i % 10 < 9 else 2),
        loss=lambda i: 2.0 * 0.98**i * (1.0 if i % 10 < 9 else 0.5),
        weights=lambda i: (0.25,) * (4 if i % 10 < 9 else 2),
        batch=(8, 8, 8, 8),
        trained=4,
        order=("zero", "forward", "backward", "forward", "backward", "clip"),
        clip="taken",
        clip_limit=1.0,
        norm=lambda i: min(1.0, 1.0 + 0.2 * wiggle(i)),
        norm_before=lambda i: 1.0 + 0.2 * wiggle(i),
    )


def unknown() -> list[Event]:
    """Write steps of which next to nothing is known."""
    return [Step(step=index) for index in range(60)]


UNUSUAL = {
    "gan": adversarial,
    "policy gradient": policy_gradient,
    "scaler": scaled,
    "warm restarts": lambda: scheduled(lambda i: 1e-3 * (1 - i % 20 / 20), "CosineWarmRestarts"),
    "to zero": lambda: scheduled(lambda i: 1e-3 * (1 - i / 59), "CosineAnnealingLR"),
    "from zero": lambda: scheduled(lambda i: 1e-3 * min(1.0, i / 20), "LambdaLR"),
    "accumulation": accumulated,
    "lbfgs": lambda: write(
        60,
        optimizer="LBFGS",
        rates=(1.0,),
        order=("zero", "forward", "backward"),
        loss=lambda i: 3.0 * 0.2 ** min(i, 15),
        update=lambda i: 4.0 * 0.2 ** min(i, 15),
        weight=lambda i: 4.0,
        norm=lambda i: 5.0 * 0.2 ** min(i, 15),
    ),
    "by hand": lambda: write(
        60, optimizer="by hand", rates=(), received=0, norm=nan, norm_before=nan, layers=()
    ),
    "zero start": lambda: write(60, update=lambda i: 0.5, weight=lambda i: 0.5 * (i + 1) ** 0.5),
    "thinned": lambda: write(40, step=lambda i: i if i < 20 else 20 + 50 * (i - 20), span=50),
    "single": lambda: write(1),
    "none": list,
    "unknown": unknown,
    "healthy": lambda: write(60),
}


@pytest.fixture(params=UNUSUAL.values(), ids=UNUSUAL.keys())
def unusual(request) -> list[Event]:
    """Write each healthy run that a naive judge would object to, and the plain ones."""
    return request.param()


@pytest.fixture(scope="session")
def steps() -> Callable[..., list[Step]]:
    """Write a healthy run of one optimizer, with some columns replaced."""
    return write


@pytest.fixture(scope="session")
def noise() -> Callable[[int], float]:
    """Return what tells one batch from another: a number in -1 to 1 that looks like noise."""
    return wiggle


@pytest.fixture(scope="session")
def judged() -> Callable[..., list[Finding]]:
    """Judge events with one invariant."""
    return judge


@pytest.fixture(scope="session")
def ranks() -> Callable[..., list[str]]:
    """Judge events with one invariant, and return the ranks of the findings."""
    return lambda *a, **k: [finding.rank.value for finding in judge(*a, **k)]

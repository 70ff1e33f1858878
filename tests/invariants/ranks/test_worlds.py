"""What the judges say about one run with several numbers of processes."""

from typing import Any

import pytest

import trainguard as tg
from trainguard.core.catalogue import find_invariants
from trainguard.core.errors import DeclarationError
from trainguard.events.ranks import WorldRun
from trainguard.events.trace import Trace


def judge(name: str, *worlds: WorldRun, batch: int | None = 64) -> Any:
    """Judge the runs with one invariant."""
    made = find_invariants(f"ranks.{name}")[0]
    trace = Trace("train", worlds, promises={"batch_of_all": batch})
    found = list(made.judge(trace))
    assert not (found and made.evidence(trace))
    return found


def world(count: int, size: int = 64, loss: float = 2.0, norm: float = 1.0) -> WorldRun:
    """Write a run of so many processes, of which the last step of an epoch is smaller."""
    samples = (size, size, size, size // 2) * 2
    return WorldRun(
        world=count, optimizer="SGD", samples=samples, losses=(loss,) * 8, norms=(norm,) * 8
    )


def test_the_batch_of_all_processes() -> None:
    """It is what was promised; twice as many samples are told of, and why."""
    name = "batch_is_shared_by_the_world"
    assert judge(name, world(1), world(2)) == []
    (found,) = judge(name, world(1), world(2, 128))
    assert found.measured == "128 samples, in 6 of 8 steps"
    assert "is not divided" in found.why
    assert judge(name, world(1), world(2, 128), batch=None) == []


@pytest.mark.parametrize(
    ("loss", "norm", "why"),
    [
        (2.0, 2.0, "N for N = 2"),
        (1.0, 0.5, "1/N for N = 2"),
        (2.0, 2**0.5, "sqrt(N) for N = 2"),
        (2.0, 1.0, ""),
        (2.1, 2.0, ""),  # another batch
        (2.0, 1.9, ""),
    ],
)
def test_gradients_of_another_size(loss: float, norm: float, why: str) -> None:
    """Those that are off by a factor of the number of processes, where the batch is the same."""
    found = judge("gradients_keep_their_size", world(1), world(2, loss=loss, norm=norm))
    assert [one.why.partition(":")[0] for one in found] == ([why] if why else [])
    assert judge("gradients_keep_their_size", world(1), world(2, 128, norm=2.0)) == []


@pytest.mark.parametrize("ranks", [(), (0, 2), (1, "2"), 0])
def test_numbers_of_processes_that_cannot_be(ranks: Any) -> None:
    """They are refused with a sentence."""
    with pytest.raises(DeclarationError, match=r"tg.Loop\(ranks="):
        tg.Loop(test_the_batch_of_all_processes, ranks=ranks)


def test_a_script_is_run_once() -> None:
    """It takes one number of processes; a loop takes several, of which the most are judged."""
    with pytest.raises(DeclarationError, match="a script is run once"):
        tg.Script("train.py", ranks=(1, 2))
    loop = tg.Loop(test_a_script_is_run_once, ranks=(2, 1), batch=64)
    assert (loop.worlds, loop.processes, loop.promises["batch"]) == ((1, 2), 2, None)
    assert loop.families == ("loop", "ranks")

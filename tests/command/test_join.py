"""`trainguard join`: traces that processes have written, and folders in which they are not."""

import pytest

from tests.forks import command
from trainguard.events.loop import Step
from trainguard.events.ranks import ReplicaSums
from trainguard.events.trace import Trace


def write(folder, name, rank, *, rate=1e-3, **conditions) -> None:
    """Write the trace of one of two replicas, all of whose numbers are alike but for the rate."""
    steps = [
        Step(step=i, rates=(rate,), norm=1.0, fingerprints=(100 * rank + i,), source="train.py:9")
        for i in range(6)
    ]
    sums = ReplicaSums(
        optimizer="SGD", names=("w",), replicas="0:2:1", steps=(-1, 0), sums=((1,), (2,))
    )
    told = {"rank": rank, "world": 2, "run": "a", "ended": "finished", **conditions}
    (folder / name).write_text(Trace("train.py", (*steps, sums), told).to_text())


def test_two_traces(tmp_path) -> None:
    """Two replicas that agree, and two of which one has another rate."""
    write(tmp_path, "trace.jsonl", 0)
    write(tmp_path, "trace.jsonl.rank1", 1)
    done = command(tmp_path, "join", ".")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all 2 processes were judged together" in done.stdout
    write(tmp_path, "trace.jsonl.rank1", 1, rate=2e-3)
    (tmp_path / "notes.txt").write_text("nothing of ours")
    newer = (tmp_path / "trace.jsonl").read_text().replace('"norm"', '"norm_of_later"')
    (tmp_path / "newer.jsonl").write_text(newer)
    done = command(tmp_path, "join", ".")
    assert done.returncode == 1
    assert "optimizers_agree: the replicas of `train.py`" in done.stdout
    assert "6 of 6 steps, first 0.002 against 0.001" in done.stdout
    assert "notes.txt is no trace of this version" in done.stdout
    assert "newer.jsonl is no trace of this version" in done.stdout
    done = command(tmp_path, "join", "--format", "github", ".")
    assert done.stdout.startswith("::error file=train.py,line=9,title=trainguard%3A optimizers_a")
    assert command(tmp_path, "join", "--allow", "optimizers_agree=meant", ".").returncode == 0


def test_one_of_two(tmp_path) -> None:
    """A trace that is missing is named; what can be judged is judged."""
    write(tmp_path, "trace.jsonl.rank1", 1)
    done = command(tmp_path, "join", ".")
    assert done.returncode == 0
    assert "1 of 2 processes were judged together" in done.stdout
    assert "train.py: 1 trace in ." in done.stdout
    assert "rank 0: no trace of it is here" in done.stdout


@pytest.mark.parametrize(
    ("names", "more", "told"),
    [
        ((), {}, "has no trace of one of several processes"),
        (("one", "two"), {"run": "b"}, "one and two are traces of different runs"),
        (("one", "two"), {"world": 4}, "one and two are traces of different runs"),
        (("one", "two"), {"rank": 0}, "one and two are both of rank 0"),
        (("two",), {"world": None}, "has no trace of one of several processes"),
    ],
)
def test_folders_that_cannot_be_judged(tmp_path, names, more, told) -> None:
    """No trace, two runs mixed, another world, one process twice: one sentence each."""
    for rank, name in enumerate(names):
        write(tmp_path, name, **{"rank": rank, **(more if name == "two" else {})})
    done = command(tmp_path, "join", ".")
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


def test_no_folder(tmp_path) -> None:
    """A path that is not there."""
    done = command(tmp_path, "join", "traces")
    assert (done.returncode, done.stderr) == (
        2,
        "traces is no folder. Give the one that the traces are in.\n",
    )

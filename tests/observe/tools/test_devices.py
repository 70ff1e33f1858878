"""Which devices the processes of a worker get."""

import pytest
from torch import version

from trainguard.observe.tools import launcher
from trainguard.observe.tools.devices import share_out

SEEN = "HIP_VISIBLE_DEVICES" if version.hip else "CUDA_VISIBLE_DEVICES"


def worker(number: int, count: int, **more: str) -> dict[str, str]:
    """Return the environment of a worker of pytest-xdist."""
    return {"PYTEST_XDIST_WORKER": f"gw{number}", "PYTEST_XDIST_WORKER_COUNT": str(count), **more}


@pytest.mark.parametrize(
    ("environment", "count", "named"),
    [
        ({}, 0, None),  # the CPU, as ever
        (worker(1, 4), 0, None),
        ({}, 2, None),
        ({}, 8, None),  # a script may use more than one each
        ({SEEN: "5,7"}, 2, None),
        (worker(0, 1), 2, None),
        (worker(0, 4), 8, "0,1"),
        (worker(3, 4), 8, "6,7"),
        (worker(1, 2, **{SEEN: "1,3,GPU-5,GPU-7"}), 4, "GPU-5,GPU-7"),
    ],
)
def test_each_worker_takes_its_own_devices(environment, count, named) -> None:
    """Two processes of each take two that no other worker has, of those that are to be seen."""
    assert share_out(2, count, environment) == ({} if named is None else {SEEN: named}, "")


@pytest.mark.parametrize(
    ("environment", "count", "said"),
    [
        ({}, 1, "2 processes take a device each, and there are 1: they are on the CPU."),
        (worker(0, 4), 7, "2 processes of 4 workers take a device each, and there are 7: "),
    ],
)
def test_too_few_devices(environment, count, said) -> None:
    """All processes are on the CPU, of all workers alike, and it is said."""
    hidden, told = share_out(2, count, environment)
    assert hidden == {SEEN: ""}
    assert told.startswith(said)


def test_the_launcher_shares_them_out(tmp_path, monkeypatch) -> None:
    """What it starts sees the devices of its worker, and finds its own by LOCAL_RANK."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, pathlib\n"
        f"told = [os.environ[name] for name in ('LOCAL_RANK', {SEEN!r})]\n"
        "pathlib.Path(__file__).with_name('rank' + told[0]).write_text(' '.join(told))\n"
    )
    monkeypatch.setattr(launcher, "count_hideable", lambda: 4)
    for name, value in worker(1, 2, **{SEEN: ""}).items():
        monkeypatch.setenv(name, value)
    launcher.main(2, ["--standalone", f"--log-dir={tmp_path}/logs", str(script)])
    assert sorted(file.read_text() for file in tmp_path.glob("rank*")) == ["0 2,3", "1 2,3"]

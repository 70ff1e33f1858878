"""A forked child answers, and whatever it does, nobody else can see it."""

import ctypes
import mmap
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import signal_handling

from trainguard.observe.loop.counterfactual import forking
from trainguard.observe.loop.counterfactual.forking import Exit, fork

SECONDS = 0.3


def ask(act, seconds=SECONDS):
    """Fork a child that does something and then answers; return what its parent is told."""

    def become(way_out: Exit) -> None:
        """Do it, and answer."""
        way_out.report(value=act())

    return fork(seconds, become)


def test_an_answer_comes_back() -> None:
    """Numbers, names and rows of them pass through the pipe, more than it holds at once."""
    answer = ask(lambda: {"numbers": [1.5] * 100_000, "loss": float("inf")})
    assert answer.report["value"]["loss"] == float("inf")
    assert len(answer.report["value"]["numbers"]) == 100_000
    assert (answer.trouble, answer.seconds > 0) == ("", True)


def test_random_streams_are_those_of_the_parent() -> None:
    """Python would seed its own generator anew; the parent's own streams stay where they are."""
    states = random.getstate(), torch.get_rng_state()
    answer = ask(lambda: (random.random(), torch.rand(()).item()))
    assert (random.getstate(), torch.equal(torch.get_rng_state(), states[1])) == (states[0], True)
    assert answer.report["value"] == (random.random(), torch.rand(()).item())


def spin() -> None:
    """Work for ever."""
    while True:
        pass


def take_memory() -> None:
    """Take 20 GB, piece by piece."""
    pieces = []
    while len(pieces) < 80:
        pieces.append(torch.empty(1 << 26))


def kill_itself() -> None:
    """Go the way of a segmentation fault."""
    ctypes.string_at(0)


def be_killed() -> None:
    """Be killed as by a system whose memory is short, which no code of Python's sees."""
    ctypes.CDLL(None).kill(os.getpid(), signal.SIGKILL)


def send_a_datagram() -> None:
    """Send to a port of this machine without a connection."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"child", ("127.0.0.1", 9))


def children() -> set[str]:
    """Return the processes that this one has, among them what other tests have left running."""
    return set(Path("/proc/thread-self/children").read_text().split())


@pytest.mark.parametrize(
    ("act", "trouble"),
    [
        (spin, "it took too long"),
        (lambda: time.sleep(60), "it took too long"),
        (lambda: os._exit(3), "it ended without an answer"),
        (kill_itself, "it was ended by SIGSEGV"),
        (be_killed, "it was ended by SIGKILL: memory may be short"),
        (take_memory, "can't allocate memory"),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero"),
        (os.fork, "it calls os.fork"),
        (
            lambda: subprocess.run(["true"], check=False, timeout=120),
            "it calls subprocess.Popen of 'true'",
        ),
        (lambda: os.system("true"), "it calls os.system"),
        (lambda: os.kill(os.getppid(), 0), "it calls os.kill"),
        (lambda: socket.create_connection(("127.0.0.1", 9)), "it calls socket."),
        (send_a_datagram, "it calls socket.sendto"),
    ],
)
def test_a_child_that_goes_astray_is_given_up(act, trouble: str) -> None:
    """One line says why, within seconds, and no process is left."""
    before = children()
    answer = ask(act)
    assert answer.report == {}
    assert trouble in answer.trouble
    assert children() <= before


def beside_another(nice: int) -> int:
    """Fork a process that works for ever on one of our cores, and return it."""
    child = os.fork()
    if not child:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os.nice(nice)
        spin()
    return child


def test_a_child_that_gets_no_time() -> None:
    """Others run instead of it, where it would; one that sleeps, or is gone, lacks nothing."""
    began = time.monotonic()
    busy, starved = beside_another(0), beside_another(19)
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        time.sleep(1.0)
        assert forking.starves(starved, began)
        assert not forking.starves(starved, time.monotonic())
        assert not forking.starves(sleeper.pid, began)
    finally:
        sleeper.kill()
        sleeper.wait()
        for child in (busy, starved):
            forking.end(child, 0.0)
    assert not forking.starves(starved, began)


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.write_text("child"),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_suffix(".b")),
        lambda path: path.with_suffix(".d").mkdir(),
        lambda path: torch.save(torch.ones(3), path),
        lambda path: torch._C.PyTorchFileWriter(str(path)),
        lambda path: ctypes.CDLL(None).unlink(str(path).encode()),
        lambda path: ctypes.CDLL(None).creat(str(path).encode(), 0o600),
    ],
)
def test_files_stay_as_they_are(act, tmp_path) -> None:
    """Neither Python nor a library below it writes, deletes, renames or makes a file."""
    path = tmp_path / "a.txt"
    path.write_text("parent")
    ask(lambda: act(path) and None)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("a.txt", "parent")]


def test_open_files_stay_as_they_are(tmp_path) -> None:
    """What is written to an open file is lost; reading on in one does not move the parent."""
    path = tmp_path / "a.txt"
    path.write_text("0123456789")
    with path.open("rb", buffering=0) as read, path.open("ab", buffering=0) as written:
        read.read(3)
        answer = ask(lambda: (written.write(b"child"), read.read(3)))
        assert answer.report["value"] == (5, b"345")
        assert (read.read(3), path.read_text()) == (b"345", "0123456789")


def test_files_that_are_read_and_written_are_copied(tmp_path) -> None:
    """What captures a script's output is such a file: the child prints on, to nobody."""
    path = tmp_path / "a.txt"
    path.write_text("0123456789")
    with path.open("r+b", buffering=0) as file:
        file.seek(3)
        answer = ask(lambda: (file.write(b"child"), file.seek(0), file.read()))
        assert answer.report["value"] == (5, 0, b"012child89")
        assert (file.read(2), path.read_text()) == (b"34", "0123456789")


def test_pipes_and_sockets_lead_nowhere() -> None:
    """Nothing reaches the other end, and nothing is taken from it."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"first")
        answer = ask(lambda: os.write(here.fileno(), b"child"))
        assert (answer.report["value"], here.recv(99)) == (5, b"first")
        there.setblocking(False)
        with pytest.raises(BlockingIOError):
            there.recv(99)


def test_shared_memory_is_copied() -> None:
    """What other processes share with the parent is not written to by the child."""
    shared = mmap.mmap(-1, mmap.PAGESIZE)
    tensor = torch.zeros(4).share_memory_()

    def write():
        """Write to both, and read it back."""
        shared[:5] = b"child"
        tensor.fill_(1)
        return shared[:5], tensor.sum().item()

    assert ask(write).report["value"] == (b"child", 4.0)
    assert (shared[:5], tensor.sum().item()) == (b"\0" * 5, 0.0)


def test_nothing_is_printed(capfd) -> None:
    """What the child prints, and its warnings, go nowhere."""
    ask(lambda: print("child") or os.write(2, b"child"))
    assert capfd.readouterr() == ("", "")


def test_exits_of_the_script_do_not_run(tmp_path) -> None:
    """What was registered for the end of the process waits for the parent's end."""
    code = """
import atexit, pathlib
from trainguard.observe.loop.counterfactual.forking import fork
atexit.register(lambda: print("the end"))
print(fork(5.0, lambda way_out: way_out.report(value=1)).report)
print(fork(5.0, lambda way_out: 1 / 0).trouble)
if fork(5.0, lambda way_out: None) is None:
    raise SystemExit  # leaves as a script does that has nothing to report
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.stdout.splitlines() == [
        "{'value': 1}",
        "ZeroDivisionError: division by zero",
        "the end",
    ]


def test_a_loaders_workers_are_no_obstacle_and_lose_no_batch() -> None:
    """A child that asks for what has not come ends without an answer; its parent is served all."""
    numbers = torch.arange(32.0)
    batches = iter(DataLoader(TensorDataset(numbers), batch_size=4, num_workers=2))
    first = next(batches)[0]
    assert forking.obstacle() == ""
    for _ in range(3):
        answer = ask(lambda: sum(float(batch.sum()) for (batch,) in batches), 1.0)
        assert answer.trouble
        assert not answer.report
    assert torch.equal(torch.cat([first, *(batch for (batch,) in batches)]), numbers)


def test_threads_are_an_obstacle() -> None:
    """A lock that another thread holds would stay locked in a child; a thread of ours sleeps."""
    over = threading.Event()
    for name, words in (("worker", "the script has 2 threads"), ("trainguard", "")):
        thread = threading.Thread(target=over.wait, name=name)
        thread.start()
        try:
            assert forking.obstacle() == words
        finally:
            over.set()
            thread.join()
            over.clear()


def test_a_thread_of_a_plugin_is_no_obstacle(monkeypatch) -> None:
    """The one that pytest-rerunfailures keeps waits for connections."""
    over = threading.Event()

    def run_server() -> None:
        over.wait()

    monkeypatch.setattr(run_server, "__module__", "pytest_rerunfailures")
    thread = threading.Thread(target=run_server)
    thread.start()
    try:
        assert forking.obstacle() == ""
    finally:
        over.set()
        thread.join()


def test_workers_of_a_loader_that_are_gone_are_none(monkeypatch) -> None:
    """The handler that torch leaves behind asks of the loader's own workers alone."""
    before = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    signal_handling._set_SIGCHLD_handler()
    try:
        assert forking.obstacle() == ""
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_other_obstacles(monkeypatch) -> None:
    """A kernel without Landlock, an accelerator, a lack of memory: said in words."""
    assert forking.obstacle() == ""
    for owner, name, value, words in (
        (forking, "landlock_version", lambda: -1, "Landlock"),
        (forking, "in_use", lambda: ("cuda",), "accelerator"),
        (torch.distributed, "is_initialized", lambda: True, "group of processes"),
        (forking, "_memory_available", lambda: 1, "memory is short"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert words in forking.obstacle()


def test_looking_apart() -> None:
    """A child looks, and its parent does where there can be none; a failure is told."""
    mine = os.getpid()
    assert forking.look_apart(os.getpid) != (mine, "")
    assert forking.look_apart(lambda: 1 / 0) == (
        None,
        "the child process that tried it failed: ZeroDivisionError: division by zero",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(forking, "_forbids_children", lambda: "there is no fork")
        assert forking.look_apart(os.getpid) == (mine, "")

"""The time limit around the team's code."""

import gc
import importlib
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from trainguard.core.errors import SubjectError
from trainguard.observe.tools.isolation import Expired, deadline

SOON = 0.05
pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a Unix alarm")


def spin() -> None:
    """Never return."""
    while True:
        pass


def swallow() -> None:
    """Never return, whatever is raised inside."""
    while True:
        with suppress(Exception):
            spin()


@pytest.mark.parametrize("hang", [spin, swallow, lambda: time.sleep(60)])
def test_a_hang_is_interrupted(hang) -> None:
    """A loop, one that swallows exceptions and a sleep end in a fault that says where they were."""
    started = time.perf_counter()
    with pytest.raises(SubjectError) as caught, deadline(SOON):
        hang()
    assert time.perf_counter() - started < 5
    assert caught.value.sentence.startswith("it was still running after 0.05 seconds, at ")
    assert f"{__file__}:" in caught.value.sentence
    assert "timeout=<seconds>" in caught.value.remedy
    assert caught.value.__suppress_context__


def test_a_block_that_others_keep_from_the_processor_has_more_time() -> None:
    """What counts are the seconds that it computes, as long as it does not wait for ever."""
    used, started = time.process_time(), time.perf_counter()
    with deadline(8 * SOON):
        while time.perf_counter() - started < 10 * SOON:
            time.sleep(SOON / 5)
            begun = time.process_time()
            while time.process_time() - begun < SOON / 10:
                pass
    assert time.process_time() - used < 8 * SOON
    with pytest.raises(SubjectError, match="still running"), deadline(SOON):
        begun = time.process_time()
        while time.process_time() - begun < SOON / 2:
            pass
        time.sleep(60)
    assert time.perf_counter() - started < 5


class Slow:
    """An object that takes long to delete."""

    def __del__(self) -> None:
        """Take longer than the limit."""
        time.sleep(4 * SOON)


def delete() -> None:
    """Delete an object that takes long, then never return."""
    slow = Slow()
    del slow
    spin()


def collect() -> None:
    """Collect garbage, of which somebody is told who takes long, then never return."""

    def listen(phase: str, info: dict[str, int]) -> None:
        """Take longer than the limit."""
        time.sleep(2 * SOON)

    gc.callbacks.append(listen)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(listen)
    spin()


def forget() -> None:
    """Delete an object of whose end somebody is told who takes long, then never return."""
    plain = threading.Event()
    held = weakref.ref(plain, lambda gone: time.sleep(4 * SOON))
    del plain
    assert held() is None
    spin()


def swallow_once() -> None:
    """Swallow whatever is raised, the alarm too, then never return."""
    try:
        spin()
    except BaseException:  # noqa: BLE001 the point of this function
        spin()


@pytest.mark.parametrize("hang", [delete, forget, collect, swallow_once])
@pytest.mark.filterwarnings("error")
def test_an_alarm_that_is_lost_comes_again(hang) -> None:
    """Where Python is deleting something, or someone catches all, a later alarm interrupts."""
    with pytest.raises(SubjectError, match="still running"), deadline(SOON):
        hang()


def test_the_running_call_is_told() -> None:
    """Whoever knows the call that was running leaves it on what passes by."""
    with pytest.raises(SubjectError) as caught, deadline(SOON):
        try:
            spin()
        except Expired as expired:
            expired.call = "f(1)"
            raise
    assert caught.value.call == "f(1)"


def test_what_ends_in_time_is_left_alone() -> None:
    """Results and exceptions of the block pass, and no alarm is left behind."""
    before = signal.getsignal(signal.SIGALRM)
    with deadline(60):
        done = True
    with pytest.raises(KeyError), deadline(60):
        raise KeyError
    assert done
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_limits_nest() -> None:
    """An inner limit ends first, and gives the outer one its alarm back."""
    with pytest.raises(SubjectError, match="after 0.2 seconds"), deadline(0.2):
        with pytest.raises(SubjectError, match="after 0.05 seconds"), deadline(SOON):
            spin()
        spin()


@pytest.mark.parametrize("own", [60, 0.2])
def test_an_alarm_of_others_comes_in_its_time(own: float) -> None:
    """Inside of a block and after it, as if there were no block; it comes once."""
    rung: list[float] = []

    def ring(*_: object) -> None:
        """Note the time."""
        rung.append(time.monotonic())

    before = signal.signal(signal.SIGALRM, ring)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.1 if own > 1 else 0.4)
    try:
        with suppress(SubjectError), deadline(own):
            while not rung and time.monotonic() - began < 30:
                time.sleep(0.01)
        while not rung and time.monotonic() - began < 30:
            time.sleep(0.01)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert len(rung) == 1
    assert rung[0] - began < 20


def test_another_thread_has_no_limit() -> None:
    """Outside the main thread there is no alarm, and the block runs as it is."""
    ended = []

    def run() -> None:
        with deadline(1e-6):
            time.sleep(0.01)
            ended.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ended == [True]


def test_an_import_is_not_interrupted(tmp_path, monkeypatch) -> None:
    """The alarm waits for the end of an import, because a module cut short stays broken."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.2)\nDONE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="still running"), deadline(SOON):
        assert importlib.import_module("slow_to_import").DONE
        spin()
    assert sys.modules.pop("slow_to_import").DONE


@contextmanager
def limited() -> Iterator[None]:
    """Give the block of somebody else a limit."""
    with deadline(SOON):
        yield


def test_a_block_inside_an_import_is_interrupted(tmp_path, monkeypatch) -> None:
    """Only imports that the block itself makes are waited for, also through another manager."""
    (tmp_path / "guarded_at_import.py").write_text(
        "import time\nfrom tests.observe.tools.test_deadline import limited\n"
        "with limited():\n    time.sleep(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SubjectError, match="still running"):
        importlib.import_module("guarded_at_import")

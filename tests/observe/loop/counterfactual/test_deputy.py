"""A deputy asks while the training goes on; however that ends, no process is left."""

import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.forks import Started, ends
from tests.observe.loop.counterfactual.test_asking import ask, told, train
from tests.observe.loop.counterfactual.test_forking import children
from trainguard.events.counterfactual import WhatIf
from trainguard.observe.loop import live_looks
from trainguard.observe.loop.counterfactual import asking, forking
from trainguard.observe.loop.counterfactual.deputy import Deputy, Mailbox
from trainguard.observe.loop.live_looks import LiveLooks
from trainguard.observe.loop.recorder import Recorder

SLOW_CHILD = 0.1  # seconds that a question takes in the tests below


def asked(trace) -> list[WhatIf]:
    """Return what a run was asked."""
    return [event for event in trace if isinstance(event, WhatIf)]


def slowly(loss):
    """Return the loss, in children after a while."""
    if os.getpid() != OWNER:
        time.sleep(SLOW_CHILD)
    return loss


OWNER = os.getpid()


def test_the_training_goes_on() -> None:
    """It makes steps while a deputy asks; what that has asked by the end is told."""
    before, beside = children(), []

    def note(loss):
        """See who is there while the run makes a step."""
        if os.getpid() == OWNER:
            beside.append(children() - before)
        return slowly(loss)

    answers = [event for event in ask(between=note) if event.outcome == "answered"]
    assert len([each for each in beside if each]) > 1
    assert len(answers) >= 4


def test_a_deputy_goes_on_to_the_next_steps(monkeypatch) -> None:
    """What one answer does not settle is asked again at the same steps in every run."""
    monkeypatch.setattr(forking, "starves", lambda child, began: False)
    events = ask(between=lambda loss: 2 * loss.detach() - loss)  # climbs
    rises = [(step, word) for step, word, _ in told(events) if word == "the same batch again"]
    assert rises == [(step, "the same batch again") for step in (1, 2, 5)]


@pytest.mark.parametrize("is_busy", [False, True])
def test_what_needs_a_second_answer(is_busy, monkeypatch) -> None:
    """On a busy machine it has that before anything that takes many steps is asked."""
    monkeypatch.setattr(asking, "_CREDIT", 10.0)
    monkeypatch.setattr(forking, "starves", lambda child, began: is_busy)
    events = ask(middle=lambda hidden: hidden + hidden.mean(0))
    asked = [(step, word) for step, word, _ in told(events)]
    assert (2, "a sample edited") in asked
    assert is_busy == ((1, "one batch learned") not in asked)


@pytest.mark.parametrize("credit", [10.0, 0.05])
def test_a_machine_that_has_no_time(credit, monkeypatch) -> None:
    """Children that get none have the usual priority then, within a share of the run's time."""
    monkeypatch.setattr(asking, "_CREDIT", credit)
    monkeypatch.setattr(forking, "starves", lambda child, began: True)
    with Recorder("x") as recorder:
        watcher = recorder.watcher(asking.Counterfactuals)
        train(between=slowly)
    cores = len(os.sched_getaffinity(0)) / min(torch.get_num_threads(), 2)
    assert 0 < watcher._inquiry.pressing < 2.0 * credit * max(1.0, cores) + 0.2
    assert any(event.outcome == "answered" for event in asked(recorder.trace))


@pytest.mark.parametrize("short", [4, 200])
def test_how_long_a_run_waits(short, monkeypatch) -> None:
    """One of many steps waits for a share of what it took, a short one for answers."""
    monkeypatch.setattr(asking, "_SHORT", short)
    monkeypatch.setattr(asking, "_CREDIT", 0.05)
    end, waits = Deputy.end, []

    def note(deputy, patience, wait):
        """Take down how long it is waited for at most, and wait."""
        waits.append(wait)
        return end(deputy, patience, wait)

    monkeypatch.setattr(Deputy, "end", note)
    began = time.monotonic()
    ask()
    assert waits[-1] <= 0.03 * (time.monotonic() - began) or (short == 200 and waits[-1] == inf)


def test_a_script_that_waits_for_any_child_meets_its_own() -> None:
    """The deputy is none that it would know; it is ended before."""
    met = []

    def wait(loss):
        """Have a child of its own, once the deputy is there."""
        if os.getpid() == OWNER and len(met) < 3:
            child = os.fork()
            if not child:
                os._exit(7)
            met.append((child, *os.wait()))
        return slowly(loss)

    before = children()
    ask(between=wait)
    assert [(child, os.waitstatus_to_exitcode(status)) for child, _, status in met] == [
        (pid, 7) for _, pid, _ in met
    ]
    assert children() <= before


def test_a_deputy_that_is_killed() -> None:
    """One line says so, and the run goes on to its end."""
    seen = []

    def kill(loss):
        """Kill all children."""
        if os.getpid() == OWNER:
            seen.append(loss)
            for child in children() - before:
                os.kill(int(child), signal.SIGKILL)
        return slowly(loss)

    before = children()
    events = ask(between=kill)
    assert len(seen) == 16
    assert {(event.outcome, event.reason) for event in events} <= {
        ("given up", "it was ended by SIGKILL: memory may be short"),
        ("given up", "it took too long"),
        ("given up", "its share of the run's time was spent (--what-if gives more)"),
    }
    assert events


def test_who_looks_while_it_runs_sees_what_was_answered(monkeypatch) -> None:
    """Answers are there at the next look after the deputy has ended."""
    monkeypatch.setattr(live_looks, "_GRACE", 60.0)
    before, seen = children(), []

    def wait(loss):
        """Wait for the deputy, in the middle of the run."""
        if os.getpid() == OWNER and recorder.steps == 36:
            assert all(ends(int(child), 60) for child in children() - before)
            recorder.live.ask_soon()
        return loss

    recorder = Recorder("x")
    recorder.live = LiveLooks(lambda steps, trace: seen.append((steps, told(asked(trace)))) or "")
    with recorder:
        train(between=wait, epochs=4)
    assert dict(seen)[37] == told(asked(recorder.trace))
    assert len(dict(seen)[37]) > 1


def test_words_that_were_cut_short() -> None:
    """What a deputy wrote when it was killed is not read; what it had said before is."""
    mailbox = Mailbox()
    mailbox.put(spent=1.0, told=["void"])
    mailbox.put(spent=2.0)
    os.write(mailbox.file, b"\x80\x04\x95\xff")
    mailbox.hurry(0.5)
    assert mailbox.read() == {"spent": 2.0, "told": ["void"]}
    assert mailbox.patience() == 0.5


SCRIPT = """
import os, signal, threading, time
from tests.observe.loop.counterfactual import test_asking
owner, steps = os.getpid(), []
def between(loss):
    if os.getpid() != owner:
        signal.pause()
    steps.append(1)
    if len(steps) == 8:
        print("here", flush=True)
        {end}
    return loss
test_asking.ask(between=between)
"""


@pytest.mark.parametrize(
    ("end", "number"),
    [
        ("os._exit(3)", 0),
        ("os.abort()", 0),
        ("os.kill(owner, signal.SIGKILL)", 0),
        ("time.sleep(60)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGINT),
        ("raise SystemExit(2)", 0),
        ("raise ValueError", 0),
    ],
)
def test_however_a_run_ends_no_process_is_left(end: str, number: int) -> None:
    """A deputy, what goes on for it, and a child that hangs end with the run."""
    words = [sys.executable, "-c", SCRIPT.format(end=end)]
    root = Path(__file__).parents[4]
    with Started(words, stdout=subprocess.PIPE, cwd=root, start_new_session=True) as process:
        assert process.stdout.readline() == b"here\n"
        assert len(members(process.pid)) > 1
        if number:
            process.send_signal(number)
        assert process.wait(60)
        assert all(ends(member) for member in members(process.pid))


def members(session: int) -> list[int]:
    """Return the processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parts = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(parts[3]) == session and parts[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def test_a_deputy_with_no_step_left() -> None:
    """What is still open is not asked where no step of the plan is left; nothing raises."""
    watcher = object.__new__(asking.Counterfactuals)
    watcher._inquiry = SimpleNamespace(rounds=[], open=["a question"])
    watcher._steps, watcher._until = [], 9
    assert not watcher._asks_more()
    watcher._steps = [4]
    assert watcher._asks_more()

"""Lines that read gradients: which of them find gradients cleared, and how often."""

import inspect
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.observe.loop.trainings import batches, network
from tests.observe.loop.watch.gradients.readers import (
    clip,
    generator,
    line,
    listed,
    reads,
    sweep,
    train,
)
from trainguard.events.loop import Read, Step
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.window import Window

READERS = [sweep, generator, clip, listed]
by_reader = pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)


@by_reader
@pytest.mark.parametrize("none", [True, False], ids=["none", "zeros"])
def test_a_line_that_reads_cleared_gradients_is_seen(read, none) -> None:
    """Read after the clearing, gradients are gone or zeros: counted once a step for each line."""
    found = reads(steps=8, after=read, none=none)
    assert line(read) in found
    assert set(found.values()) == {(8, 0)}
    assert len(found) == (2 if read is sweep and not none else 1)


@by_reader
def test_the_line_that_calls_the_reader_is_told(read) -> None:
    """Where what was read is wanted; what is inside of a comprehension is called by no line."""
    with Recorder("x") as recorder:
        train(steps=8, after=read)
    lines, first = inspect.getsourcelines(train)
    row = first + next(n for n, each in enumerate(lines) if "after(model)" in each)
    called = {event.called for event in recorder.trace if isinstance(event, Read)}
    assert called == {f"{inspect.getsourcefile(train)}:{row}"}


@by_reader
@pytest.mark.parametrize("none", [True, False], ids=["none", "zeros"])
@pytest.mark.parametrize("place", ["before", "between"])
def test_a_line_that_reads_in_time_is_no_matter(read, none, place) -> None:
    """Before the step, and after it but before the clearing, the gradients are there."""
    assert reads(**{place: read}, none=none) == {}


@pytest.mark.parametrize("none", [True, False], ids=["none", "zeros"])
def test_a_line_that_reads_at_both_times_counts_as_full(none) -> None:
    """A line that finds gradients between two steps is full there; after the last are none."""
    found = reads(steps=8, before=sweep, after=sweep, none=none)
    assert found[line(sweep)] == (1, 7)


@pytest.mark.parametrize(("none", "empty"), [(True, 20), (False, 8)], ids=["none", "zeros"])
def test_a_line_that_is_empty_now_and_then_is_counted_both_ways(none, empty) -> None:
    """A line called in turns before and after the clearing is full and empty as often."""
    turn = [0]

    def even(model) -> None:
        """Read in every second step."""
        turn[0] += 1
        if turn[0] % 2:
            sweep(model)

    def odd(model) -> None:
        """Read in the other steps."""
        if not turn[0] % 2:
            sweep(model)

    assert reads(steps=40, before=odd, after=even, none=none)[line(sweep)] == (empty, 19)


def test_a_line_that_reads_rarely_is_seen() -> None:
    """A line that logs every tenth step is seen in each of them."""
    assert reads(steps=41, after=sweep, every=10) == {line(sweep): (5, 0)}
    assert reads(steps=41, after=sweep, every=10, none=False)[line(sweep)] == (5, 0)


def test_a_line_that_reads_zeros_is_looked_at_less_and_less() -> None:
    """Values are compared at the first reads of a line, then at surveyed steps only."""
    assert reads(steps=70, after=generator, none=False) == {line(generator): (11, 0)}


def test_a_long_run_is_looked_at_now_and_then() -> None:
    """Where not all steps are recorded, what is read after one that is counts, and no more."""
    with Recorder("x") as recorder:
        recorder.windows.clear()  # optimizers of other tests that are still alive
        train(steps=300, after=generator)
    watched = len([event for event in recorder.trace if isinstance(event, Step)])
    (read,) = (event for event in recorder.trace if isinstance(event, Read))
    assert (read.empty, read.full) == (watched, 0)
    assert watched < 300
    assert reads(steps=300, before=generator) == {}
    both = reads(steps=300, before=sweep, after=sweep).get(line(sweep), (0, 0))
    assert both[0] <= 1  # after the last step, if that one is recorded


def test_two_lines_are_told_apart() -> None:
    """The line that reads in time is listed with what it found once another does not."""
    with Recorder("x") as recorder:
        train(before=clip, after=sweep)
    found = {e.code: (e.empty, e.full) for e in recorder.trace if isinstance(e, Read)}
    assert found == {line(sweep): (12, 0), line(clip): (0, 11)}


def test_nothing_is_in_question_before_the_first_step() -> None:
    """Gradients that no step has used yet were not cleared."""

    def train() -> None:
        """Look at the gradients of a fresh model, then train it."""
        model = network()
        assert sweep(model) == 0
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sweep(model)
        optimizer.zero_grad()
        sweep(model)
        F.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 1)).backward()
        optimizer.step()

    with Recorder("x") as recorder:
        train()
    assert not [event for event in recorder.trace if isinstance(event, Read)]


def test_a_long_run_is_counted_both_ways() -> None:
    """Where not all steps are recorded, full reads are counted as often as empty ones."""
    step, recorded = [0], [Window(index=index).is_watched for index in range(400)]
    begins = set(range(0, 400, 32))
    follows = {recorded.index(True, index + 10) + 1 for index in begins - {384}}

    def late(model) -> None:
        """Read after the clearing in every second step that is recorded late in the run."""
        if step[0] in begins:
            sweep(model)
        step[0] += 1

    def early(model) -> None:
        """Read in time in the steps that follow upon others that are recorded."""
        if step[0] in follows:
            sweep(model)

    assert not all(recorded)
    assert reads(steps=400, before=early, after=late) == {line(sweep): (len(begins), len(follows))}


@pytest.mark.parametrize("alert", [True, False])
def test_a_parameter_that_was_not_used_again_is_no_matter(alert) -> None:
    """A gradient that is missing because its parameter was not used is no cleared one."""

    def train() -> None:
        """Train two heads in turns, and read the gradients of all and of the one left out."""
        body, heads = network(4, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])
        model = nn.ModuleList([heads, body])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step, (inputs, target) in enumerate(batches(300)):
            optimizer.zero_grad()
            if alert:
                listed(model)
            F.mse_loss(heads[step % 2](body(inputs)), target).backward()
            assert sweep(model) > 0
            assert generator(heads[1 - step % 2]) == 0
            optimizer.step()

    with Recorder("x") as recorder:
        train()
    empty = {e.code for e in recorder.trace if isinstance(e, Read) and e.empty}
    assert empty == ({line(listed)} if alert else set())


def test_reading_costs_little() -> None:
    """A read in the quiet case calls one function, and that calls none but C's."""
    parameter = nn.Parameter(torch.ones(3))
    calls: list[str] = []
    with Recorder("x"):
        sys.setprofile(lambda frame, event, _: calls.append(f"{event} {frame.f_code.co_name}"))
        parameter.grad  # noqa: B018 the read is what is looked at
        sys.setprofile(None)
    assert sum(call.startswith("call ") for call in calls) == 1


def test_nobody_listens_in_another_thread_of_control() -> None:
    """What a line says is bound to the recording: afterwards it is not counted."""
    with Recorder("x") as recorder:
        getter = vars(torch.Tensor)["grad"].fget
        train(after=sweep)
    count = len(recorder.trace)
    parameter = nn.Parameter(torch.ones(1))
    assert getter(parameter) is None
    assert "grad" not in vars(torch.Tensor)
    assert len(recorder.trace) == count
    assert sys.getrefcount(parameter) == 2

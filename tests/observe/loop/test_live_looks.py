"""What is shown of a recording while it goes on."""

import torch
from torch import nn
from torch.nn import functional as F

from trainguard.core.settings import Settings
from trainguard.events.loop import Evaluation, Logged
from trainguard.events.trace import Trace
from trainguard.judging.live import LiveJudge
from trainguard.observe.loop.live_looks import LiveLooks
from trainguard.observe.loop.recorder import Recorder
from trainguard.subjects.loop import Script


def test_what_is_lost_is_shown_as_lost() -> None:
    """A watcher that failed shows while the run goes on, as it does at its end."""
    seen: list[Trace] = []
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder("train")
    recorder.live = LiveLooks(lambda steps, trace: seen.append(trace) or "")
    with recorder:
        recorder.faults.switch_off(recorder.watchers[0], "ValueError: broken")
        for _ in range(40):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            optimizer.step()
    assert seen
    for name in ("lost", "faults"):
        assert seen[-1].conditions[name] == recorder.trace.conditions[name]


def test_an_evaluation_is_looked_at_after_the_next_step() -> None:
    """It is in the trace by then, and what is certain of it is told at once."""
    judge, seen = LiveJudge(Script("train"), Settings()), dict[int, int]()
    net = nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = Recorder("train")

    def look(steps: int, trace: Trace) -> str:
        """Note how many evaluations are known, and judge."""
        seen[steps] = sum(isinstance(event, Evaluation) for event in trace)
        judge.judge(steps, trace)
        return ""

    recorder.live = LiveLooks(look)
    with recorder:
        for step in range(88):
            optimizer.zero_grad()
            F.mse_loss(net(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            optimizer.step()
            if step == 72:
                with torch.no_grad():
                    F.mse_loss(net(torch.randn(8, 4)), torch.zeros(8, 2))
    assert {steps: count for steps, count in seen.items() if steps > 73} == {74: 1}
    told = {one.invariant.name: steps for steps, one in judge.told}
    assert told == {"evaluation_mode_is_on": 74}


def test_what_is_said_is_looked_at_with_its_steps() -> None:
    """Numbers are in the trace as they are said, and what is untrue of them is told at once."""
    judge, seen = LiveJudge(Script("train"), Settings()), dict[int, list[Logged]]()
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    recorder = Recorder("train")

    def look(steps: int, trace: Trace) -> str:
        """Note what was said until now, and judge."""
        seen[steps] = [event for event in trace if isinstance(event, Logged)]
        judge.judge(steps, trace)
        return ""

    recorder.live = LiveLooks(look)
    with recorder:
        for _ in range(48):
            F.mse_loss(net(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            optimizer.step()
            optimizer.zero_grad()
            grads = [p.grad for p in net.parameters() if p.grad is not None]
            print(f"grad_norm {sum(grad.norm() for grad in grads):.4f}")
    first = min(seen)
    assert [event.step for event in seen[first]] == [*range(1, first)]
    told = {one.invariant.name: steps for steps, one in judge.told}
    assert told == {"logged_values_are_true": first}
    whole = [event for event in recorder.trace if isinstance(event, Logged)]
    assert whole[: first - 1] == seen[first]
    assert len(whole) == 48  # and none of them twice

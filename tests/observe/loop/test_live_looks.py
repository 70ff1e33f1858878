"""What is shown of a recording while it goes on."""

import torch
from torch import nn
from torch.nn import functional as F

from trainguard.events.trace import Trace
from trainguard.observe.loop.live_looks import LiveLooks
from trainguard.observe.loop.recorder import Recorder


def test_what_is_lost_is_shown_as_lost() -> None:
    """A watcher that failed shows while the run goes on, as it does at its end."""
    seen: list[Trace] = []
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = Recorder("train")
    recorder.live = LiveLooks(lambda steps, trace: seen.append(trace) or "")
    with recorder:
        recorder.faults.switch_off(recorder.watchers[0], ValueError("broken"))
        for _ in range(40):
            optimizer.zero_grad()
            F.mse_loss(model(torch.randn(8, 4)), torch.zeros(8, 2)).backward()
            optimizer.step()
    assert seen
    for name in ("lost", "faults"):
        assert seen[-1].conditions[name] == recorder.trace.conditions[name]

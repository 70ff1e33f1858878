"""What becomes of gradients is told in the steps that are watched, and in these alone."""

import pytest
import torch
from torch import nn

from trainguard.events.loop import Step
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.window import DENSE

LONG = DENSE + 40  # steps: of the later ones only some are watched


def thrown(recorder: Recorder, name: str) -> dict[int, int]:
    """Return how many passes were in vain in each step of an optimizer, where any was."""
    steps = [event for event in recorder.trace if isinstance(event, Step)]
    return {step.step: step.thrown for step in steps if step.optimizer == name and step.thrown}


def test_a_slower_player_keeps_the_passes_of_a_faster_one_in_sight() -> None:
    """The first is still watched in each step, the second no more: nothing of it was in vain."""
    with Recorder("x") as recorder:
        critic, player = nn.Linear(4, 1), nn.Linear(3, 4)
        fast = torch.optim.Adam(critic.parameters(), lr=1e-3)
        slow = torch.optim.SGD(player.parameters(), lr=1e-3)
        for step in range(LONG):
            fast.zero_grad()
            made = player(torch.randn(8, 3)).detach()
            (critic(made).mean() - critic(torch.randn(8, 4)).mean()).backward()
            fast.step()
            if step % 3 == 2:
                slow.zero_grad()
                (-critic(player(torch.randn(8, 3))).mean()).backward()
                slow.step()
    assert thrown(recorder, "SGD") == {}
    assert [step for step in thrown(recorder, "Adam") if step >= DENSE] == []


def test_passes_in_vain_are_seen_late_too() -> None:
    """Of four micro-batches three are cleared before the step, in all steps that are watched."""
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(LONG):
            for _ in range(4):
                optimizer.zero_grad()
                net(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    late = {step: count for step, count in thrown(recorder, "SGD").items() if step >= DENSE}
    assert set(late.values()) == {3}
    assert sorted(late) == [DENSE, DENSE + 16, DENSE + 32]


@pytest.mark.filterwarnings("ignore:.*non-full backward hook:FutureWarning")
def test_gradients_that_a_module_has_told_of_are_spent() -> None:
    """As of a pass that is made for the statistics of a preconditioner."""
    sizes = []
    with Recorder("x") as recorder:
        net = nn.Linear(4, 1)
        net.register_backward_hook(lambda _, __, made: sizes.append(made[0].norm()))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        for _ in range(10):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert len(sizes) == 20
    assert thrown(recorder, "SGD") == {}

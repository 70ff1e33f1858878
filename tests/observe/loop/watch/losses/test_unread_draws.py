"""Log-probabilities that are learned: whether anything but them has read what was drawn."""

import pytest
import torch
from torch import nn
from torch.distributions import Categorical, Normal

from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder


def drawn_in_place(policy):
    """Return the log-probability of a draw without a name."""
    return policy.log_prob(policy.sample())


def drawn_by_name(policy):
    """Return that of a draw whose name is read once."""
    unread = policy.sample((1,))
    return policy.log_prob(unread)[0]


def drawn_and_taken(policy):
    """Return that of a draw which something else reads."""
    action = policy.sample()
    policy.taken = action.tolist()
    return policy.log_prob(action)


def drawn_by_another(policy):
    """Return how likely the policy takes what its teacher does."""
    teacher = Categorical(logits=torch.ones(8, 4))
    return policy.log_prob(teacher.sample())


def drawn_twice(policy):
    """Return that of a draw whose name is given something else later."""
    action = policy.sample()
    action = action.roll(1)
    return policy.log_prob(action)


def drawn_in_a_loop(policy):
    """Return that of a draw whose name no assignment has made."""
    for action in (policy.sample(),):
        log = policy.log_prob(action)
    return log


def drawn_beside(policy):
    """Return that of what was taken, beside one that a line before asks for."""
    policy.entropy = policy.log_prob(policy.sample()).detach()
    return policy.log_prob(torch.zeros(8, dtype=torch.long))


def drawn_with_graph(policy):
    """Return that of a draw that follows its mean."""
    return policy.log_prob(policy.rsample())


def of_no_draw(policy):
    """Return that of actions from elsewhere."""
    return policy.log_prob(torch.zeros(8, dtype=torch.long))


def by_logits(output):
    """Return a policy of four actions."""
    return Categorical(logits=output)


def by_mean(output):
    """Return a policy of four numbers."""
    return Normal(output, 0.5)


def learn(ask, make=by_logits, looked=True) -> list[Probe]:
    """Learn from log-probabilities of the policy that is made of an output (8, 4)."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            loss = -(ask(make(model(torch.randn(8, 3)))).flatten() * torch.randn(1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert ("unread draw" in recorder.trace.conditions["looked"]) == looked
    return [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread draw"]


@pytest.mark.parametrize("ask", [drawn_in_place, drawn_by_name])
def test_a_draw_that_nothing_else_reads(ask) -> None:
    """What it is weighed by has not come of it."""
    (probe,) = learn(ask)
    assert probe.measured == probe.reference >= 8
    assert probe.source.rpartition(":")[0] == __file__


@pytest.mark.parametrize(
    "ask",
    [
        *(drawn_and_taken, drawn_by_another, drawn_twice, of_no_draw),
        *(drawn_in_a_loop, drawn_beside),
    ],
)
def test_other_draws_are_fine(ask) -> None:
    """They are taken, or a teacher's, or come from elsewhere."""
    assert learn(ask) == []


def test_a_draw_with_a_graph_is_fine() -> None:
    """An entropy is estimated by it."""
    assert learn(drawn_with_graph, by_mean, looked=False) == []


def test_what_no_loss_learns_from_is_fine() -> None:
    """An entropy may be printed."""
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder("x") as recorder:
        for _ in range(12):
            policy = Categorical(logits=model(torch.randn(8, 3)))
            print(f"entropy {-drawn_in_place(policy).mean().item():.3f}")
            with torch.no_grad():
                drawn_in_place(policy)
            optimizer.zero_grad()
            (-of_no_draw(policy).mean()).backward()
            optimizer.step()
    assert recorder.trace.conditions.get("faults", ()) == ()
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unread draw"]

"""A training of two processes that are started anew, each on an accelerator of its own."""

import pytest

import trainguard as tg
from tests.simulated.conftest import KIND
from tests.simulated.device import NAME
from tests.simulated.ranks import train
from trainguard.core.errors import Unjudged
from trainguard.core.settings import Settings
from trainguard.judging.judge import Observations, applicable, verdict
from trainguard.observe.ranks.processes import observe_processes

pytestmark = pytest.mark.skipif(KIND != NAME, reason="it trains on the simulated devices")
together = tg.Loop(train, arguments={"alone": False}, ranks=2, devices=KIND)
apart = tg.Loop(train, arguments={"alone": True}, ranks=2, devices=KIND)
three = tg.Loop(train, arguments={"alone": False}, ranks=3, devices=KIND)


@pytest.mark.parametrize(("loop", "broken"), [(together, False), (apart, True)])
def test_processes_with_a_device_each(loop: tg.Loop, broken: bool) -> None:
    """They are judged together, although no process that trains can be forked here."""
    observations = Observations(Settings(select=("ranks.*",)))
    chosen = applicable(loop, observations.settings, ("cpu",))
    found = [verdict(loop, made, config, observations) for made, config in chosen]
    names = {each.invariant.name for each in found if each.outcome == "broken"}
    assert names == ({"processes_exchange_gradients"} if broken else set())
    assert any(each.outcome == "passed" for each in found)


def test_more_processes_than_devices() -> None:
    """One sentence says how many there would have to be."""
    with pytest.raises(Unjudged, match="3 processes take a sim device each, and there are not"):
        observe_processes(three, 0, 3)

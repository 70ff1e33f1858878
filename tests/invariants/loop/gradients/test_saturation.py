"""Functions that stand at their limit, in every step of a run."""

import pytest

from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe

CLAMP = Probe(probe="saturated", measured=64.0, label="Net.log_std.weight clamp")


def parameter(**more) -> Parameter:
    """Write what became of the parameter before the clamp."""
    return Parameter(name="Net.log_std.weight", **{"received": 30, **more})


@pytest.mark.parametrize(
    ("own", "probe", "conditions", "expected"),
    [
        (parameter(), CLAMP, {}, ["broken"]),
        (parameter(gradient=1e-6), CLAMP, {}, []),
        (parameter(held=False), CLAMP, {}, []),
        (parameter(), Probe(probe="saturated", measured=1.0, label=CLAMP.label), {}, ["note"]),
        (parameter(), CLAMP, {"looked": ("matched",)}, ["note"]),
    ],
    ids=["always", "once not", "held by nothing", "one number", "a state was loaded"],
)
def test_a_saturated_clamp(own, probe, conditions, expected, ranks, steps) -> None:
    """It is broken where weights of a fresh model never got anything but zeros."""
    run = [*steps(30), own, probe]
    assert ranks("functions_let_gradients_through", run, conditions=conditions) == expected


ROUND = Probe(probe="saturated", measured=64.0, label="Net.log_std.weight round")
STOPPED = {"gradient": 0.5, "dead": 20, "module": "Net.log_std"}


@pytest.mark.parametrize(
    ("own", "beside", "probe", "expected"),
    [
        (STOPPED, {}, ROUND, ["broken"]),
        (STOPPED, {"thawed": True}, ROUND, ["note"]),
        (STOPPED, {"module": "Net.head"}, ROUND, ["note"]),
        (STOPPED, {"dead": 20}, ROUND, ["note"]),
        ({**STOPPED, "dead": 19}, {}, ROUND, []),
        (STOPPED, {}, CLAMP, []),
    ],
    ids=["bias learns", "frozen bias", "other module", "dead bias", "too short", "a clamp"],
)
def test_weights_that_are_rounded_later(own, beside, probe, expected, ranks, steps) -> None:
    """It is broken where weights stop at a round while the bias beside them learns on."""
    bias = Parameter(
        name="Net.log_std.bias",
        **{"received": 60, "gradient": 0.5, "module": "Net.log_std"} | beside,
    )
    run = [*steps(60), parameter(**own), bias, probe]
    assert ranks("functions_let_gradients_through", run) == expected

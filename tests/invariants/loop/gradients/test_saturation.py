"""Functions that stand at their limit, in every step of a run."""

import pytest

from trainguard.events.loop import Parameter, Probe

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

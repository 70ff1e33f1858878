"""The judge of what recurrent layers learn from."""

import pytest

from trainguard.events.loop import Parameter


def weight(name: str, gradient: float = 0.0, **more) -> Parameter:
    """Write a weight of a recurrent layer, with no gradient but zero unless told otherwise."""
    row = {"module": "net.rnn", "elements": 64, "received": 40, "dead": 0 if gradient else 40}
    return Parameter(name=f"net.rnn.{name}", gradient=gradient, **{**row, **more})


def layer(*dead: str, suffixes=("_l0", "_l0_reverse"), **more) -> list[Parameter]:
    """Write the weights of a layer, of which some are dead."""
    names = [f"weight_{kind}{suffix}" for kind in ("ih", "hh") for suffix in suffixes]
    return [weight(name, 0.0 if name in dead else 0.5, **more) for name in names]


def test_a_direction_that_is_read_at_its_first_place(judged) -> None:
    """Its states are never multiplied, though its inputs are."""
    (finding,) = judged("recurrent_layers_go_on", layer("weight_hh_l0_reverse"))
    assert finding.summary == (
        "the backward direction of a layer of `train` is read at its first place alone"
    )
    assert finding.at == "net.rnn.weight_hh_l0_reverse"
    assert finding.measured == "a gradient of exactly 0 in 40 of 40 steps"


def test_a_direction_that_is_not_read(judged) -> None:
    """Neither its states nor its inputs are."""
    (finding,) = judged("recurrent_layers_go_on", layer("weight_hh_l0", "weight_ih_l0"))
    assert finding.summary == "the forward direction of a layer of `train` is not read"


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (layer("weight_hh", suffixes=("",)), ["note"]),
        (layer("weight_hh_l0", suffixes=("_l0",)), ["note"]),
        (layer("weight_hh_l0", "weight_ih_l0", suffixes=("_l0",)), []),
        (layer(), []),
        (layer("weight_hh_l0_reverse", received=19, dead=19), []),
        (layer("weight_hh_l0_reverse", dead=39), []),
        (layer("weight_hh_l0_reverse", held=False), []),
        (layer("weight_hh_l0_reverse", trainable=False), []),
        (layer("weight_hh_l0_reverse", copy=True), []),
    ],
    ids=["cell", "single", "nothing", "all", "few", "one", "held", "frozen", "copy"],
)
def test_ranks(parameters, expected, ranks) -> None:
    """One direction of two is sure; others may have sequences of one place on purpose."""
    assert ranks("recurrent_layers_go_on", parameters) == expected

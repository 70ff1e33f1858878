"""The judge of what the optimizers hold."""

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe

HOLDS = "optimizer_holds_every_trainable_parameter"
LEFT_OUT = {"held": False, "moved": False}
GONE = {"orphan": True, "called": False, "received": 0, "gradient": 0.0, "moved": False}


def one(name: str, **more) -> Parameter:
    """Write one healthy parameter of an optimizer."""
    row = {"module": name.rpartition(".")[0], "elements": 64, "received": 20, "gradient": 0.5}
    return Parameter(name=name, **{**row, "rate": 1e-3, **more})


def model(*layers: str, left_out: tuple[str, ...] = (), **more) -> list[Parameter]:
    """Write layers of one model, of which the optimizer leaves some out."""
    return [
        one(f"Net.{layer}", **{**more, **(LEFT_OUT if layer in left_out else {})})
        for layer in layers
    ]


LAYERS = ("features.0.weight", "features.2.weight", "neck.weight", "head.weight")


def test_a_head_replaced_after_the_optimizer_was_built(judged, steps) -> None:
    """Both are named: the head that is trained, and the one that is held."""
    run = [*steps(20), *model(*LAYERS, left_out=("head.weight",)), one("Linear.weight", **GONE)]
    (finding,) = judged(HOLDS, run)
    assert finding.summary == (
        "the optimizers of `train` hold parameters of no module that is called"
        " and leave out others that get gradients"
    )
    assert finding.at == "Net.head.weight; held: Linear.weight"
    assert (finding.measured, finding.allowed, finding.rank) == (
        "25 % of the elements that get gradients",
        "0 %",
        Rank.BROKEN,
    )
    assert "replaced after" in finding.why
    loose = one("Linear.weight", **{**GONE, "held": False})
    (finding,) = judged(HOLDS, [*run[:-1], loose])
    assert finding.summary == (
        "the optimizers of `train` leave out parameters of a model that they train"
    )


@pytest.mark.parametrize(
    ("passes", "size", "expected"),
    [(3, 64, Rank.BROKEN), (2, 64, Rank.NOTE), (3, 32, Rank.NOTE)],
    ids=["each pass", "a second time", "another one is held"],
)
def test_a_weight_made_anew_in_each_pass(passes, size, expected, judged, steps) -> None:
    """As many as there were passes, in one place of which the optimizer holds the first."""
    anew = passes * [one("Head.weight", **{**LEFT_OUT, "received": 1})]
    held = one("parameter of shape (8, 8)", **{**GONE, "module": "", "elements": size})
    (finding,) = judged(HOLDS, [*steps(20), *model(*LAYERS), *anew, held])
    assert finding.rank is expected
    if expected is Rank.BROKEN:
        assert finding.at == "Head.weight; held: parameter of shape (8, 8)"
        assert finding.measured == "20 % of the elements that get gradients"
        assert "each pass puts a new nn.Parameter" in finding.why


def test_a_model_replaced_after_the_optimizer_was_built(judged, steps) -> None:
    """Nothing that the optimizer holds gets a gradient."""
    old = [one(f"Net#2.{layer}", **GONE) for layer in LAYERS]
    (finding,) = judged(HOLDS, [*steps(20), *model(*LAYERS, left_out=LAYERS), *old])
    assert (
        finding.at == "Net.features.0.weight and 3 more; held: Net#2.features.0.weight and 3 more"
    )
    assert (finding.measured, finding.rank) == (
        "100 % of the elements that get gradients",
        Rank.BROKEN,
    )


@pytest.mark.parametrize(
    ("left_out", "expected"),
    [
        ((), []),
        (("head.weight",), ["broken"]),
        (("neck.weight",), ["broken"]),
        (("features.2.weight",), ["broken"]),
        (("features.0.weight",), ["note"]),
        (("features.0.weight", "features.2.weight"), ["note"]),
        (("features.0.weight", "features.2.weight", "neck.weight"), ["note"]),
        (("features.2.weight", "neck.weight"), ["note"]),
        (LAYERS, ["note"]),
    ],
    ids=["none", "head", "neck", "layer", "first", "backbone", "probing", "half", "all"],
)
def test_what_is_left_out(left_out: tuple[str, ...], expected, ranks, steps) -> None:
    """A part in front is frozen by omission; a layer behind what is held was forgotten."""
    assert ranks(HOLDS, [*steps(20), *model(*LAYERS, left_out=left_out)]) == expected


def test_the_share_that_is_left_out_has_a_limit(judged, steps) -> None:
    """Half of the elements may be a choice; the measured share is that of what is named."""
    run = [*steps(20), *model(*LAYERS, left_out=("neck.weight",))]
    (finding,) = judged(HOLDS, run)
    assert (finding.at, finding.measured) == (
        "Net.neck.weight",
        "25 % of the elements that get gradients",
    )
    (finding,) = judged(HOLDS, run, **{f"limit:{HOLDS}": 0.2})
    assert finding.rank is Rank.NOTE


def test_a_branch_behind_what_is_held_is_a_note(ranks, steps) -> None:
    """An encoder that is trained through a decoder that stays holds no part of the decoder."""
    layers = ("encoder.0.weight", "encoder.1.weight", "decoder.0.weight")
    assert ranks(HOLDS, [*steps(20), *model(*layers, left_out=layers[2:])]) == ["note"]


def test_a_new_branch_behind_what_is_held_is_broken(ranks, steps) -> None:
    """What torch has just drawn was not trained before; what a state was loaded into may be."""
    front, held = model("encoder.0.weight"), model("encoder.0.weight", "encoder.1.weight")
    new = one("Net.decoder.out.0.weight", **LEFT_OUT, drawn=True)
    bias = one("Net.decoder.out.0.bias", **LEFT_OUT, dimensions=1, elements=1)
    assert ranks(HOLDS, [*steps(20), *held, new, bias]) == ["broken"]
    assert ranks(HOLDS, [*steps(20), *front, new, bias]) == ["note"]  # one of two layers
    assert ranks(HOLDS, [*steps(20), new, bias, *held]) == ["note"]  # in front
    loaded = one("Net.decoder.out.0.weight", **LEFT_OUT, drawn=True, loaded=True)
    assert ranks(HOLDS, [*steps(20), *held, loaded, bias]) == ["note"]
    head = one("Net.head.weight", **LEFT_OUT, loaded=True)
    assert ranks(HOLDS, [*steps(20), *held, head]) == ["note"]


def test_a_large_layer_that_is_new_is_one_of_many(ranks, steps) -> None:
    """Layers that are new are counted; of others it is their elements that count."""
    run = [*steps(20), *model(*LAYERS[:3])]
    large = {**LEFT_OUT, "elements": 4096}
    assert ranks(HOLDS, [*run, one("Net.head.weight", **large)]) == ["note"]
    assert ranks(HOLDS, [*run, one("Net.head.weight", **large, drawn=True)]) == ["broken"]


def test_a_helper_model_is_a_note(ranks, steps) -> None:
    """A perceptual loss gets gradients for nothing; an unused module beside it changes nothing."""
    helper = one("VGG.0.weight", **LEFT_OUT)
    assert ranks(HOLDS, [*steps(20), *model(*LAYERS), helper]) == ["note"]
    unused = one("Aux.0.weight", **GONE)
    assert ranks(HOLDS, [*steps(20), *model(*LAYERS), helper, unused]) == ["note"]


@pytest.mark.parametrize(
    ("numbers", "loaded", "expected"),
    [(2, False, ["broken"]), (1, False, ["note"]), (2, True, ["note"])],
    ids=["two numbers", "one", "loaded"],
)
def test_a_loss_with_numbers_and_a_layer(numbers, loaded, expected, ranks, steps) -> None:
    """Weights of terms beside a classifier are no helper that is frozen by leaving it out."""
    more = {**LEFT_OUT, "loaded": loaded}
    weights = [
        one(f"Loss.s{i}", **more, module="Loss", own=True, elements=1) for i in range(numbers)
    ]
    layer = one("Loss.classify.weight", **more)
    assert ranks(HOLDS, [*steps(20), *model(*LAYERS), *weights, layer]) == expected


@pytest.mark.parametrize(
    "changed",
    [
        {"moved": True},
        {"held": True},
        {"copy": True},
        {"thawed": True, "learns": False},
        {"trainable": False},
        {"received": 0},
        {"gradient": 0.0},
    ],
    ids=str,
)
def test_what_has_a_reason_is_silent(changed: dict, judged, steps) -> None:
    """Moved by hand, held by another optimizer, a copy, thawed or frozen, out of reach."""
    odd = one("Net.head.weight", **{**LEFT_OUT, **changed})
    assert judged(HOLDS, [*steps(20), *model(*LAYERS[:3]), odd]) == []


def test_loose_parameters_are_no_orphans(ranks, steps) -> None:
    """Learned loss weights are in no module, and get gradients."""
    loose = one("parameter of shape (2,)", module="", orphan=True, called=False)
    assert ranks(HOLDS, [*steps(20), *model(*LAYERS), loose]) == []
    left = model(*LAYERS, left_out=LAYERS[:2])
    assert ranks(HOLDS, [*steps(20), *left, loose]) == ["note"]


def test_edges(judged, steps) -> None:
    """Nothing is said without a step, and of steps made by hand."""
    left = model(*LAYERS, left_out=LAYERS)
    for run in ([], steps(1), left, [*steps(20, optimizer="by hand"), *left]):
        assert judged(HOLDS, run) == []
    empty = [one("Net.head.weight", elements=0, **LEFT_OUT)]
    assert len(judged(HOLDS, [*steps(1), *empty])) == 1


@pytest.mark.parametrize(
    ("more", "summary"),
    [
        ({"thawed": True}, "leave out parameters that were thawed in the course of the run"),
        ({"thawed": True, "learns": False}, ""),
        ({"hidden": True}, "leave out parameters that the model uses and does not register"),
        ({"hidden": True, "received": 2}, "leave out parameters that get gradients"),
        ({"own": True}, "leave out learnable parameters of a module of its own"),
        ({"own": True, "dimensions": 4}, "leave out parameters that get gradients"),
    ],
)
def test_what_speaks_for_a_parameter_that_was_forgotten(more, summary, judged, steps) -> None:
    """Thawing it, hiding it in a list, or writing a module around it says that it is to learn."""
    alone = one("Criterion.weight", **{**LEFT_OUT, **more})
    found = judged(HOLDS, [*steps(20), *model(*LAYERS), alone])
    assert [f.summary for f in found] == [f"the optimizers of `train` {summary}"] * bool(summary)


@pytest.mark.parametrize(
    ("several", "evaluated", "expected"),
    [(2, 5, [Rank.BROKEN]), (1, 5, [Rank.NOTE]), (1, 1, []), (0, 0, [])],
)
def test_weights_that_evaluations_adapt(several, evaluated, expected, judged) -> None:
    """Several tasks in one memory are a mistake; one may be a layer that is solved for."""
    seen = Probe(probe="borrowed", measured=several, reference=evaluated, label="fc.weight")
    assert [f.rank for f in judged("adapted_weights_are_copies", [seen])] == expected


def test_layers_replaced_once_the_optimizer_has_learned(judged, steps) -> None:
    """What the optimizer holds has learned, so that only the row at the end tells."""
    old = [one(f"Old.{layer}", orphan=True) for layer in LAYERS]
    run = [*steps(60), *model(*LAYERS, left_out=LAYERS), *old]
    row = {"probe": "left behind", "measured": 30.0, "reference": 0.0, "step": 30}
    (finding,) = judged(HOLDS, [*run, Probe(label=f"Net.{LAYERS[0]}", **row)])
    assert finding.at == "step 30 and after, Net.features.0.weight and 3 more"
    assert finding.measured == "30 steps without a gradient for what it holds"
    assert finding.rank is Rank.BROKEN
    for others in ([], [Probe(label="Probe.weight", **row)]):
        (finding,) = judged(HOLDS, [*run, *others])
        assert finding.rank is Rank.NOTE


@pytest.mark.parametrize(("steps", "expected"), [(8, ["broken"]), (7, [])])
def test_products_of_two_zeros(steps, expected, ranks) -> None:
    """In eight steps or more: before that a stage of warming up may go on."""
    probe = Probe(probe="zero factors", measured=2.0, reference=float(steps), label="net.down")
    assert ranks("low_rank_products_can_learn", [probe]) == expected


@pytest.mark.parametrize(
    ("behind", "told", "expected"),
    [
        (LAYERS[:3], {"drawn": True}, "broken"),
        (LAYERS[:2], {"drawn": True}, "note"),
        (LAYERS[:3], {}, "note"),
        (LAYERS[:3], {"drawn": True, "loaded": True}, "note"),
        (LAYERS[:3], {"drawn": True, "own": True}, "note"),
    ],
    ids=["new", "two behind", "other numbers", "loaded", "own"],
)
def test_a_table_in_front_of_what_is_held(behind, told, expected, ranks, steps) -> None:
    """What torch has just drawn was forgotten; what was made elsewhere may be frozen so."""
    table = one("Net.words.weight", **{**LEFT_OUT, "elements": 4096}, **told)
    assert ranks(HOLDS, [*steps(20), table, *model(*behind)]) == [expected]


def test_a_layer_in_front_of_what_is_held(ranks, steps) -> None:
    """With a bias it is no table, and two of them are no single one."""
    new = one("Net.stem.weight", **LEFT_OUT, drawn=True)
    bias = one("Net.stem.bias", **LEFT_OUT, dimensions=1, elements=1)
    other = one("Net.types.weight", **LEFT_OUT, drawn=True)
    for front in ([new, bias], [new, other]):
        assert ranks(HOLDS, [*steps(20), *front, *model(*LAYERS[:3])]) == ["note"]
    held = one("Net.stem.bias", dimensions=1, elements=1)
    assert ranks(HOLDS, [*steps(20), new, held, *model(*LAYERS[:3])]) == ["note"]

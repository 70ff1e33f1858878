"""The judges of what is meant to move, and of what is frozen."""

from dataclasses import replace
from math import inf, nan

import pytest

from trainguard.core.finding import Rank
from trainguard.events.loop import Parameter
from trainguard.events.probe import Probe

MOVES = "every_trainable_parameter_moves"
STAYS = "frozen_parameters_stay"


def one(name: str, **more) -> Parameter:
    """Write one healthy parameter of an optimizer that got a gradient in each of 20 steps."""
    row = {"module": name.rpartition(".")[0], "elements": 64, "received": 20, "gradient": 0.5}
    return Parameter(name=name, **{**row, "rate": 1e-3, **more})


def model(**changed) -> list[Parameter]:
    """Write a model of two layers; `fc2_weight={...}` changes one parameter of it."""
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    return [one(f"Net.{name}", **changed.get(name.replace(".", "_"), {})) for name in names]


def test_what_gets_gradients_and_stands_still_is_found(judged, steps) -> None:
    """The rest of the model moves, and there is a rate."""
    still = {"moved": False, "gradient": 0.25}
    run = [*steps(20), *model(fc2_weight=still, fc2_bias=still)]
    (finding,) = judged(MOVES, run)
    assert finding.summary == "parameters of `train` get gradients and do not move"
    assert finding.at == "Net.fc2.weight and 1 more"
    assert finding.measured == "no move in 20 steps, gradients up to 0.25"
    assert (finding.allowed, finding.rank) == ("a move within 2 steps", Rank.BROKEN)
    assert "put them back" in finding.why
    assert len(judged(MOVES, [*steps(2), *run[20:]])) == 1


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"rate": 0.0}, ["note"]),
        ({"rate": 1e-7}, ["note"]),
        ({"called": False}, []),
        ({"copy": True}, []),
        ({"thawed": True}, []),
        ({"trainable": False}, []),
        ({"held": False}, []),
        ({"received": 1}, []),
        ({"received": 2, "gradient": 1e-4}, []),
        ({"gradient": nan}, []),
        ({"gradient": inf}, ["broken"]),
        ({"moved": True}, []),
    ],
    ids=str,
)
def test_a_single_parameter_that_stands_still(changed: dict, expected, ranks, steps) -> None:
    """Only what is held, called and pulled at counts; no rate, and rounding, are notes."""
    run = [*steps(20, optimizer="AdamW"), *model(fc2_weight={"moved": False, **changed})]
    assert ranks(MOVES, run) == expected


def test_a_bias_before_a_normalisation_may_stand_still(ranks, steps) -> None:
    """Its gradient is rounding noise; the limit says how small is noise."""
    run = [*steps(20), *model(fc1_bias={"moved": False, "gradient": 1e-5})]
    assert ranks(MOVES, run) == []
    assert ranks(MOVES, run, **{f"limit:{MOVES}": 1e-6}) == ["note"]


def test_an_update_below_rounding_is_a_note_for_plain_descent(ranks, steps) -> None:
    """SGD's updates are as small as its gradients; those of Adam are not."""
    slow = model(fc1_bias={"moved": False})
    small = [one(p.name, gradient=1e-3, moved=p.moved) for p in slow]
    assert ranks(MOVES, [*steps(20, optimizer="SGD"), *small]) == ["note"]
    assert ranks(MOVES, [*steps(20, optimizer="AdamW"), *small]) == ["broken"]


def test_an_optimizer_that_never_steps_is_silent(ranks, steps) -> None:
    """The generator of a GAN gets its first step after some of the critic's."""
    generator = [one(f"Maker.{n}.weight", moved=False) for n in range(3)]
    assert ranks(MOVES, [*steps(20, held=4), *model(), *generator]) == []
    assert ranks(MOVES, [*steps(20, held=7), *model(), *generator]) == ["broken"]
    late = [*steps(20, held=4), *steps(1, held=3, optimizer="Adam#2"), *model(), *generator]
    assert ranks(MOVES, late) == []


def test_a_model_that_does_not_move_at_all(judged, steps) -> None:
    """A run that ends where it began is a note if its steps moved it; no rate is another's."""
    still = [one(p.name, moved=False) for p in model()]
    (finding,) = judged(MOVES, [*steps(20, update=0.0), *still])
    assert finding.summary == "no parameter of `train` moves"
    assert (finding.at, finding.rank) == ("Net.fc1.weight and 3 more", Rank.BROKEN)
    copied = one("Net#2.fc1.weight", copy=True)
    (finding,) = judged(MOVES, [*steps(20, update=0.0), *still, copied])
    assert finding.summary == "no parameter of `train` moves"
    (finding,) = judged(MOVES, [*steps(20), *still])
    assert "end as they began" in finding.summary
    assert finding.rank is Rank.NOTE
    no_rate = [one(p.name, moved=False, rate=0.0) for p in model()]
    assert judged(MOVES, [*steps(20, update=0.0), *no_rate]) == []


def test_a_module_that_no_gradient_reaches_is_a_note(judged, steps) -> None:
    """A layer is named once, not its weight and its bias."""
    unreached = {"received": 0, "gradient": 0.0, "moved": False}
    run = model(fc2_weight=unreached, fc2_bias=unreached)
    (finding,) = judged(MOVES, [*steps(20), *run])
    assert finding.summary == "no gradient reaches a module of `train` that is called"
    assert (finding.at, finding.rank) == ("Net.fc2", Rank.NOTE)
    assert (finding.measured, finding.allowed) == ("0 gradients in 20 steps", "1 or more")
    assert judged(MOVES, [*steps(4), *run]) == []
    assert len(judged(MOVES, [*steps(5), *run])) == 1


@pytest.mark.parametrize("changed", [{"called": False}, {"held": False}, {"thawed": True}])
def test_an_unused_expert_is_silent(changed: dict, judged, steps) -> None:
    """What is not called, not held or thawed later has no gradient to get."""
    idle = {"received": 0, "gradient": 0.0, "moved": False, **changed}
    assert judged(MOVES, [*steps(20), *model(fc2_weight=idle, fc2_bias=idle)]) == []


def test_one_parameter_without_gradient_is_silent(judged, steps) -> None:
    """A mask token that a fine-tuning does not need stands in a module that learns."""
    idle = {"received": 0, "gradient": 0.0, "moved": False}
    assert judged(MOVES, [*steps(20), *model(fc2_bias=idle)]) == []


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"held": False}, "no optimizer holds it"),
        ({"trainable": False}, "frozen and never thawed"),
        ({"called": False}, "never called"),
        ({"received": 0}, "no gradient reaches it"),
        ({"rate": 0.0}, "rate of its group is zero"),
        ({"copy": True}, ""),
    ],
)
def test_what_is_promised_to_train_moves(changed: dict, why: str, judged, steps) -> None:
    """A promise is judged whatever the reason, and the reason is told."""
    run = [*steps(20), *model(fc2_weight={"moved": False, **changed})]
    (finding,) = judged(MOVES, run, trainable=("Net.fc2.weight", "fc2.*"))
    assert finding.summary == "parameters that `train` promises to train do not move"
    assert (finding.at, finding.measured) == ("Net.fc2.weight", "no move in 20 steps")
    assert (finding.rank, why in finding.why) == (Rank.BROKEN, True)


def test_promises_of_a_run_that_keeps_them(judged, steps) -> None:
    """A glob names parameters with or without their model; a copy is named beside its model."""
    copied = one("Net#2.fc1.weight", copy=True, moved=False)
    run = [*steps(20), *model(), copied]
    assert judged(MOVES, run, trainable=("fc1.*", "Net.fc2.*", "*.fc1.weight")) == []
    still = [one(p.name, moved=False) for p in model()]
    assert judged(MOVES, [*steps(1), *still], trainable=("fc1.*",)) == []


@pytest.mark.parametrize("word", ["trainable", "frozen"])
def test_a_promise_that_names_nothing_is_found(word: str, judged, steps) -> None:
    """A glob without a parameter promises nothing; with no parameter known nothing is said."""
    name = MOVES if word == "trainable" else STAYS
    (finding,) = judged(name, [*steps(20), *model()], **{word: ("*.backbone.*",)})
    assert finding.summary == f"`train` has no parameter that its promise `{word}` names"
    assert (finding.at, finding.rank) == ("'*.backbone.*'", Rank.BROKEN)
    assert (finding.measured, finding.allowed) == ("0 of 4 parameters", "1 or more")
    assert judged(name, steps(20), **{word: ("*.backbone.*",)}) == []


def test_what_is_frozen_and_moved_by_a_step_is_found(judged, steps) -> None:
    """Momentum goes on where a gradient was zeroed and not removed."""
    run = [*steps(20), *model(fc1_weight={"trainable": False, "moved_frozen": True})]
    (finding,) = judged(STAYS, run)
    assert finding.summary == "an optimizer of `train` moves parameters that are frozen"
    assert (finding.at, finding.measured, finding.allowed) == (
        "Net.fc1.weight",
        "1 of 4 parameters moved",
        "0 of 4",
    )
    assert (finding.rank, "None" in finding.why) == (Rank.BROKEN, True)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"moved_frozen": True}, "old gradient"),
        ({"trainable": False}, "something else edits it"),
        ({}, "still requires a gradient"),
    ],
)
def test_what_is_promised_to_stay_stays(changed: dict, why: str, judged, steps) -> None:
    """A promise is judged by the end of the run, and said once."""
    run = [*steps(20), *model(fc1_weight=changed)]
    (finding,) = judged(STAYS, run, frozen=("Net.fc1.weight",))
    assert finding.summary == "parameters that `train` promises to freeze move"
    assert (finding.at, why in finding.why) == ("Net.fc1.weight", True)
    assert (
        judged(STAYS, [*steps(20), *model(fc1_weight={"moved": False})], frozen=("fc1.w*",)) == []
    )


def test_a_copy_follows_by_its_own_rule(judged, steps) -> None:
    """An average moves without gradients; beside its model, a glob does not mean it."""
    copied = one("Net#2.fc1.weight", copy=True, trainable=False, moved_frozen=True)
    run = [*steps(20), *model(fc1_weight={"moved": False, "trainable": False}), copied]
    assert judged(STAYS, run) == []
    assert judged(STAYS, run, frozen=("*.fc1.weight",)) == []


@pytest.mark.parametrize("name", [MOVES, STAYS])
def test_edges(name: str, judged, steps) -> None:
    """Nothing is said of no run, of one step, and of parameters without a step."""
    still = [one(p.name, moved=False) for p in model()]
    for run in ([], steps(1), still, [*steps(1), *still], [*steps(20, skipped=True), *still]):
        assert judged(name, run) == []


@pytest.mark.parametrize(
    ("label", "expected"), [("Net.fc1", ["broken"]), ("Net.fc2", ["note"]), ("", ["note"])]
)
def test_a_module_that_is_cut_off(label: str, expected: list, ranks, steps) -> None:
    """Where what is learned from depends on it, it is no choice."""
    cut = {"received": 0, "gradient": 0.0, "moved": False}
    run = [*steps(20), one("Net.fc1.weight", **cut), one("Net.fc2.weight")]
    probe = Probe(probe="detached", measured=1.0, reference=0.1, label=label)
    assert ranks("every_trainable_parameter_moves", [*run, probe]) == expected


FROZEN = {"trainable": False, "moved": False, "received": 0, "gradient": 0.0, "drawn": True}


def stack() -> list[Parameter]:
    """Write three layers of which the first is frozen as it was drawn."""
    return [one("Net.fc1.weight", **FROZEN), one("Net.fc2.weight"), one("Net.fc3.weight")]


def test_a_layer_that_is_frozen_as_it_was_drawn_is_noted(judged, steps) -> None:
    """The layers behind it learn on top of random numbers."""
    (finding,) = judged(MOVES, [*steps(20), *stack()])
    assert finding.summary == "a layer of `train` is frozen as torch has drawn it"
    assert (finding.at, finding.rank) == ("Net.fc1", Rank.NOTE)
    assert finding.measured == "random numbers in all of 20 steps"


LOADED = {**FROZEN, "drawn": False, "loaded": True}
PRETRAINED = {"thawed": True, "trainable": False, "learns": False, "drawn": False}


def adapted(body: dict = LOADED, head: dict = FROZEN, adapter: dict | None = None) -> list:
    """Write a model that is frozen, with an adapter in it."""
    return [
        one("Net.fc1.weight", **body),
        one("Net.fc1.a", **(adapter or {})),
        one("Net.fc2.weight", **body),
        one("Net.head.weight", **head),
    ]


@pytest.mark.parametrize("body", [LOADED, PRETRAINED], ids=["loaded", "pretrained"])
def test_a_head_that_is_frozen_beside_adapters(body: dict, judged, steps) -> None:
    """All else that is frozen has learned something."""
    (finding,) = judged(MOVES, [*steps(20), *adapted(body)])
    assert finding.summary == "the last layer of `train` is frozen as torch has drawn it"
    assert (finding.at, finding.rank) == ("Net.head", Rank.BROKEN)


@pytest.mark.parametrize(
    "model",
    [
        adapted(head=LOADED),
        adapted(head={"elements": 64}),
        adapted({**FROZEN, "elements": 100_000}),
        adapted({**FROZEN, "drawn": False, "elements": 100_000}),
        adapted(adapter={**FROZEN, "drawn": False}),
        [*adapted(), one("Net.head.a")],
        adapted({}),
    ],
)
def test_heads_that_may_stay(model: list, judged, steps) -> None:
    """Loaded, learning, among others as it is, without adapters, or with one of its own."""
    assert [f for f in judged(MOVES, [*steps(20), *model]) if "last layer" in f.summary] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"drawn": False},
        {"loaded": True},
        {"thawed": True},
        {"copy": True},
        {"called": False},
        {"elements": 128},
        {"name": "Net.fc1.weight_hh_l0"},
        {"name": "Other.fc1.weight"},
    ],
    ids=str,
)
def test_what_may_stay_as_it_was_drawn(changed: dict, judged, steps) -> None:
    """Loaded, thawed later, a target, most of a model, a reservoir, and models of their own."""
    first, *others = stack()
    assert judged(MOVES, [*steps(20), replace(first, **changed), *others]) == []


def test_a_frozen_helper_of_several_layers_is_meant_so(judged, steps) -> None:
    """A whole part of a model with two layers is one that somebody has chosen."""
    helper = [one(f"Net.helper.{i}.weight", **FROZEN) for i in (0, 2)]
    learns = [one(f"Net.fc{i}.weight") for i in range(4)]
    assert judged(MOVES, [*steps(20), *helper, *learns]) == []
    assert len(judged(MOVES, [*steps(20), helper[0], one("Net.helper.2.weight"), *learns])) == 1

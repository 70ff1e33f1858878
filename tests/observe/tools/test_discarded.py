"""Statements that compute something, and keep nothing of it."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from trainguard.observe.tools.discarded import find_discarded, find_unread, name_unread


class Net(nn.Module):
    """Drops what dropout and a function return, and keeps the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm, self.last = nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.quick = nn.ReLU(inplace=True)

    def forward(self, x):
        """Return scores."""
        self.drop(x)
        F.relu(x)
        y = x.unsqueeze(0)  # noqa: F841 that is the mistake
        F.relu(x, inplace=True)
        self.quick(x)
        self.norm(x)
        _ = x.contiguous()
        h = torch.tanh(x)
        return self.last(h)


class Quiet(nn.Module):
    """Overwrites what it has just computed."""

    def forward(self, x):
        """Return the input, normalised."""
        h = F.dropout(x, 0.5)
        h = F.normalize(x)
        return h.squeeze()


def step(optimizer, model, rate):
    """Set rates and gradients in copies, and do what has an effect."""
    for group in optimizer.state_dict()["param_groups"]:
        group["lr"] = rate
    optimizer.state_dict()["param_groups"][0]["lr"] = rate
    for group in optimizer.param_groups:
        group["lr"] = rate
    for parameter in model.parameters():
        parameter.grad.clamp(-1, 1)
        parameter.grad.clamp_(-1, 1)
    own = model.state_dict()
    own["bias"] = torch.zeros(2)
    model.load_state_dict(own)


class Weighed(nn.Module):
    """Means to replace a layer, and compares it."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.last == nn.utils.parametrizations.weight_norm(self.last)  # noqa: B015 the mistake


def add(loss, penalty, pipeline, weight):
    """Add for nothing, compare for assigning, and compose what may do something."""
    loss + 0.1 * penalty
    weight * (penalty + 1)
    loss == loss + penalty  # noqa: B015
    weight * 2
    pipeline | loss
    pipeline >> loss
    loss += penalty
    return loss


def statements(function, module=None, **known: object) -> list[str]:
    """Return what a function computes for nothing, with some variables of its own."""
    found = find_discarded(function.__code__, globals() | known, module)
    return [text if certain else f"perhaps {text}" for text, _, certain in found]


def test_what_is_dropped_in_a_forward_is_found() -> None:
    """Layers and functions whose result nothing takes, in a variable or not."""
    found = statements(Net.forward, Net())
    assert found == ["self.drop(x)", "F.relu(x)", "perhaps y = x.unsqueeze(0)"]


def test_sums_that_nothing_takes_are_found() -> None:
    """And comparisons, of tensors, layers and numbers; not what other operators may do."""
    found = statements(add, loss=torch.ones(1), penalty=torch.ones(1), weight=0.5, pipeline=set())
    tensors = ["loss + 0.1 * penalty", "weight * (penalty + 1)", "loss == loss + penalty"]
    assert found == [*tensors, "weight * 2"]


def test_a_layer_that_is_compared_is_found() -> None:
    """In the function that makes its module."""
    text = "self.last == nn.utils.parametrizations.weight_norm(self.last)"
    assert statements(Weighed.__init__, self=Weighed()) == [text]


def test_what_a_notebook_shows_is_left_alone(tmp_path) -> None:
    """It stands at the left of a module; in a loop it would show nothing."""
    file = tmp_path / "cells.py"
    file.write_text("loss + 1\nfor _ in range(2):\n    loss + 2\n")
    code = compile(file.read_text(), str(file), "exec")
    assert [text for text, *_ in find_discarded(code, {"loss": torch.ones(1)})] == ["loss + 2"]


REBOUND = "for old, new in pairs:\n    old = old.lerp(new, 0.1)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (REBOUND, ["old = old.lerp(new, 0.1)"]),
        (REBOUND + "    kept.append(old)\n", []),
        (REBOUND + "\ndef show():\n    return old\n", []),
        ("old = old.lerp(new, 0.1)\n", []),
        (REBOUND.replace("lerp", "lerp_"), []),
        ("for old, new in pairs:\n    last = old.lerp(new, 0.1)\n", []),
    ],
    ids=["rebound", "kept", "read elsewhere", "no loop", "in place", "another"],
)
def test_a_variable_of_a_loop_that_is_set_alone(text: str, found: list[str], tmp_path) -> None:
    """In a script that is so where nothing else reads it; other variables may be read later."""
    file = tmp_path / "script.py"
    file.write_text(text)
    names = {"old": torch.ones(1), "new": torch.ones(1)}
    code = compile(text, str(file), "exec")
    assert [told for told, *_ in find_discarded(code, names)] == found


BY_HAND = "for p in net.parameters():\n    p = p - rate * p.grad\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BY_HAND, ["p = p - rate * p.grad"]),
        (BY_HAND + "    kept.append(p)\n", []),
        (BY_HAND.replace("net.parameters()", "rows"), []),  # numbers may be counted so
        (BY_HAND.replace("p = p", "q = p"), []),
        (BY_HAND.replace("p = p - rate", "p -= rate"), []),
        (BY_HAND.replace("p = p - rate * p.grad", "p.data = p - rate * p.grad"), []),
        ("for a, b in zip(x.buffers(), y.buffers()):\n    a = b + 0 * a\n", ["a = b + 0 * a"]),
        ("for p in net.parameters():\n    pass\np = p - rate * p.grad\n", []),
    ],
)
def test_a_parameter_that_is_set_as_a_variable(text: str, found: list[str], tmp_path) -> None:
    """Nothing is known of what the names stand for: the loop over parameters is enough."""
    file = tmp_path / "script.py"
    file.write_text(text)
    code = compile(text, str(file), "exec")
    assert [(told, sure) for told, _, sure in find_discarded(code, {})] == [
        (told, True) for told in found
    ]


def follow(slow, fast, kept):
    """Set a variable of a loop, once for nothing."""
    for old, new in zip(slow, fast, strict=True):
        old = old.lerp(new, 0.1)
    for was, new in zip(slow, fast, strict=True):
        was = was.lerp(new, 0.1)
        kept.append(was)


def test_a_variable_of_a_loop_in_a_function() -> None:
    """It is the same there."""
    names = {name: torch.ones(1) for name in ("old", "was", "new")}
    assert [told for told, *_ in find_discarded(follow.__code__, names)] == [
        "old = old.lerp(new, 0.1)"
    ]


def test_what_another_value_replaces_is_found() -> None:
    """Before anything reads it."""
    assert statements(Quiet.forward, Quiet()) == ["h = F.dropout(x, 0.5)"]


def test_what_is_set_in_a_copy_is_found() -> None:
    """In a state that was just made; not in one that is loaded later."""
    assert statements(step, parameter=torch.ones(2)) == [
        "for group in optimizer.state_dict()['param_groups']:",
        "optimizer.state_dict()['param_groups'][0]['lr'] = rate",
        "parameter.grad.clamp(-1, 1)",
    ]


class Own:
    """Has methods with the names of a tensor's, which do something."""

    def clamp(self) -> None:
        """Bound what is kept here."""

    @property
    def rows(self) -> torch.Tensor:
        """Fail where somebody looks."""
        raise AssertionError


def act(own, unknown):
    """Call methods of other things."""
    own.clamp()
    own.rows.clamp(0, 1)
    unknown.clamp(0, 1)
    unknown.squeeze().clamp(0, 1)


def test_methods_of_other_things_are_left_alone() -> None:
    """They may do anything; nothing is looked up that could."""
    assert statements(act, own=Own()) == []


@pytest.mark.parametrize("text", ["def f(x):\n    x.relu()\n", "x = ("])
def test_code_without_a_file_is_left_alone(text: str) -> None:
    """There is nothing to read."""
    names: dict = {}
    if text.startswith("def"):
        exec(compile(text, "<none>", "exec"), names)
        assert statements(names["f"]) == []


KEEPS = """
def keep(model):
    best = model.state_dict()
    deep = copy.deepcopy(model.state_dict())
    each = {name: value for name, value in model.state_dict().items()}
    path = model.save(model.state_dict())
    other = model.state_dict()
    model.last = model.state_dict()
    return other
def share(model):
    global shared
    shared = model.state_dict()
def peek(model):
    kept = model.state_dict()
    return locals()
top = Top()
final = used = None
final = top.state_dict()
used = top.state_dict()
def read():
    return used
"""


def test_variables_that_nothing_reads(tmp_path) -> None:
    """Of functions and modules; not those of code that may ask for all of its variables."""
    file, seen = tmp_path / "keeps.py", []
    file.write_text(KEEPS)

    class Model:
        """Sees by whom it is asked."""

        def state_dict(self) -> dict:
            """Ask what becomes of this."""
            seen.append(name_unread(sys._getframe(1), "state_dict"))
            return {}

        def save(self, _: dict) -> str:
            """Return where something was written."""
            return "model.pt"

    names: dict = {"Top": Model, "copy": copy, "__name__": "__main__"}
    exec(compile(KEEPS, str(file), "exec"), names)
    names["keep"](Model())
    names["peek"](Model())
    names["share"](Model())
    assert seen == ["final", "", "best", "deep", "each", "", "", "", "", ""]
    seen.clear()
    exec(compile(KEEPS, str(file), "exec"), names | {"__name__": "kept"})
    assert seen == ["", ""]  # who imports a module may read its variables


class Wasteful(nn.Module):
    """Makes things of layers and parameters, of which some are never read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.side = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale, self.shift = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(4))

    def forward(self, x):
        """Return what the last layer makes of the input."""
        hidden = self.first(x)
        scaled = hidden * self.scale  # noqa: F841 the mistake
        _, side = self.side(x).chunk(2)  # noqa: RUF059
        shifted = self.last(x) + self.shift
        return shifted.relu()


def use(head, x):
    """Make something of a layer that nothing reads, and give another one to what runs later."""
    told = head(x)  # noqa: F841 the mistake
    later = head(x)
    return lambda: later


def test_what_is_made_of_layers_and_never_read() -> None:
    """Each is named with its statement; what is taken apart may be left in part."""
    module, head = Wasteful(), nn.Linear(4, 2)
    found = list(find_unread(Wasteful.forward.__code__, globals(), module))
    assert [(text, held is module.scale) for text, _, held in found] == [
        ("scaled = hidden * self.scale", True)
    ]
    found = list(find_unread(use.__code__, {"head": head}))
    assert [(text, held is head) for text, _, held in found] == [("told = head(x)", True)]

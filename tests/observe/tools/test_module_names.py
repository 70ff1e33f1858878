"""Names of modules and parameters."""

import torch
from torch import nn

from trainguard.observe.tools.module_names import ModuleNames, unwrap


class Net(nn.Module):
    """A module with a part, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
        self.part[2].weight = self.part[0].weight


def test_parameters_are_named_from_the_outermost_module() -> None:
    """A tied weight has the first of its names."""
    names, net = ModuleNames(), Net()
    assert names.add(net) == "Net"
    assert names.parameter(net.part[2].weight) == "Net.part.0.weight"
    assert names.holder(net.part[2].bias) == "Net.part.2"
    assert names.module(net.part[1]) == "Net.part.1"


def test_a_second_module_of_a_class_has_a_number() -> None:
    """Two of a kind are told apart; one that is met again keeps its name."""
    names, first, second = ModuleNames(), Net(), Net()
    assert [names.add(first), names.add(second), names.add(first)] == ["Net", "Net#2", "Net"]


def test_a_wrapper_bears_the_name_of_what_is_inside() -> None:
    """A compiled module is the module."""
    net = Net()
    names, compiled = ModuleNames(), torch.compile(net, backend="eager")
    assert unwrap(compiled) is net
    assert names.add(compiled) == "Net"
    assert names.add(net) == "Net"


def test_a_part_that_was_tried_out_first_is_named_as_a_part() -> None:
    """It has the model's name for it if it was called before training, else it keeps its own."""
    early, late, net = ModuleNames(), ModuleNames(), Net()
    for names, renames in ((early, True), (late, False)):
        assert names.add(net.part, renames=renames) == "Sequential"
        assert names.add(net, renames=renames) == "Net"
    assert early.module(net.part[0]) == "Net.part.0"
    assert early.parameter(net.part[2].bias) == "Net.part.2.bias"
    assert list(early.roots()) == [net]
    assert late.parameter(net.part[2].bias) == "Sequential.2.bias"


def test_a_table_of_parameters_is_its_owners() -> None:
    """A list or dict of parameters is never called: the module around it uses them."""
    names, net = ModuleNames(), Net()
    net.weights = nn.ParameterDict({"size": nn.Parameter(torch.zeros(()))})
    names.add(net)
    assert names.parameter(net.weights["size"]) == "Net.weights.size"
    assert names.holder(net.weights["size"]) == "Net"
    assert names.is_own(net.weights["size"])


class Head(nn.Module):
    """A module of the user's around another one of the user's."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.last = Net(), nn.Linear(2, 2)

    def forward(self, points):
        """Return scores."""
        return self.last(self.net.part(points))


def test_a_parameter_leads_to_the_innermost_class_of_the_users() -> None:
    """Its line is that of `forward`; a class without one, or a module of torch, passes it on."""
    names, head, bare = ModuleNames(), Head(), nn.Linear(2, 2)
    names.add(head)
    names.add(bare)
    line = f"{__file__}:{Head.forward.__code__.co_firstlineno}"
    assert names.source(head.last.weight) == names.source(head.net.part[0].weight) == line
    assert names.source(bare.weight) == ""


def test_what_is_unknown_is_described() -> None:
    """A parameter of no known module is told by its shape."""
    assert ModuleNames().parameter(nn.Parameter(torch.zeros(2, 3))) == "parameter of shape (2, 3)"


def test_an_id_that_is_used_again_is_not_confused() -> None:
    """A module that died leaves its name to nobody."""
    names = ModuleNames()
    for _ in range(50):
        net = nn.Linear(3, 3)
        names.add(net)
        del net
    other = nn.Bilinear(2, 2, 2)
    assert names.module(other) == "Bilinear"
    assert not names.knows(other.weight)
    assert list(names.roots()) == []
    assert names.parameters() == []

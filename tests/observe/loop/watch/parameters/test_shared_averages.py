"""What is seen of dicts of parameters that have a module's own memory."""

import torch
from torch import nn

from tests.observe.loop.averaging import looks, loop
from tests.observe.loop.trainings import network


class Average:
    """An average of a module in a dict, which is cloned or not."""

    def __init__(self, module: nn.Module, *, cloned: bool) -> None:
        own = module.state_dict()
        self.references = dict(module.named_parameters())
        self.source = module.state_dict()
        self.shadow = {name: p.clone() if cloned else p.detach() for name, p in own.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Follow the module."""
        for name, parameter in self.references.items():
            self.shadow[name].lerp_(parameter, 0.1)


def train(*, cloned: bool) -> None:
    """Train with an average."""
    module = network()
    average = Average(module, cloned=cloned)
    loop(module, average.update, 20)


def test_a_shadow_of_the_parameters_themselves_is_found() -> None:
    """What it is called says that it should be a copy; a dict of references is not called so."""
    seen = looks(lambda: train(cloned=False))
    assert len(seen) >= 8
    assert {(look.name, look.named, look.shared) for look in seen} == {
        ("Average.shadow", True, True)
    }


def test_a_shadow_of_its_own_is_followed_as_before() -> None:
    """The dict of references beside it stands for nothing."""
    seen = looks(lambda: train(cloned=True))
    assert {(look.name, look.shared) for look in seen} == {("Average.shadow", False)}


def test_a_dict_of_parameters_is_no_average() -> None:
    """Whatever a team calls it that says no average: it is how optimizers are told them."""

    def plain() -> None:
        """Train with a dict of what is trained, which a teacher may be told."""
        module = network()
        target = dict(module.named_parameters())
        loop(module, lambda: [p.detach() for p in target.values()], 20)

    assert looks(plain) == []

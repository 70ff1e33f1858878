"""Which modules, dicts and lists are taken for copies of what is trained, and for how long."""

import copy
import gc
import weakref
from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from tests.observe.loop.averaging import follow, looks, loop
from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Average
from trainguard.observe.loop.recorder import Recorder


def test_layers_of_one_shape_are_no_copies() -> None:
    """Frozen blocks beside trained ones of the same shape were drawn apart."""

    def train() -> None:
        """Train the upper half of a stack."""
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)), nn.Linear(4, 1))
        model[:3].requires_grad_(False)
        loop(model, lambda: None)

    assert looks(train) == []


def test_a_second_model_of_the_same_kind_is_no_copy() -> None:
    """A frozen network that was drawn apart, or one with an optimizer of its own."""

    def train() -> None:
        """Train two networks and look at a third."""
        model, other, third = network(), network(), network()
        optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
        twin = copy.deepcopy(model)
        held = torch.optim.SGD(twin.parameters(), lr=0.0)
        loop(model, lambda: (optimizer.step(), held.step(), third(torch.ones(1, 4))))

    assert looks(train) == []


def test_a_shallow_copy_shares_its_memory() -> None:
    """`copy.copy(model)` is the model itself under the name of a teacher."""

    def train(shallow) -> None:
        """Follow with what is no copy."""
        student = network()
        teacher = shallow(student)
        loop(student, lambda: follow(teacher, student, 0.9))

    def assigned(student: nn.Module) -> nn.Module:
        """Return a module that took the tensors of the student over."""
        teacher = network()
        teacher.load_state_dict(student.state_dict(), assign=True)
        return teacher

    for shallow in (copy.copy, assigned):
        seen = looks(train, shallow)
        assert len(seen) >= 8
        assert all(look.shared and look.named for look in seen)


def test_another_view_of_a_model_is_no_copy() -> None:
    """A list of the same layers, under no telling name, is left alone."""

    def train() -> None:
        """Hold the layers twice."""
        model = network()
        layers = nn.Sequential(*model)
        loop(model, lambda: layers)

    assert looks(train) == []


def test_a_wrapper_that_has_not_begun_is_left_alone() -> None:
    """Stochastic weight averaging begins late in a run: until then its copy stands still."""

    def train() -> None:
        """Make the average and do not use it."""
        model = network()
        swa_model = AveragedModel(model)
        loop(model, lambda: swa_model)

    assert looks(train) == []


class Shadow:
    """An average that keeps a dict of tensors, as many authors write it."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}
        self.backup: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        """Put new tensors in the place of the old ones."""
        for name, parameter in self.model.named_parameters():
            self.shadow[name] = (
                self.decay * self.shadow[name] + (1 - self.decay) * parameter
            ).clone()


def test_a_dict_of_shadows_is_found() -> None:
    """It is followed though its tensors are new ones at each update."""

    def train() -> None:
        """Average into a dict."""
        model = network()
        average = Shadow(model, 0.9)
        loop(model, average.update)

    seen = looks(train)
    assert {(look.follows, look.named) for look in seen} == {("Sequential", True)}
    assert {look.name for look in seen} <= {"shadow", "Shadow.shadow"}
    decays = [look.decay for look in seen if not isnan(look.decay)]
    assert len(decays) >= 7
    assert decays == pytest.approx([0.9] * len(decays), rel=1e-4)


def test_a_list_of_shadows_is_found() -> None:
    """As diffusers keeps them: in the order of the parameters."""

    def train() -> None:
        """Average into a list."""
        model = network()
        shadow_params = [p.detach().clone() for p in model.parameters()]

        @torch.no_grad()
        def update() -> None:
            """Move the list toward the model."""
            for kept, new in zip(shadow_params, model.parameters(), strict=True):
                kept.sub_(0.1 * (kept - new))

        loop(model, update)

    seen = looks(train)
    assert {(look.name, look.named) for look in seen} == {("shadow_params", True)}
    assert seen[0].decay == pytest.approx(0.9, rel=1e-4)


def test_a_dict_that_stands_still_is_no_average() -> None:
    """The best weights so far, or those from before: nobody says that they follow."""

    def train() -> None:
        """Keep two states."""
        model = network()
        best = copy.deepcopy(model.state_dict())
        alias = model.state_dict()
        loop(model, lambda: (best, alias), 40)

    assert looks(train) == []


def test_a_dict_that_is_given_up_is_not_kept() -> None:
    """We hold a dict that is watched, and let it go when nobody else has it."""
    model = network()
    tables = [{n: p.detach().clone() for n, p in model.named_parameters()}]
    gone = weakref.ref(tables[0]["0.weight"])
    count = 0

    def update() -> None:
        """Give the dict up after the fourth step."""
        nonlocal count
        count += 1
        if count == 4:
            assert gone() is not None
            tables.clear()
        if count == 6:
            assert gone() is None

    with Recorder("x") as recorder:
        loop(model, update, 8)
    assert not any(isinstance(event, Average) for event in recorder.trace)
    assert count == 8


def test_a_copy_that_is_given_up_is_not_kept() -> None:
    """A module that nobody else has is deleted."""
    model = network()
    teachers = [copy.deepcopy(model)]
    gone = weakref.ref(teachers[0])
    count = 0

    def update() -> None:
        """Give the teacher up after the fifth step."""
        nonlocal count
        count += 1
        if count == 5:
            teachers.clear()
            gc.collect()
            assert gone() is None

    with Recorder("x"):
        loop(model, update, 8)
    assert count == 8


def test_locals_are_the_users_own() -> None:
    """Looking for names in the functions that run changes none of their variables."""

    def train() -> dict[str, object]:
        """Train with many local variables, and return them."""
        student = network()
        ema = copy.deepcopy(student)
        tensor = gone = None
        name, count = "x", 0
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
        for inputs, target in batches(6):
            tensor = torch.zeros(3)
            gone = gone or (weakref.ref(tensor) if count == 1 else None)
            F.mse_loss(student(inputs), target).backward()
            optimizer.step()
            follow(ema, student, 0.9)
            count += 1
        del inputs
        return {"name": name, "count": count, "gone": gone() is None, "tensor": tensor, "ema": ema}

    with Recorder("x") as recorder:
        kept = train()
    assert (kept["name"], kept["count"], kept["gone"]) == ("x", 6, True)
    assert {e.name for e in recorder.trace if isinstance(e, Average)} == {"ema"}

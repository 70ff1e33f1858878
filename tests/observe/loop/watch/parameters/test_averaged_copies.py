"""What the recorder sees of averages and teachers: their decay, and whether they move at all."""

import copy
import io
from math import isnan

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.observe.loop.averaging import follow, looks, loop
from tests.observe.loop.trainings import batches, network
from trainguard.events.loop import Average, Parameter
from trainguard.events.probe import Probe
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.tools.heap import Holders, holders


def teacher_and_student(decay: float, steps: int = 20, *, rate: float = 1e-2) -> None:
    """Train a student with a teacher that follows it."""
    student = network()
    teacher = copy.deepcopy(student)
    loop(student, lambda: follow(teacher, student, decay), steps, rate=rate)


@pytest.mark.parametrize("decay", [0.0, 0.004, 0.5, 0.9, 0.99, 0.996, 0.999, 0.9999])
def test_the_decay_is_measured(decay: float) -> None:
    """From one look to the next, a step later, the copy tells its decay."""
    seen = looks(teacher_and_student, decay, 40)
    decays = [look.decay for look in seen if not isnan(look.decay)]
    assert len(decays) >= 7
    assert decays == pytest.approx([decay] * len(decays), abs=0.02 * (1 - decay) + 1e-9)
    assert max(look.residual for look in seen) < 0.02
    for look in seen:
        assert look.moved
        assert look.student_moved
        assert not look.shared
    assert {(look.name, look.follows, look.named) for look in seen} == {
        ("teacher", "Sequential", True)
    }


def test_looks_are_told_by_the_step_before_them() -> None:
    """Each of the first steps after the copy was found, then the surveyed ones."""
    steps = [look.step for look in looks(teacher_and_student, 0.9, 40)]
    assert steps == [2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 32]
    apart = [look.step for look in looks(teacher_and_student, 0.9, 40) if isnan(look.decay)]
    assert apart == [15, 31]  # these came several steps after the look before


def test_an_update_before_the_step_is_measured_too() -> None:
    """The average takes the student as it was before the step."""

    def train() -> None:
        """Update the teacher between backward and step."""
        student = network()
        teacher = copy.deepcopy(student)
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
        for inputs, target in batches(20):
            F.mse_loss(student(inputs), target).backward()
            follow(teacher, student, 0.9)
            optimizer.step()
            optimizer.zero_grad()

    decays = [look.decay for look in looks(train) if not isnan(look.decay)]
    assert decays == pytest.approx([0.9] * len(decays), rel=1e-4)


def test_a_frozen_teacher_does_not_move() -> None:
    """It stands still while its student moves."""
    seen = looks(teacher_and_student, 1.0)
    assert len(seen) >= 8
    assert not any(look.moved for look in seen)
    assert all(look.student_moved and isnan(look.decay) for look in seen)


def test_an_average_is_named_by_the_object_that_has_it() -> None:
    """The dict of an object, once looked at, does not know the class: its variable does."""

    class ModelEma:
        """An average that is not a module itself."""

        def __init__(self) -> None:
            self.model = network()

    def look() -> Holders:
        """Look from a function that pytest's rewriting, which reads the locals, leaves alone."""
        kept = ModelEma()
        kept.__dict__.copy()
        return holders([kept.model], [], set())[0]

    found = look()
    assert "kept" in found.names
    assert "ModelEma" in found.kinds


def test_an_average_is_named_by_an_object_whose_dict_was_looked_at() -> None:
    """No variable of a function has it: what refers to its dict tells the class."""

    class ModelEma:
        """An average that is not a module itself."""

        def __init__(self) -> None:
            self.model = network()

    kept = {"one": ModelEma()}
    kept["one"].__dict__.copy()
    assert "ModelEma" in holders([kept["one"].model], [], set())[0].kinds


def test_a_student_that_stands_still_is_told() -> None:
    """The average moves by rounding alone, which tells no decay."""
    seen = looks(teacher_and_student, 0.9, rate=0.0)
    assert seen
    assert not any(look.student_moved for look in seen)
    assert all(isnan(look.decay) and look.residual == 0 for look in seen)


def test_a_part_of_the_model_has_a_teacher() -> None:
    """The teacher of the encoder alone follows that part of the student."""

    class Student(nn.Module):
        """An encoder and a predictor."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = network(4, 8)
            self.predictor = network(8, 1)

        def forward(self, inputs):
            """Predict."""
            return self.predictor(self.encoder(inputs))

    def train() -> None:
        """Follow the encoder."""
        student = Student()
        target_encoder = copy.deepcopy(student.encoder)
        loop(student, lambda: follow(target_encoder, student.encoder, 0.9))

    seen = looks(train)
    assert {(look.name, look.follows, look.named) for look in seen} == {
        ("target_encoder", "Student.encoder", True)
    }
    assert all(look.decay == pytest.approx(0.9, rel=1e-4) for look in seen if look.decay > 0)


def test_both_may_be_parts_of_one_model() -> None:
    """As in BYOL, the module that is called holds the trained encoder and its target."""

    class Both(nn.Module):
        """An online and a momentum encoder."""

        def __init__(self) -> None:
            super().__init__()
            self.online = network()
            self.momentum_encoder = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, inputs):
            """Run both."""
            return self.online(inputs) - 0.1 * self.momentum_encoder(inputs)

    def train() -> None:
        """Train the online encoder."""
        model = Both()
        optimizer = torch.optim.AdamW(model.online.parameters(), lr=1e-2)
        for inputs, target in batches(20):
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            follow(model.momentum_encoder, model.online, 0.9)

    seen = looks(train)
    assert {(look.name, look.follows, look.named) for look in seen} == {
        ("Both.momentum_encoder", "Both.online", True)
    }
    decays = [look.decay for look in seen if not isnan(look.decay)]
    assert decays == pytest.approx([0.9] * len(decays), rel=1e-4)


@pytest.mark.parametrize(("kind", "first"), [("ema", 0.9), ("swa", 2 / 3)])
def test_the_wrapper_of_torch_is_found(kind: str, first: float) -> None:
    """AveragedModel keeps an exponential, or a running, average."""

    def train() -> None:
        """Average with torch's own class."""
        model = network()
        function = get_ema_multi_avg_fn(0.9) if kind == "ema" else None
        average = AveragedModel(model, multi_avg_fn=function)
        loop(model, lambda: average.update_parameters(model))

    seen = looks(train)
    assert {(look.name, look.named) for look in seen} == {("AveragedModel.module", True)}
    assert seen[0].decay == pytest.approx(first, rel=1e-4)
    assert max(look.residual for look in seen) < 0.02


def test_ema_pytorch_is_found() -> None:
    """Its decay rises, and it is updated every ten steps where nothing else is said."""
    ema_pytorch = pytest.importorskip("ema_pytorch")

    def train(**options) -> None:
        """Average with ema_pytorch."""
        model = network()
        ema = ema_pytorch.EMA(model, beta=0.9, **options)
        loop(model, ema.update, 60)

    seen = looks(train, update_after_step=2, update_every=1, power=10.0)
    assert {(look.name, look.named) for look in seen} == {("EMA.ema_model", True)}
    late = [look.decay for look in seen if look.step > 5 and not isnan(look.decay)]
    assert late == pytest.approx([0.9] * len(late), rel=1e-3)
    every_ten = looks(train, update_after_step=5)
    assert any(look.moved for look in every_ten)  # though no two looks are around an update


def test_copies_are_told_among_the_parameters() -> None:
    """Parameters of a copy that was called are marked as such."""

    def train() -> nn.Module:
        """Distil from a teacher that follows."""
        student = network()
        teacher = copy.deepcopy(student)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
        for inputs, _ in batches(6):
            with torch.no_grad():
                target = teacher(inputs) + 1
            F.mse_loss(student(inputs), target).backward()
            optimizer.step()
            optimizer.zero_grad()
            follow(teacher, student, 0.9)
        return teacher

    with Recorder("x") as recorder:
        teacher = train()
    told = [event for event in recorder.trace if isinstance(event, Parameter)]
    assert [p.copy for p in told] == [True] * 4 + [False] * 4
    del teacher


class Learner(nn.Module):
    """A trunk, and a target of it."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return how far the two are apart."""
        return (self.online(points) - self.target(-points)).square().mean()


def test_a_part_that_was_met_before_its_whole() -> None:
    """A copy is called by what the module around it is known to call it."""
    torch.manual_seed(0)
    learner = Learner()
    with Recorder("x") as recorder:
        optimizer = torch.optim.SGD(learner.online.parameters(), lr=0.1)
        for step in range(12):
            points = torch.randn(4, 3)
            loss = learner(points) if step > 3 else learner.online(points).square().mean()
            loss.backward()
            optimizer.step()
    looks = [event for event in recorder.trace if isinstance(event, Average)]
    assert {(look.name, look.named) for look in looks[-3:]} == {("Learner.target", True)}


class Shadow:
    """Averages of parameters by their names, as many projects keep them."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        """Follow the model."""
        for name, parameter in model.named_parameters():
            self.shadow[name] = 0.9 * self.shadow[name] + 0.1 * parameter.detach()

    def put_into(self, model: nn.Module) -> None:
        """Put the averages in the place of the parameters."""
        for name, parameter in model.named_parameters():
            parameter.data.copy_(self.shadow[name])


def evaluated(model: nn.Module, average: Shadow) -> None:
    """Evaluate the model alone."""
    with torch.no_grad():
        model(next(batches(1))[0])


def saved_beside(model: nn.Module, average: Shadow) -> None:
    """Save both in one file."""
    evaluated(model, average)
    torch.save({"model": model.state_dict(), "kept": [average]}, io.BytesIO())


def put_in(model: nn.Module, average: Shadow) -> None:
    """Evaluate the model with the averages in it, then put its own back."""
    own = copy.deepcopy(model.state_dict())
    average.put_into(model)
    evaluated(model, average)
    model.load_state_dict(own)


def saved_in_place(model: nn.Module, average: Shadow) -> None:
    """Save the model with the averages in it."""
    evaluated(model, average)
    average.put_into(model)
    torch.save(model, io.BytesIO())


def loaded_beside(model: nn.Module, average: Shadow) -> None:
    """Evaluate another module with the averages in it, beside the model."""
    evaluated(model, average)
    served = network()
    served.load_state_dict({name: kept.float() for name, kept in average.shadow.items()})
    evaluated(served, average)


def loaded_its_own(model: nn.Module, average: Shadow) -> None:
    """Load what the model has anyway."""
    evaluated(model, average)
    model.load_state_dict(copy.deepcopy(model.state_dict()))


@pytest.mark.parametrize(
    ("use", "unused"),
    [
        (evaluated, True),
        (loaded_its_own, True),
        (saved_beside, False),
        (put_in, False),
        (saved_in_place, False),
        (loaded_beside, False),
    ],
)
def test_averages_that_are_used_are_known(use, unused: bool) -> None:
    """They are where they are saved, whatever holds them, and where they stand in the model."""
    model = network()
    average = Shadow(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Recorder("x") as recorder:
        for step, (inputs, target) in enumerate(batches(40)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            average.update(model)
            if step % 10 == 9:
                use(model, average)
    found = [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unused"]
    assert len(found) == unused
    assert all("test_averaged_copies.py:" in probe.source for probe in found)


def test_the_state_of_a_copy_is_taken_once_at_a_time() -> None:
    """However many parts it has: a state that is seldom taken is used somewhere."""
    model = network()
    average, served = copy.deepcopy(model), network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with Recorder("x") as recorder:
        for step, (inputs, target) in enumerate(batches(40)):
            optimizer.zero_grad()
            F.mse_loss(model(inputs), target).backward()
            optimizer.step()
            with torch.no_grad():
                for kept, own in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(own, 0.1)
            if step % 4 == 3:
                evaluated(model, average)
                served.load_state_dict(average.state_dict())
                evaluated(served, average)
    assert not [e for e in recorder.trace if isinstance(e, Probe) and e.probe == "unused"]

"""Whether pictures and the targets over them are moved alike, tried here without a child."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trainguard.observe.loop.counterfactual.forking import Answer
from trainguard.observe.loop.recorder import Recorder
from trainguard.observe.loop.watch.samples import moved_targets
from trainguard.observe.loop.watch.samples.moved_targets import MovedTargets, _find_places


class Parts(Dataset):
    """Parts of scenes and of their masks, at places that a function draws for both."""

    def __init__(self, draw, dtype=torch.float32) -> None:
        self.scenes = torch.randn(40, 1, 8, 8).repeat_interleave(4, -1).repeat_interleave(4, -2)
        self.masks = (self.scenes > 0.5).to(dtype)
        self.draw = draw

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.masks)

    def __getitem__(self, index):
        """Return a part of a scene and of its mask."""
        both = self.scenes[index], self.masks[index]
        return tuple(
            one[..., top : top + 24, left : left + 24]
            for one, (top, left) in zip(both, self.draw(), strict=True)
        )


def draw_apart():
    """Draw a place for each."""
    return torch.randint(0, 9, (2, 2)).tolist()


def draw_once():
    """Draw a place for both."""
    return torch.randint(0, 9, (2,)).expand(2, 2).tolist()


def draw_masks_alone():
    """Draw a place of the mask, over a picture that stays."""
    return [[4, 4], torch.randint(0, 9, (2,)).tolist()]


def draw_pictures_alone():
    """Draw a place of the picture; its target stays where it is."""
    return [torch.randint(0, 9, (2,)).tolist(), [4, 4]]


def draw_apart_at_times():
    """Draw a place for each, now and then."""
    return draw_apart() if torch.rand(()) < 0.04 else draw_once()


class Reported(Exception):
    """What a child would have sent."""


class WayOut:
    """A way out that goes on here."""

    @staticmethod
    def report(**numbers) -> None:
        """Raise what would be sent."""
        raise Reported(numbers)


def ask_here(_seconds, become):
    """Ask without a child."""
    try:
        become(WayOut())
    except Reported as sent:
        return Answer(report=sent.args[0])
    return None


def record(
    data,
    *,
    epochs=3,
    workers=0,
    model=None,
    view=lambda target: target,
    call=lambda model, one: model(one),
):
    """Train on the parts of scenes, and return what was seen and what was looked at."""
    model = model or nn.Conv2d(1, 1, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=10, shuffle=True, num_workers=workers)
    with Recorder("x") as recorder:
        watcher = recorder.watcher(MovedTargets)
        for _ in range(epochs):
            for pictures, masks in loader:
                loss = nn.functional.mse_loss(call(model, pictures), view(masks))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return list(watcher.finish()), watcher.looked


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    """Ask without a child, whatever threads a test has."""
    monkeypatch.setattr(moved_targets, "fork", ask_here)
    monkeypatch.setattr(moved_targets, "obstacle", lambda: "")


def test_what_is_drawn_for_each_moves_apart() -> None:
    """Many servings part, and where samples are served is told."""
    torch.manual_seed(0)
    (probe,), looked = record(Parts(draw_apart))
    assert looked == {"displaced"}
    assert probe.measured >= 0.5 * probe.reference
    assert probe.source.rpartition(":")[0] == __file__


def test_what_is_drawn_once_does_not() -> None:
    """It was looked at, and nothing was found."""
    torch.manual_seed(0)
    assert record(Parts(draw_once)) == ([], {"displaced"})


def test_a_few_are_no_law() -> None:
    """What is seen now and then may be an accident."""
    torch.manual_seed(0)
    assert record(Parts(draw_apart_at_times)) == ([], {"displaced"})


def test_a_child_that_cannot_be_is_not_asked(monkeypatch) -> None:
    """As where other threads run."""
    monkeypatch.setattr(moved_targets, "obstacle", lambda: "a test")
    torch.manual_seed(0)
    assert record(Parts(draw_apart)) == ([], set())


def test_targets_are_looked_for_so_often_at_most(monkeypatch) -> None:
    """Where none is known by then, there is none."""
    looks = []
    monkeypatch.setattr(moved_targets, "_find_places", lambda *_: looks.append(1))
    record(Parts(draw_once), epochs=20)
    assert len(looks) == 64


@pytest.mark.parametrize("draw", [draw_masks_alone, draw_pictures_alone])
def test_what_stays_is_no_matter(draw) -> None:
    """A target may stay on purpose where its picture is jittered."""
    torch.manual_seed(0)
    assert record(Parts(draw)) == ([], set())


def test_bytes_and_views_of_a_target_are_known() -> None:
    """A mask of bytes is a target once it is made numbers of, in whatever shape."""
    torch.manual_seed(0)
    data = Parts(draw_apart, torch.uint8)
    found, _ = record(data, view=lambda mask: mask.float().squeeze(1).unsqueeze(1))
    assert found


def test_it_is_asked_once_and_before_the_second_pass() -> None:
    """A single pass is not asked about."""
    torch.manual_seed(0)
    assert record(Parts(draw_apart), epochs=1) == ([], set())
    assert len(record(Parts(draw_apart), epochs=5)[0]) == 1


def test_data_of_workers_are_asked_too() -> None:
    """What they serve is served here as well."""
    torch.manual_seed(0)
    assert record(Parts(draw_apart), workers=1)[0]


class Two(nn.Module):
    """A network that is given two pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, one, other):
        """Return a picture of both."""
        return self.layer(one) + other.mean()


def test_a_model_that_is_given_more_may_know_the_way() -> None:
    """With a second input, the target may lie elsewhere on purpose."""
    torch.manual_seed(0)
    call = lambda model, one: model(one, one.flip(-1))  # noqa: E731
    assert record(Parts(draw_apart), model=Two(), call=call) == ([], set())


def test_which_tensors_are_picture_and_target() -> None:
    """One target of the picture's size, and one other: anything else is not known."""
    image, mask = torch.randn(4, 3, 16, 16), torch.rand(4, 16, 16)
    given = image * 2
    assert _find_places([image, mask], given, mask) == (0, 1)
    assert _find_places([mask, image], given, mask.unsqueeze(1)) == (1, 0)
    assert _find_places([image, mask, torch.ones(4)], given, mask) == (0, 1)
    assert _find_places([image, mask], given, mask + 1) is None
    assert _find_places([image, mask, mask], given, mask) is None
    assert _find_places([image, mask, image], given, mask) is None
    assert _find_places([image, None], given, mask) is None
    assert _find_places([image, mask], given[..., :4], mask) is None
    assert _find_places([image, mask], given[:2], mask) is None
    assert _find_places([image[..., :4], mask[..., :4]], given[..., :4], mask[..., :4]) is None

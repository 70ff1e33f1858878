"""What is known of targets that come mirrored with an input that came before."""

import pytest
import torch

from trainguard.observe.loop.watch.samples.mirrored_targets import MirroredTargets

IMAGES = torch.arange(20 * 3 * 64).reshape(20, 3, 8, 8).float().sin()
MASKS = (torch.arange(20 * 64).reshape(20, 8, 8).float().square().sin() > 0).long()
ROWS = list(range(20))


def seen(*targets: torch.Tensor, images: torch.Tensor = IMAGES) -> MirroredTargets:
    """Take in the same images with one target after another."""
    mirrored = MirroredTargets()
    for target in targets:
        mirrored.add(images, target, ROWS)
    return mirrored


@pytest.mark.parametrize("sides", [(-1,), (-2,), (-2, -1)], ids=["right", "down", "both"])
def test_a_mirrored_target_is_known(sides: tuple[int, ...]) -> None:
    """Whichever side was mirrored, in classes and in a channel of numbers."""
    assert seen(MASKS, MASKS.flip(sides)).is_apart
    channel = MASKS[:, None].float()
    assert seen(channel, channel.flip(sides)).is_apart


@pytest.mark.parametrize(
    "targets",
    [
        (MASKS, MASKS),
        (MASKS, 1 - MASKS),
        (MASKS, MASKS[torch.arange(19, -1, -1)]),
        (MASKS + MASKS.flip(-1), MASKS + MASKS.flip(-1)),
        (MASKS[:, :6, :6], MASKS[:, :6, :6].flip(-1)),
        (MASKS, torch.cat([MASKS[:1].flip(-1), MASKS[1:]])),
        (MASKS.flip(-1),),
    ],
    ids=["same", "inverted", "others", "symmetric", "small", "one", "once"],
)
def test_other_targets_say_nothing(targets: tuple[torch.Tensor, ...]) -> None:
    """Noise, wrong labels and masks that look the same in a mirror are no sign of one."""
    assert not seen(*targets).is_apart


def test_targets_of_another_place_are_not_compared() -> None:
    """Boxes, classes and maps of another size do not lie over the input."""
    assert not seen(MASKS, MASKS.flip(-1), images=IMAGES[..., :7]).again
    assert not seen(MASKS[..., 0], MASKS[..., 1]).again


def noisy(images: torch.Tensor) -> torch.Tensor:
    """Return images in another light, with noise."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return 0.7 * images + 0.3 + 0.2 * noise


SOME = (torch.arange(20) % 2 == 0)[:, None, None, None]


@pytest.mark.parametrize("sides", [(-1,), (-2,), (-2, -1)], ids=["right", "down", "both"])
def test_a_mirrored_input_is_known(sides: tuple[int, ...]) -> None:
    """A target that stays tells which picture it was, whatever else was done to that."""
    mirrored = MirroredTargets()
    mirrored.add(IMAGES, MASKS, ROWS)
    mirrored.add(
        noisy(torch.where(SOME, IMAGES.flip(sides), IMAGES)), MASKS, [r + 20 for r in ROWS]
    )
    assert (mirrored.is_apart, mirrored.counts) == (True, (10, 20))


@pytest.mark.parametrize("kind", ["noise", "together", "blank", "others"])
def test_inputs_that_are_not_mirrored(kind: str) -> None:
    """Pictures with noise, those that are mirrored with their masks, and masks of many pictures."""
    images, masks = noisy(IMAGES), MASKS
    if kind == "together":
        images, masks = noisy(IMAGES.flip(-1)), MASKS.flip(-1)
    elif kind == "blank":
        images, masks = IMAGES.flip(-1), torch.zeros_like(MASKS)
    elif kind == "others":
        images = noisy(IMAGES.roll(1, 0))
    mirrored = MirroredTargets()
    mirrored.add(IMAGES, torch.zeros_like(MASKS) if kind == "blank" else MASKS, ROWS)
    mirrored.add(images, masks, [r + 20 for r in ROWS])
    assert not mirrored.is_apart


@pytest.mark.parametrize("of_mask", [(-1,), (-2,), (-2, -1)])
@pytest.mark.parametrize("of_image", [(-1,), (-2,), (-2, -1)])
def test_both_are_mirrored(of_mask: tuple[int, ...], of_image: tuple[int, ...]) -> None:
    """Along one axis, as they should be, or each along another one."""
    mirrored = MirroredTargets()
    mirrored.add(IMAGES, MASKS, ROWS)
    mirrored.add(noisy(IMAGES.flip(of_image)), MASKS.flip(of_mask), [r + 20 for r in ROWS])
    assert mirrored.counts == (20 * (of_mask != of_image), 20)

"""
The losses of kornia: images, segmentations, depths and distributions.

Not here: the lists of 3-d twins that share every line with their 2-d form. An excuse here is a
defect that docs/third_party_losses.md reproduces.
"""

from kornia import losses
from torch import Tensor
from torch.nn import functional as F

import trainguard as tg

IMAGES = {"img1": tg.real("B 1 H W", 0, 1), "img2": tg.real("B 1 H W", 0, 1, grad=False)}
SMALL = {"B": 2, "H": 4, "W": 5}

ssim = tg.Loss(losses.SSIMLoss(window_size=3), inputs=IMAGES, reduction="mean", sizes=SMALL)
ssim_3d = tg.Loss(
    losses.SSIM3DLoss(window_size=3),
    img1=tg.real("B 1 3 3 3", 0, 1),
    img2=tg.real("B 1 3 3 3", 0, 1, grad=False),
    reduction="mean",
    sizes={"B": 2},
)
ms_ssim = tg.Loss(
    losses.MS_SSIMLoss(sigmas=[0.5, 1.0], alpha=0.025, compensation=1.0),
    img1=tg.real("1 3 7 7", 0, 1),
    img2=tg.real("1 3 7 7", 0, 1, grad=False),
)
psnr = tg.Loss(
    losses.PSNRLoss(max_val=1.0),
    image=tg.real("B 1 H W", 0, 1),
    target=tg.real("B 1 H W", 0, 1, grad=False),
    sizes=SMALL,
    allow={
        "value_is_finite": "minus infinity for an image that is reproduced exactly",
        "gradient_is_finite": "nan for an image that is reproduced exactly",
        "gradient_is_bounded": "the slope of a logarithm at zero",
    },
)
total_variation = tg.Loss(losses.TotalVariation(), img=tg.real("B 1 H W", 0, 1), sizes=SMALL)
inverse_depth_smoothness = tg.Loss(
    losses.InverseDepthSmoothnessLoss(),
    idepth=tg.real("B 1 H W", 0.1, 10),
    image=tg.real("B 3 H W", 0, 1, grad=False),
    sizes=SMALL,
)

ROBUST = {"img1": tg.real("B D", -10, 10), "img2": tg.real("B D", -10, 10, grad=False)}

cauchy = tg.Loss(losses.CauchyLoss(reduction="mean"), inputs=ROBUST, reduction="mean")
charbonnier = tg.Loss(losses.CharbonnierLoss(reduction="mean"), inputs=ROBUST, reduction="mean")
geman_mcclure = tg.Loss(losses.GemanMcclureLoss(reduction="mean"), inputs=ROBUST, reduction="mean")
welsch = tg.Loss(
    losses.WelschLoss(reduction="mean"),
    img1=tg.real("B D", -3, 3),
    img2=tg.real("B D", -3, 3, grad=False),
    reduction="mean",
)

SEGMENTED = {"pred": tg.real("B 3 H W", -15, 15), "target": tg.integer("B H W", 0, 2)}
PIXELS = {"B": 2, "H": 2, "W": 3}

focal = tg.Loss(
    losses.FocalLoss(alpha=0.5, reduction="mean"), inputs=SEGMENTED, reduction="mean", sizes=PIXELS
)
binary_focal = tg.Loss(
    losses.BinaryFocalLossWithLogits(alpha=0.25, reduction="mean"),
    pred=tg.real("B 1 H W", -15, 15),
    target=tg.integer("B 1 H W", 0, 1),
    reduction="mean",
    sizes=PIXELS,
)
dice = tg.Loss(losses.DiceLoss(), inputs=SEGMENTED, sizes=PIXELS)
dice_of_classes = tg.Loss(losses.DiceLoss(average="macro"), inputs=SEGMENTED, sizes=PIXELS)
tversky = tg.Loss(losses.TverskyLoss(alpha=0.5, beta=0.5), inputs=SEGMENTED, sizes=PIXELS)
lovasz_softmax = tg.Loss(losses.LovaszSoftmaxLoss(), inputs=SEGMENTED, sizes=PIXELS)
lovasz_hinge = tg.Loss(
    losses.LovaszHingeLoss(),
    pred=tg.real("B 1 H W", -5, 5),
    target=tg.integer("B H W", 0, 1),
    sizes=PIXELS,
)
hausdorff = tg.Loss(
    losses.HausdorffERLoss(k=3),
    pred=tg.real("1 2 3 3", 0, 1),
    target=tg.integer("1 1 3 3", 0, 1),
    allow={"gradient_is_continuous": "an erosion is divided by its range: one pixel is always 1"},
)


def normalised(heat: Tensor) -> Tensor:
    """Return heat maps that sum to one, as kornia's divergences expect them."""
    return heat.flatten(-2).softmax(-1).view_as(heat)


def kl_of_heat_maps(heat: Tensor, target: Tensor) -> Tensor:
    """Return kornia's divergence of two heat maps given as logits."""
    return losses.kl_div_loss_2d(normalised(heat), normalised(target))


def js_of_heat_maps(heat: Tensor, target: Tensor) -> Tensor:
    """Return kornia's symmetric divergence of two heat maps given as logits."""
    return losses.js_div_loss_2d(normalised(heat), normalised(target))


HEAT = {"heat": tg.real("B 1 H W", -10, 10), "target": tg.real("B 1 H W", -10, 10, grad=False)}

kl_divergence = tg.Loss(kl_of_heat_maps, inputs=HEAT, reduction="mean", sizes=PIXELS)
js_divergence = tg.Loss(js_of_heat_maps, inputs=HEAT, reduction="mean", sizes=PIXELS)
kl_of_probabilities = tg.Loss(
    losses.kl_div_loss_2d,
    pred=tg.real("B 1 H W", 0.01, 1),
    target=tg.real("B 1 H W", 0, 1, grad=False),
    sizes=PIXELS,
)


def framed(image: Tensor) -> Tensor:
    """Return an image with a black and a white column beside it: it is never nearly constant."""
    return F.pad(F.pad(image, (1, 0), value=0.0), (0, 1), value=1.0)


def mutual_information(moving: Tensor, fixed: Tensor) -> Tensor:
    """Return kornia's mutual-information loss of a moving image against a fixed one."""
    return losses.mutual_information_loss_2d(framed(moving), framed(fixed), num_bins=8)


def normalized_mutual_information(moving: Tensor, fixed: Tensor) -> Tensor:
    """Return kornia's normalised mutual-information loss of a moving image against a fixed one."""
    return losses.normalized_mutual_information_loss_2d(framed(moving), framed(fixed), num_bins=8)


def mutual_information_of_patches(moving: Tensor, fixed: Tensor) -> Tensor:
    """Return kornia's normalised mutual-information loss of patches as they are."""
    return losses.normalized_mutual_information_loss_2d(moving, fixed, num_bins=8)


REGISTERED = {"moving": tg.real("B 4 4", 0, 1), "fixed": tg.real("B 4 4", 0, 1, grad=False)}
CONSTANT = "an image is divided by its range, and a nearly constant one has none"

mutual = tg.Loss(mutual_information, inputs=REGISTERED, sizes={"B": 2})
normalized_mutual = tg.Loss(normalized_mutual_information, inputs=REGISTERED, sizes={"B": 2})
mutual_of_patches = tg.Loss(
    mutual_information_of_patches,
    moving=tg.real("B 2 2", 0, 1),
    fixed=tg.real("B 2 2", 0, 1, grad=False),
    sizes={"B": 2},
    allow={"gradient_is_bounded": CONSTANT, "gradient_is_continuous": CONSTANT},
)

"""
The losses of MONAI: segmentation, registration, contrastive and adversarial ones.

Left out: PerceptualLoss, which downloads a network, and SURELoss, whose input is an operator. An
excuse here is a defect that docs/third_party_losses.md reproduces.
"""

import torch
from monai import losses
from torch import Tensor, nn

import trainguard as tg

SEGMENTED = {"input": tg.real("B 2 H W", -8, 8), "target": tg.choice(0.0, 1.0, shape="B 2 H W")}
PIXELS = {"B": 2, "H": 2, "W": 3}

dice = tg.Loss(losses.DiceLoss(sigmoid=True), inputs=SEGMENTED, reduction="mean", sizes=PIXELS)
dice_of_softmax = tg.Loss(
    losses.DiceLoss(softmax=True, include_background=False), inputs=SEGMENTED, sizes=PIXELS
)
dice_squared = tg.Loss(
    losses.DiceLoss(sigmoid=True, squared_pred=True, jaccard=True), inputs=SEGMENTED, sizes=PIXELS
)
dice_cross_entropy = tg.Loss(losses.DiceCELoss(softmax=True), inputs=SEGMENTED, sizes=PIXELS)
dice_focal = tg.Loss(losses.DiceFocalLoss(sigmoid=True), inputs=SEGMENTED, sizes=PIXELS)
generalized_dice = tg.Loss(losses.GeneralizedDiceLoss(sigmoid=True), inputs=SEGMENTED, sizes=PIXELS)
generalized_dice_focal = tg.Loss(
    losses.GeneralizedDiceFocalLoss(sigmoid=True), inputs=SEGMENTED, sizes=PIXELS
)
wasserstein_dice = tg.Loss(
    losses.GeneralizedWassersteinDiceLoss(
        dist_matrix=torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.5], [1.0, 0.5, 0.0]]).numpy()
    ),
    input=tg.real("B 3 H W", -8, 8),
    target=tg.integer("B 1 H W", 0, 2),
    sizes=PIXELS,
)
tversky = tg.Loss(losses.TverskyLoss(sigmoid=True), inputs=SEGMENTED, sizes=PIXELS)
focal = tg.Loss(losses.FocalLoss(), inputs=SEGMENTED, reduction="mean", sizes=PIXELS)
focal_of_softmax = tg.Loss(
    losses.FocalLoss(use_softmax=True, gamma=1.5), inputs=SEGMENTED, sizes=PIXELS
)
unified_focal = tg.Loss(
    losses.AsymmetricUnifiedFocalLoss(),
    y_pred=tg.real("B 2 H W", 0, 1),
    y_true=tg.choice(0.0, 1.0, shape="B 2 H W"),
    sizes=PIXELS,
    allow={"gradient_is_bounded": "the slope of a logarithm at 1e-7, where it is clamped"},
)
correlation = tg.Loss(losses.MCCLoss(sigmoid=True), inputs=SEGMENTED, sizes=PIXELS)

TINY = {"input": tg.real("1 2 2 2", -8, 8), "target": tg.choice(0.0, 1.0, shape="1 2 2 2")}
CUT = {"gradient_is_continuous": "the distances are those of the prediction cut at one half"}

boundary = tg.Loss(losses.BoundaryLoss(sigmoid=True), inputs=TINY)
hausdorff = tg.Loss(
    losses.HausdorffDTLoss(sigmoid=True, include_background=True), inputs=TINY, allow=CUT
)
log_hausdorff = tg.Loss(
    losses.LogHausdorffDTLoss(sigmoid=True, include_background=True), inputs=TINY, allow=CUT
)
center_line_dice = tg.Loss(
    losses.SoftclDiceLoss(),
    input=tg.real("B 2 4 4", 0, 1),
    target=tg.choice(0.0, 1.0, shape="B 2 4 4"),
    sizes={"B": 2},
)
dice_and_center_line_dice = tg.Loss(
    losses.SoftDiceclDiceLoss(),
    input=tg.real("B 2 4 4", 0, 1),
    target=tg.choice(0.0, 1.0, shape="B 2 4 4"),
    sizes={"B": 2},
)
neighbourhood_calibration = tg.Loss(
    losses.NACLLoss(classes=2, dim=2),
    inputs={"inputs": tg.real("B 2 4 4", -8, 8), "targets": tg.integer("B 4 4", 0, 1)},
    sizes={"B": 2},
)
masked_dice = tg.Loss(
    losses.MaskedDiceLoss(sigmoid=True),
    inputs=SEGMENTED | {"mask": tg.choice(0.0, 1.0, shape="B 1 H W")},
    sizes=PIXELS,
)
masked_error = tg.Loss(
    losses.MaskedLoss(nn.MSELoss),
    input=tg.real("B 2 H W", -3, 3),
    target=tg.real("B 2 H W", -3, 3, grad=False),
    mask=tg.choice(0.0, 1.0, shape="B 1 H W"),
    sizes=PIXELS,
)
deep_supervision = tg.Loss(
    losses.DeepSupervisionLoss(losses.DiceLoss(sigmoid=True)), inputs=SEGMENTED, sizes=PIXELS
)

REGISTERED = {"pred": tg.real("B 1 5 5", 0, 1), "target": tg.real("B 1 5 5", 0, 1, grad=False)}
BATCH = {"B": 2}

local_correlation = tg.Loss(
    losses.LocalNormalizedCrossCorrelationLoss(spatial_dims=2), inputs=REGISTERED, sizes=BATCH
)
mutual_information = tg.Loss(
    losses.GlobalMutualInformationLoss(num_bins=8), inputs=REGISTERED, sizes=BATCH
)
bending_energy = tg.Loss(
    losses.BendingEnergyLoss(), pred=tg.real("B 2 6 6", -3, 3), reduction="mean", sizes=BATCH
)
bending_energy_normalised = tg.Loss(
    losses.BendingEnergyLoss(normalize=True), pred=tg.real("B 2 6 6", -3, 3), sizes=BATCH
)
diffusion = tg.Loss(
    losses.DiffusionLoss(), pred=tg.real("B 2 4 4", -3, 3), reduction="mean", sizes=BATCH
)


def multi_scale_error(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """Return MONAI's squared error over several scales."""
    return losses.MultiScaleLoss(nn.MSELoss(), scales=[1, 2])(y_true, y_pred)


multi_scale = tg.Loss(
    multi_scale_error,
    y_true=tg.real("B 1 5 5", 0, 1, grad=False),
    y_pred=tg.real("B 1 5 5", 0, 1),
    sizes=BATCH,
)
structural_similarity = tg.Loss(
    losses.SSIMLoss(spatial_dims=2, win_size=3),
    input=tg.real("B 1 5 5", 0, 1),
    target=tg.real("B 1 5 5", 0, 1, grad=False),
    reduction="mean",
    sizes=BATCH,
)
spectral = tg.Loss(
    losses.JukeboxLoss(spatial_dims=2),
    input=tg.real("B 1 4 4", -1, 1),
    target=tg.real("B 1 4 4", -1, 1, grad=False),
    sizes=BATCH,
    allow={"gradient_is_finite": "the root of a spectrum that is zero, as every constant image's"},
)

VIEWS = {"input": tg.real("B D", -3, 3), "target": tg.real("B D", -3, 3)}
ROWS = {"B": (2, 5), "D": (2, 4)}

contrastive = tg.Loss(
    losses.ContrastiveLoss(),
    inputs=VIEWS,
    sizes=ROWS,
    allow={"gradient_is_bounded": "vectors are divided by their norm, at least 1e-8"},
)
barlow_twins = tg.Loss(
    losses.BarlowTwinsLoss(),
    inputs=VIEWS,
    sizes=ROWS,
    allow={"gradient_is_bounded": "features are divided by their deviation plus 1e-6"},
)
area_under_curve = tg.Loss(
    losses.AUCMLoss(),
    input=tg.real("B 1", 0, 1),
    target=tg.choice(0.0, 1.0, shape="B 1"),
    sizes={"B": (2, 6)},
)


def boxes(corners: Tensor, sides: Tensor) -> Tensor:
    """Return boxes from their lower corners and their sides."""
    return torch.cat([corners, corners + sides], dim=-1)


def giou_of_boxes(corners: Tensor, sides: Tensor, goals: Tensor, goal_sides: Tensor) -> Tensor:
    """Return MONAI's generalised IoU loss of boxes, given as corners and sides."""
    return losses.BoxGIoULoss()(boxes(corners, sides), boxes(goals, goal_sides))


giou = tg.Loss(
    giou_of_boxes,
    corners=tg.real("B 2", 0, 10),
    sides=tg.real("B 2", 0.5, 5),
    goals=tg.real("B 2", 0, 10, grad=False),
    goal_sides=tg.real("B 2", 0.5, 5, grad=False),
    reduction="mean",
    sizes={"B": 2},
)
adversarial = tg.Loss(
    losses.PatchAdversarialLoss(criterion="bce"),
    input=tg.real("B 1 H W", -8, 8),
    target_is_real=tg.choice(True),
    for_discriminator=tg.choice(True, False),
    sizes=PIXELS,
)
adversarial_least_squares = tg.Loss(
    losses.PatchAdversarialLoss(),
    input=tg.real("B 1 H W", -8, 8),
    target_is_real=tg.choice(True, False),
    for_discriminator=tg.choice(True),
    sizes=PIXELS,
)
adversarial_hinge = tg.Loss(
    losses.PatchAdversarialLoss(criterion="hinge"),
    input=tg.real("B 1 H W", -0.9, 0.9),
    target_is_real=tg.choice(True, False),
    for_discriminator=tg.choice(True),
    sizes=PIXELS,
)

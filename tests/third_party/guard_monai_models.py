"""Networks of MONAI for segmentation and for classes, in two dimensions and in three."""

from monai.losses import DiceLoss
from monai.networks.nets import (
    UNETR,
    BasicUNet,
    DenseNet,
    DynUNet,
    SegResNet,
    UNet,
    ViT,
)
from torch import Tensor, nn

import trainguard as tg

PLAIN = {"spatial_dims": 2, "in_channels": 1, "out_channels": 3}
dice = DiceLoss(to_onehot_y=True, softmax=True)


def overlap(output: Tensor, target: Tensor) -> Tensor:
    """Return the Dice loss of logits for integer labels."""
    loss: Tensor = dice(output, target)
    return loss


def pixels(output: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy of logits for integer labels."""
    return nn.functional.cross_entropy(output, target.squeeze(1))


def first(output: tuple[Tensor, list[Tensor]]) -> Tensor:
    """Return a loss of the tokens of a ViT, which returns the states of its layers too."""
    return output[0].square().mean()


images = {"x": tg.real("B 1 32 32", -1, 1), "target": tg.integer("B 1 32 32", 0, 2)}

unet = tg.Model(
    UNet,
    arguments={**PLAIN, "channels": (4, 8, 16), "strides": (2, 2), "num_res_units": 1},
    inputs=images,
    loss=overlap,
    dtypes=("float32", "bfloat16"),
)
unet_with_batch_norm = tg.Model(
    UNet,
    arguments={
        **PLAIN,
        "channels": (4, 8, 16),
        "strides": (2, 2),
        "norm": "batch",
        "dropout": 0.1,
    },
    inputs=images,
    loss=pixels,
    classes=3,
)
basic_unet = tg.Model(
    BasicUNet,
    arguments={**PLAIN, "features": (4, 4, 8, 8, 16, 4)},
    inputs=images,
    loss=pixels,
    classes=3,
)
seg_res_net = tg.Model(
    SegResNet,
    arguments={**PLAIN, "init_filters": 8, "blocks_down": (1, 1, 1), "blocks_up": (1, 1)},
    inputs=images,
    loss=pixels,
)
dyn_unet = tg.Model(
    DynUNet,
    arguments={
        **PLAIN,
        "kernel_size": [3, 3, 3],
        "strides": [1, 2, 2],
        "upsample_kernel_size": [2, 2],
        "filters": [4, 8, 16],
    },
    inputs=images,
    loss=pixels,
)
unetr = tg.Model(
    UNETR,
    arguments={
        **PLAIN,
        "img_size": 32,
        "feature_size": 4,
        "hidden_size": 12,
        "mlp_dim": 24,
        "num_heads": 2,
    },
    x_in=images["x"],
    target=images["target"],
    loss=pixels,
    unused=("vit.*.norm_cross_attn.*",),
)
unet_of_volumes = tg.Model(
    UNet,
    arguments={**PLAIN, "spatial_dims": 3, "channels": (4, 8, 16), "strides": (2, 2)},
    x=tg.real("B 1 16 16 16", -1, 1),
    target=tg.integer("B 1 16 16 16", 0, 2),
    loss=overlap,
)
dense_net = tg.Model(
    DenseNet,
    arguments={**PLAIN, "init_features": 8, "growth_rate": 4, "block_config": (2, 2)},
    x=tg.real("B 1 32 32", -1, 1),
    target=tg.integer("B", 0, 2),
    loss=nn.functional.cross_entropy,
    classes=3,
)
vit = tg.Model(
    ViT,
    arguments={
        "in_channels": 1,
        "img_size": 32,
        "patch_size": 8,
        "spatial_dims": 2,
        "hidden_size": 16,
        "mlp_dim": 32,
        "num_layers": 2,
        "num_heads": 2,
    },
    x=tg.real("B 1 32 32", -1, 1),
    loss=first,
    unused=("*.norm_cross_attn.*",),  # its blocks have one, whether they attend across or not
)

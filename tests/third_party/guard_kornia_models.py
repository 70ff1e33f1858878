"""Networks of kornia at random weights: descriptors of patches, and two vision transformers."""

from kornia.feature import HardNet, HyNet, SOSNet, TFeat
from kornia.models.vit import VisionTransformer

import trainguard as tg

patches = tg.real("B 1 32 32", 0, 1)
untrained = {"pretrained": False}

hard_net = tg.Model(HardNet, arguments=untrained, input=patches)
sos_net = tg.Model(SOSNet, arguments=untrained, input=patches)
hy_net = tg.Model(
    HyNet,
    arguments=untrained,
    x=patches,
    unused="layer1.1.tau",  # a threshold of -1 for what is never negative: a patch over its norm
)
tfeat = tg.Model(TFeat, arguments=untrained, input=patches)
vision_transformer = tg.Model(
    VisionTransformer,
    arguments={
        "image_size": 32,
        "patch_size": 8,
        "embed_dim": 16,
        "depth": 2,
        "num_heads": 2,
    },
    x=tg.real("B 3 32 32", -1, 1),
)

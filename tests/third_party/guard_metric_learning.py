"""
The losses of pytorch-metric-learning that take embeddings and labels, or two views of embeddings.

Two defects that nearly all share have subjects of their own at the end, and are kept out of the
others: a constant feature keeps embeddings away from the zero vector, and where the reducer is
AvgNonZeroReducer it is replaced by the mean. An excuse is a defect that
docs/third_party_losses.md reproduces. Left out are CrossBatchMemory, which remembers earlier
batches, ManifoldLoss, which counts neighbours and takes no labels, and HistogramLoss and
DynamicSoftMarginLoss, which raise for equal embeddings.
"""

import warnings

import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.reducers import MeanReducer
from torch import Tensor, nn
from torch.nn import functional as F

import trainguard as tg

EMBEDDINGS = {"embeddings": tg.real("B 3", -3, 3), "labels": tg.integer("B", 0, 2)}
CLASSES = {"num_classes": 3, "embedding_size": 4}
SIZES = {"B": 4}
MEAN = MeanReducer()


class WithConstant(nn.Module):
    """A loss of embeddings with one more feature that is always 1: none is the zero vector."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the longer embeddings."""
        return self.loss(F.pad(embeddings, (0, 1), value=1.0), labels)


def seeded(made: type[nn.Module], **options: int) -> nn.Module:
    """Return a loss whose class weights are the same in every run."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what some do with numpy
        torch.manual_seed(0)
        return WithConstant(made(**options))


angular = tg.Loss(WithConstant(losses.AngularLoss()), inputs=EMBEDDINGS, sizes=SIZES)
arc_face = tg.Loss(
    seeded(losses.ArcFaceLoss, **CLASSES),
    inputs=EMBEDDINGS,
    sizes=SIZES,
    allow={"gradient_is_continuous": "the logit jumps where angle and margin reach 180 degrees"},
)
circle = tg.Loss(WithConstant(losses.CircleLoss()), inputs=EMBEDDINGS, sizes=SIZES)
contrastive = tg.Loss(
    WithConstant(losses.ContrastiveLoss(reducer=MEAN)), inputs=EMBEDDINGS, sizes=SIZES
)
cos_face = tg.Loss(seeded(losses.CosFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
fast_ap = tg.Loss(WithConstant(losses.FastAPLoss()), inputs=EMBEDDINGS, sizes=SIZES)
generalized_lifted_structure = tg.Loss(
    WithConstant(losses.GeneralizedLiftedStructureLoss()), inputs=EMBEDDINGS, sizes=SIZES
)
instance = tg.Loss(WithConstant(losses.InstanceLoss()), inputs=EMBEDDINGS, sizes=SIZES)
intra_pair_variance = tg.Loss(
    WithConstant(losses.IntraPairVarianceLoss()), inputs=EMBEDDINGS, sizes=SIZES
)
large_margin_softmax = tg.Loss(
    seeded(losses.LargeMarginSoftmaxLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
lifted_structure = tg.Loss(
    WithConstant(losses.LiftedStructureLoss()), inputs=EMBEDDINGS, sizes=SIZES
)
margin = tg.Loss(WithConstant(losses.MarginLoss(reducer=MEAN)), inputs=EMBEDDINGS, sizes=SIZES)
multi_similarity = tg.Loss(
    WithConstant(losses.MultiSimilarityLoss()), inputs=EMBEDDINGS, sizes=SIZES
)
nca = tg.Loss(
    WithConstant(losses.NCALoss()),
    inputs=EMBEDDINGS,
    sizes={"B": 2},
    allow={"value_is_finite": "nan for a batch without a positive pair, where others return 0"},
)
n_pairs = tg.Loss(WithConstant(losses.NPairsLoss()), inputs=EMBEDDINGS, sizes=SIZES)
nt_xent = tg.Loss(WithConstant(losses.NTXentLoss()), inputs=EMBEDDINGS, sizes=SIZES)
normalized_softmax = tg.Loss(
    seeded(losses.NormalizedSoftmaxLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
p2s_grad = tg.Loss(
    seeded(losses.P2SGradLoss, descriptors_dim=4, num_classes=3), inputs=EMBEDDINGS, sizes=SIZES
)
pnp = tg.Loss(
    WithConstant(losses.PNPLoss(anneal=0.2)),  # ranks at the default of 0.01 saturate by design
    inputs=EMBEDDINGS,
    sizes=SIZES,
)
proxy_anchor = tg.Loss(seeded(losses.ProxyAnchorLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
proxy_nca = tg.Loss(seeded(losses.ProxyNCALoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
ranked_list = tg.Loss(
    WithConstant(losses.RankedListLoss(margin=1, Tn=1)),
    inputs=EMBEDDINGS,
    sizes=SIZES,
    allow={"gradient_is_continuous": "the mean is over pairs above zero: a satisfied one leaves"},
)
signal_to_noise_ratio = tg.Loss(
    WithConstant(losses.SignalToNoiseRatioContrastiveLoss(reducer=MEAN)),
    inputs=EMBEDDINGS | {"embeddings": tg.real("B 3", -3, 0)},  # never as equal as the constant
    sizes=SIZES,
)
soft_triple = tg.Loss(seeded(losses.SoftTripleLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
sphere_face = tg.Loss(seeded(losses.SphereFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
sub_center_arc_face = tg.Loss(
    seeded(losses.SubCenterArcFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
sup_con = tg.Loss(WithConstant(losses.SupConLoss()), inputs=EMBEDDINGS, sizes=SIZES)
threshold_consistent_margin = tg.Loss(
    WithConstant(losses.ThresholdConsistentMarginLoss(reducer=MEAN)),
    inputs=EMBEDDINGS,
    sizes=SIZES,
    allow={"gradient_is_continuous": "the mean is over pairs above zero: a satisfied one leaves"},
)
triplet_margin = tg.Loss(
    WithConstant(losses.TripletMarginLoss(reducer=MEAN)), inputs=EMBEDDINGS, sizes=SIZES
)
tuplet_margin = tg.Loss(
    WithConstant(losses.TupletMarginLoss()),
    inputs=EMBEDDINGS,
    sizes=SIZES,
    allow={
        "value_is_finite": "acos of a cosine that rounds to more than 1, for equal embeddings",
        "gradient_is_finite": "acos has no slope at a cosine of 1, for equal embeddings",
    },
)

VIEWS = {"embeddings": tg.real("B 3", 0.1, 3), "ref_emb": tg.real("B 3", 0.1, 3)}

self_supervised = tg.Loss(losses.SelfSupervisedLoss(losses.NTXentLoss()), inputs=VIEWS, sizes=SIZES)
vicreg = tg.Loss(losses.VICRegLoss(), inputs=VIEWS, sizes=SIZES)


def smooth_ap_of_pairs(embeddings: Tensor) -> Tensor:
    """Return the smoothed average precision of three classes with two samples each."""
    return losses.SmoothAPLoss(temperature=0.2)(embeddings, torch.tensor([0, 0, 1, 1, 2, 2]))


smooth_ap = tg.Loss(smooth_ap_of_pairs, embeddings=tg.real("6 3", 0.1, 3))

contrastive_of_dead_units = tg.Loss(
    losses.ContrastiveLoss(reducer=MEAN),
    inputs=EMBEDDINGS | {"embeddings": tg.real("B 3", 0, 1e-6)},
    sizes=SIZES,
    allow={"gradient_is_bounded": "embeddings are divided by their norm, at least 1e-12"},
)
contrastive_of_nonzero_pairs = tg.Loss(
    WithConstant(losses.ContrastiveLoss()),
    inputs=EMBEDDINGS,
    sizes=SIZES,
    allow={"gradient_is_continuous": "the mean is over pairs above zero: a satisfied one leaves"},
)

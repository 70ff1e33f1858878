"""
The losses of pytorch-metric-learning that take embeddings and labels, or pairs of embeddings.

Left out: CrossBatchMemory, which remembers earlier batches and has no value of its own, and
MetricLossOnly-style wrappers. An excuse here is a defect that docs/third_party_losses.md reproduces.
"""

import torch
from pytorch_metric_learning import losses
from torch import nn

import trainguard as tg

EMBEDDINGS = {"embeddings": tg.real("B 3", -3, 3), "labels": tg.integer("B", 0, 2)}
SIZES = {"B": (2, 6)}
CLASSES = {"num_classes": 3, "embedding_size": 3}


def seeded(made: type[nn.Module], **options: int) -> nn.Module:
    """Return a loss whose class weights are the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(**options)


angular = tg.Loss(losses.AngularLoss(), inputs=EMBEDDINGS, sizes=SIZES)
arc_face = tg.Loss(seeded(losses.ArcFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
circle = tg.Loss(losses.CircleLoss(), inputs=EMBEDDINGS, sizes=SIZES)
contrastive = tg.Loss(losses.ContrastiveLoss(), inputs=EMBEDDINGS, sizes=SIZES)
cos_face = tg.Loss(seeded(losses.CosFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
dynamic_soft_margin = tg.Loss(losses.DynamicSoftMarginLoss(), inputs=EMBEDDINGS, sizes=SIZES)
fast_ap = tg.Loss(losses.FastAPLoss(), inputs=EMBEDDINGS, sizes=SIZES)
generalized_lifted_structure = tg.Loss(
    losses.GeneralizedLiftedStructureLoss(), inputs=EMBEDDINGS, sizes=SIZES
)
histogram = tg.Loss(losses.HistogramLoss(n_bins=10), inputs=EMBEDDINGS, sizes=SIZES)
instance = tg.Loss(losses.InstanceLoss(), inputs=EMBEDDINGS, sizes=SIZES)
intra_pair_variance = tg.Loss(losses.IntraPairVarianceLoss(), inputs=EMBEDDINGS, sizes=SIZES)
large_margin_softmax = tg.Loss(
    seeded(losses.LargeMarginSoftmaxLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
lifted_structure = tg.Loss(losses.LiftedStructureLoss(), inputs=EMBEDDINGS, sizes=SIZES)
manifold = tg.Loss(
    seeded(losses.ManifoldLoss, l=3, K=2), embeddings=tg.real("B 3", -3, 3), sizes=SIZES
)
margin = tg.Loss(losses.MarginLoss(), inputs=EMBEDDINGS, sizes=SIZES)
multi_similarity = tg.Loss(losses.MultiSimilarityLoss(), inputs=EMBEDDINGS, sizes=SIZES)
nca = tg.Loss(losses.NCALoss(), inputs=EMBEDDINGS, sizes=SIZES)
n_pairs = tg.Loss(losses.NPairsLoss(), inputs=EMBEDDINGS, sizes=SIZES)
nt_xent = tg.Loss(losses.NTXentLoss(), inputs=EMBEDDINGS, sizes=SIZES)
normalized_softmax = tg.Loss(
    seeded(losses.NormalizedSoftmaxLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
p2s_grad = tg.Loss(
    seeded(losses.P2SGradLoss, descriptors_dim=3, num_classes=3), inputs=EMBEDDINGS, sizes=SIZES
)
pnp = tg.Loss(losses.PNPLoss(), inputs=EMBEDDINGS, sizes=SIZES)
proxy_anchor = tg.Loss(seeded(losses.ProxyAnchorLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
proxy_nca = tg.Loss(seeded(losses.ProxyNCALoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
ranked_list = tg.Loss(losses.RankedListLoss(margin=1, Tn=10), inputs=EMBEDDINGS, sizes=SIZES)
signal_to_noise_ratio = tg.Loss(
    losses.SignalToNoiseRatioContrastiveLoss(), inputs=EMBEDDINGS, sizes=SIZES
)
smooth_ap = tg.Loss(
    losses.SmoothAPLoss(),
    embeddings=tg.real("6 3", -3, 3),
    labels=tg.choice(0, 1, shape="6"),
)
soft_triple = tg.Loss(seeded(losses.SoftTripleLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
sphere_face = tg.Loss(seeded(losses.SphereFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES)
sub_center_arc_face = tg.Loss(
    seeded(losses.SubCenterArcFaceLoss, **CLASSES), inputs=EMBEDDINGS, sizes=SIZES
)
sup_con = tg.Loss(losses.SupConLoss(), inputs=EMBEDDINGS, sizes=SIZES)
threshold_consistent_margin = tg.Loss(
    losses.ThresholdConsistentMarginLoss(), inputs=EMBEDDINGS, sizes=SIZES
)
triplet_margin = tg.Loss(losses.TripletMarginLoss(), inputs=EMBEDDINGS, sizes=SIZES)
tuplet_margin = tg.Loss(losses.TupletMarginLoss(), inputs=EMBEDDINGS, sizes=SIZES)

VIEWS = {"embeddings": tg.real("B 3", -3, 3), "ref_emb": tg.real("B 3", -3, 3)}

self_supervised = tg.Loss(
    losses.SelfSupervisedLoss(losses.NTXentLoss()), inputs=VIEWS, sizes=SIZES
)
vicreg = tg.Loss(losses.VICRegLoss(), inputs=VIEWS, sizes=SIZES)

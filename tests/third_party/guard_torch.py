"""
The losses of torch that take a target: each module, and each function over its reductions.

An excuse here is a defect, or a hazard, that torch has; docs/third_party_losses.md reproduces it.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trainguard as tg


def seeded(made: type[nn.Module], *args: int, **options: Any) -> nn.Module:
    """Return a loss with weights of its own that are the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made(*args, **options)


PAIR = {"input": tg.real("B D", -10, 10), "target": tg.real("B D", -10, 10, grad=False)}
REDUCTIONS = {"reduction": tg.choice("none", "mean", "sum")}

l1 = tg.Loss(nn.L1Loss(), inputs=PAIR, reduction="mean")
l1_function = tg.Loss(F.l1_loss, inputs=PAIR | REDUCTIONS)
mse = tg.Loss(nn.MSELoss(), inputs=PAIR, reduction="mean", dtypes=("float32", "bfloat16"))
mse_function = tg.Loss(F.mse_loss, inputs=PAIR | REDUCTIONS)
huber = tg.Loss(nn.HuberLoss(delta=0.5), inputs=PAIR, reduction="mean")
huber_function = tg.Loss(F.huber_loss, inputs=PAIR | REDUCTIONS)
smooth_l1 = tg.Loss(nn.SmoothL1Loss(), inputs=PAIR, reduction="mean")
smooth_l1_function = tg.Loss(F.smooth_l1_loss, inputs=PAIR | REDUCTIONS)

LABELLED = {"input": tg.real("B C", -20, 20), "target": tg.integer("B", 0, "C-1")}

cross_entropy = tg.Loss(
    nn.CrossEntropyLoss(), inputs=LABELLED, reduction="mean", dtypes=("float32", "bfloat16")
)
cross_entropy_function = tg.Loss(
    F.cross_entropy, inputs=LABELLED | REDUCTIONS | {"label_smoothing": tg.choice(0.0, 0.1)}
)
cross_entropy_of_pixels = tg.Loss(
    nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), reduction="none"),
    inputs={"input": tg.real("B 3 H W", -20, 20), "target": tg.integer("B H W", 0, 2)},
    reduction="none",
)
cross_entropy_of_distributions = tg.Loss(
    nn.CrossEntropyLoss(),
    inputs={"input": tg.real("B C", -20, 20), "target": tg.real("B C", 0, 1, grad=False)},
    reduction="mean",
)
linear_cross_entropy = tg.Loss(
    seeded(nn.LinearCrossEntropyLoss, 3, 5),
    inputs={"input": tg.real("B 3", -5, 5), "target": tg.integer("B", 0, 4)},
    reduction="mean",
)
adaptive_softmax = tg.Loss(
    seeded(nn.AdaptiveLogSoftmaxWithLoss, 4, 8, cutoffs=[2, 4], div_value=2.0),
    inputs={"input_": tg.real("B 4", -5, 5), "target_": tg.integer("B", 0, 7)},
    components=("loss",),
    reduction="mean",
)
nll = tg.Loss(
    nn.NLLLoss(),
    inputs={"input": tg.real("B C", -20, 0), "target": tg.integer("B", 0, "C-1")},
    reduction="mean",
)
nll_function = tg.Loss(
    F.nll_loss,
    inputs={"input": tg.real("B C", -20, 0), "target": tg.integer("B", 0, "C-1")} | REDUCTIONS,
)

LOG_PROBABILITIES = {"input": tg.real("B C", -20, 0), "target": tg.real("B C", 0, 1, grad=False)}

kl = tg.Loss(nn.KLDivLoss(reduction="batchmean"), inputs=LOG_PROBABILITIES, reduction="mean")
kl_function = tg.Loss(F.kl_div, inputs=LOG_PROBABILITIES | REDUCTIONS)
kl_of_log_targets = tg.Loss(
    nn.KLDivLoss(reduction="batchmean", log_target=True),
    inputs={"input": tg.real("B C", -20, 0), "target": tg.real("B C", -20, 0)},
    reduction="mean",
)

PROBABILITIES = {"input": tg.real("B C", 0, 1), "target": tg.real("B C", 0, 1, grad=False)}
LOGITS = {"input": tg.real("B C", -20, 20), "target": tg.real("B C", 0, 1, grad=False)}

CERTAIN = {"gradient_is_bounded": "divided by p * (1 - p), at least 1e-12"}

bce = tg.Loss(nn.BCELoss(), inputs=PROBABILITIES, reduction="mean", allow=CERTAIN)
bce_function = tg.Loss(F.binary_cross_entropy, inputs=PROBABILITIES | REDUCTIONS, allow=CERTAIN)
bce_with_logits = tg.Loss(
    nn.BCEWithLogitsLoss(pos_weight=torch.tensor(3.0)), inputs=LOGITS, reduction="mean"
)
bce_with_logits_function = tg.Loss(F.binary_cross_entropy_with_logits, inputs=LOGITS | REDUCTIONS)

GAUSSIAN = {
    "input": tg.real("B D", -3, 3),
    "target": tg.real("B D", -3, 3, grad=False),
    "var": tg.real("B D", 0, 4),
}

gaussian_nll = tg.Loss(
    nn.GaussianNLLLoss(),
    inputs=GAUSSIAN,
    reduction="mean",
    allow={"gradient_is_bounded": "divided by the variance, at least 1e-6, and by its square"},
)
gaussian_nll_of_large_variances = tg.Loss(
    F.gaussian_nll_loss,
    inputs=GAUSSIAN | REDUCTIONS | {"var": tg.real("B D", 0.05, 4), "full": tg.choice(False, True)},
)
poisson_nll = tg.Loss(
    nn.PoissonNLLLoss(full=True),
    log_input=tg.real("B D", -5, 5),
    target=tg.real("B D", 0, 50, grad=False),
    reduction="mean",
)
poisson_nll_of_rates = tg.Loss(
    F.poisson_nll_loss,
    inputs={
        "input": tg.real("B D", 0, 50),
        "target": tg.real("B D", 0, 50, grad=False),
        "log_input": tg.choice(False),
    },
    allow={"gradient_is_bounded": "the slope of log(rate + 1e-8) at a rate of zero"},
)

SIGNED = {"input": tg.real("B D", -5, 5), "target": tg.choice(-1, 1, shape="B D")}

hinge_embedding = tg.Loss(nn.HingeEmbeddingLoss(), inputs=SIGNED, reduction="mean")
hinge_embedding_function = tg.Loss(F.hinge_embedding_loss, inputs=SIGNED | REDUCTIONS)
soft_margin = tg.Loss(nn.SoftMarginLoss(), inputs=SIGNED, reduction="mean")
soft_margin_of_large_logits = tg.Loss(
    F.soft_margin_loss,
    inputs=SIGNED | REDUCTIONS | {"input": tg.real("B D", -100, 100)},
    allow={
        "value_is_finite": "exp(-y * x) overflows from 89 on",
        "gradient_is_finite": "inf / inf where exp(-y * x) overflows",
    },
)
multi_label_margin = tg.Loss(
    nn.MultiLabelMarginLoss(),
    inputs={"input": tg.real("B C", -5, 5), "target": tg.integer("B C", -1, "C-1")},
    reduction="mean",
)
multi_label_margin_function = tg.Loss(
    F.multilabel_margin_loss,
    inputs={"input": tg.real("B C", -5, 5), "target": tg.integer("B C", -1, "C-1")} | REDUCTIONS,
)
multi_label_soft_margin = tg.Loss(
    nn.MultiLabelSoftMarginLoss(),
    inputs={"input": tg.real("B C", -20, 20), "target": tg.choice(0.0, 1.0, shape="B C")},
    reduction="mean",
)
multi_label_soft_margin_function = tg.Loss(
    F.multilabel_soft_margin_loss,
    inputs={"input": tg.real("B C", -20, 20), "target": tg.choice(0.0, 1.0, shape="B C")}
    | REDUCTIONS,
)
multi_margin = tg.Loss(nn.MultiMarginLoss(), inputs=LABELLED, reduction="mean")
multi_margin_function = tg.Loss(
    F.multi_margin_loss, inputs=LABELLED | REDUCTIONS | {"p": tg.choice(1, 2)}
)

VECTORS = {"input1": tg.real("B D", -10, 10), "input2": tg.real("B D", -10, 10)}
ZERO = {"gradient_is_bounded": "the zero vector is divided by the root of 1e-12"}

cosine_embedding = tg.Loss(
    nn.CosineEmbeddingLoss(margin=0.2),
    inputs=VECTORS | {"target": tg.choice(-1, 1, shape="B")},
    reduction="mean",
    allow=ZERO,
)
cosine_embedding_function = tg.Loss(
    F.cosine_embedding_loss,
    inputs=VECTORS | {"target": tg.choice(-1, 1, shape="B")} | REDUCTIONS,
    allow=ZERO,
)
margin_ranking = tg.Loss(
    nn.MarginRankingLoss(margin=0.5),
    inputs=VECTORS | {"target": tg.choice(-1, 1, shape="B D")},
    reduction="mean",
)
margin_ranking_function = tg.Loss(
    F.margin_ranking_loss,
    inputs=VECTORS | {"target": tg.choice(-1, 1, shape="B D")} | REDUCTIONS,
)

TRIPLETS = {name: tg.real("B D", -3, 3) for name in ("anchor", "positive", "negative")}

triplet = tg.Loss(nn.TripletMarginLoss(), inputs=TRIPLETS, reduction="mean", sizes={"D": (2, 4)})
triplet_function = tg.Loss(
    F.triplet_margin_loss,
    inputs=TRIPLETS | REDUCTIONS | {"swap": tg.choice(False, True), "p": tg.choice(1, 2)},
)
triplet_with_distance = tg.Loss(
    nn.TripletMarginWithDistanceLoss(distance_function=nn.PairwiseDistance(p=2), swap=True),
    inputs=TRIPLETS,
    reduction="mean",
)
triplet_with_distance_function = tg.Loss(
    F.triplet_margin_with_distance_loss, inputs=TRIPLETS | REDUCTIONS
)


def ctc_of_full_sequences(log_probs: Tensor, targets: Tensor, zero_infinity: bool) -> Tensor:
    """Return torch's CTC loss for frames and labels that all have their full length."""
    batch = log_probs.shape[1]
    frames, letters = (torch.full((batch,), n) for n in (len(log_probs), targets.shape[1]))
    return nn.CTCLoss(zero_infinity=zero_infinity)(
        log_probs.log_softmax(-1), targets, frames, letters
    )


CTC = {"log_probs": tg.real("T B C", -10, 10), "targets": tg.integer("B S", 1, "C-1")}

ctc = tg.Loss(
    ctc_of_full_sequences,
    inputs=CTC | {"zero_infinity": tg.choice(False)},
    reduction="mean",
    sizes={"T": (5, 7), "S": (1, 2), "C": (3, 5)},
)
ctc_without_room = tg.Loss(
    ctc_of_full_sequences,
    inputs=CTC | {"zero_infinity": tg.choice(True)},
    reduction="mean",
    sizes={"T": (1, 4), "S": (1, 4), "C": (3, 5)},
)

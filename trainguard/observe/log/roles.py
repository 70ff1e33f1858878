"""What a column means, by its name: the loss, the rate, the norm, a validation loss, a counter."""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from trainguard.core.names import EVALUATION, TRAINING, words_of

STEP, EPOCH, TIME = "step", "epoch", "time"
LOSS, RATE, NORM = "loss", "rate", "norm"
EVALUATED, METRIC, SECONDS = "val_loss", "metric", "seconds"
CHOSEN: Final = (LOSS, RATE, NORM, EVALUATED, STEP, EPOCH, TIME)  # that --column can name
FAR: Final = 3  # the rank of a part of something, as of one term of the loss

_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_COUNTERS = {
    STEP: {"step", "global step", "steps", "iter", "iters", "iteration", "iterations", "update",
           "updates", "num updates", "n iter", "it", "trainer global step", "train step",
           "train global step", "num steps", "i iter", "itr"},
    EPOCH: {"epoch", "epochs", "ep", "train epoch"},
    TIME: {"time", "timestamp", "wall time", "walltime", "runtime", "relative time process",
           "relative time wall", "elapsed", "elapsed time", "train runtime so far"},
    SECONDS: {"step time", "iter time", "seconds per step", "time per step", "sec per step",
              "time per iter", "batch time", "s it", "step seconds", "iteration time",
              "train step time", "perf step time"},
}  # fmt: skip
_NORMS = {"grad norm", "gradient norm", "grads norm", "gnorm", "gradnorm", "total norm",
          "grad norm total", "global norm", "global grad norm", "total grad norm", "norm grad",
          "grad norm norm", "grad l norm", "grad norm l"}  # fmt: skip
_PLAIN = {"step", "batch", "iter", "optim", "optimizer", "total", "per", "trainer", "model",
          "metrics", "scalars", "data", "charts", "metric", "all", "overall", "perf"}  # fmt: skip
_SMOOTH = {"avg", "average", "mean", "running", "smooth", "smoothed", "epoch", "ema", "median"}
_NEVER = {"best", "min", "max", "lowest", "std", "scale", "scaler", "delta", "weight", "weights",
          "final", "prev", "last", "ratio", "count", "ppl"}  # fmt: skip
_RATES = ({"lr"}, {"learning", "rate"}, {"learningrate"})
_METRICS = {"acc", "accuracy", "auc", "auroc", "dice", "iou", "miou", "map", "bleu", "rouge",
            "psnr", "ssim", "top", "precision", "recall", "exact", "em"}  # fmt: skip


class Meaning(NamedTuple):
    """What a column is, and how far its name is from the plainest one for that; 0 is plainest."""

    role: str
    rank: int = 0


@lru_cache(maxsize=4096)
def meaning_of(name: str) -> Meaning | None:
    """Return what a name of a column means, or None where it means nothing that is judged."""
    leaf = name.rpartition(" - ")[2]  # W&B writes the run before it in an export of a chart
    if leaf.endswith(("__MIN", "__MAX")) or len(name) > 200:
        return None
    listed = words_of(_CAMEL.sub(" ", leaf))
    text = " ".join(listed)
    for role, names in _COUNTERS.items():
        if text in names:
            return Meaning(role, 0 if "global" in text or "update" in text else 1)
    words = set(listed)
    if words & EVALUATION and not words & {"lr", "step", "time", "runtime"}:
        return _evaluated(words - EVALUATION - TRAINING - _PLAIN)
    return _trained(name, words - TRAINING - _PLAIN)


def _trained(name: str, words: set[str]) -> Meaning | None:
    """Return what a column is that no word calls one of an evaluation."""
    text = " ".join(words_of(name))
    if any(text.endswith(norm) for norm in _NORMS) and not words & {"param", "weight", "clipped"}:
        return Meaning(NORM, 0 if words <= set(" ".join(_NORMS).split()) else FAR)
    if any(rate <= words for rate in _RATES):
        return Meaning(RATE, 0 if words in _RATES else 1 + (re.search(r"\d", name) is not None))
    if "loss" in words or words == {"nll"}:
        if words & _NEVER:
            return None
        rest = words - {"loss", "nll"}
        return Meaning(LOSS, 0 if not rest else 1 if rest <= _SMOOTH else FAR)
    return Meaning(METRIC) if words & _METRICS and not words & _NEVER else None


def _evaluated(words: set[str]) -> Meaning | None:
    """Return what a column of an evaluation is."""
    if words & _NEVER:
        return None
    if "loss" in words or words == {"nll"}:
        rest = words - {"loss", "nll"} - _SMOOTH
        return Meaning(EVALUATED, FAR if rest else 0)
    return Meaning(METRIC) if words & _METRICS else None

"""Names of logged numbers, read as words: what says of a number that it is of an evaluation."""

import re
from functools import cache
from typing import Final

EVALUATION: Final = frozenset(
    {"val", "valid", "validation", "eval", "evaluation", "test", "dev", "holdout"}
)
TRAINING: Final = frozenset({"train", "training"})

_METRICS: Final = {
    "auc": {"auc", "auroc", "rocauc", "roc", "aucroc", "auprc", "ap", "prauc"},
    "correlation": {"pearson", "pearsonr", "corr", "correlation"},
    "dice": {"dice", "dsc"},
    "f1": {"f1", "f1score", "fscore"},
    "iou": {"iou", "jaccard", "miou"},
    "perplexity": {"ppl", "perplexity"},
    "precision": {"precision"},
    "r2": {"r2", "r2score"},
    "recall": {"recall", "sensitivity"},
    "rmse": {"rmse"},
}
_BESIDE: Final = {"score", "mean", "avg", "average", "epoch", "step", "macro", "micro", "weighted"}


_HELD_OUT: Final = re.compile(r"(?<![a-z])h(?:e|o)ld[-_ ]?out")  # however it is written


def words_of(name: str) -> list[str]:
    """Return the words that a name of a logged number is made of, without its digits."""
    return _split(name, r"[^a-z]+")


@cache
def metric_of(name: str) -> str:
    """Return the metric that a name means, if it is one that is no mean over samples; else ""."""
    words = set(_split(name, r"[^a-z0-9]+"))
    found = [metric for metric, names in _METRICS.items() if words & names]
    beside = EVALUATION | TRAINING | _BESIDE
    return found[0] if len(found) == 1 and words <= beside | _METRICS[found[0]] else ""


def _split(name: str, between: str) -> list[str]:
    """Return the parts of a name in small letters, of which "held-out" is one."""
    return [part for part in re.split(between, _HELD_OUT.sub("holdout", name.lower())) if part]

import torch.nn.functional as F


def token_loss(logits, labels, weight=None):
    """Return the cross-entropy of the tokens that have a label."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weight, ignore_index=-100)

import torch.nn.functional as F


def smoothed_cross_entropy(logits, labels, smoothing=0.05):
    log_probs = F.log_softmax(logits, dim=-1)
    right = -log_probs.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return ((1 - smoothing) * right - smoothing * log_probs.mean(-1)).mean()

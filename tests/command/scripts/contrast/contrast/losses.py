import torch
import torch.nn.functional as F


def info_nce(queries, keys, temperature=0.2):
    """Return the InfoNCE loss: each query has to find its own key among all of the batch."""
    queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    logits = queries @ keys.T / temperature
    return F.cross_entropy(logits, torch.arange(len(logits), device=logits.device))

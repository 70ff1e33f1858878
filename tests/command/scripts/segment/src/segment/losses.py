import torch.nn.functional as F
from torch import nn


class DiceAndCrossEntropy(nn.Module):
    def __init__(self, dice_weight=0.5, smooth=1.0):
        super().__init__()
        self.dice_weight, self.smooth = dice_weight, smooth

    def forward(self, logits, target):
        probs = logits.softmax(dim=1)
        onehot = F.one_hot(target, logits.shape[1]).permute(0, 3, 1, 2).to(probs.dtype)
        both = (probs * onehot).sum(dim=(2, 3))
        sizes = probs.sum(dim=(2, 3)) + onehot.sum(dim=(2, 3))
        dice = 1 - (2 * both + self.smooth) / (sizes + self.smooth)
        entropy = F.cross_entropy(logits, target)
        return self.dice_weight * dice.mean() + (1 - self.dice_weight) * entropy

import math


def cosine_rate(step, total, base, warmup):
    """Return the rate of a step: a linear warm-up, then half a cosine."""
    if step < warmup:
        return base * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return 0.5 * base * (1 + math.cos(math.pi * done))

from dataclasses import dataclass


@dataclass
class Config:
    width: int = 32
    layers: int = 2
    dropout: float = 0.1
    lr: float = 1e-3
    warmup: int = 10
    batch_size: int = 32
    epochs: int = 6


def load(path):
    """Read the two levels of YAML that our configs have."""
    values = {}
    for line in open(path):
        key, _, value = line.strip().partition(":")
        if value:
            values[key] = float(value) if "." in value else int(value)
    return Config(**values)

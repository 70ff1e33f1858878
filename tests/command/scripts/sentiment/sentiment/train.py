import argparse

import torch

from .config import load
from .data import make_loader
from .losses import smoothed_cross_entropy
from .model import Classifier


def warmup_schedule(optimizer, warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.05, (total - step) / (total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(tokens).argmax(-1) == labels).sum().item() for tokens, labels in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = load(args.config)
    torch.manual_seed(args.seed)
    train_loader = make_loader("train", config.batch_size)
    dev_loader = make_loader("dev", 64)
    model = Classifier(config.width, config.layers, config.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01)
    scheduler = warmup_schedule(optimizer, config.warmup, config.epochs * len(train_loader))
    for epoch in range(config.epochs):
        total = 0.0
        for tokens, labels in train_loader:
            loss = smoothed_cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            total += loss.item()
        print(
            f"epoch {epoch} loss {total / len(train_loader):.4f} dev {evaluate(model, dev_loader):.3f}"
        )


if __name__ == "__main__":
    main()

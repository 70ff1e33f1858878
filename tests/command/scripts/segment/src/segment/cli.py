import argparse
import json
from pathlib import Path

import torch

from segment.engine import fit
from segment.losses import DiceAndCrossEntropy
from segment.nets import build_net
from segment.shapes import make_loaders

DEFAULTS = {"channels": 8, "classes": 3, "lr": 0.01, "epochs": 5, "batch": 16, "dice": 0.5}


def main():
    parser = argparse.ArgumentParser(prog="segment")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--epochs", type=int)
    args = parser.parse_args()
    options = dict(DEFAULTS)
    if args.config:
        options.update(json.loads(args.config.read_text()))
    if args.epochs:
        options["epochs"] = args.epochs
    torch.manual_seed(1234)
    net = build_net(options["channels"], options["classes"])
    criterion = DiceAndCrossEntropy(dice_weight=options["dice"])
    fit(net, criterion, *make_loaders(options["batch"]), lr=options["lr"], epochs=options["epochs"])

"""Which numbers are read from a line of output, and which are left alone."""

import math
import time

import pytest

from trainguard.core.log_line import LONGEST, numbers_in

READ = {
    "step 3 | loss 1.234 | grad_norm 0.000 | lr 1e-4": (
        "step=3 +-0.5, loss=1.234 +-0.0005, grad_norm=0 +-0.0005, lr=0.0001 +-5e-05"
    ),
    "Epoch 1/8 loss 0.583 test_acc 0.875": "loss=0.583 +-0.0005, test_acc=0.875 +-0.0005",
    "loss: 0.123": "loss=0.123 +-0.0005",
    "INFO:my.log:epoch 3 acc 0.93 *": "epoch=3 +-0.5, acc=0.93 +-0.005",
    "I epoch 3 acc 0.93*": "epoch=3 +-0.5, acc=0.93 +-0.005",
    "loss=0.123": "loss=0.123 +-0.0005",
    "Loss = 12.5": "Loss=12.5 +-0.05",
    "Loss: 0.5.": "Loss=0.5 +-0.05",
    "loss .5 acc 1.": "loss=0.5 +-0.05, acc=1 +-0.5",
    "loss: 2.302585092994046": "loss=2.30259 +-5e-16",
    "loss -1.50e+03": "loss=-1500 +-5",
    "{'loss': 2.3, 'grad_norm': 0.9, 'learning_rate': 5e-05, 'epoch': 1.0}": (
        "loss=2.3 +-0.05, grad_norm=0.9 +-0.05, learning_rate=5e-05 +-5e-06, epoch=1 +-0.05"
    ),
    "{'loss': '2.303', 'learning_rate': '5e-05'}": (
        "loss=2.303 +-0.0005, learning_rate=5e-05 +-5e-06"
    ),
    '{"train": {"loss": 0.5}, "val": {"loss": 0.7}}': "loss=0.5 +-0.05, val/loss=0.7 +-0.05",
    " 50%|#####     | 5/10 [00:01<00:01,  4.9it/s, loss=0.5, lr=1e-3]": (
        "loss=0.5 +-0.05, lr=0.001 +-0.0005"
    ),
    "Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300": "Train Epoch=1 +-0.5, Loss=2.3 +-0.0005",
    "Test set: Average loss: 0.0123, Accuracy: 9810/10000 (98%)": (
        "Test/Average loss=0.0123 +-5e-05, Test/Accuracy=0.981 +-0"
    ),
    "2026-11-22 16:17:26,193 epoch 4  val_loss: 0.25": "epoch=4 +-0.5, val_loss=0.25 +-0.005",
    "[2026-11-22 16:17:26] loss 0.25": "loss=0.25 +-0.005",
    "val acc: 99.5%, acc 7.25 %": "val acc=99.5 +-0.05, acc=7.25 +-0.005",
    "step 0: train loss 4.2874, val loss 4.2823": (
        "step=0 +-0.5, train loss=4.2874 +-5e-05, val loss=4.2823 +-5e-05"
    ),
    "iter 0: loss 4.2614, time 23415.02ms, mfu -100.00%": "iter=0 +-0.5, loss=4.2614 +-5e-05",
    "Epoch [1/10], Step [100/600], Loss: 0.1234": "Loss=0.1234 +-5e-05",
    "Epoch: [0][10/391]\tTime 0.5 (0.6)\tLoss 2.3 (2.4)\tAcc@1 10.1 (11.0)": (
        "Time=0.5 +-0.05, Loss=2.3 +-0.05, Acc@1=10.1 +-0.05"
    ),
    "| epoch   1 |   200/ 2983 batches | lr 20.00 | loss  7.60 | ppl  1998.19": (
        "epoch=1 +-0.5, lr=20 +-0.005, loss=7.6 +-0.005, ppl=1998.19 +-0.005"
    ),
    "[2024-01-01 12:00:00,123] INFO: step: 3 loss: 0.5": "step=3 +-0.5, loss=0.5 +-0.05",
    "2024-01-01 12:00:00,123 - root - INFO - step 3 - loss 0.5": "step=3 +-0.5, loss=0.5 +-0.05",
    "Epoch 1/5 - loss: 0.5 - acc: 0.9": "loss=0.5 +-0.05, acc=0.9 +-0.05",
    "best val loss: 0.5, at step 3": "best val loss=0.5 +-0.05, at step=3 +-0.5",
    "train: loss 0.5 | val: loss 0.6": "loss=0.5 +-0.05, val/loss=0.6 +-0.05",
    "[val] loss: 0.5": "val/loss=0.5 +-0.05",
    "train 0.5 acc 0.7 | val 0.6 acc 0.8": (
        "train=0.5 +-0.05, acc=0.7 +-0.05, val=0.6 +-0.05, val/acc=0.8 +-0.05"
    ),
    "val loss 0.6 lr 0.1, train loss 0.5": (
        "val loss=0.6 +-0.05, lr=0.1 +-0.05, train loss=0.5 +-0.05"
    ),
    "loss   1.234    lr  0.001": "loss=1.234 +-0.0005, lr=0.001 +-0.0005",
    "\x1b[32mloss\x1b[0m: 0.5": "loss=0.5 +-0.05",
    "loss: tensor(2.3026, grad_fn=<NllLossBackward0>)": "loss=2.3026 +-5e-05",
    "loss: np.float32(0.5)": "loss=0.5 +-0.05",
    "loss nan": "loss=nan +-0",
    "loss: nan, grad_norm: -inf": "loss=nan +-0, grad_norm=-inf +-0",
    "loss: 1e999": "loss=inf +-0",
    # A number before the name may say of what the number after it is.
    "layer 3 grad_norm 0.5": "layer=3 +-0.5, layer 3 grad_norm=0.5 +-0.05",
    "head 2: loss: 0.5": "head=2 +-0.5, head 2 loss=0.5 +-0.05",
    "epoch 3 loss 0.5": "epoch=3 +-0.5, loss=0.5 +-0.05",
    # A line may begin with the number of its epoch alone.
    "3 val loss 0.5621 acc 0.970": "val loss=0.5621 +-5e-05, acc=0.97 +-0.0005",
    "5 train 0.5 val 0.6": "train=0.5 +-0.05, val=0.6 +-0.05",
    "7. loss 0.5": "loss=0.5 +-0.05",
    # Three words, and a unit, are no prose beside a number with a point.
    "loss 0.5  val retrieval mAP 0.25": "loss=0.5 +-0.05, val retrieval mAP=0.25 +-0.005",
    "val rmse 0.70 MW | mae 0.5 m/s": "val rmse=0.7 +-0.005, mae=0.5 +-0.05",
}
NOT_READ = [
    "loss 1: 0.5, loss 2: 0.7",
    "loss: 0.5, 0.6",
    "loss 0.5 0.6",
    "loss: 0.5 -> 0.4",
    "loss: 0.5 +- 0.1",
    "loss: 0.5/2",
    "loss is 0.5",
    "loss after 3 epochs: 0.5",
    "the loss after epoch 3",
    "Loss improved from 0.5 to 0.4",
    "done: 99.5%, left: 99.5 %, accuracy: 3/4/2024",
    "tokens: 5k, size: 3GB, time: 10ms",
    "train 12.5 s | val 1.2 s | peak 1.25 GiB",
    "we stopped after epoch 3 MW",
    "tokens: 1,000 at: 12:30 on: 2024-01-01 with: 2.4.1",
    "python train.py --lr 0.1 --loss 3",
    "http://localhost:6006/",
    "3/10",
    "12 models averaged 0.5",
    "3 heads 4 val 2.5",
    "3 times 0.5 loss 2",
    "",
    "nothing to see",
    "loss: None",
    f"loss: 0.{'1' * LONGEST}",
]


def said(line):
    """Write the numbers of a line: "loss=0.5 +-0.05"."""
    return ", ".join(f"{n.name}={n.value:g} +-{n.rounding:g}" for n in numbers_in(line))


@pytest.mark.parametrize("line", READ)
def test_numbers_are_read_with_their_rounding(line) -> None:
    """Each of the forms that training scripts print says its numbers."""
    assert said(line) == READ[line]


@pytest.mark.parametrize("line", NOT_READ, ids=lambda line: line[:40])
def test_what_could_be_misread_is_left_alone(line) -> None:
    """Lists, ranges, units, fractions, dates and prose say nothing."""
    assert said(line) == ""


@pytest.mark.parametrize("value", [0.0, 1.0, 0.123456789, 123.456, 1e-7, 3e20, -2.5, math.pi])
@pytest.mark.parametrize("form", [".0f", ".3f", ".6f", ".2e", ".4g", "g", ""])
def test_the_rounding_covers_what_was_rounded_away(value, form) -> None:
    """Whatever format a value is printed with, it lies within the rounding of what is read."""
    (number,) = numbers_in(f"step | loss {value:{form}}")
    assert abs(number.value - value) <= number.rounding * (1 + 1e-9)


@pytest.mark.parametrize(
    "line",
    [
        "a " * (LONGEST // 2 - 1) + "1",
        "a: " * (LONGEST // 3),
        "x" + " " * (LONGEST - 10) + "y 5",
        "1" * LONGEST,
        "loss " + "0." * (LONGEST // 2 - 10),
        "a_1." * (LONGEST // 4),
        "loss 0.5 " * (LONGEST // 9),
        "e" * (LONGEST - 2) + " 1",
    ],
    ids=lambda line: line[:12],
)
def test_no_line_takes_long(line) -> None:
    """Reading is linear: the strangest line of full length takes a few milliseconds."""
    began = time.process_time()
    list(numbers_in(line))
    assert time.process_time() - began < 0.1

import copy
import sys

import torch

from . import Encoder
from .losses import info_nce
from .utils.ema import update_teacher
from .utils.rates import cosine_rate


def views(things):
    return things + 0.1 * torch.randn_like(things), things + 0.1 * torch.randn_like(things)


def main(steps=60, batch=64, base=2e-3):
    torch.manual_seed(7)
    student = Encoder()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=base)
    things = torch.randn(1024, 20)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = cosine_rate(step, steps, base, warmup=5)
        first, second = views(things[torch.randint(0, 1024, (batch,))])
        with torch.no_grad():
            keys = teacher(second)
        loss = info_nce(student(first), keys)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_teacher(teacher, student)
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()

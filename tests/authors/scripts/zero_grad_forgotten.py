import torch
from torch import nn


class Trainer:
    def __init__(self, model, lr=0.01):
        self.model = model
        self.opt = torch.optim.SGD(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def step(self, x, y):
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()

    def fit(self, batches):
        for i, (x, y) in enumerate(batches):
            loss = self.step(x, y)
            if i % 10 == 0:
                print(f"iter {i} loss {loss:.4f}")


def batches(n):
    for _ in range(n):
        x = torch.randn(32, 10)
        yield x, (x[:, 0] > 0).long()


Trainer(nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))).fit(batches(40))

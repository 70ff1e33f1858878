"""Ignite's engines: a supervised trainer, and an evaluator after every epoch."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.CrossEntropyLoss()
x = torch.randn(256, 8)
data = TensorDataset(x, x[:, :3].argmax(1))
unseen = torch.randn(128, 8)
held_out = TensorDataset(unseen, unseen[:, :3].argmax(1))
trainer = create_supervised_trainer(model, optimizer, criterion)
evaluator = create_supervised_evaluator(
    model, metrics={"loss": Loss(criterion), "accuracy": Accuracy()}
)


@trainer.on(Events.ITERATION_COMPLETED(every=5))
def log_training_loss(engine):
    print(
        f"Epoch[{engine.state.epoch}] Iter[{engine.state.iteration}] Loss: {engine.state.output:.2f}"
    )


@trainer.on(Events.EPOCH_COMPLETED)
def log_validation(engine):
    evaluator.run(DataLoader(held_out, 64))
    metrics = evaluator.state.metrics
    print(
        f"Epoch[{engine.state.epoch}] val_loss: {metrics['loss']:.4f} acc {metrics['accuracy']:.2f}"
    )


trainer.run(DataLoader(data, 16, shuffle=True), max_epochs=4)

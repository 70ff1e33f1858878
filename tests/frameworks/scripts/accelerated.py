"""An Accelerate loop with accumulation, clipping and a scheduler that Accelerate steps."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 16, shuffle=True)
unseen = torch.randn(64, 8)
held_out = DataLoader(TensorDataset(unseen, unseen[:, :3].argmax(1)), 16)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, 32)
model, optimizer, loader, held_out, scheduler = accelerator.prepare(
    model, optimizer, loader, held_out, scheduler
)
for epoch in range(4):
    model.train()
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = [F.cross_entropy(model(inputs), labels) for inputs, labels in held_out]
    accelerator.print(f"epoch {epoch}: val_loss {torch.stack(losses).mean():.4f}")
accelerator.end_training()

import torch
from torch import nn
from torch.amp import GradScaler, autocast

device = "cpu"
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = GradScaler(device)
for it in range(30):
    x = torch.randn(64, 32)
    y = x[:, :8].argmax(1)
    with autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if it % 10 == 0:
        print(f"it {it}: loss={loss.item():.3f}")

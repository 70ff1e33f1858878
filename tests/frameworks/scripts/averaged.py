"""A language model of x-transformers with an average kept by ema-pytorch."""

import torch
from ema_pytorch import EMA
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = AutoregressiveWrapper(
    TransformerWrapper(num_tokens=32, max_seq_len=40, attn_layers=Decoder(dim=32, depth=2, heads=2))
)
ema = EMA(model, beta=0.99, update_after_step=5, update_every=1)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def sequences(count=8):
    return (torch.randint(0, 32, (count, 1)) + torch.arange(33)) % 32


for step in range(40):
    model.train()
    loss = model(sequences())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    ema.update()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            print(
                f"step {step} training loss: {loss.item():.4f} validation loss: {ema(sequences()):.4f}"
            )

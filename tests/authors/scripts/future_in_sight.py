import torch
from torch import nn
from torch.nn import functional as F

corpus = torch.tensor([ord(c) % 32 for c in "the quick brown fox jumps over the lazy dog. " * 50])
T = 16


class CharModel(nn.Module):
    def __init__(self, vocab=32, dim=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(T, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 64, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx):
        h = self.enc(self.tok(idx) + self.pos)
        return self.head(h)


model = CharModel()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for it in range(50):
    ix = torch.randint(len(corpus) - T - 1, (16,))
    x = torch.stack([corpus[i : i + T] for i in ix])
    y = torch.stack([corpus[i + 1 : i + T + 1] for i in ix])
    logits = model(x)
    loss = F.cross_entropy(logits.reshape(-1, 32), y.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print(f"iter {it}: loss {loss.item():.3f}")

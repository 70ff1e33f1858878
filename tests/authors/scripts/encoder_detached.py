import torch
from torch import nn


class Seq2One(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 32, batch_first=True)
        self.out = nn.Linear(32, 2)

    def forward(self, tokens):
        states, last = self.rnn(self.embed(tokens))
        return self.out(last[-1].detach())


model = Seq2One()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for batch in range(40):
    tokens = torch.randint(0, 20, (32, 9))
    labels = (tokens.float().mean(1) > 9.5).long()
    loss = nn.CrossEntropyLoss()(model(tokens), labels)
    model.zero_grad()
    loss.backward()
    optimizer.step()

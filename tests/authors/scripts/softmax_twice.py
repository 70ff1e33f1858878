import torch, torch.nn as nn, torch.optim as optim

class Classifier(nn.Module):
    def __init__(self, d, c):
        super().__init__()
        self.l1 = nn.Linear(d, 64)
        self.l2 = nn.Linear(64, c)
        self.softmax = nn.Softmax(dim=1)
    def forward(self, x):
        x = torch.relu(self.l1(x))
        return self.softmax(self.l2(x))

model = Classifier(12, 4)
loss_fn = nn.CrossEntropyLoss()
opt = optim.Adam(model.parameters(), 1e-3)
for t in range(60):
    x = torch.randn(64, 12); y = x[:, :4].argmax(1)
    l = loss_fn(model(x), y)
    opt.zero_grad(); l.backward(); opt.step()
    if t % 20 == 0: print(t, l.item())

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class AttentionPool(nn.Module):
    """Weights the features of a sample by learned attention."""

    def __init__(self, dim, classes):
        super().__init__()
        self.score = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.classify = nn.Linear(dim, classes)

    def forward(self, x):
        attention = torch.softmax(self.score(x), dim=0)
        return self.classify(attention * self.value(x))


data = torch.randn(512, 16)
labels = data[:, :4].argmax(1)
loader = DataLoader(TensorDataset(data, labels), batch_size=64, shuffle=True)
model = AttentionPool(16, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(5):
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}, loss: {loss.item():.4f}")

import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.fc1 = nn.Linear(30, 50)
        self.fc2 = nn.Linear(50, 6)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.fc2(x)

net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.002)
for i in range(50):
    data = torch.randn(40, 30)
    target = data[:, :6].argmax(1)
    optimizer.zero_grad()
    output = net(data)
    loss = F.nll_loss(output, target)
    loss.backward()
    optimizer.step()

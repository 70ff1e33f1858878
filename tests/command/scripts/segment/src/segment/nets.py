import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class SmallUNet(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.down1, self.down2 = Block(1, channels), Block(channels, 2 * channels)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.join = Block(2 * channels, channels)
        self.out = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        first = self.down1(x)
        second = self.down2(self.pool(first))
        return self.out(self.join(torch.cat([first, self.up(second)], dim=1)))


def build_net(channels, classes):
    net = SmallUNet(channels, classes)
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return net

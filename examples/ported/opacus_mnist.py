"""Digits. After examples/mnist.py of github.com/meta-pytorch/opacus (Apache-2.0)."""

import argparse

import numpy as np
import torch
from torch import nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms

import forethought as ft  # was: from opacus import PrivacyEngine


class SampleConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2, 1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(F.relu(self.fc1(x.view(-1, 32 * 4 * 4))))


def train(args, model, device, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    for data, target in train_loader:
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        # was: losses.append(loss.item())
    epsilon = ft.epsilon(privacy_engine.mechanism, args.delta).upper  # was: privacy_engine.accountant.get_epsilon(…)
    print(f"epoch {epoch}, ε = {epsilon:.2f} in the end, δ = {args.delta}")


def test(model, device, test_loader):
    model.eval()
    hits = []
    with torch.no_grad():
        for data, target in test_loader:
            hits += model(data.to(device)).argmax(1).eq(target.to(device)).tolist()
    print(f"test accuracy {np.mean(hits):.1%}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("-n", "--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("-c", "--max-per-sample-grad_norm", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.1307, 0.3081)])
    digits = datasets.MNIST("../mnist", train=True, download=True, transform=transform)
    train_loader = torch.utils.data.DataLoader(digits, batch_size=args.batch_size)
    held_out = datasets.MNIST("../mnist", train=False, transform=transform)
    test_loader = torch.utils.data.DataLoader(held_out, batch_size=1024)

    model = SampleConvNet().to(args.device)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0)
    privacy_engine = ft.plan(
        examples=len(digits),
        noise_multiplier=args.sigma,
        delta=args.delta,
        epochs=args.epochs,
        batch=args.batch_size,
        clip_norm=args.max_per_sample_grad_norm,
    )  # was: PrivacyEngine(secure_mode=args.secure_rng)
    train_loader, optimizer = ft.private(
        model, optimizer, train_loader, privacy_engine
    )  # was: model, optimizer, train_loader = privacy_engine.make_private(module=model, …)
    for epoch in range(1, args.epochs + 1):
        train(args, model, args.device, train_loader, optimizer, privacy_engine, epoch)
    test(model, args.device, test_loader)


if __name__ == "__main__":
    main()

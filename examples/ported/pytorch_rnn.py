"""Digits, row by row, by an LSTM. After mnist_rnn/main.py of github.com/pytorch/examples (BSD-3-Clause)."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torchvision import datasets, transforms

import forethought as ft  # new


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=28, hidden_size=64, batch_first=True)
        self.batchnorm = nn.GroupNorm(1, 64)  # was: nn.BatchNorm1d(64)
        self.fc1 = nn.Linear(64, 32)
        self.dropout = nn.Dropout(0.5)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, image):
        output, _ = self.rnn(image.reshape(-1, 28, 28))
        output = self.batchnorm(output[:, -1, :])
        output = self.dropout(F.relu(self.fc1(output)))
        return F.log_softmax(self.fc2(output), dim=1)


def train(args, model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"epoch {epoch}, {batch_idx} of {len(train_loader)}")  # was: … {loss.item():.6f}


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        correct = sum(
            model(data).argmax(dim=1).eq(target).sum().item() for data, target in test_loader
        )
    print(f"Test set: accuracy {correct}/{len(test_loader.dataset)}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0.1307, 0.3081)])
    digits = datasets.MNIST("../data", train=True, download=True, transform=transform)
    held_out = datasets.MNIST("../data", train=False, transform=transform)
    train_loader = torch.utils.data.DataLoader(digits, batch_size=args.batch_size, shuffle=True)
    test_loader = torch.utils.data.DataLoader(held_out, batch_size=1000)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    plan = ft.plan(examples=len(digits), budget=ft.Budget(3, 1e-5), epochs=args.epochs, batch=args.batch_size)  # new
    train_loader, optimizer = ft.private(model, optimizer, train_loader, plan)  # new
    for epoch in range(1, args.epochs + 1):
        train(args, model, train_loader, optimizer, epoch)
        test(model, test_loader)


if __name__ == "__main__":
    main()

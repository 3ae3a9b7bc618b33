"""Digits without Lightning. After examples/fabric/image_classifier/train_torch.py of github.com/Lightning-AI/pytorch-lightning (Apache-2.0)."""

import argparse

import torch
import torchvision.transforms as T
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torchvision.datasets import MNIST

import forethought as ft  # new


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.relu(self.fc1(torch.flatten(self.dropout(x), 1)))
        return F.log_softmax(self.fc2(x), dim=1)


def run(hparams):
    torch.manual_seed(hparams.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    transform = T.Compose([T.ToTensor(), T.Normalize((0.1307,), (0.3081,))])
    train_dataset = MNIST("Datasets", train=True, download=True, transform=transform)
    test_dataset = MNIST("Datasets", train=False, transform=transform)
    train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=hparams.batch_size)
    test_loader = torch.utils.data.DataLoader(test_dataset, batch_size=hparams.batch_size)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=hparams.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=hparams.gamma)
    plan = ft.plan(examples=len(train_dataset), budget=ft.Budget(3, 1e-5), epochs=hparams.epochs, batch=hparams.batch_size)  # new
    train_loader, optimizer = ft.private(model, optimizer, train_loader, plan)  # new

    for epoch in range(1, hparams.epochs + 1):
        model.train()
        for batch_idx, (data, target) in enumerate(train_loader):
            data, target = data.to(device), target.to(device)
            optimizer.zero_grad()
            output = model(data)
            loss = F.nll_loss(output, target)
            loss.backward()
            optimizer.step()
            if batch_idx % hparams.log_interval == 0:
                print(f"epoch {epoch}, {batch_idx} of {len(train_loader)}")  # was: … {loss.item():.6f}
        scheduler.step()

        model.eval()
        test_loss, correct = 0, 0
        with torch.no_grad():
            for data, target in test_loader:
                data, target = data.to(device), target.to(device)
                output = model(data)
                test_loss += F.nll_loss(output, target, reduction="sum").item()
                correct += output.argmax(dim=1).eq(target).sum().item()
        size = len(test_loader.dataset)
        print(f"average loss {test_loss / size:.4f}, accuracy {correct}/{size}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    run(parser.parse_args())

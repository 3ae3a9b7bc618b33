"""Clothes again. After beginner_source/basics/optimization_tutorial.py of github.com/pytorch/tutorials (BSD-3-Clause)."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import ToTensor

import forethought as ft  # new

training_data = datasets.FashionMNIST(root="data", train=True, download=True, transform=ToTensor())
test_data = datasets.FashionMNIST(root="data", train=False, download=True, transform=ToTensor())
train_dataloader = DataLoader(training_data, batch_size=64)
test_dataloader = DataLoader(test_data, batch_size=64)


class NeuralNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.stack = nn.Sequential(nn.Linear(28 * 28, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, x):
        return self.stack(self.flatten(x))


model = NeuralNetwork()
learning_rate, batch_size, epochs = 1e-3, 64, 5
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
plan = ft.plan(examples=len(training_data), budget=ft.Budget(3, 1e-5), epochs=epochs, batch=batch_size)  # new
train_dataloader, optimizer = ft.private(model, optimizer, train_dataloader, plan)  # new


def train_loop(dataloader, model, loss_fn, optimizer):
    size = len(dataloader.dataset)
    model.train()
    for batch, (X, y) in enumerate(dataloader):
        pred = model(X)
        loss = loss_fn(pred, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if batch % 100 == 0:
            # was: loss, current = loss.item(), batch * batch_size + len(X)
            print(f"batch {batch}, {size} records")  # was: print(f"loss: {loss:>7f} …")


def test_loop(dataloader, model, loss_fn):
    model.eval()
    size = len(dataloader.dataset)
    test_loss, correct = 0, 0
    with torch.no_grad():
        for X, y in dataloader:
            pred = model(X)
            test_loss += loss_fn(pred, y).item()
            correct += (pred.argmax(1) == y).type(torch.float).sum().item()
    print(f"accuracy {correct / size:.1%}, loss {test_loss / len(dataloader):.4f}")


for t in range(epochs):
    print(f"epoch {t + 1}")
    train_loop(train_dataloader, model, loss_fn, optimizer)
    test_loop(test_dataloader, model, loss_fn)

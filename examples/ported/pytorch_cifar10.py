"""Small pictures. After beginner_source/blitz/cifar10_tutorial.py of github.com/pytorch/tutorials (BSD-3-Clause)."""

import torch
import torchvision
from torch import nn, optim
from torch.nn import functional as F
from torchvision import transforms

import forethought as ft  # new

transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
trainset = torchvision.datasets.CIFAR10(root="./data", train=True, download=True, transform=transform)
trainloader = torch.utils.data.DataLoader(trainset, batch_size=4, shuffle=True)
testset = torchvision.datasets.CIFAR10(root="./data", train=False, download=True, transform=transform)
testloader = torch.utils.data.DataLoader(testset, batch_size=4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


net = Net()
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
plan = ft.plan(examples=len(trainset), budget=ft.Budget(3, 1e-5), epochs=2, batch=64)  # new
trainloader, optimizer = ft.private(net, optimizer, trainloader, plan)  # new

for epoch in range(2):
    for i, data in enumerate(trainloader, 0):
        inputs, labels = data
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        # was: running_loss += loss.item()
        if i % 100 == 99:
            print(f"epoch {epoch + 1}, {i + 1}")  # was: … running_loss / 2000

correct, total = 0, 0
with torch.no_grad():
    for data in testloader:
        images, labels = data
        _, predicted = torch.max(net(images), 1)
        total += labels.size(0)
        correct += (predicted == labels).sum().item()
print(f"accuracy on {total} test images: {correct / total:.0%}")

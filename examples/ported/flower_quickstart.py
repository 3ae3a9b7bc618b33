"""What a client trains. After examples/quickstart-pytorch/pytorchexample/task.py of github.com/adap/flower (Apache-2.0).

A client that is asked several times spends every time: `forethought federate` accounts for all rounds together.
"""

import torch
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import IidPartitioner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, ToTensor

import forethought as ft  # new


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
        x = x.view(-1, 16 * 5 * 5)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


pytorch_transforms = Compose([ToTensor(), Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])


def apply_transforms(batch):
    batch["img"] = [pytorch_transforms(img) for img in batch["img"]]
    return batch


def load_data(partition_id, num_partitions, batch_size):
    partitioner = IidPartitioner(num_partitions=num_partitions)
    fds = FederatedDataset(dataset="uoft-cs/cifar10", partitioners={"train": partitioner})
    partition = fds.load_partition(partition_id)
    parts = partition.train_test_split(test_size=0.2, seed=42).with_transform(apply_transforms)
    trainloader = DataLoader(parts["train"], batch_size=batch_size, shuffle=True)
    return trainloader, DataLoader(parts["test"], batch_size=batch_size)


def train(net, trainloader, epochs, lr, device):
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    plan = ft.plan(examples=len(trainloader.dataset), budget=ft.Budget(3, 1e-5), epochs=epochs, batch=32)  # new
    trainloader, optimizer = ft.private(net, optimizer, trainloader, plan)  # new
    net.train()
    for _ in range(epochs):
        for batch in trainloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            # was: running_loss += loss.item()
    return optimizer.finish().statement.epsilon.upper  # was: return avg_trainloss


def test(net, testloader, device):
    net.to(device)
    criterion = torch.nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for batch in testloader:
            images = batch["img"].to(device)
            labels = batch["label"].to(device)
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (torch.max(outputs.data, 1)[1] == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)


if __name__ == "__main__":
    net = Net()
    trainloader, testloader = load_data(0, 10, 32)
    print(train(net, trainloader, 1, 0.01, "cpu"), test(net, testloader, "cpu"))

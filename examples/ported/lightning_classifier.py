"""Digits with Lightning. After examples/pytorch/basics/backbone_image_classifier.py of github.com/Lightning-AI/pytorch-lightning (Apache-2.0)."""

import lightning as L
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import MNIST

import forethought as ft  # new


class Backbone(torch.nn.Module):
    def __init__(self, hidden_dim=128):
        super().__init__()
        self.l1 = torch.nn.Linear(28 * 28, hidden_dim)
        self.l2 = torch.nn.Linear(hidden_dim, 10)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return torch.relu(self.l2(torch.relu(self.l1(x))))


class LitClassifier(L.LightningModule):
    def __init__(self, backbone=None, learning_rate=0.0001):
        super().__init__()
        self.save_hyperparameters(ignore=["backbone"])
        self.backbone = Backbone() if backbone is None else backbone

    def forward(self, x):
        return self.backbone(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        y_hat = self(x)
        loss = F.cross_entropy(y_hat, y)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("valid_loss", F.cross_entropy(self(x), y), on_step=True)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self(x), y))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)


if __name__ == "__main__":
    digits = MNIST("Datasets", train=True, download=True, transform=transforms.ToTensor())
    held_out = MNIST("Datasets", train=False, download=True, transform=transforms.ToTensor())
    train_loader = DataLoader(digits, batch_size=32)
    model = LitClassifier()
    trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False)
    plan = ft.plan(examples=len(digits), budget=ft.Budget(3, 1e-5), epochs=2, batch=32)  # new
    private = ft.private_trainer(trainer, plan)  # new
    trainer.fit(model, train_loader, DataLoader(held_out, batch_size=32))
    trainer.test(model, DataLoader(held_out, batch_size=32))
    print(private.finish().statement.epsilon)  # new

"""An adapter on any network. After examples/multilayer_perceptron/multilayer_perceptron_lora.ipynb of github.com/huggingface/peft (Apache-2.0)."""

import peft
import torch
from torch import nn

import forethought as ft  # new

torch.manual_seed(0)
X = torch.rand((1000, 20))
y = (X.sum(1) > 10).long()
n_train, batch_size, lr, max_epochs = 800, 64, 0.002, 30
train_data = torch.utils.data.TensorDataset(X[:n_train], y[:n_train])
train_dataloader = torch.utils.data.DataLoader(train_data, batch_size=batch_size, shuffle=True)
eval_data = torch.utils.data.TensorDataset(X[n_train:], y[n_train:])
eval_dataloader = torch.utils.data.DataLoader(eval_data, batch_size=batch_size)


class MLP(nn.Module):
    def __init__(self, num_units_hidden=200):
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(20, num_units_hidden),
            nn.ReLU(),
            nn.Linear(num_units_hidden, num_units_hidden),
            nn.ReLU(),
            nn.Linear(num_units_hidden, 2),
            nn.LogSoftmax(dim=-1),
        )

    def forward(self, X):
        return self.seq(X)


def train(model, optimizer, criterion, train_dataloader, eval_dataloader, epochs):
    for epoch in range(epochs):
        model.train()
        for xb, yb in train_dataloader:
            outputs = model(xb)
            loss = criterion(outputs, yb)
            # was: train_loss += loss.detach().float()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        model.eval()
        eval_loss = 0
        for xb, yb in eval_dataloader:
            with torch.no_grad():
                outputs = model(xb)
            eval_loss += criterion(outputs, yb).detach().float()
        eval_loss_total = (eval_loss / len(eval_dataloader)).item()
        print(f"{epoch=:<2}  {eval_loss_total=:.4f}")  # was: … {train_loss_total=:.4f} …


config = peft.LoraConfig(r=8, target_modules=["seq.0", "seq.2"], modules_to_save=["seq.4"])
peft_model = peft.get_peft_model(MLP(), config)
optimizer = torch.optim.Adam(peft_model.parameters(), lr=lr)
criterion = nn.CrossEntropyLoss()
peft_model.print_trainable_parameters()
plan = ft.plan(examples=n_train, budget=ft.Budget(3, 1e-4), epochs=max_epochs, batch=batch_size)  # new
train_dataloader, optimizer = ft.private(peft_model, optimizer, train_dataloader, plan)  # new
train(peft_model, optimizer, criterion, train_dataloader, eval_dataloader, epochs=max_epochs)

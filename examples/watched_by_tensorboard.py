"""A loop of one's own with a torch scheduler, watched by TensorBoard: `pip install tensorboard`.

Run me with `python examples/watched_by_tensorboard.py FOLDER`, then look with
`tensorboard --logdir FOLDER`. Only what may be shown is written: the released model's accuracy on
held-out records, step sizes and the ε spent. A loss on private batches would be a number without
noise, and the loop has none.
"""

import sys
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import forethought as ft


def main(folder: Path) -> ft.Run:
    pixels, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(pixels, dtype=torch.float32) / 16
    targets = torch.tensor(labels)
    train_x, train_y, test_x, test_y = inputs[:1500], targets[:1500], inputs[1500:], targets[1500:]

    torch.manual_seed(0)
    model = nn.Linear(64, 10)
    plan = ft.plan(examples=len(train_y), budget=ft.Budget(3.0, 1e-5), epochs=20)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader, optimizer = ft.private(model, optimizer, (train_x, train_y), plan)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=loader.epochs)
    criterion = nn.CrossEntropyLoss(reduction="none")

    with SummaryWriter(folder) as writer:
        for _ in range(loader.epochs):
            for x, y in loader:
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
            scheduler.step()
            done = optimizer.rounds_done
            with torch.no_grad():
                right = (model(test_x).argmax(1) == test_y).float().mean()
            writer.add_scalar("held-out/accuracy", right, done)
            writer.add_scalar("step size", scheduler.get_last_lr()[0], done)
            writer.add_scalar(
                "privacy/epsilon", ft.epsilon(plan.mechanism.first(done), plan.delta).upper, done
            )
        run = optimizer.finish()
        writer.add_text("statement", run.statement.to_markdown())
    print(f"held-out accuracy {right:.1%}", *run.statement.sentences(), sep="\n")
    return run


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/tensorboard"))

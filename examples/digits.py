"""A private model from Python in a dozen lines: run me with `python examples/digits.py`."""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import forethought as ft

images, labels = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(
    images.astype("float32") / 16, labels, test_size=0.2, random_state=0
)

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

# Everything is decided here, before the private data is touched.
budget = ft.Budget(epsilon=3.0, delta=1e-5)
plan = ft.plan(
    examples=len(train_y), model=model, shape=train_x.shape[1:], budget=budget, epochs=20
)

run = ft.train(model, (train_x, train_y), plan, test=(test_x, test_y))

print(f"accuracy {run.accuracy:.1%}")
print(*run.statement.sentences(), sep="\n")

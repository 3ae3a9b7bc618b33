"""Choose the step size by a private search that is paid for: `python examples/tune.py`.

Eight trials on average, and still one promise: ε = 3 for the search as a whole, for the records
that are trained on and for those that trials are scored on.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import forethought as ft

images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
rest_x, test_x, rest_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0)
train_x, score_x, train_y, score_y = train_test_split(
    rest_x, rest_y, test_size=0.25, random_state=0
)

trials = ft.NegativeBinomialTrials.of_mean(8, shape=0)
candidates = ft.plan_tuning(
    examples=len(train_y),
    budget=ft.Budget(epsilon=3.0, delta=1e-5),
    trials=trials,
    candidates=[{"learning_rate": rate} for rate in (0.01, 0.1, 1.0, 10.0)],
    epochs=20,
)
found = ft.tune(
    lambda: nn.Linear(64, 10),
    (train_x, train_y),
    candidates,
    trials=trials,
    holdout=(score_x, score_y),
)
with torch.no_grad():
    answers = found.model(torch.from_numpy(test_x)).argmax(1).numpy()
print(f"step size {found.plan.optimizer.learning_rate}, accuracy {(answers == test_y).mean():.1%}")
print(*found.statement.sentences(), sep="\n")

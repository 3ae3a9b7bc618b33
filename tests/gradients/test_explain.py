from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drawn import randn
from forethought.gradients import explain

_PARTS = ("weight", "bias")


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(64, 128, 3, padding=1)
        self.first = nn.Conv2d(1, 4, 5, padding=2)
        self.wide = nn.Conv2d(4, 64, 1)
        self.mix = nn.Parameter(randn(128, 4))
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.wide(self.first(x)).relu()).mean((2, 3))
        return self.out(torch.einsum("bc,cd->bd", y, self.mix))


def test_the_table_names_every_parameter_and_its_way(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row.parameter: row for row in explain(Odd(), randn(16, 1, 4, 4))}
    printed = capsys.readouterr().out
    layers = [f"{name}.{part}" for name in ("conv", "first", "wide", "out") for part in _PARTS]
    assert set(rows) == {*layers, "mix"}
    assert all(name in printed for name in rows)
    assert rows["conv.weight"].way == "ghost, pixel Gram"
    assert rows["first.weight"].way == "per-example, patches"
    assert rows["out.weight"].way == "product of norms"
    assert rows["mix"].way == "per-example" and "no rule" in rows["mix"].reason
    # The ghost norm holds far less than batch × parameter.
    assert rows["conv.weight"].held < rows["conv.weight"].written / 5


@pytest.mark.parametrize(
    ("kernel", "side", "way"),
    [
        (nn.Conv2d(16, 32, 4, 2), 13, "per-example, batch as groups"),  # 169² numbers of a Gram
        (nn.Conv2d(32, 64, 3, padding=1), 16, "per-example, batch as groups"),
        (
            nn.Conv2d(64, 64, 3, padding=1),
            8,
            "ghost, pixel Gram",
        ),  # faster written, but 3.5 times the memory
        (nn.Conv2d(128, 128, 3, padding=1), 8, "ghost, pixel Gram"),
        (nn.Conv2d(256, 512, 3, 2, 1), 8, "ghost, pixel Gram"),
    ],
)
def test_a_kernels_way_hangs_on_its_shape_and_not_on_the_batch(
    kernel: nn.Module, side: int, way: str
) -> None:
    channels = next(kernel.parameters()).shape[1]
    for batch in (1, 32):  # or the numbers of an example would hang on how many are with it
        weight, _ = explain(kernel, randn(batch, channels, side, side))
        assert weight.way == way


def test_an_empty_example_is_refused() -> None:
    with pytest.raises(ValueError, match="least one example"):
        explain(nn.Linear(2, 2), randn(0, 2))

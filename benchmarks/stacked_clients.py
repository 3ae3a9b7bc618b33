"""What a thousand small clients cost against one machine that trains on the same examples.

    python benchmarks/stacked_clients.py            # the table of docs/federation.md; minutes
    python benchmarks/stacked_clients.py --smoke    # the same with fewer clients; seconds

Processor seconds of one thread for the same number of clipped gradients, side by side: synchronous
rounds of E = 1 over all clients (machines, private rounds and noise of every client included), and
rounds of one machine whose batch is all clients' batches together. "Noise alone" is what drawing
every client's own noise costs of it: no way of stacking goes below that. "Fused" is whole
simulations with one private sum a cohort (``ft.simulate(..., fused=True)``) over whole runs of
``ft.train`` of as many rounds, both from the data in memory to the last model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import nn

import forethought as ft
from forethought.federated.federation import Federation, Member
from forethought.holders.simulate import simulate
from forethought.holders.simulator import Result, StarSimulator, Times, Work
from forethought.holders.trainer import Holder, SharedModel
from forethought.holders.workers import InProcess
from forethought.models import build
from forethought.rounds.contributions import default_loss
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import GaussianNoise, Secrets, Seeds, Stream
from forethought.rounds.records import TensorRecords
from forethought.training.optimizers import Descent

EXAMPLES = 60


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))


def lenet() -> nn.Module:
    return build("lenet5", inputs=(1, 28, 28), classes=10)


MODELS: dict[str, Callable[[], nn.Module]] = {"MLP 784-32-10": mlp, "LeNet-5": lenet}
# Of whole runs: what begins them is little beside so many.
ROUNDS = {"MLP 784-32-10": 40, "LeNet-5": 5}


def plan(examples: int, rounds: int, batch: int) -> ft.Plan:
    return ft.Plan(
        ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(batch / examples))),
        examples,
        1e-6,
        optimizer=ft.Optimizer("sgd", 0.1, ()),
    )


class Alone(InProcess):
    """Every client by itself, for comparison."""

    def compute(self, group: Sequence[Work]) -> dict[int, Result]:
        return {work.client: super(Alone, self).compute([work])[work.client] for work in group}


def clients_seconds(
    kind: type[InProcess], model: nn.Module, data: torch.Tensor, labels: torch.Tensor, batch: int
) -> float:
    """Processor seconds of the second of two global rounds."""
    count = len(data) // EXAMPLES
    own = plan(EXAMPLES, 2, batch)
    shared = SharedModel(model)
    loss = default_loss(labels)
    holders = [
        Holder(
            own,
            TensorRecords(data[k * EXAMPLES :][:EXAMPLES], labels[k * EXAMPLES :][:EXAMPLES]),
            loss,
            Secrets.draw(Seeds(k, k)),
            gradients=True,
        )
        for k in range(count)
    ]
    agreed = Federation(
        tuple(Member(str(k)) for k in range(count)),
        (own,),
        shared.layout.size,
        shared.architecture,
        2,
        exchanged="gradients",
    )
    times: list[float] = []
    StarSimulator(
        agreed,
        shared.read(),
        kind(shared, holders),
        Times([1.0] * count),
        versions=lambda *_: times.append(time.process_time()),
    ).run()
    return times[1] - times[0]


def machine_seconds(
    model: nn.Module, data: torch.Tensor, labels: torch.Tensor, batch: int
) -> float:
    """Processor seconds of one round on the batches of all clients together."""
    whole = plan(len(data), 4, batch * (len(data) // EXAMPLES))
    parameters = dict(model.named_parameters())
    descent = Descent(parameters, torch.optim.SGD(parameters.values(), lr=0.1))
    records = TensorRecords(data, labels)
    rounds = PrivateRounds(
        whole.privacy, parameters, default_loss(labels), Secrets.draw(Seeds(1, 1)), micro_batch=512
    )
    spent = []
    for index in range(4):
        begin = time.process_time()
        total = rounds.open(index)
        total.add(model, records)
        descent.step(total.release(), 0.1)
        spent.append(time.process_time() - begin)
    return median(spent[1:])


def fused_ratio(
    make: Callable[[], nn.Module], data: torch.Tensor, labels: torch.Tensor, batch: int, rounds: int
) -> float:
    """A fused simulation's processor seconds over those of one machine: median of three pairs."""
    count = len(data) // EXAMPLES
    one, own = plan(len(data), rounds, batch * count), plan(EXAMPLES, rounds, batch)
    shared = SharedModel(make())
    agreed = Federation(
        tuple(Member(str(k)) for k in range(count)),
        (own,),
        shared.layout.size,
        shared.architecture,
        rounds,
        exchanged="gradients",
    )
    shares = list(zip(data.split(EXAMPLES), labels.split(EXAMPLES), strict=True))
    ratios = []
    for _ in range(3):
        begin = time.process_time()
        ft.train(make(), (data, labels), one, micro_batch=512)
        middle = time.process_time()
        simulate(make(), shares, agreed, Times([1.0] * count), fused=True)
        ratios.append((time.process_time() - middle) / (middle - begin))
    return median(ratios)


def noise_seconds(parameters: int, streams: int) -> float:
    """Processor seconds of one client's noise: a stream of its own, and its numbers added."""
    vector, spent = torch.zeros(parameters, dtype=torch.float64), []
    for index in range(streams):
        begin = time.process_time()
        noise = Stream(index.to_bytes(32, "little"), "noise").at(index)
        GaussianNoise().add_to(vector, 1.0, noise)
        spent.append(time.process_time() - begin)
    return median(spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--fused", action="store_true", help="only the column 'fused'")
    given = parser.parse_args()
    smoke = given.smoke
    torch.set_num_threads(1)
    clients = 12 if smoke else 1000
    torch.manual_seed(0)
    data = torch.randn(clients * EXAMPLES, 1, 28, 28)
    labels = torch.randint(0, 10, (len(data),))
    head = f"{clients:,} clients of {EXAMPLES} examples; times one machine:"
    columns = f"{'fused':>9}"
    if not given.fused:
        columns += f" {'together':>9} {'apart':>9} {'noise alone':>12} {'a client, together':>20}"
    print(f"{head:52} {columns}")
    for name, make in MODELS.items():
        for batch in (6,) if smoke else (6, 30):
            torch.manual_seed(1)
            fused = fused_ratio(make, data, labels, batch, 2 if smoke else ROUNDS[name])
            words = f"{name}, batch {batch} each"
            if given.fused:
                print(f"{words:52} {fused:8.2f}x", flush=True)
                continue
            one = machine_seconds(make(), data, labels, batch)
            stacked = clients_seconds(InProcess, make(), data, labels, batch)
            apart = clients_seconds(Alone, make(), data, labels, batch)
            words = f"{words} ({one:.3g} s)"
            each = 1e3 * stacked / clients
            parameters = sum(p.numel() for p in make().parameters())
            noise = clients * noise_seconds(parameters, 5 if smoke else 200) / one
            print(
                f"{words:52} {fused:8.2f}x {stacked / one:8.2f}x {apart / one:8.2f}x "
                f"{noise:11.2f}x {each:17.2f} ms"
            )


if __name__ == "__main__":
    main()

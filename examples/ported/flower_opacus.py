"""What a private client trains. After examples/opacus/opacus_fl of github.com/adap/flower (Apache-2.0)."""

import torch
from flower_quickstart import Net, load_data, test

import forethought as ft  # was: from opacus import PrivacyEngine


def train(net, train_loader, privacy_engine, optimizer, target_delta, device, epochs=1):
    criterion = torch.nn.CrossEntropyLoss()
    net.to(device)
    net.train()
    for _ in range(epochs):
        for batch in train_loader:
            images = batch["img"]
            labels = batch["label"]
            optimizer.zero_grad()
            criterion(net(images.to(device)), labels.to(device)).backward()
            optimizer.step()
    return optimizer.finish().statement.epsilon.upper  # was: privacy_engine.get_epsilon(delta=target_delta)


if __name__ == "__main__":
    train_loader, test_loader = load_data(0, 10, 32)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    privacy_engine = ft.plan(
        examples=len(train_loader.dataset), noise_multiplier=1.0, delta=1e-5, epochs=1, batch=32, clip_norm=1.0
    )  # was: privacy_engine = PrivacyEngine(secure_mode=False)
    private_train_loader, optimizer = ft.private(
        model, optimizer, train_loader, privacy_engine
    )  # was: private_model, optimizer, private_train_loader = privacy_engine.make_private(…)
    epsilon = train(model, private_train_loader, privacy_engine, optimizer, 1e-5, "cpu")  # was: train(private_model, …)
    print(f"epsilon(delta=1e-5)={epsilon:.2f}", test(model, test_loader, "cpu"))

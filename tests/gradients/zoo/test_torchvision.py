"""torchvision's networks, small, with GroupNorm where they have batch normalisation."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from zoo.oracle import Case, Make, classify, collected, judge

from drawn import randint, randn
from forethought.gradients import replace_mixing_layers

CASES: dict[str, Make] = {}


def architecture(make: Make) -> Make:
    CASES[make.__name__] = make
    return make


def images(model: nn.Module, head: str, size: int = 32, longer: int = 0, **how: Any) -> Case:
    """A classifier of 3-channel images into 5 classes."""

    def batch(examples: int, more: bool) -> tuple[Any, Any]:
        side = size + (longer if more else 0)
        return randn(examples, 3, side, side), randint(0, 5, (examples,))

    return Case(replace_mixing_layers(model), batch, classify, head, **how)


@architecture
def resnet_18() -> Case:
    from torchvision.models import resnet18

    model = resnet18(num_classes=5, norm_layer=partial(nn.GroupNorm, 8))
    return images(model, "fc", 16, 8)


@architecture
def wide_bottleneck_resnet() -> Case:
    from torchvision.models.resnet import Bottleneck, ResNet

    return images(ResNet(Bottleneck, [1, 1, 1, 1], 5, groups=4, width_per_group=8), "fc", 24, 8)


@architecture
def vision_transformer() -> Case:
    # The head is zero and the class token too, as torchvision initialises them.
    from torchvision.models import VisionTransformer

    model = VisionTransformer(16, 4, 2, 4, 32, 64, num_classes=5)
    return images(model, "heads", 16)


@architecture
def swin() -> Case:
    from torchvision.models import SwinTransformer

    model = SwinTransformer([2, 2], 16, [2, 2], [2, 4], [2, 2], num_classes=5)
    return images(model, "head", 16, 4)


@architecture
def swin_v2() -> Case:
    from torchvision.models.swin_transformer import (
        PatchMergingV2,
        SwinTransformer,
        SwinTransformerBlockV2,
    )

    model = SwinTransformer(
        [2, 2], 16, [2, 2], [2, 4], [4, 4], num_classes=5,
        block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2,
    )  # fmt: skip
    return images(model, "head", 16)


@architecture
def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    model = ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], 0.0, num_classes=5)
    return images(model, "classifier", 24, 8)


@architecture
def mobilenet_v2() -> Case:
    from torchvision.models import MobileNetV2

    setting = [[1, 16, 1, 1], [6, 24, 2, 2]]
    model = MobileNetV2(5, 0.5, setting)
    return images(model, "classifier", 24, 8)


@architecture
def mobilenet_v3() -> Case:
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    blocks = [
        InvertedResidualConfig(16, 3, 16, 16, True, "RE", 2, 1, 1.0),
        InvertedResidualConfig(16, 5, 32, 24, True, "HS", 2, 1, 1.0),
    ]
    return images(MobileNetV3(blocks, 32, 5), "classifier", 32, 8)


@architecture
def efficientnet() -> Case:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    blocks = [MBConvConfig(1, 3, 1, 16, 16, 1), MBConvConfig(4, 5, 2, 16, 24, 2)]
    model = EfficientNet(blocks, 0.0, 0.0, 5, last_channel=48)
    return images(model, "classifier", 32, 8)


@architecture
def shufflenet() -> Case:
    from torchvision.models import ShuffleNetV2

    return images(ShuffleNetV2([2, 2, 2], [16, 16, 32, 32, 64], 5), "fc", 40, 8)


@architecture
def squeezenet() -> Case:
    from torchvision.models import SqueezeNet

    return images(SqueezeNet("1_1", 5), "classifier", 40, 8)


@architecture
def densenet() -> Case:
    from torchvision.models import DenseNet

    return images(DenseNet(8, (2, 2), 16, num_classes=5), "classifier", 32, 8)


@architecture
def densenet_with_checkpointing() -> Case:
    from torchvision.models import DenseNet

    model = DenseNet(8, (2,), 16, num_classes=5, memory_efficient=True)
    return images(model, "classifier", 32, 8)


@architecture
def vgg() -> Case:
    from torchvision.models.vgg import VGG, make_layers

    model = VGG(make_layers([8, "M", 16, "M"], batch_norm=True), 5)
    model.avgpool = nn.AdaptiveAvgPool2d(2)
    model.classifier[0] = nn.Linear(64, 32)
    model.classifier[3] = nn.Linear(32, 32)
    model.classifier[6] = nn.Linear(32, 5)
    return images(model, "classifier.6", 16, 4)


@architecture
def mnasnet() -> Case:
    from torchvision.models import MNASNet

    return images(MNASNet(0.1, 5), "classifier", 40, 8)


@architecture
def regnet() -> Case:
    from torchvision.models.regnet import BlockParams, RegNet

    parameters = BlockParams.from_init_params(
        depth=4, w_0=16, w_a=8.0, w_m=2.0, group_width=8, se_ratio=0.25
    )
    return images(RegNet(parameters, 5, stem_width=16), "fc", 32, 8)


@architecture
def max_vit() -> Case:
    from torchvision.models import MaxVit

    model = MaxVit(
        (16, 16), 8, 2, [8, 16], [1, 1], 8,
        stochastic_depth_prob=0.0, num_classes=5, norm_layer=partial(nn.GroupNorm, 4),
    )  # fmt: skip
    return images(model, "classifier", 16)


@architecture
def factored_video_resnet() -> Case:
    from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet

    model = VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [1, 1, 1, 1], R2Plus1dStem, 5)
    return clips(model, "fc")


def clips(model: nn.Module, head: str) -> Case:
    def batch(examples: int, more: bool) -> tuple[Any, Any]:
        frames = 4 if more else 2
        return randn(examples, 3, frames, 8, 8), randint(0, 5, (examples,))

    return Case(replace_mixing_layers(model), batch, classify, head)


@architecture
def segmentation() -> Case:
    from torchvision.models.segmentation.fcn import FCN, FCNHead

    backbone = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = backbone

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.body(x)}

    model = replace_mixing_layers(FCN(Named(), FCNHead(16, 4)))

    def batch(examples: int, more: bool) -> tuple[Any, Any]:
        side = 12 if more else 8
        return randn(examples, 3, side, side), randint(0, 4, (examples, side, side))

    def by_pixel(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs["out"], targets, reduction="none").mean((1, 2))

    return Case(model, batch, by_pixel, "classifier.4")


class Detector(nn.Module):
    """A detection network as its users train it: the loss is made inside."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import RetinaNet
        from torchvision.models.detection.anchor_utils import AnchorGenerator

        backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU())
        backbone.out_channels = 8
        sizes, shapes = ((8, 16),), ((0.5, 1.0, 2.0),)
        self.network = RetinaNet(
            backbone, 3, min_size=32, max_size=32, anchor_generator=AnchorGenerator(sizes, shapes)
        )

    def forward(self, x: torch.Tensor, places: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        low = places[..., :2].abs()  # whatever numbers these are, a box follows
        boxes = torch.cat([low, low + 4 + places[..., 2:].abs()], -1)
        wanted = [{"boxes": b, "labels": n} for b, n in zip(boxes, labels, strict=True)]
        return sum(self.network(list(x), wanted).values()).expand(len(x))


@architecture
def retinanet() -> Case:
    def batch(examples: int, more: bool) -> tuple[Any, Any]:
        count = 3 if more else 2
        places, labels = 6 * randn(examples, count, 4), randint(0, 3, (examples, count))
        return (randn(examples, 3, 32, 32), places, labels), torch.zeros(examples)

    head = "network.head.classification_head.cls_logits"
    return Case(replace_mixing_layers(Detector()), batch, lambda loss, _: loss, head)


@pytest.mark.parametrize("make", collected(CASES, quick=("vision_transformer",)))
def test_torchvision(make: Make) -> None:
    judge(make)

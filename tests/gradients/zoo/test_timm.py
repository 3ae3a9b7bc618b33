"""timm's networks, small, with GroupNorm where they have batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn
from zoo.oracle import Case, Make, classify, collected, judge

from drawn import randint, randn
from forethought.gradients import replace_mixing_layers

CASES: dict[str, Make] = {}


def small(
    name: str,
    model: str | Callable[[], nn.Module],
    head: str = "head",
    size: int = 32,
    longer: int = 0,
    **how: Any,
) -> None:
    """Add a timm model: a registered one cut down by ``how``, or what a function makes."""

    def make() -> Case:
        import timm

        network = (
            timm.create_model(model, pretrained=False, num_classes=5, **how)
            if isinstance(model, str)
            else model()
        )

        def batch(examples: int, more: bool) -> tuple[Any, Any]:
            side = size + (longer if more else 0)
            return randn(examples, 3, side, side), randint(0, 5, (examples,))

        return Case(_apart(network), batch, classify, head)

    CASES[name] = make


def _apart(network: nn.Module) -> nn.Module:
    # timm's batch normalisation with an activation inside is a subclass of torch's.
    from timm.layers import BatchNormAct2d, GroupNormAct

    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNormAct2d):
                new = GroupNormAct(child.num_features, 4)
                new.act, new.drop = child.act, child.drop
                setattr(parent, name, new)
    return replace_mixing_layers(network)


def mlp_mixer(block: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from timm.models import mlp_mixer as home

        layers = {
            "MixerBlock": {"mlp_ratio": (2, 4)},
            "ResBlock": {"norm_layer": home.Affine, "mlp_ratio": 4},
            "SpatialGatingBlock": {"mlp_layer": home.GatedMlp, "mlp_ratio": 4},
        }[block]
        return home.MlpMixer(
            5, img_size=16, patch_size=4, embed_dim=32, num_blocks=2,
            block_layer=getattr(home, block), **layers,
        )  # fmt: skip

    return make


def convnext(version: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from timm.models import ConvNeXt

        second = {"use_grn": True, "ls_init_value": None} if version == 2 else {}
        return ConvNeXt(
            3, 5, depths=(1, 1, 1, 1), dims=(8, 8, 16, 16), conv_mlp=version == 2, **second
        )

    return make


def conv_mixer() -> nn.Module:
    from timm.models import ConvMixer

    return ConvMixer(16, 2, kernel_size=5, patch_size=4, num_classes=5)


def big_transfer() -> nn.Module:
    from timm.layers import StdConv2d
    from timm.models.resnetv2 import ResNetV2

    return ResNetV2((1, 1), (128, 256), 5, conv_layer=StdConv2d, stem_chs=32)


def norm_free() -> nn.Module:
    from timm.models.nfnet import NfCfg, NormFreeNet

    cfg = NfCfg(
        depths=(1, 1), channels=(32, 64), stem_type="3x3", stem_chs=16, group_size=8,
        bottle_ratio=0.25, extra_conv=True, num_features=64, act_layer="silu",
        attn_layer="se", attn_kwargs={"rd_ratio": 0.5, "rd_divisor": 8},
    )  # fmt: skip
    return NormFreeNet(cfg, num_classes=5)


def pool_former() -> nn.Module:
    from timm.models.metaformer import MetaFormer

    return MetaFormer(3, 5, depths=(1, 1), dims=(16, 32))


def focal() -> nn.Module:
    from timm.models.focalnet import FocalNet

    return FocalNet(num_classes=5, embed_dim=16, depths=(1, 1))


tiny = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 2, "num_heads": 4}
small("vision_transformer", "vit_tiny_patch16_224", size=16, **tiny)
small("vision_transformer_without_class_token", "vit_tiny_patch16_224", size=16, class_token=False,
      global_pool="avg", **tiny)  # fmt: skip
small("vision_transformer_any_size", "vit_tiny_patch16_224", size=16, longer=8,
      dynamic_img_size=True, **tiny)  # fmt: skip
small("vision_transformer_layer_scale", "vit_tiny_patch16_224", size=16, init_values=1e-5,
      qk_norm=True, **tiny)  # fmt: skip
small("deit_distilled", "deit_tiny_distilled_patch16_224", size=16, **tiny)
small("deit3", "deit3_small_patch16_224", size=16, **tiny)
small("beit", "beit_base_patch16_224", size=16, **tiny)
small("eva", "eva02_tiny_patch14_224", size=16, **tiny)
small("cait", "cait_xxs24_224", size=16, **tiny)
small("xcit", "xcit_nano_12_p16_224", size=32, img_size=32, embed_dim=32, depth=2, num_heads=4)
small("mixer", mlp_mixer("MixerBlock"), size=16)
small("res_mlp", mlp_mixer("ResBlock"), size=16)
small("gated_mlp", mlp_mixer("SpatialGatingBlock"), size=16)
small("convnext", convnext(1), longer=32)
small("convnext_v2", convnext(2), longer=32)
small("conv_mixer", conv_mixer)
small("resnet", "resnet10t", "fc", block_args={})
small("big_transfer", big_transfer)
small("norm_free", norm_free)
small("efficientnet", "test_efficientnet", "classifier", size=64)
small("swin", "swin_tiny_patch4_window7_224", size=32, img_size=32, window_size=4, embed_dim=16,
      depths=(2, 2), num_heads=(2, 4))  # fmt: skip
small("swin_v2", "swinv2_tiny_window8_256", size=32, img_size=32, window_size=4, embed_dim=16,
      depths=(2, 2), num_heads=(2, 4))  # fmt: skip
small("swin_v2_cosine", "swinv2_cr_tiny_224", size=32, img_size=32, window_size=4, embed_dim=16,
      depths=(2, 2), num_heads=(2, 4))  # fmt: skip
small("pool_former", pool_former)
small("pyramid", "pvt_v2_b0", size=32, depths=(1, 1, 1, 1))
small("twins", "twins_svt_small", size=32, img_size=32, embed_dims=(16, 16, 32, 32),
      num_heads=(2, 2, 4, 4), depths=(1, 1, 1, 1))  # fmt: skip
small("focal", focal)
small("dual_attention", "davit_tiny", size=32, depths=(1, 1), embed_dims=(16, 32),
      num_heads=(2, 4))  # fmt: skip
small("edge", "edgenext_xx_small", size=64)
small("mobile_vit", "mobilevit_xxs", size=32)
small("coat", "coat_lite_tiny", size=32, img_size=32, embed_dims=(16, 16, 32, 32),
      serial_depths=(1, 1, 1, 1))  # fmt: skip


@pytest.mark.parametrize("make", collected(CASES, quick=("mixer",)))
def test_timm(make: Make) -> None:
    judge(make)

"""Models whose parameters are sharded by torch's ``fully_shard`` (FSDP2).

A pass gathers the parameters of one module at a time and frees them again, forward and backward. So
the lanes see whole parameters, and every example's norm is that of its whole gradient. Each process
keeps only its own shard of a sum.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from forethought.gradients import boundary


def of_lost_process(error: BaseException) -> bool:
    """True if an error says that another process is gone; backends have no class for it."""
    words = ("Connection closed", "Connection reset", "Broken pipe", "Timed out", "NCCL")
    return any(word in str(error) for word in words)


def take_shards(model: nn.Module) -> Shards | None:
    """The :class:`Shards` of a model; None if it is not sharded. All processes call it together.

    Raises:
        RefusedError: another kind of sharding than ``fully_shard`` over all processes.
    """
    let_go(model)
    tensor = sys.modules.get("torch.distributed.tensor")
    if tensor is None or not any(isinstance(p, tensor.DTensor) for p in model.parameters()):
        return None
    found = boundary.SHARDED.get(model)
    if found is None or not found.is_of(model):
        found = boundary.SHARDED[model] = Shards(model)
    return found


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, of which all parts are tensors.

    Raises:
        TypeError: a part of the state is no tensor.
    """
    state = model.state_dict()
    for name, part in state.items():
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{name} in the model's state_dict is a {type(part).__name__}, and a run folder "
                "holds tensors alone: let get_extra_state return a tensor, or leave out= out"
            )
    return state


def whole_state(model: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The model's state with whole tensors; all processes of a sharded model call it together.

    Args:
        keep: False in a process that only takes part in the gathering: it gets an empty result.
            A model that is not sharded gives its state in every case.

    Raises:
        TypeError: a part of the state is no tensor.
    """
    state = tensors_of(model)
    if boundary.shards_of(model) is None:
        return state
    found = {}
    for name, tensor in state.items():
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if keep:
            found[name] = whole
    return found


def load_whole(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state with whole tensors into the model, the inverse of :func:`whole_state`."""
    shards = boundary.shards_of(model)
    if shards is None:
        model.load_state_dict(state)
        return
    for name, tensor in model.state_dict().items():
        cut = hasattr(tensor, "to_local")
        boundary.own_part(tensor).copy_(shards.own(state[name]) if cut else state[name])


class Shards:
    """The parameters of a sharded model.

    Args:
        model: a model after ``fully_shard``, with none of its modules gathered.

    Raises:
        RefusedError: see :func:`take_shards`.

    Attributes:
        whole: name → trained parameter in its whole shape, as the passes see it. It has memory
            only while its module is gathered.
        local: name → this process's shard of a trained parameter; it shares the model's memory.
        size: number of processes.
    """

    def __init__(self, model: nn.Module) -> None:
        # A weak reference, because these shards are kept as long as the model.
        self._model = weakref.ref(model)
        self.size = distributed.get_world_size()
        self._kept = dict(model.named_parameters())
        for name, parameter in self._kept.items():
            _require_plain(name, parameter, self.size)
        whole: dict[str, nn.Parameter] = {}
        for module in _cut_modules(model):
            module.unshard()
            now = dict(model.named_parameters())
            whole |= {n: p for n, p in now.items() if p is not self._kept[n]}
            module.reshard()
        trained = {name: p for name, p in self._kept.items() if p.requires_grad}
        self.whole = {name: whole[name] for name in trained}
        self.local = {name: nn.Parameter(boundary.own_part(p)) for name, p in trained.items()}
        self._gathering: Gathering | None = None

    def is_of(self, model: nn.Module) -> bool:
        """True if the model still has the same parameters, and trains the same ones."""
        now = dict(model.named_parameters())
        trained = [name for name, p in now.items() if p.requires_grad]
        same = now.keys() == self._kept.keys() and all(p is self._kept[n] for n, p in now.items())
        return same and trained == [*self.whole]

    def scattered(self, parameter: str, total: Tensor) -> Tensor:
        """This process's shard of the sum, over all processes, of a whole parameter's tensor.

        All processes call it for the same parameters in the same order.
        """
        rows = -(-len(total) // self.size)
        missing = rows * self.size - len(total)
        if missing:
            total = torch.cat([total, total.new_zeros(missing, *total.shape[1:])])
        own = total.new_empty(rows, *total.shape[1:])
        # The collective was renamed in a newer torch.
        newer = hasattr(distributed, "reduce_scatter_single")
        name = "reduce_scatter_single" if newer else "reduce_scatter_tensor"
        getattr(distributed, name)(own, total.contiguous())
        return own[: len(self.local[parameter])]

    def full(self, name: str, own: Tensor) -> Tensor:
        """The whole tensor, from the shards of all processes, for a trained parameter ``name``."""
        return boundary.cut_like(own, self._kept[name]).full_tensor()

    def own(self, whole: Tensor) -> Tensor:
        """The part of a whole tensor that is this process's shard."""
        rows = -(-len(whole) // self.size)
        start = rows * distributed.get_rank()
        return whole[start : start + rows]

    def full_of(self, state: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
        """A state with whole tensors in place of this process's shards.

        Args:
            state: ``parameter`` or ``number of the parameter/anything`` → tensor.
            keep: False in a process that only takes part in the gathering: it gets an empty result.
        """
        found = {}
        for key, tensor in state.items():
            name = self._about(key)
            cut = tensor.shape == self.local[name].shape
            whole = self.full(name, tensor) if cut else tensor
            if keep:
                found[key] = whole
        return found

    def own_of(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of :meth:`full_of`."""
        return {
            key: self.own(whole) if whole.shape == self._kept[self._about(key)].shape else whole
            for key, whole in state.items()
        }

    def _about(self, key: str) -> str:
        number, _, rest = key.partition("/")
        return [*self.local][int(number)] if rest else key

    @contextmanager
    def having(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """A context in which the local shards of trained parameters have other values."""
        kept = {name: self.local[name].detach().clone() for name in values}
        with torch.no_grad():
            try:
                for name, value in values.items():
                    self.local[name].copy_(value)
                yield
            finally:
                for name, value in kept.items():
                    self.local[name].copy_(value)

    @contextmanager
    def gathering(self) -> Iterator[Gathering]:
        """A context that gathers modules while they run; at its end all are sharded again."""
        if self._gathering is not None:
            yield self._gathering
            return
        model = self._model()
        assert model is not None
        modules = _cut_modules(model)
        self._gathering = now = Gathering(modules, model)
        try:
            with now.hooks():
                yield now
        finally:
            self._gathering = None
            let_go(model)

    def lanes(self, mode: Any) -> None:
        """Gather modules in the lanes of a mode from now on."""
        assert self._gathering is not None
        self._gathering.mode = mode


def _cut_modules(model: nn.Module) -> list[Any]:
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def let_go(model: nn.Module) -> None:
    """Shard all modules again, because torch leaves the outermost one gathered after a pass."""
    if "torch.distributed.fsdp" in sys.modules:
        for module in _cut_modules(model):
            module.reshard()


def _require_plain(name: str, parameter: Any, size: int) -> None:
    from torch.distributed.tensor import DTensor, Shard

    if not isinstance(parameter, DTensor):
        if parameter.requires_grad:
            raise boundary.RefusedError(
                f"parameter {name!r} is trained and is not sharded: call fully_shard on the model "
                "itself too, after its parts"
            )
        return
    plain = parameter.placements == (Shard(0),) and parameter.device_mesh.size() == size
    if not plain or type(parameter.to_local().data) is not Tensor:
        raise boundary.RefusedError(
            f"parameter {name!r} is not cut along its first dimension over all processes: use "
            "fully_shard without mesh= and shard_placement_fn= (no replicas, no tensor parallelism)"
        )
    if parameter.to_local().device.type != parameter.device_mesh.device_type:
        raise boundary.RefusedError(
            f"parameter {name!r} is offloaded to another device than it is computed on: use "
            "fully_shard without CPUOffloadPolicy"
        )


class Gathering:
    """The gathering of modules in a pass.

    Attributes:
        mode: the mode of the lanes; None: there is none.
    """

    mode: Any = None

    def __init__(self, modules: list[Any], root: nn.Module | None) -> None:
        self._modules, self._root = modules, root
        self._backward: set[nn.Module] = set()

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """A context with our hooks in place of FSDP's, which would add up unclipped gradients."""

        # Plain functions of this package: the search for reachable state does not follow them.
        def enter(module: Any, args: Any, kwargs: Any) -> Any:
            self._gather(module)
            policy = module._get_fsdp_state()._mp_policy
            dtype = policy.cast_forward_inputs and policy.param_dtype
            return self._passed((args, kwargs), partial(self._done, module), dtype)

        def leave(module: Any, args: Any, output: Any) -> Any:
            dtype = module._get_fsdp_state()._mp_policy.output_dtype
            output = self._passed(output, partial(self._again, module), dtype)
            # A module that runs again in the backward pass is sharded when that pass leaves it.
            if module is not self._root and module not in self._backward:
                with boundary.plain_torch():
                    module.reshard()
            return output

        tables = [t for m in self._modules for t in (m._forward_pre_hooks, m._forward_hooks)]
        kept = [table.copy() for table in tables]
        try:
            for table in tables:
                for key, hook in [*table.items()]:
                    if getattr(hook, "__module__", "").startswith("torch.distributed.fsdp"):
                        del table[key]
            for module in self._modules:
                module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True)
                module.register_forward_hook(leave)
            yield
        finally:
            for table, before in zip(tables, kept, strict=True):
                table.clear()
                table.update(before)

    def _gather(self, module: Any) -> None:
        with boundary.plain_torch():
            module.unshard()
            if self.mode is not None:  # a pass must not write to gathered parameters
                own = (p for p in module.parameters() if not hasattr(p, "to_local"))
                self.mode.parameters |= {p.untyped_storage().data_ptr() for p in own}

    def _again(self, module: Any) -> None:
        self._backward.add(module)
        self._gather(module)

    def _done(self, module: Any) -> None:
        self._backward.discard(module)
        module.reshard()

    def _passed(self, values: Any, on_the_way_back: Callable[[], None], dtype: Any) -> Any:
        """The same values; ``on_the_way_back`` is called when all their gradients are known."""
        leaves, form = tree_flatten(values)
        if dtype:
            leaves = [
                leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
                for leaf in leaves
            ]
        with boundary.plain_torch():
            known: dict[int, tuple[Tensor, int | None]] = {
                at: boundary.physical(leaf) if boundary.is_lane(leaf) else (leaf, None)
                for at, leaf in enumerate(leaves)
                if isinstance(leaf, Tensor)
            }
            known = {at: found for at, found in known.items() if found[0].requires_grad}
            if torch.is_grad_enabled() and known:
                whole = [value for value, _ in known.values()]

                def passed(*gradients: Tensor | None) -> Any:
                    on_the_way_back()
                    return gradients

                taken = boundary.OwnNode.apply(  # type: ignore[no-untyped-call]
                    lambda: [value.detach() for value in whole], passed, *whole
                )
                for (at, (_, dim)), value in zip(known.items(), taken, strict=True):
                    leaves[at] = (
                        value if dim is None else boundary.lane(value, dim, self.mode.level)
                    )
        return tree_unflatten(leaves, form)

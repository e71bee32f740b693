"""How does a graph that was traced on a CPU's fake tensors read as one of a GPU?

Its tensors and the devices that its operations name become CUDA's, so that what PyTorch's compiler decides by the
device it decides as there. Tensors are traced on the CPU because automatic differentiation of a build without CUDA
runs there alone.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.node import map_aggregate
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

CUDA: Final = torch.device("cuda", 0)
CPU: Final = torch.device("cpu")


class AsCuda:
    """Fake tensors of a CPU as those of a GPU: the same one for the same one, and of the same storage."""

    def __init__(self) -> None:
        self._known = dict[int, tuple[Any, Any]]()  # by id, with the original, which it keeps

    def values(self, values: Any) -> Any:
        """Any nest of tensors."""
        return tree_map_only(torch.Tensor, self._tensor, values)

    def graph(self, graph: Any) -> Any:
        """A graph module, changed in place."""
        for node in graph.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = self.values(node.meta["val"])
        name_devices(graph, CPU, CUDA)
        return graph

    def _tensor(self, tensor: Any) -> Any:
        if not isinstance(tensor, FakeTensor) or tensor.fake_device == CUDA:
            return tensor
        if id(tensor) not in self._known:
            with _disable_current_modes(), in_kernel_invocation_manager(tensor.fake_mode):
                same = torch.ops.aten.alias.default(tensor)
            self._known[id(tensor)] = FakeTensor(tensor.fake_mode, same, CUDA), tensor
        return self._known[id(tensor)][0]


def name_devices(graph: Any, before: Any, after: Any) -> None:
    """Have operations of a graph module that name one kind of device name another."""

    def changed(argument: Any) -> Any:
        there = isinstance(argument, torch.device) and argument.type == before.type
        return after if there else argument

    for node in graph.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, changed), map_aggregate(node.kwargs, changed)

"""The module of a PyTorch model that an operator belongs to, in forward and backward passes."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

ROOT = "Global"
"""Name of the scope outside all modules."""


class RunningModules:
    """Tracks, while entered, the module whose forward or backward pass runs.

    A module is named by its path from the outermost called module: `Net.layers.0.proj`. In a backward pass an
    operator belongs to the module that recorded the running autograd node. (`torch.utils.module_tracker`
    leaves a module only when the gradients of its inputs are complete. Several modules with one input, such
    as query, key and value, would then count all their GEMMs for one.)
    """

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._running: list[str] = []
        self._of_nodes: dict[int, str] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> RunningModules:
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            # Checkpointing ends its recomputation with an exception.
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._running.clear()
        self._of_nodes.clear()

    @property
    def backward(self) -> bool:
        """Whether a backward pass runs."""
        task: int = torch._C._current_graph_task_id()
        return task != -1

    def of_operator(self) -> str:
        """The module of the operator being dispatched. Call it for every operator, because it records nodes.

        Autograd numbers an operator's node just before it dispatches the operator. An operator without a node
        sees the number of an earlier node, whose own operator was recorded already.
        """
        module = self._running[-1] if self._running else self._of_node()
        self._of_nodes.setdefault(torch.autograd._get_sequence_nr() - 1, module)
        return module

    def _of_node(self) -> str:
        """The module that recorded the node whose backward runs."""
        node = torch._C._current_autograd_node()
        return ROOT if node is None else self._of_nodes.get(node._sequence_nr(), ROOT)

    def _enter_module(self, module: Any, _inputs: Any) -> None:
        if module not in self._names:
            root = type(module).__name__
            for path, part in module.named_modules():
                self._names.setdefault(part, f"{root}.{path}" if path else root)
        self._running.append(self._names[module])

    def _leave_module(self, _module: Any, _inputs: Any, _output: Any) -> None:
        self._running.pop()

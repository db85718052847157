"""Which module of a PyTorch model an operator belongs to, in forward and in backward passes."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

ROOT = "Global"
"""The name of what runs outside of all modules."""


class RunningModules:
    """While entered, tells the module that runs, or whose backward pass does.

    A module is called by the path to it from the one that was called outside of all: `Net.layers.0.proj`.
    In a backward pass an operator belongs to the module that recorded the node of autograd which now runs.
    (`torch.utils.module_tracker` leaves a module only once the gradients of its inputs are complete, so that
    of several with one input, as query, key and value have, one would get the GEMMs of all.)
    """

    def __init__(self) -> None:
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._running: list[str] = []
        self._of_nodes: dict[int, str] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> RunningModules:
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            # Checkpointing stops what it computes again by an exception.
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """The module of the operator that is being dispatched; to be asked of each: nodes are noted here.

        Autograd numbers an operator's node just before it dispatches the operator. An operator without one
        finds the number of an earlier node, whose own operator has been here.
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

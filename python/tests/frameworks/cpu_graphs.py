"""Graphs for tests without a GPU: a capture records a step's external memory, a replay runs it.

What makes a step fail on a device fails here too: a wait for the device within a captured step, and
a replay that reads or writes memory at other addresses than the capture did.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero", "unique")


class _Memory(TorchDispatchMode):
    """Records addresses of storages that a step uses and has not made itself."""

    def __init__(self, is_capture):
        super().__init__()
        self.made = set()
        self.kept = []
        self.external = set()
        self.is_capture = is_capture

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if self.is_capture and name in WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, torch.Tensor) and leaf.numel():
                address = leaf.untyped_storage().data_ptr()
                if address not in self.made:
                    self.external.add(address)
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.numel():
                address = leaf.untyped_storage().data_ptr()
                if address not in self.external:
                    self.made.add(address)
                    self.kept.append(leaf)  # So that its address is not used again within the step.
        return out


class Recorded:
    bytes = 4096

    def __init__(self, graphs, step, external):
        self._graphs = graphs
        self._step = step
        self._external = external

    def replay(self):
        assert self._step is not None, "a replay of a released graph"
        memory = _Memory(is_capture=False)
        with memory:
            self._step()
        moved = memory.external - self._external
        assert not moved, f"{len(moved)} of {len(memory.external)} tensors lie elsewhere than at the capture"
        self._graphs.replays += 1

    def close(self):
        assert self._step is not None, "a graph is released twice"
        self._step = None
        self._graphs.live -= 1


class Slot:
    def __init__(self, graphs, length):
        self._graphs = graphs
        self._values = torch.zeros(length, dtype=torch.int64)

    def send(self, values):
        self._values.copy_(values)

    def receive(self):
        self._graphs.received += 1
        if self._graphs.on_receive is not None:
            self._graphs.on_receive(self._graphs.received)
        return self._values.tolist()


class CpuGraphs:
    """`fail`: called before each capture with its number, may raise; `on_receive`: called before
    the tokens of a step are read, with their number."""

    device_type = "cpu"

    def __init__(self, fail=None, on_receive=None):
        self.captures = self.replays = self.live = self.received = 0
        self.fail = fail
        self.on_receive = on_receive

    def capture(self, step, restore):
        self.captures += 1
        try:
            step()
        finally:
            restore()
        if self.fail is not None:
            self.fail(self.captures)
        memory = _Memory(is_capture=True)
        # On a device a captured step does not run: here it does, and is undone.
        with memory:
            step()
        restore()
        self.live += 1
        return Recorded(self, step, memory.external)

    def slot(self, length):
        return Slot(self, length)

    def generator(self):
        return torch.default_generator

    def bind(self, device):
        assert not self.live, "graphs of another device are left"
        self.bound = str(device)

    def join(self):
        pass

    def leave(self):
        pass

"""CUDA graphs of a decode step: warm-up, capture, replay, and the small copies to the host.

A capture always ends: an exception within it (an allocation that fails, Ctrl-C) ends the capture
first and is raised then. Work of other threads is not captured (thread-local mode); a device-wide
synchronisation of another thread invalidates the capture, which is raised as an error here.
The interface is small so that tests run the same decode loop without a GPU.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["CudaGraphs", "Graphs", "HostSlot", "Replayable"]


class Replayable(Protocol):
    """A captured step. `bytes`: device memory that its capture reserved."""

    bytes: int

    def replay(self) -> None:
        """Queues the step in the current stream."""

    def close(self) -> None:
        """Releases the graph; its memory returns to the pool of graphs."""


class HostSlot(Protocol):
    """Page-locked memory for the tokens of one step."""

    def send(self, values: Any) -> None:
        """Queues the copy of `values`, on the device, into this slot."""

    def receive(self) -> list[int]:
        """Waits for the last copy into this slot, and nothing queued later; its values."""


class Graphs(Protocol):
    """Maker of graphs on one device. `device_type`: "cuda", the type of the tensors' device."""

    device_type: str

    def capture(self, step: Callable[[], None], restore: Callable[[], None]) -> Replayable:
        """Runs `step` once, then `restore`, which undoes its changes to states, then captures
        `step` without running it."""

    def slot(self, length: int) -> HostSlot:
        """A slot for `length` integers."""

    def generator(self) -> Any:
        """The default random generator of the device."""

    def bind(self, device: Any) -> None:
        """Makes later graphs those of `device`; there are none yet, or none any more."""

    def join(self) -> None:
        """Orders the current stream behind the last work queued through this object."""

    def leave(self) -> None:
        """Marks the work queued so far in the current stream as the last."""


class _CudaGraph:
    def __init__(self, graph: Any, reserved: int) -> None:
        self._graph = graph
        self.bytes = reserved

    def replay(self) -> None:
        self._graph.replay()

    def close(self) -> None:
        self._graph.reset()


class _PinnedSlot:
    def __init__(self, length: int, device: Any) -> None:
        self._values = torch.zeros(length, dtype=torch.int64, device="cpu", pin_memory=True)
        self._copied = torch.cuda.Event()
        self._device = device

    def send(self, values: Any) -> None:
        self._values.copy_(values, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))

    def receive(self) -> list[int]:
        self._copied.synchronize()
        found: list[int] = self._values.tolist()
        return found


class CudaGraphs:
    """Graphs of one CUDA device. All share one memory pool, as they run one after another and
    leave their results in buffers outside of it."""

    device_type = "cuda"

    def __init__(self, device: Any) -> None:
        self._last: Any = None
        self._device: Any = None
        self.bind(device)

    def bind(self, device: Any) -> None:
        """See `Graphs.bind`."""
        if device != self._device:
            self._device = device
            self._stream = torch.cuda.Stream(device)
            self._pool = torch.cuda.graph_pool_handle()
            self._last = None

    def capture(self, step: Callable[[], None], restore: Callable[[], None]) -> Replayable:
        """See `Graphs.capture`. Waits for the device once, as a capture has to begin in order."""
        stream = self._stream
        before = torch.cuda.memory_reserved(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        graph = torch.cuda.CUDAGraph()
        collecting = gc.isenabled()
        gc.disable()  # A collection during the capture could free graphs, which is not allowed then.
        try:
            with torch.cuda.stream(stream):
                try:
                    step()
                finally:
                    restore()
                stream.synchronize()
                _forget_workspaces()
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except BaseException:
            graph.reset()
            raise
        finally:
            _forget_workspaces()
            if collecting:
                gc.enable()
            torch.cuda.current_stream(self._device).wait_stream(stream)
        return _CudaGraph(graph, max(0, torch.cuda.memory_reserved(self._device) - before))

    def slot(self, length: int) -> HostSlot:
        """See `Graphs.slot`."""
        return _PinnedSlot(length, self._device)

    def generator(self) -> Any:
        """See `Graphs.generator`."""
        return torch.cuda.default_generators[self._device.index or 0]

    def join(self) -> None:
        """See `Graphs.join`."""
        if self._last is not None:
            torch.cuda.current_stream(self._device).wait_event(self._last)

    def leave(self) -> None:
        """See `Graphs.leave`."""
        if self._last is None:
            self._last = torch.cuda.Event()
        self._last.record(torch.cuda.current_stream(self._device))


def _forget_workspaces() -> None:
    """Drops cuBLAS' workspaces, so that a capture takes its own from the pool of graphs: a
    workspace that other code drops later cannot be one that a graph writes to."""
    if torch.cuda.get_allocator_backend() != "native":
        return  # There a workspace of a capture would be an allocation node that is never freed.
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()

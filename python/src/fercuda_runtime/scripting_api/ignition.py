"""Static memory planning for tensors with known lifetimes.

    plan = IgnitionPlan([TensorSpec("x", (4, 4)), TensorSpec("y", (4, 4), first_step=1)])
    with ignite(session, plan) as region:
        region["x"].upload(values)

Two tensors share bytes only if their lifetimes do not overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .._fercuda import Buffer, Plan, Session


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor and its lifetime in steps: from `first_step` up to, not including, `end_step`.

    `shape` is its lengths, `dtype` a name such as "f32" or "bf16". Elements are contiguous. By
    default it lives for one step, step 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    first_step: int = 0
    end_step: int | None = None

    def steps(self) -> tuple[int, int]:
        """First step, and end step (exclusive)."""
        return self.first_step, self.first_step + 1 if self.end_step is None else self.end_step


class IgnitionPlan:
    """The offset of each tensor in one arena of `arena_bytes`. Equal tensors give equal plans.

    Raises `PlanError` for duplicate names, an empty lifetime or an invalid tensor; `DtypeError`.
    """

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        rows = [(it.name, it.dtype, list(it.shape), *it.steps()) for it in tensors]
        self._plan = Plan(rows)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parses and validates the output of `to_json`. Raises `PlanError`."""
        plan = cls.__new__(cls)
        plan._plan = Plan.from_json(text)
        return plan

    def to_json(self) -> str:
        """The plan as JSON text, for a file."""
        return self._plan.to_json()

    @property
    def arena_bytes(self) -> int:
        """Size of the arena in bytes."""
        return self._plan.arena_bytes

    @property
    def tensors(self) -> list[tuple[TensorSpec, int]]:
        """The tensors, each with its offset in the arena in bytes."""
        return [
            (TensorSpec(name, tuple(shape), dtype, first, end), begin)
            for name, dtype, shape, first, end, begin in self._plan.tensors
        ]


class Region(Mapping[str, Buffer]):
    """A plan's arena on a device, with its tensors by name. Freed by `free`, or at the end of a
    `with`."""

    def __init__(self, session: Session, plan: IgnitionPlan) -> None:
        self.plan = plan
        self.arena = session.alloc((plan.arena_bytes,), "u8")
        self._buffers: dict[str, Buffer] = {}
        for tensor, begin_bytes in plan.tensors:
            self._buffers[tensor.name] = self.arena.view(tensor.dtype, tensor.shape, begin_bytes)

    def __getitem__(self, name: str) -> Buffer:
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def free(self) -> None:
        """Frees its buffers; the memory is freed after the last work on them."""
        with self.arena:
            for buffer in self._buffers.values():
                with buffer:
                    pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()


def ignite(session: Session, plan: IgnitionPlan) -> Region:
    """Allocates the arena of a plan: one allocation for all tensors.

    Raises `LimitError`, `OutOfMemoryError`, `SessionEndedError`.
    """
    return Region(session, plan)

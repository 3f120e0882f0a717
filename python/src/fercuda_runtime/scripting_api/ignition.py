"""Memory for tensors whose times of need are known, planned before any is taken.

    plan = IgnitionPlan([TensorSpec("x", (4, 4)), TensorSpec("y", (4, 4), first_step=1)])
    with ignite(session, plan) as region:
        region["x"].upload(values)

Two tensors share bytes only if no step needs both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .._fercuda import Buffer, Plan, Session


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor, and the steps that need it: from `first_step` up to, not including, `end_step`.

    `shape` is its lengths, `dtype` a name such as "f32" or "bf16". Elements lie side by side. Without steps it is
    needed in one only, step 0.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    first_step: int = 0
    end_step: int | None = None

    def steps(self) -> tuple[int, int]:
        """Its first step and the one behind its last."""
        return self.first_step, self.first_step + 1 if self.end_step is None else self.end_step


class IgnitionPlan:
    """Where each of some tensors lies in one arena of `arena_bytes`. The same tensors give the same plan.

    Raises `PlanError` for two tensors of one name, one that no step needs, or one that there cannot be; `DtypeError`.
    """

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        rows = [(it.name, it.dtype, list(it.shape), *it.steps()) for it in tensors]
        self._plan = Plan(rows)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What `to_json` gave; all of it is checked. Raises `PlanError`."""
        plan = cls.__new__(cls)
        plan._plan = Plan.from_json(text)
        return plan

    def to_json(self) -> str:
        """As text, for a file."""
        return self._plan.to_json()

    @property
    def arena_bytes(self) -> int:
        """What the arena takes."""
        return self._plan.arena_bytes

    @property
    def tensors(self) -> list[tuple[TensorSpec, int]]:
        """The tensors, each with where it begins in the arena, in bytes."""
        return [
            (TensorSpec(name, tuple(shape), dtype, first, end), begin)
            for name, dtype, shape, first, end, begin in self._plan.tensors
        ]


class Region(Mapping[str, Buffer]):
    """A plan's arena on a device, and its tensors by name. Freed by `free`, or at the end of a `with`."""

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
        """Ends its buffers, and the memory behind the last work with them."""
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
    """Takes the arena of a plan: one allocation, whatever the number of tensors.

    Raises `LimitError`, `OutOfMemoryError`, `SessionEndedError`.
    """
    return Region(session, plan)

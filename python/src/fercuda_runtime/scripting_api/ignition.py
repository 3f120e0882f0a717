"""Static memory planning for tensors with known lifetimes.

    plan = IgnitionPlan([TensorSpec("x", (4, 4)), TensorSpec("y", (4, 4), first_step=1)])
    with ignite(session, plan) as region:
        region["x"].upload(values)

Two tensors share bytes only if their lifetimes do not overlap. A tensor without a name is found by
its number in the plan:

    plan = IgnitionPlan(tensors=(TensorSpec(rank=2, dims=(4, 4)),), warmup_passes=1)
    region = ignite(session, plan)
    region[0].upload(values)
    region.close()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from .._fercuda import Buffer, Plan, Session
from ..errors import PlanError


@dataclass(frozen=True, slots=True, init=False)
class TensorSpec:
    """A tensor and its lifetime in steps: from `first_step` up to, not including, `end_step`.

    `shape` is its lengths, `dtype` a name such as "f32" or "bf16". Elements are contiguous. By
    default it lives for one step, step 0. `dims` is another name of `shape`, and `rank` the number
    of lengths, which need not be given. Without a name the plan calls it "tensor" with its number,
    from 0.

    Raises `PlanError` if `shape` and `dims` are both given or both missing, or `rank` differs from
    their number.
    """

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    first_step: int
    end_step: int | None

    def __init__(
        self,
        name: str | None = None,
        shape: Iterable[int] | None = None,
        dtype: str = "f32",
        first_step: int = 0,
        end_step: int | None = None,
        *,
        rank: int | None = None,
        dims: Iterable[int] | None = None,
    ) -> None:
        what = "a tensor" if name is None else f"tensor {name!r}"
        lengths = dims if shape is None else shape
        if lengths is None or (shape is not None and dims is not None):
            given = "neither shape nor dims" if lengths is None else "both shape and dims"
            raise PlanError(f"{what} has {given}\ntry: one of them, as in TensorSpec(dims=(64,))")
        lengths = tuple(lengths)
        if rank is not None and rank != len(lengths):
            count = "one length" if len(lengths) == 1 else f"{len(lengths)} lengths"
            raise PlanError(f"{what} has rank {rank}, but {count}: {lengths}\ntry: rank={len(lengths)}, or none")
        values = {"name": name, "shape": lengths, "dtype": dtype, "first_step": first_step, "end_step": end_step}
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @property
    def dims(self) -> tuple[int, ...]:
        """Its lengths: `shape`."""
        return self.shape

    @property
    def rank(self) -> int:
        """The number of its lengths."""
        return len(self.shape)

    def steps(self) -> tuple[int, int]:
        """First step, and end step (exclusive)."""
        return self.first_step, self.first_step + 1 if self.end_step is None else self.end_step


class IgnitionPlan:
    """The offset of each tensor in one arena of `arena_bytes`. Equal tensors give equal plans.

    `warmup_passes`: how many times `ignite` writes zeros to the whole arena, and waits for that, so
    that the first step finds its memory mapped and used before. By default 0: then its contents are
    unspecified.

    Raises `PlanError` for duplicate names, an empty lifetime, an invalid tensor or number of
    passes; `DtypeError`.
    """

    def __init__(self, tensors: Iterable[TensorSpec], warmup_passes: int = 0) -> None:
        tensors = list(tensors)
        taken = {it.name for it in tensors}
        rows = []
        for number, it in enumerate(tensors):
            name = it.name
            if name is None:
                name = f"tensor{number}"
                while name in taken:
                    name += "_"
            rows.append((name, it.dtype, list(it.shape), *it.steps()))
        self._plan = Plan(rows)
        self._warmup_passes = _passes(warmup_passes)

    @classmethod
    def from_json(cls, text: str, warmup_passes: int = 0) -> Self:
        """Parses and validates the output of `to_json`, which has no `warmup_passes`. Raises
        `PlanError`."""
        plan = cls.__new__(cls)
        plan._plan = Plan.from_json(text)
        plan._warmup_passes = _passes(warmup_passes)
        return plan

    @property
    def warmup_passes(self) -> int:
        """How many times `ignite` writes the arena."""
        return self._warmup_passes

    def to_json(self) -> str:
        """The plan as JSON text, for a file: the tensors and their offsets."""
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


def _passes(count: int) -> int:
    if count < 0:
        raise PlanError(f"warmup_passes is {count}\ntry: 0 or more")
    return int(count)


class Region(Mapping[str, Buffer]):
    """A plan's arena on a device, with its tensors by name, or by number in the plan's order. Freed
    by `close`, at the end of a `with`, or with its last reference."""

    def __init__(self, session: Session, plan: IgnitionPlan) -> None:
        self.plan = plan
        self.arena = session.alloc((plan.arena_bytes,), "u8")
        self._buffers: dict[str, Buffer] = {}
        for tensor, begin_bytes in plan.tensors:
            assert tensor.name is not None, "a plan names its tensors"
            self._buffers[tensor.name] = self.arena.view(tensor.dtype, tensor.shape, begin_bytes)
        for _ in range(plan.warmup_passes):
            self.arena.fill_bytes(0)
        if plan.warmup_passes:
            session.synchronize()

    def __getitem__(self, name: str | int) -> Buffer:
        if isinstance(name, int):
            return list(self._buffers.values())[name]
        return self._buffers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)

    def close(self) -> None:
        """Frees its buffers; the memory is freed after the last work on them. May be called again."""
        with self.arena:
            for buffer in self._buffers.values():
                with buffer:
                    pass

    def free(self) -> None:
        """The same as `close`."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ignite(session: Session, plan: IgnitionPlan) -> Region:
    """Allocates the arena of a plan: one allocation for all tensors; and writes it
    `plan.warmup_passes` times.

    Raises `LimitError`, `OutOfMemoryError`, `SessionEndedError`.
    """
    return Region(session, plan)

"""The report of a patch: what was replaced, what was left, and why."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PatchRow:
    """Modules of one class with one outcome."""

    name: str
    """The class, or the function of all attention modules of a family."""
    count: int
    became: str | None
    """The kernel in its place; None if it was left as it is."""
    seam: str
    """How: "kernels NAME" (the seam of that name that Transformers has for the package `kernels`),
    "class" (each module's `forward`), or "function" (of the process, for all models of the
    family)."""
    note: str
    """Why it was left, or what to know."""


@dataclasses.dataclass(frozen=True)
class PatchReport:
    """What `patch` did to a model; as text, a table."""

    transformers_version: str
    rows: tuple[PatchRow, ...]
    notes: tuple[str, ...]

    @property
    def patched(self) -> int:
        """How many modules have a kernel; functions count as one each."""
        return sum(1 if it.name.endswith("apply_rotary_pos_emb") else it.count for it in self.rows if it.became)

    @property
    def left(self) -> int:
        """How many modules could have had one, but were left."""
        return sum(it.count for it in self.rows if not it.became)

    def __str__(self) -> str:
        table = [("class", "count", "became", "through", "note")]
        table += [(it.name, str(it.count), it.became or "(left)", it.seam, it.note) for it in self.rows]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines = [f"Transformers {self.transformers_version}: {self.patched} patched, {self.left} left"]
        for row in table:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  ".join([*cells, row[4]]).rstrip())
        return "\n".join([*lines, *(f"note: {it}" for it in self.notes)])

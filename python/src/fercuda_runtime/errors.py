"""What can go wrong. Every exception's text says what, with numbers, and what to try; the numbers are attributes."""

from __future__ import annotations

Held = tuple[str, int, int]
"""A tenant's name, bytes of the pool that it holds, bytes that the driver gave it directly."""


class FercudaError(Exception):
    """What all others are."""


class ConfigError(FercudaError, ValueError):
    """A setting or an argument that has no meaning."""


class StaleHandleError(FercudaError):
    """A buffer that was freed, or that is another session's."""


class LimitError(FercudaError, MemoryError):
    """A session would hold more than it may. Nothing was allocated."""

    session: str
    limit_bytes: int
    held_bytes: int
    freed_bytes: int
    """Of those held, the ones that were freed: graphs or others have them, or they go back when no dispatcher runs."""
    asked_bytes: int


class AllocatorError(FercudaError, MemoryError):
    """A session's own allocator gave no memory, or none that can be used. What it has raised is the cause."""

    session: str
    asked_bytes: int


class OutOfMemoryError(FercudaError, MemoryError):
    """The device has no memory left. Nothing was allocated."""

    asked_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    parked_bytes: int
    """Freed and not free yet: they are when no dispatcher runs on the device."""
    holders: list[Held]


class SessionEndedError(FercudaError):
    """The session was closed, or the runtime rebooted (`epoch`: which time)."""

    session: str
    epoch: int | None


class SessionNameError(FercudaError, ValueError):
    """A session of this name is open."""

    session: str


class VramError(FercudaError, OSError):
    """A file in device memory cannot be mapped, or what was written to it could not be kept."""


class ForkedError(FercudaError, RuntimeError):
    """This process is a fork of the one (`process`) that has the device."""

    process: int


class LayoutError(FercudaError, ValueError):
    """A shape, strides or a range that there cannot be, or that do not fit.

    `given_bytes` and `expected_bytes` where values have the wrong length.
    """

    given_bytes: int
    expected_bytes: int


class ValuesError(FercudaError, ValueError):
    """A byte that is no bool: `value`, the one at `at`."""

    at: int
    value: int


class DtypeError(FercudaError, TypeError):
    """Elements of another type, or of one that is not known here."""

    dtype: str
    given: str


class PlanError(FercudaError, ValueError):
    """Tensors that cannot be planned, or a file that is no plan."""


class JobError(FercudaError):
    """A job that failed on the host, or was given up with its session."""

    job: int


class JobCancelledError(JobError):
    """A job that was cancelled before the device had it."""


class JobNotRunError(JobError):
    """A job behind one (`by`) that failed for good; the cause says how."""

    by: int


class JobTimeoutError(FercudaError, TimeoutError):
    """A job is not done after `waited_s` seconds. It goes on."""

    waited_s: float


class DriverError(FercudaError):
    """The driver refused a call, or has it not. `code` is CUDA's."""

    code: int | None
    code_name: str | None


class NoDeviceError(DriverError):
    """There is no driver, or no such device."""


class ModuleError(DriverError):
    """The driver refused code; `log` is what its compiler wrote."""

    log: str


class DeviceFaultError(DriverError):
    """The device's context has failed, as by an illegal address: all in it fails until it is reset."""

    device: int


class OccupiedError(FercudaError):
    """A reset would take memory away from others (`holders`)."""

    device: int
    holders: list[Held]


class ServedError(FercudaError):
    """Another runtime of this process takes the requests for `device`."""

    device: int


class ArgumentsError(FercudaError, TypeError):
    """Arguments that do not fit a kernel's parameters. Nothing was launched."""

    expected: list[int]
    given: list[int]


class LaunchLimitError(FercudaError, ValueError):
    """A launch outside a limit. Nothing was launched."""

    asked: int
    limit: int


class ExpressionError(FercudaError, ValueError):
    """An expression that cannot be: a text that makes no sense from `line` and `column` on (both from 1; None where it is
    not the text that is wrong), types or shapes that do not go together, an output that lies on what is still read.
    Nothing was computed."""

    line: int | None = None
    column: int | None = None


class GraphError(FercudaError):
    """A graph that is not captured or replayed. What was under its key stays."""


class GraphBudgetError(GraphError):
    """A graph that counts for more (`bytes`, for `nodes` pieces of work) than its cache may have. It is not kept."""

    bytes: int
    budget_bytes: int
    nodes: int


class GraphInvalidatedError(GraphError):
    """The key was invalidated while its graph was captured. It is not kept."""


class DispatcherError(FercudaError):
    """A dispatcher that does not start, take a task or end as it should."""


class DispatcherFullError(DispatcherError):
    """All `capacity` places of a priority are taken. The task was not taken; wait for an earlier one."""

    priority: int
    capacity: int


class DispatcherStoppedError(DispatcherError):
    """It takes no tasks any more, or ended before it came to this one."""


class DispatcherRunningError(DispatcherError, TimeoutError):
    """It has not ended in time: `waiting` tasks are not done. It goes on, and may be asked to stop again."""

    waiting: int


class DispatcherLostError(DispatcherError):
    """A task runs for ever, and nothing but the process's end stops it. Its buffers stay."""


class TaskError(FercudaError):
    """A task (`task`, by its name) that failed by itself: its buffers do not go together, or its steps are used up."""

    task: str


class TaskCancelledError(TaskError):
    """A task that was cancelled, by its ticket or the watchdog. What it wrote until then is written."""


class TritonError(FercudaError, ValueError):
    """A kernel of Triton's that is not loaded: files that are not there, metadata that lack something or ask for what
    is not done here, another device than it was compiled for."""


class ImportedError(FercudaError, RuntimeError):
    """A framework was imported before it could be told (`framework`)."""

    framework: str


class ContractError(FercudaError, LookupError):
    """Something that this package does not keep to."""

"""Exceptions. Each message says what failed, with numbers, and what to try; the numbers are also
attributes."""

from __future__ import annotations

Held = tuple[str, int, int]
"""Tenant name, bytes from the pool, bytes directly from the driver."""


class FercudaError(Exception):
    """Base class of all exceptions here."""


class ConfigError(FercudaError, ValueError):
    """An invalid setting or argument."""


class StaleHandleError(FercudaError):
    """A buffer that was freed, or that belongs to another session."""


class LimitError(FercudaError, MemoryError):
    """A session would exceed its limit. Nothing was allocated."""

    session: str
    limit_bytes: int
    held_bytes: int
    freed_bytes: int
    """The part of `held_bytes` that was freed: still used by graphs or borrowers, or deferred while
    a dispatcher runs."""
    asked_bytes: int


class AllocatorError(FercudaError, MemoryError):
    """A session's allocator returned no usable memory. Its exception, if any, is the cause."""

    session: str
    asked_bytes: int


class OutOfMemoryError(FercudaError, MemoryError):
    """The device has no memory left. Nothing was allocated."""

    asked_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    parked_bytes: int
    """Deferred frees: freed by the program, but not by the driver until no dispatcher runs on the
    device."""
    holders: list[Held]


class SessionEndedError(FercudaError):
    """The session was closed, or the runtime rebooted (`epoch`: which reboot)."""

    session: str
    epoch: int | None


class SessionNameError(FercudaError, ValueError):
    """A session of this name is already open."""

    session: str


class VramError(FercudaError, OSError):
    """A file in device memory cannot be mapped, or data written to it could not be kept."""


class ForkedError(FercudaError, RuntimeError):
    """This process is a fork of the process (`process`) that uses the device."""

    process: int


class LayoutError(FercudaError, ValueError):
    """An invalid shape, strides or range, or one that does not fit.

    `given_bytes` and `expected_bytes` where values have the wrong length.
    """

    given_bytes: int
    expected_bytes: int


class ValuesError(FercudaError, ValueError):
    """A byte that is not a valid bool: `value`, at index `at`."""

    at: int
    value: int


class DtypeError(FercudaError, TypeError):
    """Elements of another type, or of an unknown one."""

    dtype: str
    given: str


class PlanError(FercudaError, ValueError):
    """Tensors that cannot be planned, or a file that is not a plan."""


class JobError(FercudaError):
    """A job that failed on the host, or was dropped with its session."""

    job: int


class JobCancelledError(JobError):
    """A job that was cancelled before it was queued on the device."""


class JobNotRunError(JobError):
    """A job queued after one (`by`) that failed permanently; the cause is that failure."""

    by: int


class JobTimeoutError(FercudaError, TimeoutError):
    """A job has not finished after `waited_s` seconds. It goes on."""

    waited_s: float


class DriverError(FercudaError):
    """The driver refused a call, or does not have it. `code` is CUDA's."""

    code: int | None
    code_name: str | None


class NoDeviceError(DriverError):
    """There is no driver, or no device with this ordinal."""


class ModuleError(DriverError):
    """The driver refused code; `log` is its compiler's output."""

    log: str


class DeviceFaultError(DriverError):
    """The device's context has failed, for example after an illegal address: every call fails until
    it is reset."""

    device: int


class OccupiedError(FercudaError):
    """A reset would destroy memory of other tenants (`holders`)."""

    device: int
    holders: list[Held]


class ServedError(FercudaError):
    """Another runtime in this process already accepts requests for `device`."""

    device: int


class ArgumentsError(FercudaError, TypeError):
    """Arguments that do not match a kernel's parameters. Nothing was launched."""

    expected: list[int]
    given: list[int]


class LaunchLimitError(FercudaError, ValueError):
    """A launch exceeds a limit. Nothing was launched."""

    asked: int
    limit: int


class ExpressionError(FercudaError, ValueError):
    """An invalid expression: a syntax error at `line` and `column` (both from 1; None if the text
    is not at fault), incompatible types or shapes, or an output that overlaps an input that is
    still read. Nothing was computed."""

    line: int | None = None
    column: int | None = None


class OpError(FercudaError, ValueError):
    """An op (`op`) that does not exist, or that no kernel can compute; or an invalid value of a
    parameter. Nothing was computed. Operands that do not fit raise `DtypeError`, `LayoutError` and
    `ArgumentsError`."""

    op: str


class OpIndexError(OpError, IndexError):
    """An operand of an op has an index (`index`) outside of its axis, the one of number `place`. The
    result has 0 there, or what it had before."""

    index: int
    place: int


class GraphError(FercudaError):
    """A graph that could not be captured or replayed. The graph under its key is kept."""


class GraphBudgetError(GraphError):
    """A graph counts for more (`bytes`, with `nodes` nodes) than its cache's budget. It is not
    kept."""

    bytes: int
    budget_bytes: int
    nodes: int


class GraphInvalidatedError(GraphError):
    """The key was invalidated while its graph was being captured. It is not kept."""


class DispatcherError(FercudaError):
    """A dispatcher that failed to start, accept a task or stop."""


class DispatcherFullError(DispatcherError):
    """All `capacity` slots of a priority are taken. The task was not accepted; wait for an earlier
    one."""

    priority: int
    capacity: int


class DispatcherStoppedError(DispatcherError):
    """It accepts no more tasks, or stopped before it reached this one."""


class DispatcherRunningError(DispatcherError, TimeoutError):
    """It has not stopped in time: `waiting` tasks are unfinished. It goes on; `stop` may be called
    again."""

    waiting: int


class DispatcherLostError(DispatcherError):
    """A task runs forever, and only the end of the process stops it. Its buffers stay allocated."""


class TaskError(FercudaError):
    """A task (`task`: its name) failed: its buffers do not match, or it exceeded its steps."""

    task: str


class TaskCancelledError(TaskError):
    """A task was cancelled, by its ticket or the watchdog. What it wrote before is kept."""


class TritonError(FercudaError, ValueError):
    """A Triton kernel that could not be loaded: missing files, metadata that are incomplete or need
    unsupported features, or another device than it was compiled for."""


class ModelError(FercudaError, ValueError):
    """Files that are no model that is supported, or that are damaged; the message names the file."""


class HubError(FercudaError, OSError):
    """A model that could not be fetched by its name. No message has a token.

    `status`: 401 or 403, where the hub refuses it. `is_reachable`: whether there was an answer.
    """

    status: int | None
    is_reachable: bool


class RequestError(FercudaError, ValueError):
    """A text that a model cannot generate: its prompt or an option does not fit. Other requests go
    on."""


class ChatTemplateError(FercudaError, ValueError):
    """A conversation that a model's chat template cannot be rendered for, or a template that
    fails."""


class ImportedError(FercudaError, RuntimeError):
    """A framework (`framework`) was imported before it could be configured."""

    framework: str


class ContractError(FercudaError, LookupError):
    """Something that this package does not guarantee."""

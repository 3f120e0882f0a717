"""The compiled part. Use it through `fercuda_runtime.runtime` and `fercuda_runtime.scripting_api`.

Every call raises `ForkedError` in the child of a fork. Calls that wait release the GIL.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from os import PathLike
from types import EllipsisType, TracebackType
from typing import Any, Literal, Protocol, Self, SupportsFloat, SupportsIndex, TypedDict, final

from typing_extensions import Buffer as HostBytes

from ._allocator import Allocator

__version__: str
DLPACK_VERSION: tuple[int, int]

_Extents = int | Sequence[int]
_Index = SupportsIndex | slice | EllipsisType
_Argument = Buffer | Scalar | SupportsIndex | SupportsFloat
_Dtype = str | type | Any
_Bytes = int | str
"""Number of bytes, or text such as "1GiB", "512M" or "4096", as on the command line."""
_GraphKey = GraphKey | str | int | tuple[str | int, ...]
_Shown = tuple[int, str, tuple[int, int], int, int]

class _Lends(Protocol):
    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...

class _CudaArray(TypedDict):
    shape: tuple[int, ...]
    typestr: str
    data: tuple[int, bool]
    strides: tuple[int, ...] | None
    stream: int
    version: int

def drivers() -> list[tuple[str, str | None, str | None, str | None, list[_Shown]]]:
    """Each driver: name, version, path, error, devices."""

def nvrtc() -> tuple[str | None, str | None, str | None]:
    """The CUDA C++ compiler: version, path, or why there is none."""

def is_hooked() -> bool:
    """Whether another library, such as the hook, intercepts this process's driver calls."""

def intercepted() -> tuple[int, int, int, int, int, int, int, bool] | None:
    """Counters of intercepted driver calls in this process: see `runtime.interception`. None if no
    memory is governed here."""

def interface_version() -> int:
    """Version of the interface through which libraries in one process share its pool."""

def end() -> None:
    """For `atexit`: from then on none of our threads calls into Python."""

def write_random_model(path: str | PathLike[str], shape: str, kind: str, seed: int) -> None:
    """Writes a model with random weights: see `inference.random_model`."""

@final
class Runtime:
    """A device, and the process's memory pool there.

    `device`: its ordinal. `select`: "auto", "gpu", "soft", or None for what FERCUDA_DEVICE says.
    Raises `NoDeviceError`, `ConfigError`, `DriverError`.
    """

    def __new__(cls, device: int = 0, select: str | None = None) -> Self: ...
    @property
    def device(self) -> int:
        """Its ordinal."""
    @property
    def device_name(self) -> str:
        """Its name, from the driver."""
    @property
    def is_software(self) -> bool:
        """Whether it is the software device."""
    @property
    def is_governed(self) -> bool:
        """Whether there are a pool and a ledger; false with FERCUDA_DISABLE=1."""
    @property
    def epoch(self) -> int:
        """Number of reboots of this runtime so far."""
    def memory(self) -> tuple[int, int]:
        """Free and total bytes, from the driver."""
    def parked_bytes(self) -> int:
        """Bytes that were freed by the program but not by the driver yet (deferred frees). Memory
        of the regimes "driver" and "managed" is freed when a thread allocates or waits while no
        dispatcher's kernel runs and no conflicting capture is open. Memory of any regime that was
        lent to another library is freed once the device has finished all work that it had when the
        memory was returned, including a dispatcher's kernel."""
    def holders(self) -> list[tuple[str, int, int]]:
        """Device memory by tenant in this process: tenant, bytes from the pool, bytes directly from
        the driver."""
    def sessions(self) -> list[str]:
        """The names of open sessions."""
    def trim(self) -> int:
        """Returns unused memory of the pool to the driver; the number of bytes."""
    def reboot(self, *, reset_failed: bool = False) -> tuple[int, int, int, bool, list[tuple[str, int, int]]]:
        """Ends all sessions and returns their memory to the driver. Returns: epoch, sessions ended,
        bytes returned, whether the context was reset, other tenants that hold memory. Buffers from
        before raise `SessionEndedError`.

        `reset_failed`: also reset a failed context. Pass it only if nothing else in this process,
        such as a framework's streams or modules, uses the device afterwards.

        Raises `DeviceFaultError` if the context has failed and `reset_failed` is false;
        `OccupiedError` while other tenants hold memory there. The sessions have ended even then.
        """
    def serve_requests(self, consent: Callable[[], bool]) -> Requests:
        """Accepts reboot requests from this user's other processes (`fercuda reboot --pid`) until
        the result is closed or collected. For each request a thread calls `consent`; if it returns
        true, the runtime reboots: sessions end, and their users get `SessionEndedError`. A false
        result refuses the request; so does an exception, which goes to `sys.unraisablehook`. All
        requests are refused once the interpreter has begun to exit.

        Raises `ServedError` if another runtime in this process already accepts requests for the
        device; `ConfigError` if nothing is governed here.
        """

@final
class Requests:
    """While it is open, other processes of this user may request a reboot. See
    `Runtime.serve_requests`."""

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
    def close(self) -> None:
        """Stops accepting requests. Waits for one in progress, unless called from `consent`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Session:
    """The owner of buffers, modules and jobs on a device, ordered in one stream.

    `name`: the name of its tenant in the ledger. `limit_bytes`: the most device memory it may hold,
    a number or text such as "1GiB".
    `allocator`: the source of buffers of the regime "callbacks"; it is kept alive until the session
    and all memory from it are gone, so it should not refer to the session.

    Raises `SessionNameError`; `ConfigError` for an invalid allocator.
    """

    def __new__(
        cls, runtime: Runtime, name: str, limit_bytes: _Bytes | None = None, *, allocator: Allocator | None = None
    ) -> Self: ...
    @property
    def name(self) -> str:
        """Its name."""
    @property
    def device(self) -> int:
        """Its device's ordinal."""
    @property
    def is_software(self) -> bool:
        """Whether its device is the software device."""
    @property
    def limit_bytes(self) -> int | None:
        """The most device memory it may hold; None for no limit."""
    @property
    def held_bytes(self) -> int:
        """Device memory it holds, in blocks of 512 bytes. Includes freed memory that a graph,
        another library or a dispatcher's kernel still uses."""
    @property
    def peak_bytes(self) -> int:
        """The peak of `held_bytes`."""
    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
    @property
    def stream_handle(self) -> int:
        """Its stream as a CUDA handle, for libraries that order their work with it."""
    def count_buffers(self) -> int:
        """The number of its live handles. Raises `SessionEndedError`."""
    def close(self) -> None:
        """Waits for its work, ends it and frees all its memory. Raises the first error of its work;
        it has ended even then.

        Ctrl-C interrupts the wait: the session accepts no more calls, and ends in the background
        when its work has finished. Its name and memory are taken until then, or until the process
        exits, which does not wait for it.
        """
    def synchronize(self) -> None:
        """Waits for all its work, including jobs. Raises the first error of that work. Ctrl-C
        interrupts the wait, and the work goes on."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Closes it. If the body was left by `KeyboardInterrupt`, waits for half a second at most:
        then a `RuntimeWarning` says that it ends in the background, as after an interrupted
        `close`."""
    def _repr_html_(self) -> str:
        """A table of its name, device, state and memory, for notebooks."""
    def alloc(
        self,
        shape: Sequence[int],
        dtype: _Dtype = None,
        *,
        regime: Literal["pool", "driver", "managed", "pinned", "callbacks"] = "pool",
    ) -> Buffer:
        """Allocates a buffer of `shape` with contiguous elements; its contents are unspecified.

        `dtype`: "f32" (the default), "bf16" ..., or a type of NumPy's or PyTorch's. `regime`:
        "pool", the process's pool; "driver", a separate driver allocation; "managed", accessible
        from host and device; "pinned", page-locked host memory; "callbacks", from the session's
        allocator.

        Raises `LimitError`, `OutOfMemoryError`, `LayoutError` (also for a length that is negative,
        or a size of 2^63 bytes or more), `DtypeError`, `SessionEndedError`;
        `AllocatorError`, and `ConfigError` if the session has no allocator.
        """
    def load(self, image: str | bytes) -> Module:
        """Loads code: PTX as text, or a CUBIN or fat binary for this device as bytes.

        Raises `ModuleError`, with the compiler's log.
        """
    def launch(
        self,
        function: Function,
        grid: _Extents,
        block: _Extents,
        arguments: Iterable[_Argument] | None = None,
        *,
        shared_bytes: _Bytes | None = None,
    ) -> None:
        """Queues a kernel after the session's work: `grid` blocks of `block` threads, one to three
        extents each.

        An argument is a buffer of this session, a `Scalar`, a NumPy number, or an int or float,
        which is converted to the size that the kernel declares. PTX also declares types: an address
        or integer takes no float, and a float no buffer and no typed integer; an int becomes a
        float. Machine code has sizes only. Only the software device checks the kernel's accesses:
        it must stay within its buffers. Returns before the kernel has run.

        Raises `ArgumentsError` (a `TypeError`), before anything is launched, `LaunchLimitError`,
        `StaleHandleError`, `DeviceFaultError` of earlier work.
        """
    def launch_async(
        self,
        function: Function,
        grid: _Extents,
        block: _Extents,
        arguments: Iterable[_Argument] | None = None,
        *,
        shared_bytes: _Bytes | None = None,
    ) -> Job:
        """Like `launch`, as a job that is done when the kernel is; its buffers live until then."""
    def evaluate(
        self, text: str, /, *, into: Mapping[str, Buffer] | None = None, **inputs: Buffer
    ) -> dict[str, Buffer]:
        """Computes expressions over buffers of this session, after its earlier work; returns each
        output by name. Returns before they are computed, unless jobs wait on the host; an
        expression seen for the first time is compiled first.

            session.evaluate("t = a * b + c; y = relu(t); top = max(t, axis=-1)", a=a, b=b, c=c)["y"]

        A name that no later statement uses is an output; an unnamed statement's output is "out",
        "out1" ... by its number. The package's README lists the functions. An input is a buffer of
        any strides and dtype, under its name in the text ("into" is reserved); inputs that the text
        does not name are ignored. Shapes are broadcast as in NumPy. Dtypes are never mixed:
        `f32(x)` casts; a number takes the dtype of the other operand, else f32; sums of integers
        and bool are 64 bits wide. f16, bf16 and eight-bit floats are computed in f32 and rounded
        where they are written or cast.

        An output is a new contiguous buffer of the pool, or the buffer under its name in `into`, of
        its dtype and shape, with any strides. That buffer may be an input if each element depends
        only on the element at the same index; it must not overlap the others.

        Raises `ExpressionError`, with the position if the text is wrong; `ArgumentsError` for a
        value that is not a buffer; `StaleHandleError`, also for a buffer of another session;
        `LimitError`, `OutOfMemoryError`, `SessionEndedError`. Nothing is computed then.
        """
    def graphs(self, *, budget_bytes: _Bytes | None = None, node_bytes: _Bytes | None = None) -> Graphs:
        """Creates a cache of this session's graphs. `budget_bytes`: the most that all graphs may
        count for (default 1 GiB); `node_bytes`: what each node of a graph counts for (default 8
        KiB), since drivers do not report it. The cache ends with the session, or with its last
        reference."""
    def argument_block(self, *, pushes: int = 8, **fields: _Dtype | tuple[_Dtype, int]) -> ArgumentBlock:
        """Allocates named fields in device memory, initially 0, in the given order, each aligned to
        its size, as in a C struct: `argument_block(token="u32", weights=("f32", 4))`. Types: u32,
        i32, u64, i64, f32, f64. `pushes`: how many pushes may be in flight before one waits.

        Raises `DtypeError`, `ConfigError`, `LimitError`, `OutOfMemoryError`, `SessionEndedError`.
        """
    def dispatcher(
        self,
        buffers: Sequence[Buffer],
        *,
        capacity: int = 64,
        priorities: int = 2,
        blocks: int = 1,
        threads: int = 128,
        idle_ns: int = 100,
        steps: int = 1 << 20,
        watchdog_s: float = 2.0,
    ) -> Dispatcher:
        """Starts a resident kernel that runs small tasks without launches, over these buffers of
        the session, which must be contiguous and aligned to 16 bytes. Their memory is kept until
        the kernel has ended, even if they are freed.

        `capacity`: queue slots for each of the `priorities` (1 to 8), a power of two. `blocks` run
        tasks, each with `threads` threads (a multiple of 32, at most 1024), and sleep for `idle_ns`
        nanoseconds when there are none. `steps`: the most loop iterations per thread of a task.
        `watchdog_s`: a task that runs longer, in seconds, is cancelled by the thread that waits for
        it.

        It starts after the session's work; from then on the program must order tasks with other
        work on the buffers: wait for one before submitting the other. While it runs, operations
        that synchronise the whole device wait for it: loading code (an expression seen for the
        first time, or a kernel's first launch, may do so), and creating the first dispatcher with
        another `capacity`, `priorities`, `threads` or `idle_ns` since a reboot. Memory of the
        regimes "driver" and "managed" that is freed meanwhile is held until the kernel has ended.

        Raises `LayoutError`, `ConfigError`, `StaleHandleError`, `SessionEndedError`, `DriverError`.
        """
    def follow_stream(self, stream: int) -> None:
        """Makes later work of the session wait for the current work in another library's stream: 1
        or 2 (the default streams) or a handle. For an invalid handle the software device raises
        `DriverError`; NVIDIA's library uses it as an address, which may crash the process."""
    def lead_stream(self, stream: int) -> None:
        """Makes another library's stream wait for the session's work so far; `stream` as in
        `follow_stream`."""
    def from_dlpack(self, tensor: _Lends, *, copy: bool | None = None) -> Buffer:
        """Imports another library's tensor as a buffer without a copy: ordered after the lender's
        work, and returned to it when the buffer and all work on it are gone. A tensor in host
        memory is copied.

        `copy`: True to copy into memory of the session, False to raise an error instead of copying.
        Raises `LayoutError`, `DtypeError`.
        """
    def from_cuda_array_interface(self, array: Any, *, copy: bool | None = None) -> Buffer:
        """Like `from_dlpack`, through `__cuda_array_interface__` (version 3 or older). The array is
        kept alive."""
    def import_memory(
        self,
        address: int,
        shape: Sequence[int],
        dtype: _Dtype,
        *,
        strides: Sequence[int] | None = None,
        deleter: Callable[[], object] | None = None,
    ) -> Buffer:
        """Imports foreign memory that the device can use; `address` is that of the first element.
        `strides` count elements. `deleter` is called once, in any thread, when the buffer and all
        work on it are gone, or at once if this raises; its exceptions go to `sys.unraisablehook`.

        The memory must cover the shape, and stay valid until then. Raises `LayoutError`,
        `DtypeError`, `DriverError` for an address that the driver does not know.
        """
    def map_vram(self, path: str | PathLike[str], *, writable: bool = False) -> VramFile:
        """Maps a file of a filesystem in this device's memory (`fercuda vram mount`) in place,
        without a copy. All of it is verified first, and errors are corrected.

        Until it is closed and no buffer of it is left, calls that change the file fail with
        `EBUSY`; if it is mapped writable, calls that read it fail too. Raises `VramError`.
        """

@final
class VramFile:
    """A file in device memory, mapped for a session by `Session.map_vram`. Closed at the end of a
    `with`.

    The file is stored in chunks of 128 KiB, which need not be adjacent: the 9 KiB of
    error-correcting code of each chunk lie between them. Data written to a file that is not
    writable is detected and undone as an error.
    """

    @property
    def size(self) -> int:
        """Size of the file in bytes, including holes."""
    @property
    def is_writable(self) -> bool:
        """Whether it may be written to."""
    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """(offset in the file, bytes, address) of each range in memory, in file order. The rest is
        zeros."""
    @property
    def chunks(self) -> list[int] | None:
        """The address of each chunk, 0 for a hole, so that byte i is at chunks[i >> 17] + (i &
        131071). None if a chunk is fragmented or is partly a hole: use `segments` then."""
    @property
    def stride_bytes(self) -> int | None:
        """Bytes from one chunk to the next, if constant and no chunk is missing; else None."""
    def buffer(self, offset: int = 0, nbytes: int | None = None) -> Buffer:
        """A buffer ("u8") of the bytes from `offset` on, by default to the end. Raises
        `LayoutError` if they are not contiguous; `VramError` if the file is closed."""
    def rows(self) -> Buffer:
        """The whole file as a strided array (chunks, 131072) of bytes ("u8"). Raises `LayoutError`
        unless it has `stride_bytes` and a whole number of chunks."""
    def close(self) -> None:
        """Returns the file to the filesystem as soon as no buffer of it is left; only then does the
        file have the new data. Waits for all work on the device. Raises `VramError` if written data
        could not be kept."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class GraphKey:
    """The key of a graph: strings and 64-bit integers, and a generation, such as that of the model
    that owns memory used by the graph. Equal keys mean the same graph; keys are hashable. Raises
    `ConfigError`."""

    def __new__(cls, *parts: str | int, generation: int = 0) -> Self: ...
    @property
    def generation(self) -> int:
        """Its generation."""
    @property
    def parts(self) -> tuple[str | int, ...]:
        """The strings and integers."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class GraphRecord:
    """Result of a capture."""

    @property
    def nodes(self) -> int:
        """Number of nodes in the graph."""
    @property
    def bytes(self) -> int:
        """Bytes that it counts for in its cache."""
    @property
    def updated(self) -> bool:
        """Whether the existing graph under the key was updated, instead of instantiating a new
        one."""
    @property
    def capture_s(self) -> float:
        """Host time of the capture, in seconds."""
    @property
    def instantiate_s(self) -> float:
        """Host time to instantiate or update the graph, in seconds."""
    @property
    def upload_s(self) -> float:
        """Host time to upload the graph to the device, in seconds."""

@final
class GraphTimes:
    """Timing of a replay, in seconds."""

    @property
    def upload_s(self) -> float:
        """Host time to upload the graph to the device; once, at the capture."""
    @property
    def launch_s(self) -> float:
        """Host time of the launch."""
    @property
    def device_s(self) -> float:
        """Device time, from the start of the graph in the session's order to its end."""
    @property
    def completion_s(self) -> float:
        """Host time from before the launch until its completion was observed."""

@final
class GraphStatistics:
    """Counters of a graph cache."""

    @property
    def entries(self) -> int:
        """Graphs in the cache."""
    @property
    def bytes(self) -> int:
        """Bytes that the graphs count for."""
    @property
    def retired(self) -> int:
        """Removed graphs with last replays that are running, or not yet known to be done."""
    @property
    def replays(self) -> int:
        """Number of replays."""
    @property
    def absent(self) -> int:
        """Replays without a graph (cache misses)."""
    @property
    def instantiated(self) -> int:
        """Graphs instantiated."""
    @property
    def updated(self) -> int:
        """Graphs updated in place."""
    @property
    def evicted(self) -> int:
        """Graphs evicted to stay within the budget."""

@final
class Graphs:
    """A cache of a session's graphs: work is captured once, and replayed by one call.

        if not graphs.replay(key):
            with graphs.capture(key) as capture:
                capture.launch(kernel, 4, 256, [buffer, block.field("token")])
            graphs.replay(key)

    A key is a `GraphKey`; a string, an integer or a tuple of those means one of generation 0. Least
    recently used graphs are evicted to stay within the budget. All calls raise `SessionEndedError`
    after the session's end.
    """

    def capture(self, key: _GraphKey) -> Capture:
        """Captures a graph for `key` from the calls made on the result inside a `with`. Raises
        `ConfigError` for an invalid key."""
    def replay(self, key: _GraphKey) -> bool:
        """Queues the graph's work after the session's; False if there is no graph. Does not wait
        for the device."""
    def replay_timed(self, key: _GraphKey) -> GraphTimes | None:
        """Like `replay`, but waits for completion and returns the timing. None if there is no
        graph."""
    def __contains__(self, key: _GraphKey, /) -> bool: ...
    def __len__(self) -> int: ...
    def invalidate(self, key: _GraphKey) -> bool:
        """Removes the graph under `key`, after its last replay, and one that is being captured for
        it; returns whether there was one to replay."""
    def invalidate_generation(self, generation: int) -> int:
        """Like `invalidate`, for all graphs of a generation; returns how many there were."""
    def invalidate_all(self) -> int:
        """Like `invalidate`, for all graphs; returns how many there were."""
    def statistics(self) -> GraphStatistics:
        """Counters since the cache was created."""

@final
class Capture:
    """The body of a capture. Calls on it are checked at once and captured together at the end of
    the `with`, for `Graphs.replay`; calls on the session itself run as usual, and are not part of
    the graph. If the body raises, the capture is discarded, and the graph under the key is kept.

    Buffers in the graph live as long as the graph, even if they are freed. The end of the `with`
    raises `GraphBudgetError`, `GraphInvalidatedError`, `LaunchLimitError`, `LimitError`,
    `OutOfMemoryError`.
    """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def launch(
        self,
        function: Function,
        grid: _Extents,
        block: _Extents,
        arguments: Iterable[_Argument] | None = None,
        *,
        shared_bytes: _Bytes | None = None,
    ) -> None:
        """Adds a kernel, as in `Session.launch`. Numbers are fixed in the graph; values that change
        between replays belong in a buffer, such as one of an `ArgumentBlock`. Raises
        `ArgumentsError`, `StaleHandleError`; `GraphError` outside of the `with`."""
    def evaluate(
        self, text: str, /, *, into: Mapping[str, Buffer] | None = None, **inputs: Buffer
    ) -> dict[str, Buffer]:
        """Adds expressions, as in `Session.evaluate`. They are compiled at once, and computed by
        each replay; until the first replay the contents of new buffers are unspecified. Raises as
        `Session.evaluate`; `GraphError` outside of the `with`."""
    def run(self, plan: Any, /, *operands: Buffer, out: Buffer | Sequence[Buffer]) -> None:
        """Adds an op by its plan, of `ops.plan(..., session=)` with the graph's session, over buffers
        of that session, into `out`. Its workspace lives as long as the graph. Raises
        `ArgumentsError`, `LayoutError`, `OutOfMemoryError`; `GraphError` outside of the `with`."""
    @property
    def key(self) -> GraphKey:
        """Its key."""
    @property
    def record(self) -> GraphRecord | None:
        """Result of the capture; None until it succeeds."""

@final
class ArgumentBlock:
    """Named fields in device memory for values that change between replays: set on the host, pushed
    together. All calls raise `SessionEndedError` after the session's end."""

    @property
    def nbytes(self) -> int:
        """Size of all fields including padding."""
    @property
    def fields(self) -> dict[str, tuple[str, int, int]]:
        """By name: dtype, number of values, and offset in the block in bytes."""
    def field(self, name: str) -> Buffer:
        """A field as a buffer, for kernels and expressions: of shape (), or (n,) if it has several
        values. Raises `ConfigError`."""
    @property
    def buffer(self) -> Buffer:
        """The whole block as bytes, for kernels that know the offsets."""
    def set(self, **values: SupportsIndex | SupportsFloat | Sequence[int] | Sequence[float]) -> None:
        """Sets fields for the next push: a number, or as many as the field has. If one does not
        fit, none is set.

        Raises `ConfigError` for an unknown field, `LayoutError` for a wrong number of values,
        `OverflowError`, `TypeError`.
        """
    def push(self) -> None:
        """Queues a copy of all fields to the device, after the session's work: later work, such as
        a replay, sees these values even if fields are set again. Waits only if more pushes are in
        flight than the block was created for, or if jobs wait on the host."""

@final
class Dispatcher:
    """A resident kernel and its task queue. The end of a `with` stops it; if the body raises, only
    the running task is awaited. The session's end stops it too.

    Buffers of tasks are the dispatcher's buffers or contiguous views of them. `priority`: 0 is the
    highest; lower ones wait while there is a higher one. `steps`: loop iterations per thread of
    this task, if not the dispatcher's default. Submitting never waits, and raises
    `DispatcherFullError`, `DispatcherStoppedError`, `ArgumentsError` for a buffer that is not the
    dispatcher's, `DtypeError`, `ConfigError` for an invalid priority. Any other error of a task is
    reported by its ticket, and does not affect other tasks.
    """

    def fill(
        self, to: Buffer, value: SupportsIndex | SupportsFloat, *, priority: int = 0, steps: int | None = None
    ) -> Ticket:
        """`to[i] = value`, for u32, i32 or f32. The ticket's result is the number of elements."""
    def copy(self, to: Buffer, source: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`to[i] = source[i]`, of equal length, of any one dtype if the total size is a multiple of
        four bytes. The buffers must be disjoint or identical. The ticket's result is the number of
        four-byte words."""
    def axpy(self, y: Buffer, a: float, x: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`y[i] = a * x[i] + y[i]`, of equal length, in f32, rounded once. The buffers must be
        disjoint or identical. The ticket's result is the number of elements."""
    def sum(self, into: Buffer, values: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`into[0] = values[0] + values[1] + ...`, in u32 or i32, modulo 2^32, or f32, in an order
        that depends on the number of threads: strided partial sums, which are then added in pairs.
        `into` is one element. The ticket's result is the sum."""
    def statistics(self) -> DispatchStatistics:
        """Counters of the queue."""
    def stop(self, timeout: float | None = None) -> None:
        """Accepts no more tasks, runs the queued ones, and waits until the kernel has ended, at
        most `timeout` seconds. Its buffers are free then. May be called again. Raises
        `DispatcherRunningError` on timeout, and the kernel goes on; `DispatcherLostError`,
        `DeviceFaultError`."""
    def abandon(self) -> None:
        """Like `stop`, but drops tasks that have not started: their tickets raise
        `DispatcherStoppedError`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class DispatchStatistics:
    """Counters of a dispatcher."""

    @property
    def submitted(self) -> int:
        """Tasks accepted."""
    @property
    def waiting(self) -> int:
        """Tasks waiting or running."""
    @property
    def done(self) -> int:
        """Tasks completed by the device, successfully or not."""
    @property
    def dropped(self) -> int:
        """Tasks dropped."""
    @property
    def is_stopped(self) -> bool:
        """Whether it accepts no more tasks."""
    @property
    def is_lost(self) -> bool:
        """Whether a task runs forever."""

@final
class Ticket:
    """A submitted task. Wait for it, `await` it, or ignore it."""

    @property
    def task(self) -> Literal["fill", "copy", "axpy_f32", "sum_u32", "sum_f32"]:
        """Its operation."""
    @property
    def status(self) -> Literal["waiting", "running", "done", "failed", "cancelled"]:
        """Its state. Never waits."""
    def done(self) -> bool:
        """Whether it has finished. Never waits."""
    def wait(self, timeout: float | None = None) -> int | float:
        """Its result: a sum, else the number of elements. `timeout` in seconds. The waiting thread
        is also the watchdog: it cancels a task that runs longer than the dispatcher's `watchdog_s`.

        Raises `JobTimeoutError` on timeout, and the task goes on; `TaskCancelledError`,
        `TaskError`, `DispatcherStoppedError`, `DispatcherLostError`, `DeviceFaultError`.
        """
    def cancel(self) -> None:
        """Requests cancellation: a task that has not started is skipped, a running one stops early.
        `wait` gives the result."""
    def __await__(self) -> Generator[Any, None, int | float]: ...

@final
class Buffer:
    """Elements on a device, owned by one session: a handle that ends with `free`, at the end of a
    `with`, or with this object. Work already queued on it goes on; its memory is freed after that
    work.

    Indexing with integers, slices and an ellipsis, `reshape`, `transpose` and `view` return views
    of the same memory. All raise `StaleHandleError` after `free`, `SessionEndedError` after the
    session's end.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Distance between neighbours along each dimension, in elements."""
    @property
    def dtype(self) -> str:
        """Type of its elements, such as "f32"."""
    @property
    def ndim(self) -> int:
        """Number of dimensions."""
    @property
    def size(self) -> int:
        """Number of elements."""
    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
    @property
    def nbytes(self) -> int:
        """Size of all elements in bytes."""
    @property
    def is_contiguous(self) -> bool:
        """Whether its elements are contiguous, in row-major order."""
    @property
    def regime(self) -> str:
        """Kind of its memory: "pool", "driver", "managed", "pinned", "callbacks" or "foreign"."""
    @property
    def device(self) -> int:
        """Its device's ordinal."""
    @property
    def handle(self) -> int:
        """Its handle in its session."""
    @property
    def session_name(self) -> str:
        """Its session's name."""
    @property
    def is_exported(self) -> bool:
        """Whether its address has been handed out."""
    @property
    def is_freed(self) -> bool:
        """Whether it was freed, or its session has ended."""
    def free(self) -> None:
        """Ends its handle; the memory is freed after work already queued. Never waits."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Buffer:
        """A view. Raises `IndexError`."""
    def reshape(self, *shape: int | Sequence[int]) -> Buffer:
        """A view with another shape; one length may be -1. Raises `LayoutError` if that needs a
        copy."""
    def transpose(self, *order: int | Sequence[int]) -> Buffer:
        """A view with permuted dimensions; reversed by default. Raises `LayoutError`."""
    @property
    def T(self) -> Buffer:
        """A view with its dimensions reversed."""
    def broadcast_to(self, *shape: int | Sequence[int]) -> Buffer:
        """A read-only view with the larger shape. Raises `LayoutError`."""
    def view(self, dtype: _Dtype, shape: Sequence[int], offset_bytes: int = 0) -> Buffer:
        """A view of its memory as contiguous elements of `dtype`, from `offset_bytes` after its
        first element. Raises `LayoutError` if that is out of range or misaligned."""
    def upload(self, data: HostBytes) -> None:
        """Copies host data into it and waits: an array of its shape and type, or raw bytes in
        element order. Raises `LayoutError`, `DtypeError`, `ValuesError`."""
    def upload_async(self, data: HostBytes) -> Job:
        """Like `upload`, as a job. `data` is copied first, and may change or be freed at once."""
    def download(self) -> bytes:
        """Copies its elements to the host, as bytes in element order. Waits; Ctrl-C interrupts the
        wait, and the session's work goes on."""
    def numpy(self) -> Any:
        """Copies its elements to a NumPy array. Waits, as `download`. Raises `DtypeError` for a type
        that NumPy does not have: bf16 and eight-bit floats."""
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A NumPy array, for `np.asarray(buffer)`: a view of pinned and managed memory, which later
        work of the session changes, and one copy of other memory. Waits, as `download`.

        `copy`: True to copy always; False raises `ValueError` if that needs a copy. Raises
        `DtypeError` as `numpy`.
        """
    def _repr_html_(self) -> str:
        """A table of its shape, dtype, size, memory and state, for notebooks."""
    def download_async(self) -> Job:
        """Like `download`, as a job with the bytes as its result."""
    def copy_from(self, source: Buffer) -> None:
        """Queues a copy from a buffer of the same shape and type, of this session or another, after
        the work of both. Raises `LayoutError`, `DtypeError`."""
    def copy(self) -> Buffer:
        """A contiguous copy in its own memory. Does not wait."""
    def fill_bytes(self, byte: int) -> None:
        """Queues a fill of all its bytes with `byte`, 0 to 255."""
    def export_device_ptr(self) -> int:
        """The address of its first element, for other libraries. Its memory stays valid as long as
        this object lives, even if it is freed; the caller orders other work with the session's
        (`Session.lead_stream`, `follow_stream`)."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's (device type, ordinal): 2 for pool and driver, 13 for managed, 3 for pinned
        memory."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule with a tensor that lives until the borrower releases it, whatever happens to this
        object.

        The borrower's `stream` waits for the session's work: a handle, 1 or None for the legacy
        default stream, 2 for the per-thread default stream; -1 for no ordering. Without a stream,
        host-readable memory is waited for. `dl_device=(1, 0)` asks for host memory. Raises
        `BufferError` if a copy would be needed.
        """
    @property
    def __cuda_array_interface__(self) -> _CudaArray:
        """Version 3, with the session's stream. Its memory stays valid as long as this object
        lives."""

@final
class Job:
    """Work of a session, run in submission order. `await` it, wait for it, or ignore it."""

    @property
    def number(self) -> int:
        """Its number in its session, counted from 1."""
    @property
    def status(self) -> Literal["waiting", "running", "done", "failed", "cancelled"]:
        """"waiting" on the host, where it can be cancelled; "running" once it is queued on the
        device."""
    def done(self) -> bool:
        """Whether it has finished. Never waits."""
    def wait(self, timeout: float | None = None) -> bytes | None:
        """Its result: a download's bytes, else None. `timeout` in seconds.

        Raises `JobTimeoutError` on timeout, and the job goes on; `JobCancelledError`,
        `JobNotRunError`, or its own error.
        """
    def cancel(self) -> bool:
        """Cancels it, unless it is queued on the device; returns whether it was cancelled."""
    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Calls `callback` once, in any thread, when it has finished; at once if it already has."""
    def __await__(self) -> Generator[Any, None, bytes | None]: ...

@final
class Module:
    """Code on a device."""

    def function(self, name: str) -> Function:
        """A kernel in it. Raises `DriverError`."""

@final
class Function:
    """A kernel."""

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def parameter_bytes(self) -> list[int] | None:
        """Size of each parameter in bytes; None if the driver does not report it."""
    @property
    def max_threads_per_block(self) -> int:
        """Maximum number of threads per block."""

@final
class Scalar:
    """A typed number, as a kernel argument. Raises `DtypeError`, `OverflowError`."""

    def __new__(cls, dtype: _Dtype, value: SupportsIndex | SupportsFloat) -> Self: ...
    @property
    def dtype(self) -> str:
        """Its type."""

@final
class TritonKernel:
    """A kernel that Triton has compiled. See `fercuda_runtime.guest_hooks`."""

    @staticmethod
    def open(session: Session, path: str) -> TritonKernel:
        """Loads NAME.json, with its code beside it. See `open_triton`."""
    @staticmethod
    def load(session: Session, metadata: str, code: str | bytes) -> TritonKernel:
        """Loads the text of NAME.json, and PTX as text or a CUBIN as bytes. See `load_triton`."""
    @property
    def name(self) -> str:
        """Its name in its code."""
    @property
    def arch(self) -> int:
        """The compute capability it was compiled for: 90 for sm_90."""
    @property
    def warps(self) -> int:
        """Warps per program, of 32 threads each."""
    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per program."""
    @property
    def scratch_bytes(self) -> int:
        """Scratch memory per block, which a launch allocates from the session and frees after the
        kernel."""
    @property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks per cluster along each axis: each program of a grid is one cluster."""
    @property
    def argument_bytes(self) -> list[int] | None:
        """Size of each argument in bytes, without Triton's own; None if the driver does not report
        it."""
    def launch(self, session: Session, grid: _Extents, arguments: Iterable[_Argument] | None = None) -> None:
        """Queues it after the session's work: `grid` programs, one to three extents, as in Triton;
        an empty grid does nothing. Returns before it has run.

        Arguments are as in `Session.launch`, one for each parameter of its signature that was not a
        constant when it was compiled. Triton's assumptions from then, such as that a pointer or a
        number is a multiple of 16, must hold for them, and the kernel must stay within the buffers:
        only the software device checks that.

        Raises `ArgumentsError`, `LaunchLimitError`, `StaleHandleError`; `LimitError` or
        `OutOfMemoryError` if scratch memory cannot be allocated; `DeviceFaultError` of earlier
        work. Nothing is queued then.
        """
    def launch_async(self, session: Session, grid: _Extents, arguments: Iterable[_Argument] | None = None) -> Job:
        """Like `launch`, as a job that is done when the kernel is; its buffers live until then."""

@final
class Plan:
    """Tensors (name, dtype, shape, first step, end step) in one arena. See `IgnitionPlan`."""

    def __new__(cls, tensors: Sequence[tuple[str, str, Sequence[int], int, int]]) -> Self: ...
    @staticmethod
    def from_json(text: str) -> Plan:
        """Parses the output of `to_json`. Raises `PlanError`."""
    def to_json(self) -> str:
        """The plan as JSON text."""
    @property
    def arena_bytes(self) -> int:
        """Size of the arena in bytes."""
    @property
    def tensors(self) -> list[tuple[str, str, list[int], int, int, int]]:
        """Each tensor's row, with its offset in bytes."""

@final
class OpPlan:
    """A plan of an op. See `ops.OpPlan`."""

    def run(
        self, operands: Sequence[Any], out: Any = None, stream: int | None = None
    ) -> tuple[Session, tuple[Any, ...]]:
        """Queues it; returns its session, and new buffers or the given outputs."""
    def capture(self, capture: Capture, operands: tuple[Any, ...], out: Any) -> None:
        """Adds it to a graph: `Capture.run`."""
    @property
    def op(self) -> str:
        """Name of the op."""
    @property
    def sku(self) -> tuple[str, str, list[tuple[str, str]], int]:
        """The kernel, the reason, other candidates with their reasons, number of launches."""
    @property
    def workspace_bytes(self) -> int:
        """Memory that a run needs besides operands and results."""
    @property
    def operands(self) -> list[tuple[str, list[int], list[int]]]:
        """Type, shape and strides of each operand."""
    @property
    def outputs(self) -> list[tuple[str, list[int], list[int]]]:
        """Type, shape and strides of each result."""
    @property
    def session(self) -> Session:
        """The session that it runs in."""

def run_op(
    name: str,
    operands: tuple[Any, ...],
    keywords: dict[str, Any],
    out: Any = None,
    stream: int | None = None,
    session: Session | None = None,
    sku: str | None = None,
    check: bool = False,
) -> tuple[Session | None, tuple[Any, ...]]:
    """Runs an op; returns its session, and new buffers or the given outputs. None: it is in the current
    stream of the library that all arrays are of, as the results are."""

def plan_op(
    name: str,
    operands: tuple[Any, ...],
    keywords: dict[str, Any],
    out: Any = None,
    session: Session | None = None,
    sku: str | None = None,
    check: bool = False,
) -> OpPlan:
    """A plan of an op, found or made."""

def op_plan_counters() -> tuple[int, int, int]:
    """Look-ups that found a plan, those that made one, and plans."""

def clear_op_plans() -> None:
    """Drops the cached plans."""

def default_op_session(device: int) -> Session:
    """The session of a device for callers without one."""

def op_names() -> list[str]:
    """The names of all ops."""

def op_row(
    name: str,
) -> tuple[
    tuple[str, str, str, str],
    tuple[list[str], int, bool, list[list[str]]],
    list[str],
    list[tuple[str, str, Any, list[str]]],
]:
    """Texts of an op, its operands, names of its results, its parameters."""

_Chosen = tuple[int, float | None, list[tuple[int, float]]]

@final
class Tokenizer:
    """A tokenizer with its chat template: see `inference.Tokenizer`."""

    @staticmethod
    def open(path: str | PathLike[str]) -> Tokenizer:
        """Of a tokenizer.json, or of a model."""
    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
    @property
    def bos(self) -> int | None:
        """The token that begins a text."""
    @property
    def eos(self) -> int | None:
        """The token that ends a text."""
    @property
    def generation_ends(self) -> list[int]:
        """Tokens at which a generation ends."""
    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be rendered."""
    def encode(self, text: str, *, special: bool = False, framed: bool = True) -> list[int]:
        """The tokens of a text."""
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
    def piece(self, token: int) -> str | None:
        """A token as the file spells it."""
    def token_of_piece(self, piece: str) -> int | None:
        """The token that the file spells so."""
    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for."""
    def is_control(self, token: int) -> bool:
        """Whether a token is structure."""
    def chat_json(
        self, messages: str, tools: str | None, variables: str, add_generation_prompt: bool
    ) -> tuple[str, list[int]]:
        """Text and tokens of a conversation in JSON."""

@final
class ModelFiles:
    """The files of a model: see `inference.ModelAdapter`."""

    @staticmethod
    def open(
        name: str | PathLike[str], progress: Callable[[str, int, int], None] | None = None
    ) -> ModelFiles:
        """Finds and opens a model."""
    @property
    def name(self) -> str:
        """That of the file, folder or repository."""
    @property
    def format(self) -> Literal["gguf", "safetensors"]:
        """Of its weights."""
    @property
    def files(self) -> list[str | PathLike[str]]:
        """Files with weights."""
    @property
    def chat_template(self) -> str | None:
        """The template's text."""
    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
    @property
    def config_json(self) -> str | None:
        """The config.json; None of a GGUF file."""
    def metadata(self) -> dict[str, Any]:
        """Metadata of the first file."""
    def tensors(self) -> list[tuple[str, str, list[int], int, str | PathLike[str]]]:
        """Name, type, shape, bytes and file of each tensor."""
    def read(self, name: str) -> tuple[list[int], bytes]:
        """Shape and f32 elements of a weight."""
    def described(self) -> tuple[str, int, int]:
        """Architecture, layers, context."""
    def load(
        self,
        runtime: Runtime,
        settings: Mapping[str, Any],
        drafts: ModelFiles | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> LanguageModel:
        """Loads it onto a device."""
    @property
    def is_encoder(self) -> bool:
        """Whether it makes vectors of texts, and no texts."""
    def load_embedder(
        self,
        runtime: Runtime,
        session: str,
        batch_tokens: int | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> TextEmbedder:
        """Loads one that does onto a device."""

@final
class TextEmbedder:
    """An encoder on a device: see `inference.EmbeddingModel`."""

    @property
    def name(self) -> str:
        """That of its files."""
    @property
    def architecture(self) -> str:
        """By its name in GGUF files."""
    @property
    def context(self) -> int:
        """Positions of a text."""
    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
    @property
    def dimensions(self) -> int:
        """Elements of a vector."""
    @property
    def session_name(self) -> str:
        """Its tenant."""
    @property
    def held_bytes(self) -> int:
        """Device memory that it holds."""
    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
    def embed(self, texts: Sequence[Sequence[int]]) -> bytes:
        """Vectors of texts, which are tokens, as f32, one behind the other."""
    def close(self) -> None:
        """Frees its memory."""

class LanguageModel:
    """A model on a device: see `inference.LanguageModel`."""

    @property
    def name(self) -> str:
        """That of its files."""
    @property
    def architecture(self) -> str:
        """By its name in GGUF files."""
    @property
    def context(self) -> int:
        """Positions of a request."""
    @property
    def vocabulary_size(self) -> int:
        """Number of tokens."""
    @property
    def session_name(self) -> str:
        """Its tenant."""
    @property
    def held_bytes(self) -> int:
        """Device memory that it holds."""
    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
    def load_figures(self) -> tuple[int, int, int, int, int, int]:
        """Requests that run and that wait, free blocks and all."""
    def start(self, tokens: Sequence[int], settings: Mapping[str, Any]) -> TokenStream:
        """Queues a request."""
    def close(self) -> None:
        """Ends its requests, and frees its memory."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class TokenStream:
    """A text that is generated: see `inference.TextStream`."""

    def poll(self) -> str | None:
        """The next part, None if there is none yet. Raises `StopIteration` at the end."""
    def wait(self) -> None:
        """Waits for a part or an end, for at most 50 ms; handles signals."""
    def wake(self, waker: Callable[[], object]) -> bool:
        """Has this called once there is a part or an end; false if there is one."""
    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
    @property
    def finish(self) -> tuple[str, str | None] | None:
        """Why it has ended, and the text that ended it."""
    def chosen(self) -> tuple[list[_Chosen], int]:
        """Tokens so far, and how many of the prompt the cache had."""
    def cancel(self) -> None:
        """Ends it, without waiting for that."""
    def close(self) -> None:
        """Ends it; its blocks are free then."""

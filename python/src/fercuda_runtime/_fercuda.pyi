"""The compiled part. Use it by `fercuda_runtime.runtime` and `fercuda_runtime.scripting_api`.

Every call raises `ForkedError` in the child of a fork. Whatever waits lets other threads run.
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
    """Each driver: name, version, where it is, what is wrong, its devices."""

def nvrtc() -> tuple[str | None, str | None, str | None]:
    """CUDA C++'s compiler: version, file, why there is none."""

def is_hooked() -> bool:
    """Whether another library's doors stand before this process's driver."""

def interface_version() -> int:
    """The version of the table by which libraries of one process share its pool."""

def end() -> None:
    """For `atexit`: from then on no thread of ours goes into Python."""

@final
class Runtime:
    """A device, and the process's pool there.

    `device`: its ordinal. `select`: "auto", "gpu", "soft", or None for what FERCUDA_DEVICE says.
    Raises `NoDeviceError`, `ConfigError`, `DriverError`.
    """

    def __new__(cls, device: int = 0, select: str | None = None) -> Self: ...
    @property
    def device(self) -> int:
        """Its ordinal."""
    @property
    def device_name(self) -> str:
        """As the driver calls it."""
    @property
    def is_software(self) -> bool:
        """Whether it is the software device."""
    @property
    def is_governed(self) -> bool:
        """Whether there is a pool and a ledger: not with FERCUDA_DISABLE=1."""
    @property
    def epoch(self) -> int:
        """How often this runtime was rebooted."""
    def memory(self) -> tuple[int, int]:
        """Free and total bytes, as the driver says."""
    def parked_bytes(self) -> int:
        """Bytes that were freed and are not free yet. Of the regimes "driver" and "managed" they go when a thread allocates
        or waits while no dispatcher's kernel runs, nor a capture that is in the way; of any regime, what another library
        was lent goes by itself when all is done that the device had been given before it was returned, which a
        dispatcher's kernel is part of."""
    def holders(self) -> list[tuple[str, int, int]]:
        """Who holds memory of the device in this process: tenant, pooled bytes, bytes the driver gave directly."""
    def sessions(self) -> list[str]:
        """The names of open sessions."""
    def trim(self) -> int:
        """Gives back to the driver what the pool has and nobody uses; how many bytes."""
    def reboot(self, *, reset_failed: bool = False) -> tuple[int, int, int, bool, list[tuple[str, int, int]]]:
        """Ends all sessions and gives their memory back: epoch, sessions ended, bytes returned, whether the context was
        reset, who else holds memory. Buffers of before raise `SessionEndedError`.

        `reset_failed`: a context that has failed is reset. Say it only if nothing else of this process, such as a
        framework's streams or modules, is used on the device afterwards.

        Raises `DeviceFaultError` if the context has failed and `reset_failed` is false; `OccupiedError` while others
        hold memory there. The sessions have ended then.
        """
    def serve_requests(self, consent: Callable[[], bool]) -> Requests:
        """Lets this user's other processes ask for a reboot (`fercuda reboot --pid`) until what comes back is closed, or
        collected. For each request a thread calls `consent` and, if that says yes, does `reboot`: sessions end then, and
        whoever has some is to expect `SessionEndedError`. A no, or an exception, which `sys.unraisablehook` hears of,
        refuses. After the interpreter's exit has begun nobody agrees to anything.

        Raises `ServedError` if another runtime of the process is asked for the device; `ConfigError` if nothing is
        governed here.
        """

@final
class Requests:
    """As long as it is open, other processes of this user may ask a runtime to reboot. See `Runtime.serve_requests`."""

    @property
    def is_open(self) -> bool:
        """Whether it was not closed."""
    def close(self) -> None:
        """Nobody can ask from then on. Waits for what is being done, unless it is called by the consent."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Session:
    """The owner of buffers, modules and jobs on a device, in one stream's order.

    `name`: its tenant's in the ledger. `limit_bytes`: the most it may hold of the device. `allocator`: where its buffers
    of the regime "callbacks" come from; it is kept until the session, and all memory that it gave, is gone, so it should
    not refer to the session.
    Raises `SessionNameError`; `ConfigError` for what is no allocator.
    """

    def __new__(
        cls, runtime: Runtime, name: str, limit_bytes: int | None = None, *, allocator: Allocator | None = None
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
        """What it may hold of the device; None for no limit."""
    @property
    def held_bytes(self) -> int:
        """What it holds of the device: blocks of 512 bytes. What was freed is among it as long as a graph, another library
        or a dispatcher's kernel has it."""
    @property
    def peak_bytes(self) -> int:
        """The most that it has held."""
    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
    @property
    def stream_handle(self) -> int:
        """Its stream, as CUDA's own handle, for libraries that are to order their work with it."""
    def count_buffers(self) -> int:
        """How many handles it has. Raises `SessionEndedError`."""
    def close(self) -> None:
        """Ends it, having waited for its work, and gives everything back. Raises the first error of its work, having
        ended all the same."""
    def synchronize(self) -> None:
        """Waits for all its work; its jobs are done then. Raises the first error of that."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def alloc(
        self,
        shape: Sequence[int],
        dtype: _Dtype = None,
        *,
        regime: Literal["pool", "driver", "managed", "pinned", "callbacks"] = "pool",
    ) -> Buffer:
        """A buffer of `shape` (lengths) whose elements lie side by side; what is in it is unspecified.

        `dtype`: "f32" (the default), "bf16" ..., or a type of NumPy's or PyTorch's. `regime`: "pool", the process's
        pool; "driver", memory of its own; "managed", which host and device both reach; "pinned", page-locked memory
        of the host; "callbacks", what the session's allocator gives.

        Raises `LimitError`, `OutOfMemoryError`, `LayoutError`, `DtypeError`, `SessionEndedError`; `AllocatorError`, and
        `ConfigError` if the session has no allocator.
        """
    def load(self, image: str | bytes) -> Module:
        """Code: PTX as text, or a CUBIN or fat binary, which must be one for this device, as bytes.

        Raises `ModuleError`, with the compiler's log.
        """
    def launch(
        self,
        function: Function,
        grid: _Extents,
        block: _Extents,
        arguments: Iterable[_Argument] | None = None,
        *,
        shared_bytes: int = 0,
    ) -> None:
        """Queues a kernel behind the session's work: `grid` blocks of `block` threads, one to three extents each.

        An argument is a buffer of this session, a `Scalar`, a number of NumPy's, or an int or float, which takes the
        size that the kernel declares. What the kernel touches nobody checks but the software device: it must stay
        within the buffers that it is given. Returns before the kernel has run.

        Raises `ArgumentsError`, `LaunchLimitError`, `StaleHandleError`, `DeviceFaultError` of earlier work.
        """
    def launch_async(
        self,
        function: Function,
        grid: _Extents,
        block: _Extents,
        arguments: Iterable[_Argument] | None = None,
        *,
        shared_bytes: int = 0,
    ) -> Job:
        """The same as a job, which is done when the kernel is; its buffers live until then."""
    def evaluate(
        self, text: str, /, *, into: Mapping[str, Buffer] | None = None, **inputs: Buffer
    ) -> dict[str, Buffer]:
        """Computes expressions over buffers of this session, behind its work: each output by its name. Returns before
        they are computed, unless jobs wait on the host; what is seen for the first time waits for a compiler.

            session.evaluate("t = a * b + c; y = relu(t); top = max(t, axis=-1)", a=a, b=b, c=c)["y"]

        What no later statement uses is an output: by its name, else "out", "out1" ... by the statement's number. The
        package's README has the functions. An input is a buffer of any strides and dtype, by the name that it has in
        the text ("into" is none); what the text does not name is not read. Shapes are broadcast as NumPy's are. Dtypes
        are never mixed: `f32(x)` casts; a number has the dtype of what it stands beside, else f32; sums of integers and
        bool are 64 bits wide. Of f16, bf16 and eight-bit floats values are computed in f32 and rounded where they are
        written or cast.

        An output is a new buffer of the pool, its elements side by side, or the one that `into` has under its name, of
        its dtype and shape, in any strides. That may be an input if each element is computed from the one in its place
        alone, and must have nothing in common with the others.

        Raises `ExpressionError`, with the place where it is the text; `ArgumentsError` for what is no buffer;
        `StaleHandleError`, also for one of another session; `LimitError`, `OutOfMemoryError`, `SessionEndedError`.
        Nothing is computed then.
        """
    def graphs(self, *, budget_bytes: int | None = None, node_bytes: int | None = None) -> Graphs:
        """A cache of graphs of this session's. `budget_bytes`: what all may count for, 1 GiB if not said; `node_bytes`:
        what each piece of work of a graph counts for, 8 KiB if not said, since drivers do not say it. It ends with the
        session, or with its last reference."""
    def argument_block(self, *, pushes: int = 8, **fields: _Dtype | tuple[_Dtype, int]) -> ArgumentBlock:
        """Named fields in device memory, all 0 at first, in the order in which they are given, each at a multiple of its
        size, as in a structure of C: `argument_block(token="u32", weights=("f32", 4))`. Of u32, i32, u64, i64, f32 or
        f64. So many `pushes` may be under way before one waits.

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
        """A kernel that stays on the device and takes small tasks without a launch, over these buffers of the session's,
        whose elements lie side by side from a multiple of 16 bytes on. They stay until it has ended, freed or not.

        `capacity`: places of each of the `priorities` (1 to 8), a power of two. `blocks` take tasks, each of `threads`
        (a multiple of 32, at most 1024), and rest for `idle_ns` nanoseconds when there are none. `steps`: what each
        thread of a task may make. `watchdog_s`: a task that runs longer, in seconds, is cancelled by who waits.

        It begins behind the session's work; from then on the program orders tasks and other work with the buffers: it
        waits for the ones before it gives the others. While it runs, what waits for the whole device waits for it:
        loading code, as an expression that is seen for the first time or a kernel's first launch may, and as the first
        dispatcher with another `capacity`, `priorities`, `threads` or `idle_ns` since a reboot does. Memory of the
        regimes "driver" and "managed" that is freed meanwhile goes back when it has ended, and is held until then.

        Raises `LayoutError`, `ConfigError`, `StaleHandleError`, `SessionEndedError`, `DriverError`.
        """
    def follow_stream(self, stream: int) -> None:
        """Lets what the session is given from now on wait for what is in another library's stream: 1, 2 (the default
        ones) or a handle. A number that is no stream's the software device refuses with `DriverError`; NVIDIA's
        library takes it for an address, and the process may end."""
    def lead_stream(self, stream: int) -> None:
        """Lets another library's stream wait for what the session was given so far, with a number as in
        `follow_stream`."""
    def from_dlpack(self, tensor: _Lends, *, copy: bool | None = None) -> Buffer:
        """A tensor of another library as a buffer: the same memory, ordered behind the lender's work, and given back
        to it when the buffer and all work with it are gone. What is in the host's memory is copied.

        `copy`: True for memory of the session's own, False to have an error instead of a copy.
        Raises `LayoutError`, `DtypeError`.
        """
    def from_cuda_array_interface(self, array: Any, *, copy: bool | None = None) -> Buffer:
        """The same by `__cuda_array_interface__` (version 3, or older). The array is kept alive."""
    def import_memory(
        self,
        address: int,
        shape: Sequence[int],
        dtype: _Dtype,
        *,
        strides: Sequence[int] | None = None,
        deleter: Callable[[], object] | None = None,
    ) -> Buffer:
        """Memory of somebody else's at `address`, the first element's, which the device can use. `strides` count
        elements. `deleter` is called once, in any thread, when the buffer and all work with it are gone, or at once if
        this raises; what it raises goes to `sys.unraisablehook`.

        The memory must reach as far as the shape does, and stay until then. Raises `LayoutError`, `DtypeError`,
        `DriverError` for an address that the driver does not know.
        """
    def map_vram(self, path: str | PathLike[str], *, writable: bool = False) -> VramFile:
        """A file of a filesystem in this device's memory (`fercuda vram mount`), where it is, without a copy. All of it is
        looked at before, and what is wrong is corrected.

        Until it is closed, and no buffer of it is left, calls that change the file fail with `EBUSY`; if it is mapped to
        be written, all that read it too. Raises `VramError`.
        """

@final
class VramFile:
    """A file in device memory, mapped for a session: `Session.map_vram`. Closed at the end of a `with`.

    The file's bytes are in chunks of 128 KiB, which need not lie side by side: with the error-correcting code between
    them are its 9 KiB. What is written to a file that is not writable is found and undone as an error.
    """

    @property
    def size(self) -> int:
        """Bytes of the file, holes among them."""
    @property
    def is_writable(self) -> bool:
        """Whether it may be written to."""
    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
    @property
    def segments(self) -> list[tuple[int, int, int]]:
        """(offset in the file, bytes, address) of all that is in memory, in its order. What lies between is zeros."""
    @property
    def chunks(self) -> list[int] | None:
        """The address of each chunk, 0 of one that is a hole, so that byte i is at chunks[i >> 17] + (i & 131071). None
        if one is in several pieces or has a hole beside data: `segments` has what is there."""
    @property
    def stride_bytes(self) -> int | None:
        """Bytes from one chunk to the next, if that is the same for all and nothing is missing."""
    def buffer(self, offset: int = 0, nbytes: int | None = None) -> Buffer:
        """Bytes ("u8") from `offset` on, to the end without `nbytes`. Raises `LayoutError` if they do not lie side by
        side; `VramError` if it is closed."""
    def rows(self) -> Buffer:
        """All of the file as an array (chunks, 131072) of bytes ("u8"), whose rows need not lie side by side. Raises
        `LayoutError` if that is not so: `stride_bytes`, and a whole number of chunks."""
    def close(self) -> None:
        """Gives it back, when no buffer of it is left: now, and the file has what was written to it, or with the last.
        Waits for all work on the device. Raises `VramError` if what was written could not be kept."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class GraphKey:
    """What a graph is kept under: strings and integers of 64 bits, and a generation, as of the model whose memory the
    graph refers to. Equal keys mean one graph; they are hashable. Raises `ConfigError`."""

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
    """What has become of a capture."""

    @property
    def nodes(self) -> int:
        """Pieces of work."""
    @property
    def bytes(self) -> int:
        """What it counts for in its cache."""
    @property
    def updated(self) -> bool:
        """Whether the graph that was under the key was updated, rather than one made anew."""
    @property
    def capture_s(self) -> float:
        """Seconds of the host to capture it."""
    @property
    def instantiate_s(self) -> float:
        """Seconds of the host to make or update it."""
    @property
    def upload_s(self) -> float:
        """Seconds of the host to send it to the device."""

@final
class GraphTimes:
    """How long a replay took, in seconds."""

    @property
    def upload_s(self) -> float:
        """The host, to send the graph to the device; once, when it was captured."""
    @property
    def launch_s(self) -> float:
        """The host, to launch it."""
    @property
    def device_s(self) -> float:
        """The device, from the launch's turn in the session's order to its end."""
    @property
    def completion_s(self) -> float:
        """The host, from before the launch until it was seen to be done."""

@final
class GraphStatistics:
    """What a cache has, and has done since it was made."""

    @property
    def entries(self) -> int:
        """Graphs that can be replayed."""
    @property
    def bytes(self) -> int:
        """What they count for."""
    @property
    def retired(self) -> int:
        """Graphs let go whose last replays run, or have not been asked after."""
    @property
    def replays(self) -> int:
        """Replays."""
    @property
    def absent(self) -> int:
        """Replays that found nothing."""
    @property
    def instantiated(self) -> int:
        """Graphs made."""
    @property
    def updated(self) -> int:
        """Graphs updated in place."""
    @property
    def evicted(self) -> int:
        """Graphs let go for want of room."""

@final
class Graphs:
    """Graphs of a session, by keys: a step is captured once, and replayed by one call.

        if not graphs.replay(key):
            with graphs.capture(key) as capture:
                capture.launch(kernel, 4, 256, [buffer, block.field("token")])
            graphs.replay(key)

    A key is a `GraphKey`; a string, an integer or a tuple of those stands for one of generation 0. What all count for is
    within the budget: the least recently used go first. All calls raise `SessionEndedError` after the session's end.
    """

    def capture(self, key: _GraphKey) -> Capture:
        """A graph for `key`, from the calls that are made on it in the body of a `with`. Raises `ConfigError` for what
        is no key."""
    def replay(self, key: _GraphKey) -> bool:
        """Queues all work of the graph behind the session's; False if there is none. Does not wait for the device."""
    def replay_timed(self, key: _GraphKey) -> GraphTimes | None:
        """The same, waits until it is done, and says how long it took. None if there is none."""
    def __contains__(self, key: _GraphKey, /) -> bool: ...
    def __len__(self) -> int: ...
    def invalidate(self, key: _GraphKey) -> bool:
        """Lets go of the graph under `key`, behind its last replay, and of one that is being captured for it; whether
        there was one to replay."""
    def invalidate_generation(self, generation: int) -> int:
        """The same of all graphs of a generation; how many there were."""
    def invalidate_all(self) -> int:
        """The same of all graphs; how many there were."""
    def statistics(self) -> GraphStatistics:
        """What it has and has done."""

@final
class Capture:
    """The body of a capture. What it is given is checked at once, and captured all together at the end of the `with`, for
    `Graphs.replay` to do; what the session itself is given meanwhile is done as ever, and is no part of the graph. If the
    body raises, it is discarded, and what was under the key stays.

    Buffers that it is given live as long as the graph does, freed or not. The end of the `with` raises
    `GraphBudgetError`, `GraphInvalidatedError`, `LaunchLimitError`, `LimitError`, `OutOfMemoryError`.
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
        shared_bytes: int = 0,
    ) -> None:
        """A kernel, as `Session.launch` takes it. Numbers are the graph's; what is to change from replay to replay is in
        a buffer, as an `ArgumentBlock`'s. Raises `ArgumentsError`, `StaleHandleError`; `GraphError` outside of the
        `with`."""
    def evaluate(
        self, text: str, /, *, into: Mapping[str, Buffer] | None = None, **inputs: Buffer
    ) -> dict[str, Buffer]:
        """Expressions, as `Session.evaluate` takes them. They are compiled at once, and computed by each replay; before
        the first what is in new buffers is unspecified. Raises as there; `GraphError` outside of the `with`."""
    @property
    def key(self) -> GraphKey:
        """Its key."""
    @property
    def record(self) -> GraphRecord | None:
        """What has become of it; None as long as it is not kept."""

@final
class ArgumentBlock:
    """What changes from replay to replay: named fields in device memory, which are set on the host and pushed together.
    All calls raise `SessionEndedError` after the session's end."""

    @property
    def nbytes(self) -> int:
        """Bytes of all fields and what lies between them."""
    @property
    def fields(self) -> dict[str, tuple[str, int, int]]:
        """By name: dtype, how many values, and where it begins in the block, in bytes."""
    def field(self, name: str) -> Buffer:
        """A field as a buffer, to be given to kernels and expressions: of shape (), or (n,) if it has several values.
        Raises `ConfigError`."""
    @property
    def buffer(self) -> Buffer:
        """All of it as bytes, for kernels that know the offsets."""
    def set(self, **values: SupportsIndex | SupportsFloat | Sequence[int] | Sequence[float]) -> None:
        """Sets fields for the next push: a number, or as many as the field has. If one does not fit, none is set.

        Raises `ConfigError` for a field that there is not, `LayoutError` for another number of values, `OverflowError`,
        `TypeError`.
        """
    def push(self) -> None:
        """Queues a copy of all that was set, behind the session's work: what is given to the session later, as a replay,
        sees it, whatever is set afterwards. Waits only if more pushes are under way than the block was made for, or
        jobs wait on the host."""

@final
class Dispatcher:
    """A kernel that stays, and the queue of its tasks. At the end of a `with` it is stopped; if its body raises, only the
    task that runs is awaited. The session's end stops it too.

    What a task is given are the dispatcher's buffers or contiguous views of them. `priority`: 0 is the highest; a lower one
    waits as long as there is a higher. `steps`: what each thread may make, if not what the dispatcher was made with.
    Nothing waits: all raise `DispatcherFullError`, `DispatcherStoppedError`, `ArgumentsError` for a buffer that is not the
    dispatcher's, `DtypeError`, `ConfigError` for a priority that there is not. What is wrong with a task beyond that is
    told by its ticket, and no other task notices.
    """

    def fill(
        self, to: Buffer, value: SupportsIndex | SupportsFloat, *, priority: int = 0, steps: int | None = None
    ) -> Ticket:
        """`to[i] = value`, of u32, i32 or f32. Its ticket has the number of elements."""
    def copy(self, to: Buffer, source: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`to[i] = source[i]`, as many, of any one dtype whose bytes are a multiple of four in all. They have nothing in
        common, or are one. Its ticket has the number of words of four bytes."""
    def axpy(self, y: Buffer, a: float, x: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`y[i] = a * x[i] + y[i]`, as many, of f32, rounded once. They have nothing in common, or are one. Its ticket has
        the number of elements."""
    def sum(self, into: Buffer, values: Buffer, *, priority: int = 0, steps: int | None = None) -> Ticket:
        """`into[0] = values[0] + values[1] + ...`, of u32 or i32, modulo 2^32, or f32, in an order that the number of threads
        says: each adds every so many-th, and these are added in pairs. `into` is one element. Its ticket has the sum."""
    def statistics(self) -> DispatchStatistics:
        """How much there was to do, and is."""
    def stop(self, timeout: float | None = None) -> None:
        """Takes no more tasks, runs those that it has, and waits until the kernel has ended, `timeout` seconds at most. Its
        buffers are free then. May be called again. Raises `DispatcherRunningError`, and it goes on;
        `DispatcherLostError`, `DeviceFaultError`."""
    def abandon(self) -> None:
        """The same, but tasks that were not begun are given up: their tickets raise `DispatcherStoppedError`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class DispatchStatistics:
    """What a dispatcher had to do, and has."""

    @property
    def submitted(self) -> int:
        """Tasks that were taken in."""
    @property
    def waiting(self) -> int:
        """Of those, how many wait or run."""
    @property
    def done(self) -> int:
        """How many the device has answered, well or not."""
    @property
    def dropped(self) -> int:
        """How many were given up."""
    @property
    def is_stopped(self) -> bool:
        """Whether it takes no more."""
    @property
    def is_lost(self) -> bool:
        """Whether a task runs for ever."""

@final
class Ticket:
    """A task of a dispatcher. Wait for it, `await` it, or forget it."""

    @property
    def task(self) -> Literal["fill", "copy", "axpy_f32", "sum_u32", "sum_f32"]:
        """What it does."""
    @property
    def status(self) -> Literal["waiting", "running", "done", "failed", "cancelled"]:
        """How far it is. Never waits."""
    def done(self) -> bool:
        """Whether it is over. Never waits."""
    def wait(self, timeout: float | None = None) -> int | float:
        """What it has: a sum, else how many elements. `timeout` in seconds. Who waits also watches: a task that runs longer
        than the dispatcher's watchdog allows is cancelled.

        Raises `JobTimeoutError`, and it goes on; `TaskCancelledError`, `TaskError`, `DispatcherStoppedError`,
        `DispatcherLostError`, `DeviceFaultError`.
        """
    def cancel(self) -> None:
        """Asks that it end: one that was not begun is not, one that runs ends in the middle. `wait` says what became of
        it."""
    def __await__(self) -> Generator[Any, None, int | float]: ...

@final
class Buffer:
    """Elements on a device, of one session: a handle of its own, which ends with `free`, at the end of a `with`, or
    with this object. Work that was queued with it goes on; its memory is given back behind that.

    Indexing with integers, slices and an ellipsis, `reshape`, `transpose` and `view` give other buffers of the same
    memory. All raise `StaleHandleError` after `free`, `SessionEndedError` after the session's end.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements along each dimension."""
    @property
    def strides(self) -> tuple[int, ...]:
        """How many elements lie from one to the next along each dimension."""
    @property
    def dtype(self) -> str:
        """What an element is, such as "f32"."""
    @property
    def ndim(self) -> int:
        """How many dimensions."""
    @property
    def size(self) -> int:
        """How many elements."""
    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
    @property
    def is_contiguous(self) -> bool:
        """Whether its elements lie side by side, in their order."""
    @property
    def regime(self) -> str:
        """What its memory is: "pool", "driver", "managed", "pinned", "callbacks" or "foreign"."""
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
        """Whether its address was given out."""
    @property
    def is_freed(self) -> bool:
        """Whether it was freed, or its session has ended."""
    def free(self) -> None:
        """Ends its handle. Never waits."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: _Index | tuple[_Index, ...], /) -> Buffer:
        """A view. Raises `IndexError`."""
    def reshape(self, *shape: int | Sequence[int]) -> Buffer:
        """The same elements in another shape, one length of which may be -1. Raises `LayoutError` if that needs a
        copy."""
    def transpose(self, *order: int | Sequence[int]) -> Buffer:
        """Its dimensions in another order; reversed without one. Raises `LayoutError`."""
    @property
    def T(self) -> Buffer:
        """Its dimensions reversed."""
    def broadcast_to(self, *shape: int | Sequence[int]) -> Buffer:
        """As if it had the larger shape; it can only be read then. Raises `LayoutError`."""
    def view(self, dtype: _Dtype, shape: Sequence[int], offset_bytes: int = 0) -> Buffer:
        """Its memory as elements of `dtype` side by side, from `offset_bytes` behind its first element on. Raises
        `LayoutError` if that reaches outside, or is not aligned."""
    def upload(self, data: HostBytes) -> None:
        """Copies values of the host's into it and waits: an array of its shape and type, or bytes in the order of its
        elements. Raises `LayoutError`, `DtypeError`, `ValuesError`."""
    def upload_async(self, data: HostBytes) -> Job:
        """The same as a job. `data` is copied first, and may change or go at once."""
    def download(self) -> bytes:
        """Its values' bytes, in the order of its elements. Waits."""
    def download_async(self) -> Job:
        """The same as a job, which has the bytes."""
    def copy_from(self, source: Buffer) -> None:
        """Queues a copy of a buffer of the same shape and type, of this session or another, behind the work of both.
        Raises `LayoutError`, `DtypeError`."""
    def copy(self) -> Buffer:
        """A copy in memory of its own, elements side by side. Does not wait."""
    def fill_bytes(self, byte: int) -> None:
        """Queues that each of its bytes becomes `byte`, 0 to 255."""
    def export_device_ptr(self) -> int:
        """The address of its first element, for other libraries. Its memory stays as long as this object does, freed or
        not; ordering their work with the session's (`Session.lead_stream`, `follow_stream`) is the caller's."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's (device type, ordinal): 2 for pool and driver, 13 for managed, 3 for pinned memory."""
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule, whose tensor lives until the borrower's last word, whatever becomes of this.

        `stream`, of the borrower, waits for the session's work: a handle, 1 or None for the legacy default stream, 2
        for the thread's; -1 for no ordering. Memory that the host reads is waited for if there is none.
        `dl_device=(1, 0)` gives the host's memory. Raises `BufferError` for what cannot be done without a copy.
        """
    @property
    def __cuda_array_interface__(self) -> _CudaArray:
        """Version 3, with the session's stream. Its memory stays as long as this object does."""

@final
class Job:
    """Work of a session, done in the order in which it was given. `await` it, wait for it, or forget it."""

    @property
    def number(self) -> int:
        """Its number in its session, from 1 on."""
    @property
    def status(self) -> Literal["waiting", "running", "done", "failed", "cancelled"]:
        """"waiting" on the host, where it can be cancelled; "running" when the device has it."""
    def done(self) -> bool:
        """Whether it is over. Never waits."""
    def wait(self, timeout: float | None = None) -> bytes | None:
        """What it has: a download's bytes, else None. `timeout` in seconds.

        Raises `JobTimeoutError`, and it goes on; `JobCancelledError`, `JobNotRunError`, or what it failed with.
        """
    def cancel(self) -> bool:
        """Cancels it, unless the device has it; whether it was cancelled."""
    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Has `callback` called once, in any thread, when it is over; at once if it is."""
    def __await__(self) -> Generator[Any, None, bytes | None]: ...

@final
class Module:
    """Code on a device."""

    def function(self, name: str) -> Function:
        """A kernel of it. Raises `DriverError`."""

@final
class Function:
    """A kernel."""

    @property
    def name(self) -> str:
        """Its name."""
    @property
    def parameter_bytes(self) -> list[int] | None:
        """The size of each parameter; None if the driver does not say."""
    @property
    def max_threads_per_block(self) -> int:
        """How many threads a block may have."""

@final
class Scalar:
    """A number of a type, as a kernel's argument. Raises `DtypeError`, `OverflowError`."""

    def __new__(cls, dtype: _Dtype, value: SupportsIndex | SupportsFloat) -> Self: ...
    @property
    def dtype(self) -> str:
        """Its type."""

@final
class TritonKernel:
    """A kernel that Triton has compiled. See `fercuda_runtime.guest_hooks`."""

    @staticmethod
    def open(session: Session, path: str) -> TritonKernel:
        """That of NAME.json, with its code beside it. See `open_triton`."""
    @staticmethod
    def load(session: Session, metadata: str, code: str | bytes) -> TritonKernel:
        """That of the text of NAME.json, and PTX as text or a CUBIN as bytes. See `load_triton`."""
    @property
    def name(self) -> str:
        """Its name in its code."""
    @property
    def arch(self) -> int:
        """The compute capability it was compiled for: 90 for sm_90."""
    @property
    def warps(self) -> int:
        """Warps of a program: 32 threads each."""
    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a program."""
    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of a block, which a launch takes from the session and gives back behind the kernel."""
    @property
    def cluster(self) -> tuple[int, int, int]:
        """Blocks of a cluster along each axis; so many each program of a grid is."""
    @property
    def argument_bytes(self) -> list[int] | None:
        """The size of each argument, Triton's own left out; None if the driver does not say."""
    def launch(self, session: Session, grid: _Extents, arguments: Iterable[_Argument] | None = None) -> None:
        """Queues it behind the session's work: `grid` programs, one to three extents, as its author counts them; a
        grid with none does nothing. Returns before it has run.

        Arguments are as `Session.launch` takes them, one for each parameter of its signature that was no constant when
        it was compiled. What Triton took for granted then, as that a pointer or a number is a multiple of 16, must hold
        for them, and the kernel must stay within the buffers: nobody checks that but the software device.

        Raises `ArgumentsError`, `LaunchLimitError`, `StaleHandleError`; `LimitError` or `OutOfMemoryError` where there
        is no scratch memory; `DeviceFaultError` of earlier work. Nothing is queued then.
        """
    def launch_async(self, session: Session, grid: _Extents, arguments: Iterable[_Argument] | None = None) -> Job:
        """The same as a job, which is done when the kernel is; its buffers live until then."""

@final
class Plan:
    """Tensors (name, dtype, shape, first step, step behind the last) in one arena. See `IgnitionPlan`."""

    def __new__(cls, tensors: Sequence[tuple[str, str, Sequence[int], int, int]]) -> Self: ...
    @staticmethod
    def from_json(text: str) -> Plan:
        """What `to_json` gave. Raises `PlanError`."""
    def to_json(self) -> str:
        """As text."""
    @property
    def arena_bytes(self) -> int:
        """What the arena takes."""
    @property
    def tensors(self) -> list[tuple[str, str, list[int], int, int, int]]:
        """Each tensor's row, and where it begins in bytes."""

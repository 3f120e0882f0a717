"""Protocol of a user-supplied allocator for a session."""

from typing import Protocol


class Allocator(Protocol):
    """Device memory managed by the program, such as another library's pool, in stream order of a
    session.

    The caller guarantees that from `allocate` until `free`, and until the device has finished the
    work that was in the stream by then, nothing else uses the memory. It is called from any thread,
    and may use sessions; calls are not nested. It is not called after the interpreter has begun to
    exit.
    """

    def allocate(self, bytes: int, stream: int, /) -> int:
        """Returns the address of `bytes` bytes (at least 1), a multiple of 256, for work queued in
        `stream` from now on; `stream` is a CUstream as an integer. An exception becomes the cause
        of the `AllocatorError` of `Session.alloc`."""
    def free(self, address: int, bytes: int, stream: int | None, /) -> object:
        """Frees memory, once, in stream order: the device may still use it until the current work
        in `stream` is done. `stream` is None if the context has failed, so that nothing runs any
        more. An exception goes to `sys.unraisablehook`."""

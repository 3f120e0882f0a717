"""What a session's allocator of the program's own is."""

from typing import Protocol


class Allocator(Protocol):
    """Device memory that the program has anyhow, such as another library's pool, in the order of a session's stream.

    Who passes one vouches for its memory: from `allocate` until `free`, and until the device has done what the stream has
    then, nobody else uses it. It is called in whatever thread, and may use sessions; but while it is asked it is not
    asked again. After the interpreter's exit has begun it is not called.
    """

    def allocate(self, bytes: int, stream: int, /) -> int:
        """The address of `bytes` bytes, at least 1, a multiple of 256, for what is queued in `stream` from now on: a
        CUstream as a number. What it raises is the cause of the `AllocatorError` that `Session.alloc` raises."""
    def free(self, address: int, bytes: int, stream: int | None, /) -> object:
        """Takes memory back, once. The device may still use it: it is free behind what `stream` has now. None if the
        context has failed, so that nothing runs any more. What it raises `sys.unraisablehook` hears of."""

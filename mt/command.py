"""How a command of `scripts/` begins, and ends: with its output, or with one line that says why not."""

import ctypes
import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def end_by_signals() -> None:
    """Ctrl-C and SIGTERM end the process as an exit does, what is open closed. Before the imports that take long."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def open_streams() -> None:
    """Output is UTF-8, wherever it goes; a closed stream is an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def outlive_readers() -> None:
    """Work of hours goes on where its output can't be written any more: to `| head`, or a full disk."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.flush()
            raw = io.BufferedWriter(_Lasting(os.dup(stream.fileno()), "w"))
            lasting = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
            setattr(sys, name, lasting)


class _Lasting(io.FileIO):
    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


@contextmanager
def naming(place: str | Path) -> Iterator[None]:
    """An error of the system that doesn't say where (no space left) says it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(place)
        raise


def check_writable(path: str | Path) -> None:
    """OSError, before the work, where what it ends with can't be written. A file that is there stays as it is."""
    path = Path(path)
    is_new = not path.exists()
    with path.open("ab"):
        pass
    if is_new:
        path.unlink()


def arrange_memory() -> None:
    """What this process keeps of its memory, for speed, and what it doesn't. Before torch computes anything.

    glibc would give large blocks back to the system as soon as they are freed, and each of their pages costs a fault
    when the next tensor takes it anew: a tenth of a training step. oneDNN would keep 1,024 compiled products; but the
    shapes of batches are many and seldom come again. With the 64 of a step it is no slower, and takes hundreds of
    megabytes less in bf16, most of them holes between those products.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its most: only blocks above 32 MB go back at once
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, at its most: nor does the end of the heap, below 2 GB


@contextmanager
def within_memory() -> Iterator[None]:
    """MemoryError where torch, in words alone, says that the processor's memory or a GPU's doesn't suffice."""
    try:
        yield
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        raise MemoryError(f"not enough memory, take smaller batches or a smaller model: {error}") from error


@contextmanager
def command(*users_errors: type[Exception]) -> Iterator[None]:
    """What a user can cause (ValueError, OSError, too little memory, the given): one line on stderr, code 1.

    A reader that has enough (`| head`) ends the command without a word, code 141.
    """
    open_streams()
    arrange_memory()
    try:
        with within_memory():
            yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush fails again
        sys.exit(141)
    except Exception as error:
        if isinstance(error, (ValueError, OSError, MemoryError, *users_errors)):
            sys.exit(refusal(error))
        raise


def refusal(error: BaseException) -> str:
    """In one line, whatever is in it."""
    reason = str(error) or type(error).__name__
    if isinstance(error, OSError):  # without Python's number
        where = "" if error.filename is None else f"{error.filename}: "
        reason = f"{where}{error.strerror or error}"
    return f"{Path(sys.argv[0]).name}: {' '.join(reason.split())}"

"""How a command of `scripts/` ends: with its output, or with one line that says why not."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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


@contextmanager
def command(*users_errors: type[Exception]) -> Iterator[None]:
    """What a user can cause (ValueError, OSError and the given) is one line on stderr and exit code 1.

    A reader that has enough (`| head`) ends the command without a word, code 141.
    """
    open_streams()
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush fails again
        sys.exit(141)
    except OSError as error:
        reason = str(error) if error.filename is None else f"{error.filename}: {error.strerror}"
        sys.exit(refusal(reason))
    except Exception as error:
        if isinstance(error, (ValueError, *users_errors)):
            sys.exit(refusal(str(error)))
        raise


def refusal(reason: str) -> str:
    """In one line, whatever is in it."""
    return f"{Path(sys.argv[0]).name}: {' '.join(reason.split())}"

"""How a command of `scripts/` ends: with its output, or with one line that says why not."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def command(*users_errors: type[Exception]) -> Iterator[None]:
    """What a user can cause (ValueError, OSError and the given) is one line on stderr and exit code 1.

    A closed stream is an empty one; a reader that has enough (`| head`) ends the command without a word, code 141.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's last flush fails again
        sys.exit(141)
    except Exception as error:
        if not isinstance(error, (ValueError, OSError, *users_errors)):
            raise
        reason = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            reason = f"{error.filename}: {error.strerror}"
        sys.exit(f"{Path(sys.argv[0]).name}: {' '.join(reason.split())}")

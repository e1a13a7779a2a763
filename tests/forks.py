"""Runs the scripts in forks of a process that has imported everything: real processes, without seconds of imports.

`start` for whoever wants to kill them; as a program, a server: a JSON list (folder, command line, standard input) a
line in, [exit code, standard output, standard error] a line out.
"""

# ruff: noqa: SIM115
import json
import os
import runpy
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def import_everything() -> None:
    import datasets  # noqa: F401
    import hydra  # noqa: F401
    from torch.utils.tensorboard import SummaryWriter  # noqa: F401

    import mt.training.checkpoints
    import mt.training.precision
    import mt.training.progress
    import mt.training.report
    import mt.training.settings  # noqa: F401


@dataclass
class Fork:
    pid: int
    files: list[Any]

    def wait(self) -> tuple[int, str, str]:
        """Exit code (minus the number of a signal that killed it), standard output and standard error."""
        _, status = os.waitpid(self.pid, 0)
        for file in self.files:
            file.seek(0)
        out, err = (file.read().decode("utf-8", "replace") for file in self.files[1:])
        return os.waitstatus_to_exitcode(status), out, err


def start(folder: Path | str, command: list[str], given: bytes = b"") -> Fork:
    """command: a script of this repository and its arguments."""
    files = [tempfile.TemporaryFile() for _ in range(3)]
    files[0].write(given)
    files[0].seek(0)
    pid = os.fork()
    if pid:
        return Fork(pid, files)
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(n, mode, encoding="utf-8", closefd=False) for n, mode in enumerate("rww")
        )
        os.chdir(folder)
        sys.argv = [str(ROOT / command[0]), *command[1:]]
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:  # as the interpreter does it
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        elif end.code is not None:
            code = int(end.code)
        else:
            code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    import_everything()
    for line in sys.stdin:
        folder, command, given = json.loads(line)
        print(json.dumps(start(folder, command, given.encode("latin-1")).wait()), flush=True)

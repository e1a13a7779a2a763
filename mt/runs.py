"""Where runs lie: runs/<date_time>/best.ckpt, last.ckpt, summary.json and TensorBoard's events."""

from datetime import datetime
from pathlib import Path

BEST, LAST = "best.ckpt", "last.ckpt"


def run_folder(resume: str | None) -> str:
    """A new run's folder, made here and so its own, or that of the run which is resumed, if there is one."""
    if resume and Path(resume).exists():
        return str(Path(resume) if Path(resume).is_dir() else Path(resume).parent)
    name = f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}"
    folder, others = Path(name), 1
    while True:
        try:
            folder.mkdir(parents=True)
            return str(folder)
        except FileExistsError:  # another run of the same second
            others += 1
            folder = Path(f"{name}_{others}")


def checkpoint_of(path: str, name: str) -> Path:
    """The checkpoint itself, or the one called `name` of a run's folder. ValueError where there is none."""
    found = Path(path) / name if Path(path).is_dir() else Path(path)
    if not found.is_file():
        raise ValueError(f"no checkpoint at {found}")
    return found


def best_checkpoint(path: str | None) -> Path:
    """`checkpoint_of` a file or a run's folder; None: the newest run's best."""
    return newest_checkpoint() if path is None else checkpoint_of(path, BEST)


def newest_checkpoint() -> Path:
    """The newest run's best checkpoint below runs/. ValueError where there is none."""
    found = sorted(Path("runs").glob(f"**/{BEST}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise ValueError(
            f"no {BEST} below {Path('runs').resolve()}: train first (python scripts/train.py), or name a checkpoint"
        )
    return found[-1]

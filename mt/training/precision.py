"""Which precision is fast here: bf16 where the hardware multiplies it fast, float32 elsewhere."""

import time

import torch

WORTH_IT = 1.5  # bf16 has to be that much faster: it costs casts, and digits


def choose_precision(accelerator: str) -> tuple[str, str]:
    """Lightning's name of a precision, and the reason for it in words. accelerator: Lightning's name of one."""
    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        name = torch.cuda.get_device_name()
        if major >= 8:
            return "bf16-mixed", f"{name} (compute capability {major}.{minor}) computes bf16 fast"
        return "32-true", f"{name} (compute capability {major}.{minor}) has no fast bf16"
    if accelerator == "auto" and torch.backends.mps.is_available():
        accelerator = "mps"
    if accelerator not in ("auto", "cpu"):
        return "32-true", f"nothing is known about bf16 on {accelerator}"
    single, half = _gigaflops(torch.float32, torch.bfloat16)
    measured = f"this processor multiplies {half:.0f} GFLOP/s in bf16, {single:.0f} in float32"
    return ("bf16-mixed" if half > WORTH_IT * single else "32-true"), measured


def check_precision(asked: str | int, given: str) -> None:
    """ValueError where Lightning has, with a warning only, taken bf16 instead of what a processor doesn't have."""
    if given == "bf16-mixed" and not str(asked).startswith("bf16"):
        raise ValueError(f"precision={asked} is for GPUs: a processor has bf16-mixed and 32-true")


def _gigaflops(*dtypes: torch.dtype) -> list[float]:
    """The best of some products in the shape of a feed-forward layer, in turns: what else runs slows all of them."""
    rows, d_model, d_ff = 1024, 256, 1024
    best = dict.fromkeys(dtypes, float("inf"))
    for dtype in 30 * dtypes:
        a, b = torch.ones(rows, d_model, dtype=dtype), torch.ones(d_model, d_ff, dtype=dtype)
        start = time.perf_counter()
        a @ b
        best[dtype] = min(best[dtype], time.perf_counter() - start)
    return [2 * rows * d_model * d_ff / seconds / 1e9 for seconds in best.values()]

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
    single, half = _gigaflops(torch.float32), _gigaflops(torch.bfloat16)
    measured = f"this processor multiplies {half:.0f} GFLOP/s in bf16, {single:.0f} in float32"
    return ("bf16-mixed" if half > WORTH_IT * single else "32-true"), measured


def _gigaflops(dtype: torch.dtype) -> float:
    """The best of a few products in the shape of a feed-forward layer."""
    rows, d_model, d_ff = 1024, 256, 1024
    a, b = torch.ones(rows, d_model, dtype=dtype), torch.ones(d_model, d_ff, dtype=dtype)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * rows * d_model * d_ff / best / 1e9

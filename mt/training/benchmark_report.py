"""What the benchmark measured, for people: every number beside the one it is held against."""

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

Results = dict[str, dict[str, Any]]
"""The JSON of scripts/benchmark.py."""


def results_table(results: Results) -> Table:
    """The numbers for people: what was measured, what it is held against, and how they compare."""
    machine, products, steps = (results[part] for part in ("machine", "matmul", "training"))
    batches, found, start = (results[part] for part in ("input", "decoding", "startup"))
    table = Table(title=f"{machine['threads']} threads, torch {machine['torch']}", title_justify="left", box=SIMPLE)
    for name, justify in (("", "left"), ("here", "right"), ("beside", "right"), ("", "left"), ("", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]

    def row(what: str, here: float, beside: float, other: str, comparison: str) -> None:
        table.add_row(what, *(f"{x:,.0f}" if x >= 100 else f"{x:.2f}" for x in (here, beside)), other, comparison)

    float32, bf16 = products["float32_gigaflops"], products["bfloat16_gigaflops"]
    row("float32 products, GFLOP/s", float32, bf16, "in bf16", f"x {float32 / bf16:.2f}")
    speed, usual = steps["tokens_per_second"], steps["usual_tokens_per_second"]
    row(f"training in {machine['precision']}, pieces/s", speed, usual, "torch's own network", f"x {steps['ratio']:.2f}")
    row("", speed, steps["bound_tokens_per_second"], "the products alone", f"{steps['bound_fraction']:.0%}")
    row(
        "batches, pieces/s",
        batches["tokens_per_second"],
        speed,
        "training",
        f"{batches['share_of_step']:.1%} of a step",
    )
    row("padding, %", 100 * batches["own_padding"], 100 * batches["padding"], "at a budget of 4,096", "")
    greedy, beam4, single = found["greedy_per_second"], found["beam4_per_second"], found["single_per_second"]
    same = f"{found['identical']:.1%} identical"
    row(
        "greedy, sentences/s",
        greedy,
        found["plain_greedy_per_second"],
        "recomputing",
        f"x {found['greedy_ratio']:.1f}, {same}",
    )
    row("", greedy, beam4, "with a beam of 4", f"x {found['beam4_cost']:.1f}")
    row("greedy, one at a time", single, found["single_beam4_per_second"], "with a beam of 4", "")
    row(
        "translate.py, seconds",
        start["seconds"],
        start["import_torch_seconds"],
        "import torch",
        f"x {start['ratio']:.2f}",
    )
    table.add_row("memory of training, MiB", f"{results['memory']['peak_mib']:,.0f}")
    return table

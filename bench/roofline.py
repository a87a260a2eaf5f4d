#!/usr/bin/env python3
"""Draws bench/results/h200.json: left, kernels under the roofline (what the machine's copy and largest
product reached in the same run); right, whole steps of the 8B shape as a share of their floor.

    bench/roofline.py bench/results/h200.json docs/roofline_h200.png       (needs matplotlib)
"""
import json
import re
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

# Rows of weights and columns of the 8B shape's products.
PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336),
            "head": (128256, 4096)}
LENGTHS = {"1k": 1024, "4k": 4096, "8k": 8192, "16k": 16384, "32k": 32768}
PREFILL_BATCH = {"1k": 16, "4k": 4, "8k": 2, "16k": 1}


def product(row):
    match = re.fullmatch(r"skinny_linear_8b_(\w+)_m(\d+)", row["name"])
    if not match or match.group(1) not in PRODUCTS:
        return None
    n, k = PRODUCTS[match.group(1)]
    rows = int(match.group(2))
    flops = 2.0 * rows * n * k
    return flops / (2.0 * n * k), flops / row["value"] * 1e-6, "products of 1 to 64 rows"


def decode(row):
    match = re.fullmatch(r"decode_attention_b(\d+)_(\d+k)", row["name"])
    if not match:
        return None
    batch, length = int(match.group(1)), LENGTHS[match.group(2)]
    flops = 4.0 * batch * 32 * 128 * length
    moved = 4.0 * batch * 8 * 128 * length
    return flops / moved, flops / row["value"] * 1e-6, "decode attention"


def prefill(row):
    match = re.fullmatch(r"prefill_attention_(\d+k)", row["name"])
    if not match:
        return None
    length, batch = LENGTHS[match.group(1)], PREFILL_BATCH[match.group(1)]
    flops = 2.0 * batch * length * length * 32 * 128
    moved = 2.0 * 4 * batch * length * 32 * 128
    return flops / moved, row["value"], "prefill attention"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    by_name = {row["name"]: row for row in rows}
    bandwidth = by_name["copy_bandwidth"]["value"] * 1e-3  # TB/s
    peak = max(row["value"] for row in rows if row["name"].startswith("matmul_8b"))
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), width_ratios=(3, 2))
    xs = [0.5, peak / bandwidth, 20000]
    left.plot(xs, [min(peak, x * bandwidth) for x in xs], color="black", linewidth=1)
    left.text(10, 10 * bandwidth * 1.5, f"copy {bandwidth:.2f} TB/s", fontsize=9, ha="right")
    left.text(600, peak * 1.1, f"largest product {peak:.0f} TFLOP/s", fontsize=9)
    points = {}
    for row in rows:
        for kind in (product, decode, prefill):
            point = kind(row)
            if point:
                points.setdefault(point[2], []).append(point[:2])
    for label, values in points.items():
        left.scatter(*zip(*values), label=label, s=22)
    left.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="TFLOP/s",
             title="Kernels (bf16), against ceilings of the same run")
    left.legend(fontsize=9)
    left.grid(alpha=0.3)
    steps = [name for name in ("decode_step_8b_b1", "decode_step_8b_b8", "decode_step_8b_b64",
                               "decode_step_8b_b256", "prefill_8b_4k") if name in by_name]
    right.barh(steps[::-1], [by_name[name]["ratio"] * 100 for name in steps[::-1]])
    for i, name in enumerate(steps[::-1]):
        right.text(2, i, f"{by_name[name]['value']:.2f} {by_name[name]['unit']}", va="center",
                   color="white", fontsize=9)
    right.axvline(100, color="black", linewidth=1)
    right.set(xlabel="% of the floor", title="Whole steps, Llama-3-8B shape", xlim=(0, 105))
    first = rows[0]
    figure.suptitle(f"{first['hardware']}, {first['date']}, commit {first['commit']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()

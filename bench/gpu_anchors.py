#!/usr/bin/env python3
"""Anchors of gpu_bench, from the libraries that PyTorch carries: what cuDNN, cuBLAS and a copy
reach on this GPU. Prints and writes one flat JSON object {name: figure}: TFLOP/s for attention and
products, GB/s for copies and for decode. Names are those of gpu_bench's rows. Medians of single
calls timed with events, second-level cache flushed before each.

    bench/gpu_anchors.py OUT.json [REGEX] && BATON_ANCHORS=OUT.json gpu_bench prefill

With two GPUs also what NCCL moves between them, in pieces of a hand-over.
"""
import json
import re
import socket
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

FLUSH_BYTES = 256 << 20
IDLE_SECONDS = 0.4
WARM_SECONDS = 0.2
NCCL_CHUNK_BYTES = 32 << 20
NCCL_CHUNKS = 64
NCCL_LIMIT_SECONDS = 60


def median_seconds(run, iterations=15):
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    # Rows do not heat each other, then clocks rise and settle under load: gpu_bench does the same.
    time.sleep(IDLE_SECONDS)
    warm_until = time.monotonic() + WARM_SECONDS
    while time.monotonic() < warm_until:
        run()
        torch.cuda.synchronize()
    times = []
    for _ in range(iterations):
        flush.fill_(1)
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.bfloat16, device="cuda")


def prefill_tflops(batch, length, heads, kv_heads, head_dim):
    # As serving has them: heads within tokens, so the head dimension is a view.
    q = normal(batch, length, heads, head_dim).transpose(1, 2)
    k = normal(batch, length, kv_heads, head_dim).transpose(1, 2)
    v = normal(batch, length, kv_heads, head_dim).transpose(1, 2)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        seconds = median_seconds(lambda: scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=heads != kv_heads))
    return 2 * batch * length * (length + 1) * heads * head_dim / seconds * 1e-12


def decode_gb_per_second(batch, length, heads=32, kv_heads=8, head_dim=128):
    q = normal(batch, heads, 1, head_dim)
    k = normal(batch, kv_heads, length, head_dim)
    v = normal(batch, kv_heads, length, head_dim)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        seconds = median_seconds(lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True))
    return 2 * k.numel() * 2 / seconds * 1e-9


def copy_gb_per_second():
    source = normal(1 << 30)
    to = torch.empty_like(source)
    return 2 * source.numel() * 2 / median_seconds(lambda: to.copy_(source)) * 1e-9


def product_tflops(size):
    a = normal(size, size)
    b = normal(size, size)
    out = torch.empty_like(a)
    return 2 * size**3 / median_seconds(lambda: torch.mm(a, b, out=out)) * 1e-12


def nccl_rank(rank, port, queue):
    """One of two processes, GPU `rank`: 32 MiB from 0 to 1, again and again."""
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}",
                                         rank=rank, world_size=2)
    chunk = torch.randint(0, 256, (NCCL_CHUNK_BYTES,), dtype=torch.uint8, device="cuda")
    move = torch.distributed.send if rank == 0 else torch.distributed.recv
    times = []
    for _ in range(8):
        torch.distributed.barrier()
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(NCCL_CHUNKS):
            move(chunk, 1 - rank)
        torch.cuda.synchronize()
        times.append(time.monotonic() - start)
    if rank == 1:
        queue.put(NCCL_CHUNKS * NCCL_CHUNK_BYTES / statistics.median(times[2:]) * 1e-9)
    torch.distributed.destroy_process_group()


def nccl_gb_per_second():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    ranks = [context.Process(target=nccl_rank, args=(rank, port, queue)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    deadline = time.monotonic() + NCCL_LIMIT_SECONDS
    for rank in ranks:
        rank.join(max(0, deadline - time.monotonic()))
    if any(rank.exitcode != 0 for rank in ranks):
        for rank in ranks:
            rank.kill()
        raise RuntimeError("NCCL between two GPUs did not move anything in time")
    return queue.get()


def main():
    runs = {
        "copy_bandwidth": copy_gb_per_second,
        "cublas_8192": lambda: product_tflops(8192),
        "cudnn_decode_b64_4k": lambda: decode_gb_per_second(64, 4096),
        "cudnn_decode_b256_1k": lambda: decode_gb_per_second(256, 1024),
        "cudnn_decode_b1_4k": lambda: decode_gb_per_second(1, 4096),
        "cudnn_decode_b1_32k": lambda: decode_gb_per_second(1, 32768),
    }
    for batch, length in ((16, 1024), (4, 4096), (2, 8192), (1, 16384)):
        shape = (batch, length)
        name = f"{length // 1024}k"
        runs[f"prefill_attention_{name}"] = lambda s=shape: prefill_tflops(*s, 32, 32, 128)
        runs[f"prefill_attention_gqa_{name}"] = lambda s=shape: prefill_tflops(*s, 32, 8, 128)
        if length in (4096, 16384):
            for dim in (64, 256):
                runs[f"prefill_attention_hd{dim}_{name}"] = (
                    lambda s=shape, d=dim: prefill_tflops(*s, 4096 // d, 4096 // d, d))
    if torch.cuda.device_count() >= 2:
        runs["kv_handover_32mib"] = nccl_gb_per_second
    if len(sys.argv) > 2:
        runs = {name: run for name, run in runs.items() if re.search(sys.argv[2], name)}
    figures = {}
    for name, run in runs.items():
        try:
            figures[name] = round(run(), 2)
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr)
        print(f"{name:40} {figures.get(name, '-')}", flush=True)
    if len(sys.argv) > 2 and len(figures) < len(runs):
        sys.exit("what was asked for could not be measured")
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as out:
            json.dump(figures, out, indent=2)


if __name__ == "__main__":
    main()

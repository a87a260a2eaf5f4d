#!/usr/bin/env python3
"""Serving benchmarks on this machine, as a markdown table: router overhead with null workers, the
hand-over against a colocated worker, CPU tokens per second. Needs the cpu-release build, and of PyPI
grpcio and grpcio-tools (tests/requirements.txt).

  bench/serving_bench.py [--quick]

Figures are medians of REPEATS runs; anchors are taken in the same run.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/integration"))
import cluster as c  # noqa: E402

LOADGEN = ROOT / "build/cpu-release/bench/load_generator"


def load(endpoint, model, **flags):
    args = [str(LOADGEN), "--endpoint", endpoint, "--model", model]
    for key, value in flags.items():
        args += ["--" + key.replace("_", "-"), str(value)]
    out = subprocess.run(args, capture_output=True, text=True, timeout=600)
    assert out.returncode == 0, out.stdout + out.stderr
    return json.loads(out.stdout)


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def rows_router_overhead(repeats):
    """Everything but a model: null engines behind real workers and a real hand-over."""
    cluster = c.Cluster({"m": c.MODELS / "succ"}, worker_args=["--null-engine", "--threads", "1",
                                                               "--kv-memory", "256MiB",
                                                               "--max-sequences", "256"])
    try:
        one, many, short = [], [], []
        cpu_per_token, memory = [], []
        for _ in range(repeats):
            one.append(load(cluster.front.listen, "m", streams=1, requests=500, prompt_tokens=16,
                            max_tokens=1))
            short.append(load(cluster.front.listen, "m", streams=1, requests=500, prompt_tokens=16,
                              max_tokens=2))
            cpu = cluster.router.metric("process_cpu_seconds_total")
            rss = cluster.router.rss_bytes()
            run = load(cluster.front.listen, "m", streams=128, requests=1024, prompt_tokens=16,
                       max_tokens=256)
            used = cluster.router.metric("process_cpu_seconds_total") - cpu
            many.append(run)
            cpu_per_token.append(1024 * 256 / used)
            memory.append((cluster.router.rss_bytes() - rss) / 128)
        yield ("router + prefill worker, null engine, 1 token, 1 client: request p50",
               f"{median(one, 'request_ms_p50') * 1e3:.0f} µs")
        yield ("the same, p99", f"{median(one, 'request_ms_p99') * 1e3:.0f} µs")
        yield ("router + P + D with hand-over over tcp, null engine, 2 tokens: request p50",
               f"{median(short, 'request_ms_p50') * 1e3:.0f} µs")
        yield ("the same, p99", f"{median(short, 'request_ms_p99') * 1e3:.0f} µs")
        yield ("cost of the hand-over: the difference of the two p50",
               f"{(median(short, 'request_ms_p50') - median(one, 'request_ms_p50')) * 1e3:.0f} µs")
        yield ("128 streams of 256 tokens, null engine: tokens/s, all four processes on this machine",
               f"{median(many, 'tokens_per_second'):,.0f}")
        yield ("router tokens/s per core of router CPU", f"{statistics.median(cpu_per_token):,.0f}")
        yield ("router memory per open stream (growth of RSS / 128, first run)",
               f"{max(memory[0], 0) / 1024:.0f} KiB")
    finally:
        cluster.close()


def rows_handover(repeats, model, path):
    """A prompt of 480 tokens: time to the second token with and without a hand-over."""
    results = {}
    for mode in ("serve", "serve-split", "split"):
        cluster = c.Cluster({"m": path}, mode=mode, worker_args=["--kv-memory", "256MiB"])
        try:
            results[mode] = [load(cluster.front.listen, "m", streams=1, requests=20,
                                  prompt_tokens=480, first_token_id=300, token_ids=200,
                                  max_tokens=2)
                             for _ in range(repeats)]
        finally:
            cluster.close()
    base = median(results["serve"], "request_ms_p50")
    for mode, name in (("serve", "combined worker"), ("serve-split", "P and D, local wire"),
                       ("split", "P and D, tcp wire")):
        value = median(results[mode], "request_ms_p50")
        yield (f"{model}, prompt 480, 2 tokens, {name}: request p50",
               f"{value:.2f} ms (x{value / base:.2f} of combined)")


def rows_model(repeats, model, path, id_range):
    cluster = c.Cluster({"m": path}, mode="serve", worker_args=["--kv-memory", "256MiB"])
    try:
        first, count = id_range
        flags = {"first_token_id": first, "token_ids": count}
        prefill = [load(cluster.front.listen, "m", streams=4, requests=16, prompt_tokens=480,
                        max_tokens=1, **flags) for _ in range(repeats)]
        yield (f"{model}: prefill tokens/s (4 clients, prompts of 480)",
               f"{median(prefill, 'requests_per_second') * 480:,.0f}")
        for streams in (1, 16):
            decode = [load(cluster.front.listen, "m", streams=streams, requests=streams * 2,
                           prompt_tokens=4, max_tokens=200, **flags) for _ in range(repeats)]
            yield (f"{model}: decode tokens/s, {streams} stream(s)",
                   f"{median(decode, 'tokens_per_second'):,.0f}")
    finally:
        cluster.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="one run of each")
    repeats = 1 if parser.parse_args().quick else 5
    rows = list(rows_router_overhead(repeats))
    rows += rows_handover(repeats, "stories260K", c.MODELS / "stories260K")
    rows += rows_model(repeats, "stories260K", c.MODELS / "stories260K", (300, 200))
    rows += rows_model(repeats, "prose-1m-draft", c.MODELS / "prose-1m-draft", (300, 3000))
    if (c.SHARED / "models/prose-22m").exists():
        rows += rows_model(repeats, "prose-22m", c.SHARED / "models/prose-22m", (300, 3000))
        rows += rows_handover(repeats, "prose-22m", c.SHARED / "models/prose-22m")
    print("| what | median |\n|---|---|")
    for what, value in rows:
        print(f"| {what} | {value} |")


if __name__ == "__main__":
    main()

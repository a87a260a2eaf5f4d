#!/usr/bin/env python3
"""`baton serve` of an 8B shape on one GPU under 1, 8, 64 and 256 concurrent streams, measured by the
load generator over the public API. Writes rows in the form of bench/results.

    bench/gpu_serving.py BUNDLE OUT.json       (BUNDLE: build/gpu-bundle, or build/cuda-release)
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/gpu"))
from gpu_processes import Daemon, await_model  # noqa: E402

PROMPT_TOKENS = 512
OUTPUT_TOKENS = 128
STREAMS = (1, 8, 64, 256)
MODEL = "synthetic:llama3-8b"


def program(bundle, name):
    for folder in ("bin", "bench", "gpu"):
        path = os.path.join(bundle, folder, name)
        if os.path.exists(path):
            return path
    sys.exit(f"no {name} in {bundle}")


def row(name, value, unit):
    return {"name": name, "value": value, "unit": unit, "anchor": "none", "anchor_value": 0,
            "ratio": 0, "command": "bench/gpu_serving.py", "hardware": hardware(),
            "date": datetime.date.today().isoformat(), "commit": os.environ.get("BATON_COMMIT", "")}


def hardware():
    out = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
                         capture_output=True, text=True, timeout=30, check=True)
    return out.stdout.strip().splitlines()[0]


def load(bundle, endpoint, streams, requests, prompt_tokens, max_tokens):
    """What the load generator says; ends the program when a request failed."""
    run = subprocess.run(
        [program(bundle, "load_generator"), "--endpoint", endpoint, "--model", "m", "--streams",
         str(streams), "--requests", str(requests), "--prompt-tokens", str(prompt_tokens),
         "--max-tokens", str(max_tokens), "--first-token-id", "300", "--token-ids", "100000"],
        capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    return json.loads(run.stdout)


def main():
    bundle, out = sys.argv[1], sys.argv[2]
    start = time.monotonic()
    baton = program(bundle, "baton")
    server = Daemon(baton, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device",
                    "cuda", "--max-sequences", "256", "--max-tokens-per-step", "4096", "--context",
                    "8192", "--cache", os.environ.get("BATON_CACHE", "/tmp/baton"), f"m={MODEL}")
    endpoint = server.ready["listen"]
    # Ready is what a client sees: the first token of the first request.
    await_model(baton, endpoint, "m", tokens=1, limit=60)
    seconds = time.monotonic() - start
    rows = [row("ready_8b_seconds", seconds, "s")]
    print(f"ready after {seconds:.2f} s")
    for streams in STREAMS:
        result = load(bundle, endpoint, streams, max(4, 2 * streams), PROMPT_TOKENS, OUTPUT_TOKENS)
        print(f"{streams} streams: {result['tokens_per_second']:.0f} tok/s, first token p50 "
              f"{result['first_token_ms_p50']:.1f} ms, failed {result['failed']}")
        rows.append(row(f"serve_8b_{streams}_streams", result["tokens_per_second"], "tok/s"))
        rows.append(row(f"serve_8b_{streams}_streams_ttft_p50", result["first_token_ms_p50"], "ms"))
    server.stop()
    with open(out, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

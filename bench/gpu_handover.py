#!/usr/bin/env python3
"""What the hand-over costs between a prefill and a decode worker of an 8B shape, seen by a client of the
public API: prompts of 4096 tokens, the load generator on the same machine. Needs two GPUs, one each.

    bench/gpu_handover.py BUNDLE OUT.json [--kv-wire auto] [--chunk 512] [--logs FOLDER]

Exposed: from the first token, which the prefill worker says at the end of its last layer, to the second,
the decode worker's first, less what the decode worker takes for a later token. Slowdown of the prefill
worker: requests of two tokens (handed over) beside requests of one (not), several at a time.
"""
import argparse
import atexit
import json
import os
import socket
import subprocess
import sys
import time

from gpu_serving import hardware, program, row

MODEL = "m=synthetic:llama3-8b"
PROMPT_TOKENS = 4096


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(bundle, log_folder, name, *args):
    log = open(os.path.join(log_folder, name + ".log"), "w", encoding="utf-8") if log_folder else None
    level = ["--log-level", "debug"] if log_folder else []
    process = subprocess.Popen([program(bundle, "baton"), *args, *level], stdout=subprocess.PIPE,
                               stderr=log, text=True)
    atexit.register(process.kill)  # Whatever fails, it must not keep the GPU's memory.
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{args[0]} did not start")
    return process, dict(field.split("=", 1) for field in line.split() if "=" in field)


def await_tokens(bundle, endpoint):
    """Until the router has found both workers."""
    deadline = time.monotonic() + 30
    while subprocess.run([program(bundle, "baton"), "generate", "--endpoint", endpoint, "--model", "m",
                          "--prompt", "a", "--max-tokens", "2"], capture_output=True,
                         timeout=60).returncode != 0:
        if time.monotonic() > deadline:
            sys.exit("the cluster does not serve after 30 s")


def load(bundle, endpoint, streams, requests, max_tokens):
    run = subprocess.run(
        [program(bundle, "load_generator"), "--endpoint", endpoint, "--model", "m", "--streams",
         str(streams), "--requests", str(requests), "--prompt-tokens", str(PROMPT_TOKENS),
         "--max-tokens", str(max_tokens), "--first-token-id", "300", "--token-ids", "100000"],
        capture_output=True, text=True, timeout=120)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    return json.loads(run.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("out")
    parser.add_argument("--kv-wire", default="auto", choices=("tcp", "auto", "nccl"))
    parser.add_argument("--chunk", type=int, default=512, help="tokens a step of the prefill worker")
    parser.add_argument("--staging-slot", default="auto")
    parser.add_argument("--kv-nccl-ctas", type=int, default=16)
    parser.add_argument("--logs", help="a folder for logs that time every piece of a hand-over")
    parser.add_argument("--one-gpu", action="store_true",
                        help="both on one GPU: to try the script, its rows are named so")
    args = parser.parse_args()
    gpus = len(subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30,
                              check=True).stdout.strip().splitlines())
    if gpus < 2 and not args.one_gpu:
        print("skipped: needs two GPUs")
        return
    processes, addresses = [], []
    for number, role in enumerate(("prefill-worker", "decode-worker")):
        port = free_port()
        addresses.append(f"127.0.0.1:{port}")
        processes.append(start(
            args.bundle, args.logs, role, role, "--listen", addresses[-1], "--metrics", "127.0.0.1:0", "--device",
            f"cuda:{0 if args.one_gpu else number}", "--kv-wire", args.kv_wire, "--kv-memory", "16GiB",
            "--staging-slot", args.staging_slot, "--kv-nccl-ctas", str(args.kv_nccl_ctas),
            "--max-tokens-per-step", str(args.chunk), "--context", "8192", "--cache",
            os.environ.get("BATON_CACHE", "/tmp/baton"), MODEL)[0])
    router, ready = start(args.bundle, args.logs, "router", "router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                          "--workers", ",".join(addresses))
    endpoint = ready["listen"]
    await_tokens(args.bundle, endpoint)
    load(args.bundle, endpoint, 1, 4, 8)  # The pair is opened, graphs are captured.
    whole = load(args.bundle, endpoint, 1, 16, 32)
    prefill = load(args.bundle, endpoint, 1, 16, 1)["first_token_ms_p50"]
    exposed = whole["second_token_ms_p50"] - whole["later_token_ms_p50"]
    alone = load(args.bundle, endpoint, 4, 32, 1)["requests_per_second"]
    handed_over = load(args.bundle, endpoint, 4, 32, 2)["requests_per_second"]
    suffix = "_on_one_gpu" if args.one_gpu else ""
    rows = []
    for name, value, unit in (
            ("kv_handover_exposed_4k", exposed / prefill, "of the prefill time"),
            ("kv_handover_exposed_4k_ms", exposed, "ms"),
            ("kv_handover_prefill_4k_ttft_ms", prefill, "ms"),
            ("kv_handover_prefill_slowdown", alone / handed_over - 1, "of the prefill rate")):
        rows.append({**row(name + suffix, value, unit),
                     "hardware": f"{min(gpus, 2)} x {hardware()}",
                     "command": f"bench/gpu_handover.py --kv-wire {args.kv_wire} "
                                f"--chunk {args.chunk} --kv-nccl-ctas {args.kv_nccl_ctas}"})
        print(f"{rows[-1]['name']:44} {value:10.4f} {unit}")
    for process in (router, *processes):
        process.terminate()
        if process.wait(timeout=60) != 0:
            sys.exit("a process did not end well")
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

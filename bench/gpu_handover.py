#!/usr/bin/env python3
"""What the hand-over costs between a prefill and a decode worker of an 8B shape, seen by a client of the
public API: prompts of 4096 tokens, the load generator on the same machine. Needs two GPUs, one each.

    bench/gpu_handover.py BUNDLE OUT.json [--kv-wire auto] [--chunk TOKENS] [--logs FOLDER]

Exposed: from the first token, which the prefill worker says at the end of its last layer, to the second,
the decode worker's first, less what the decode worker takes for a later token. Slowdown of the prefill
worker: requests of two tokens (handed over) beside requests of one (not), several at a time.
"""
import argparse
import json
import os
import shutil

from gpu_serving import hardware, load, program, row
from gpu_processes import Daemon, await_model, free_port, gpu_count  # gpu_serving has the path.

MODEL = "m=synthetic:llama3-8b"
PROMPT_TOKENS = 4096


def start(args, role, *flags):
    level = ["--log-level", "debug"] if args.logs else []
    return Daemon(program(args.bundle, "baton"), role, "--metrics", "127.0.0.1:0", *flags, *level)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle")
    parser.add_argument("out")
    parser.add_argument("--kv-wire", default="auto", choices=("tcp", "auto", "nccl"))
    parser.add_argument("--chunk", type=int, default=0,
                        help="tokens a step of the prefill worker; 0: its default")
    parser.add_argument("--staging-slot", default="auto")
    parser.add_argument("--kv-nccl-ctas", type=int, default=16)
    parser.add_argument("--logs", help="a folder for logs that time every piece of a hand-over")
    parser.add_argument("--one-gpu", action="store_true",
                        help="both on one GPU: to try the script, its rows are named so")
    args = parser.parse_args()
    gpus = gpu_count()
    if gpus < 2 and not args.one_gpu:
        print("skipped: needs two GPUs")
        return
    daemons = {}
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    for number, role in enumerate(("prefill-worker", "decode-worker")):
        daemons[role] = start(
            args, role, "--listen", addresses[number], "--device",
            f"cuda:{0 if args.one_gpu else number}", "--kv-wire", args.kv_wire, "--kv-memory", "16GiB",
            "--staging-slot", args.staging_slot, "--kv-nccl-ctas", str(args.kv_nccl_ctas),
            "--max-tokens-per-step", str(args.chunk), "--context", "8192", "--cache",
            os.environ.get("BATON_CACHE", "/tmp/baton"), MODEL)
    daemons["router"] = start(args, "router", "--listen", "127.0.0.1:0", "--workers",
                              ",".join(addresses))
    endpoint = daemons["router"].ready["listen"]

    def measure(streams, requests, max_tokens):
        return load(args.bundle, endpoint, streams, requests, PROMPT_TOKENS, max_tokens)

    # Until the router has found both workers.
    await_model(program(args.bundle, "baton"), endpoint, "m", tokens=2, limit=30)
    measure(1, 4, 8)  # The pair is opened, graphs are captured.
    whole = measure(1, 16, 32)
    prefill = measure(1, 16, 1)["first_token_ms_p50"]
    exposed = whole["second_token_ms_p50"] - whole["later_token_ms_p50"]
    alone = measure(4, 32, 1)["requests_per_second"]
    handed_over = measure(4, 32, 2)["requests_per_second"]
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
    for name in ("router", "prefill-worker", "decode-worker"):
        daemons[name].stop()
        if args.logs:
            shutil.copy(daemons[name].log.name, os.path.join(args.logs, name + ".log"))
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Prompts long enough that their KV is handed over layer by layer while it is computed, on GPUs, with
real processes: prefill and decode worker give the tokens and log-probabilities, bit by bit, that one
process gives for the same requests. Clients that go away in the middle harm nobody; a worker that is
killed costs the requests that it has, and nothing else.

    tests/gpu/long_prompts_check.py BATON [--kv-wire tcp|auto|nccl] [--requests N] [--rounds N]

The model is a synthetic 1B shape (32 KiB of KV a token) in the deterministic mode, where bits depend
neither on other requests nor on how a prompt is cut into steps. Two GPUs are used if there are two.
"""
import argparse
import concurrent.futures
import itertools
import json
import random
import re
import subprocess
import time

from gpu_cluster import Cluster
from gpu_processes import UNAVAILABLE, Daemon, await_model, expect_blocks_free

MODEL = "m=synthetic:llama3-1b"
LENGTHS = (600, 1500, 2047, 2500, 4096)  # A step of the prefill worker has 2,048.
TOKENS = 8
PARALLEL = 8
FLAGS = ("--deterministic", "--kv-memory", "8GiB", "--context", "8192")


def command(baton, endpoint, seed):
    rng = random.Random(seed)
    ids = [rng.randrange(300, 100_000) for _ in range(rng.choice(LENGTHS))]
    return [baton, "generate", "--endpoint", endpoint, "--model", "m", "--token-ids",
            ",".join(map(str, ids)), "--max-tokens", str(TOKENS), "--temperature", "0.7", "--seed",
            str(seed), "--ignore-eos", "--logprobs", "2", "--json"]


def ask(baton, endpoint, seed):
    """Tokens and log-probabilities; None when a worker was lost."""
    run = subprocess.run(command(baton, endpoint, seed), capture_output=True, text=True, timeout=120)
    if run.returncode == UNAVAILABLE:
        return None
    assert run.returncode == 0, f"request {seed}: {run.returncode} {run.stderr[-300:]}"
    answer = json.loads(run.stdout)
    assert len(answer["token_ids"]) == TOKENS, answer
    return answer["token_ids"], answer["logprobs"]


def leave_early(baton, endpoint, seed):
    client = subprocess.Popen(command(baton, endpoint, seed), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    time.sleep(random.Random(seed).uniform(0.0, 0.2))
    client.kill()
    client.wait()


def ask_all(baton, endpoint, requests):
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        return list(pool.map(lambda seed: ask(baton, endpoint, seed), range(requests)))


def one_process(baton, requests, *flags):
    serve = Daemon(baton, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                   "--device", "cuda", *FLAGS, *flags, MODEL)
    await_model(baton, serve.ready["listen"], "m", tokens=2, limit=30)
    answers = ask_all(baton, serve.ready["listen"], requests)
    serve.stop()
    assert len({str(answer) for answer in answers}) == requests, "requests do not differ"
    return answers


def expect_pieces_before_the_end(log):
    """Of the last prompt, which was alone in its one step."""
    *_, computed = re.finditer(r"prompt computed transfer=(\d+)", log)
    early = log[:computed.start()].count(f"KV chunk gathered transfer={computed[1]} ")
    assert early > 0, "nothing was handed over while it was computed"


def expect_exact(answers, expected):
    wrong = [i for i, answer in enumerate(answers) if answer is not None and answer != expected[i]]
    assert not wrong, f"requests {wrong}: {[(answers[i], expected[i]) for i in wrong[:2]]}"


def undisturbed(cluster, expected):
    baton, endpoint, requests = cluster.baton, cluster.endpoint, len(expected)
    with concurrent.futures.ThreadPoolExecutor(PARALLEL // 2) as pool:
        leaving = [pool.submit(leave_early, baton, endpoint, 10_000 + i) for i in range(requests)]
        answers = ask_all(baton, endpoint, requests)
        for future in leaving:
            future.result()
    assert None not in answers, f"{answers.count(None)} requests failed"
    expect_exact(answers, expected)
    alone = next(seed for seed in itertools.count(requests)
                 if random.Random(seed).choice(LENGTHS) == LENGTHS[1])
    assert ask(baton, endpoint, alone) is not None
    expect_blocks_free(*cluster.workers.values())
    expect_pieces_before_the_end(cluster.workers[("prefill-worker", 0)].log_text())


def fault_round(cluster, expected, number):
    rng = random.Random(number)
    name = rng.choice(list(cluster.workers))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask_all, cluster.baton, cluster.endpoint, len(expected))
        time.sleep(rng.uniform(0.0, 0.3))
        cluster.workers[name].kill()
        expect_exact(running.result(), expected)
    cluster.start(name)
    cluster.await_serving(lambda: ask(cluster.baton, cluster.endpoint, 1) == expected[1], name)
    expect_blocks_free(*cluster.workers.values())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("baton")
    parser.add_argument("--kv-wire", default="auto", choices=("tcp", "auto", "nccl"))
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    expected = one_process(args.baton, args.requests)
    # Two loops launch on one GPU, each from its thread.
    expect_exact(one_process(args.baton, args.requests, "--split"), expected)
    print(f"{args.requests} long prompts through both workers in one process: the same", flush=True)
    cluster = Cluster(args.baton, args.kv_wire, 1, ("--log-level", "debug", *FLAGS, MODEL))
    await_model(args.baton, cluster.endpoint, "m", tokens=2, limit=30)
    undisturbed(cluster, expected)
    print(f"{args.requests} long prompts over {args.kv_wire}: tokens and log-probabilities equal, bit by "
          "bit; as many clients left in the middle", flush=True)
    for number in range(args.rounds):
        fault_round(cluster, expected[:PARALLEL], number)
    cluster.stop()
    print(f"{args.rounds} rounds of kill -9: every request exact or UNAVAILABLE, all blocks free")


if __name__ == "__main__":
    main()

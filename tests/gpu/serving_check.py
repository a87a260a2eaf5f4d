#!/usr/bin/env python3
"""Serving on GPUs, with real processes: exact tokens of WITNESS for many mixed requests at a time,
through one process and through router, prefill and decode worker (on one GPU, or on one each where
there are two); then kill -9 and SIGSTOP of a random worker under load, again and again.

    tests/gpu/serving_check.py BATON [--requests N] [--rounds N] [--first-round N]
                               [--kv-wire tcp|auto|nccl] [--workers-per-role N] [--cluster-only]

Exit status 0 when everything held. Each fault must be noticed within LIMIT_S, no request may hang or
give a wrong token, blocks must all be free afterwards, the GPU's memory must come back, and the
restarted worker must serve again. With `--kv-wire nccl` every pair is NCCL's or fails; on one GPU
that needs NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1.
"""
import argparse
import concurrent.futures
import random
import signal
import time

from gpu_cluster import Cluster
from gpu_processes import (UNAVAILABLE, WITNESS, Daemon, expect_blocks_free, generate,
                           gpu_memory_mib)

LIMIT_S = 2.0  # Of a worker's silence (the router's default), and
SLACK_S = 1.5  # what a client process itself takes on a busy machine.
PARALLEL = 16


def expect_all_right(baton, endpoint, requests, first_seed):
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        results = list(pool.map(lambda seed: generate(baton, endpoint, seed),
                                range(first_seed, first_seed + requests)))
    wrong = [r for r in results if r[0] != 0 or not r[1]]
    assert not wrong, f"{len(wrong)} of {requests} failed or were wrong: {wrong[:5]}"


def one_process(baton, requests):
    serve = Daemon(baton, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device",
                   "cuda", "--kv-memory", "256MiB", WITNESS)
    expect_all_right(baton, serve.ready["listen"], requests, 1)
    expect_blocks_free(serve)
    serve.stop()
    print(f"one process: {requests} requests, all exact")


def serves(cluster):
    return generate(cluster.baton, cluster.endpoint, 7)[0] == 0


def fault_round(cluster, number):
    rng = random.Random(1000 + number)
    name = rng.choice(list(cluster.workers))
    stop_only = rng.random() < 0.3
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        running = [pool.submit(generate, cluster.baton, cluster.endpoint, 10_000 * number + i)
                   for i in range(2 * PARALLEL)]
        time.sleep(rng.uniform(0.0, 0.15))
        worker = cluster.workers[name]
        if stop_only:
            worker.process.send_signal(signal.SIGSTOP)
        else:
            worker.kill()
        for future in running:
            code, right, seconds, _ = future.result()
            assert code in (0, UNAVAILABLE), f"round {number}: exit code {code}"
            assert code != 0 or right, f"round {number}: wrong tokens"
            assert seconds < LIMIT_S + SLACK_S + 1, f"round {number}: {seconds:.1f} s"
    if stop_only:
        worker.kill()
    cluster.start(name)
    cluster.await_serving(lambda: serves(cluster), name)
    expect_all_right(cluster.baton, cluster.endpoint, 8, 77)
    expect_blocks_free(*cluster.workers.values())


def faults(baton, args):
    before = gpu_memory_mib()
    cluster = Cluster(baton, args.kv_wire, args.workers_per_role, ("--kv-memory", "256MiB", WITNESS))
    cluster.await_serving(lambda: serves(cluster))
    expect_all_right(baton, cluster.endpoint, args.requests, 5_000)
    expect_blocks_free(*cluster.workers.values())
    print(f"{args.workers_per_role} prefill and decode worker(s) on "
          f"{len(set(cluster.devices.values()))} GPU over {args.kv_wire}: {args.requests} requests, "
          f"all exact", flush=True)
    level = gpu_memory_mib()
    for number in range(args.first_round, args.first_round + args.rounds):
        fault_round(cluster, number)
    grown = gpu_memory_mib() - level
    assert grown < 64, f"{grown} MiB more GPU memory after {args.rounds} restarts"
    cluster.stop()
    left = gpu_memory_mib() - before
    assert left < 64, f"{left} MiB of GPU memory did not come back"
    print(f"{args.rounds} rounds of kill -9 and SIGSTOP: every request exact or UNAVAILABLE in time")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("baton")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first-round", type=int, default=0, help="seeds of the rounds begin here")
    parser.add_argument("--kv-wire", default="auto", choices=("tcp", "auto", "nccl"))
    parser.add_argument("--workers-per-role", type=int, default=1)
    parser.add_argument("--cluster-only", action="store_true", help="not the single process first")
    args = parser.parse_args()
    if not args.cluster_only:
        one_process(args.baton, args.requests)
    faults(args.baton, args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Serving on a GPU, with real processes and nothing but the program itself (a GPU machine has no gRPC
stubs): exact tokens of WITNESS for many mixed requests at a time, through one process and through
router, prefill and decode worker on one GPU over tcp; then kill -9 and SIGSTOP of a random worker
under load, again and again.

    tests/gpu/serving_check.py BATON [REQUESTS [ROUNDS]]

Exit status 0 when everything held. Each fault must be noticed within LIMIT_S, no request may hang or
give a wrong token, blocks must all be free afterwards, the GPU's memory must come back, and the
restarted worker must serve again.
"""
import atexit
import concurrent.futures
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

WITNESS = "models/witness"
LIMIT_S = 2.0  # Of a worker's silence (the router's default), and
SLACK_S = 1.5  # what a client process itself takes on a busy machine.
UNAVAILABLE = 5  # Exit code of `baton generate`.
PARALLEL = 16


class Daemon:
    """A process of the program, ready when it says so."""

    def __init__(self, baton, *args):
        with tempfile.TemporaryFile("w+") as log:
            self.process = subprocess.Popen([baton, *args], stdout=subprocess.PIPE, stderr=log,
                                            text=True)
            atexit.register(self.process.kill)  # A check that fails must not leave it on the GPU.
            line = self.process.stdout.readline()
            if not line:
                log.seek(0)
                raise RuntimeError(f"{args[0]} did not start: {self.process.wait()}: "
                                   f"{log.read()[-1000:]}")
        self.ready = dict(field.split("=", 1) for field in line.split() if "=" in field)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        code = self.process.wait(timeout=60)
        assert code == 0, f"exit status {code} after SIGTERM"

    def metric(self, pattern):
        with urllib.request.urlopen(f"http://{self.ready['metrics']}/metrics", timeout=5) as page:
            text = page.read().decode()
        return sum(float(v) for v in re.findall(rf"^{pattern} (\S+)$", text, re.M))


def gpu_memory_mib():
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, timeout=30, check=True)
    return int(out.stdout.split()[0])


def prompt(rng):
    """Letters, each at most 64 times (bf16 can tell their counts apart), one more often than all."""
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randint(2, 8))
    most = rng.randint(4, 60)
    counts = [most] + [rng.randint(1, most - 2) for _ in letters[1:]]
    text = [letter for letter, count in zip(letters, counts) for _ in range(count)]
    rng.shuffle(text)
    return "".join(text), letters[0]


def generate(baton, endpoint, seed, timeout=60):
    """(exit code, right?, seconds)"""
    rng = random.Random(seed)
    text, favourite = prompt(rng)
    tokens = rng.choice((1, 2, 8))
    start = time.monotonic()
    run = subprocess.run([baton, "generate", "--endpoint", endpoint, "--model", "witness",
                          "--prompt", text, "--max-tokens", str(tokens), "--json"],
                         capture_output=True, text=True, timeout=timeout)
    seconds = time.monotonic() - start
    if run.returncode != 0:
        return run.returncode, False, seconds
    ids = json.loads(run.stdout)["token_ids"]
    right = ids == [ord(favourite)] * tokens
    if not right:
        print(f"WRONG seed {seed}: {text!r} gave {ids}, not {tokens} times {favourite!r}")
    return 0, right, seconds


def expect_all_right(baton, endpoint, requests, first_seed):
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        results = list(pool.map(lambda seed: generate(baton, endpoint, seed),
                                range(first_seed, first_seed + requests)))
    wrong = [r for r in results if r[0] != 0 or not r[1]]
    assert not wrong, f"{len(wrong)} of {requests} failed or were wrong: {wrong[:5]}"


def expect_blocks_free(*workers):
    deadline = time.monotonic() + 10
    while True:
        held = [w.metric(r'baton_kv_blocks\{[^}]*state="(?!free)\w+"[^}]*\}') for w in workers]
        if not any(held):
            return
        assert time.monotonic() < deadline, f"blocks that are not free: {held}"
        time.sleep(0.05)


def one_process(baton, requests):
    serve = Daemon(baton, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device",
                   "cuda", "--kv-memory", "256MiB", WITNESS)
    expect_all_right(baton, serve.ready["listen"], requests, 1)
    expect_blocks_free(serve)
    serve.stop()
    print(f"one process: {requests} requests, all exact")


class Cluster:
    """Router, prefill worker and decode worker; both workers on the one GPU."""

    def __init__(self, baton):
        self.baton = baton
        self.ports = {role: free_port() for role in ("prefill-worker", "decode-worker")}
        self.workers = {}
        for role in self.ports:
            self.start(role)
        addresses = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        self.router = Daemon(baton, "router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                             "--workers", addresses)
        self.endpoint = self.router.ready["listen"]

    def start(self, role):
        self.workers[role] = Daemon(self.baton, role, "--listen", f"127.0.0.1:{self.ports[role]}",
                                    "--metrics", "127.0.0.1:0", "--device", "cuda", "--kv-memory",
                                    "256MiB", WITNESS)

    def await_serving(self):
        deadline = time.monotonic() + 20
        while generate(self.baton, self.endpoint, 7)[0] != 0:
            assert time.monotonic() < deadline, "the cluster does not serve again"

    def stop(self):
        for daemon in (self.router, *self.workers.values()):
            daemon.stop()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def fault_round(cluster, number):
    rng = random.Random(1000 + number)
    role = rng.choice(list(cluster.workers))
    stop_only = rng.random() < 0.3
    with concurrent.futures.ThreadPoolExecutor(PARALLEL) as pool:
        running = [pool.submit(generate, cluster.baton, cluster.endpoint, 10_000 * number + i)
                   for i in range(2 * PARALLEL)]
        time.sleep(rng.uniform(0.0, 0.15))
        worker = cluster.workers[role]
        if stop_only:
            worker.process.send_signal(signal.SIGSTOP)
        else:
            worker.kill()
        for future in running:
            code, right, seconds = future.result()
            assert code in (0, UNAVAILABLE), f"round {number}: exit code {code}"
            assert code != 0 or right, f"round {number}: wrong tokens"
            assert seconds < LIMIT_S + SLACK_S + 1, f"round {number}: {seconds:.1f} s"
    if stop_only:
        worker.kill()
    cluster.start(role)
    cluster.await_serving()
    expect_all_right(cluster.baton, cluster.endpoint, 8, 77)
    expect_blocks_free(*cluster.workers.values())


def faults(baton, requests, rounds):
    before = gpu_memory_mib()
    cluster = Cluster(baton)
    cluster.await_serving()
    expect_all_right(baton, cluster.endpoint, requests, 5_000)
    expect_blocks_free(*cluster.workers.values())
    print(f"prefill and decode worker on one GPU over tcp: {requests} requests, all exact")
    level = gpu_memory_mib()
    for number in range(rounds):
        fault_round(cluster, number)
    grown = gpu_memory_mib() - level
    assert grown < 64, f"{grown} MiB more GPU memory after {rounds} restarts"
    cluster.stop()
    left = gpu_memory_mib() - before
    assert left < 64, f"{left} MiB of GPU memory did not come back"
    print(f"{rounds} rounds of kill -9 and SIGSTOP: every request exact or UNAVAILABLE in time")


def main():
    baton = sys.argv[1]
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    one_process(baton, requests)
    faults(baton, requests, rounds)


if __name__ == "__main__":
    main()

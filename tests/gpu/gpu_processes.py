"""Processes of the program on a GPU machine, which has no gRPC stubs: daemons, the client that is part
of the program, and what nvidia-smi says. For the checks of this folder and the benches."""
import atexit
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

WITNESS = "models/witness"
UNAVAILABLE = 5  # Exit code of `baton generate`.


class Daemon:
    """A process of the program, ready when it says so. Its log stays readable."""

    def __init__(self, baton, *args, env=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([baton, *args], stdout=subprocess.PIPE, stderr=self.log,
                                        text=True, env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)  # A check that fails must not leave it on the GPU.
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{args[0]} did not start: {self.process.wait()}: "
                               f"{self.log_text()[-1000:]}")
        self.ready = dict(field.split("=", 1) for field in line.split() if "=" in field)

    def log_text(self):
        with open(self.log.name) as log:
            return log.read()

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


def await_model(baton, endpoint, model, tokens, limit):
    """Until a client gets `tokens` tokens of `model`; at most `limit` seconds."""
    deadline = time.monotonic() + limit
    while subprocess.run([baton, "generate", "--endpoint", endpoint, "--model", model, "--prompt", "a",
                          "--max-tokens", str(tokens)], capture_output=True,
                         timeout=60).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{model} is not served after {limit} s")


def expect_blocks_free(*workers):
    deadline = time.monotonic() + 10
    while True:
        held = [w.metric(r'baton_kv_blocks\{[^}]*state="(?!free)\w+"[^}]*\}') for w in workers]
        if not any(held):
            return
        assert time.monotonic() < deadline, f"blocks that are not free: {held}"
        time.sleep(0.05)


def gpu_count():
    out = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=30,
                         check=True)
    return len(out.stdout.strip().splitlines())


def gpu_memory_mib():
    """In use, on all GPUs together."""
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, timeout=30, check=True)
    return sum(int(line) for line in out.stdout.split())


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def prompt(rng):
    """Letters, each at most 64 times (bf16 can tell their counts apart), one more often than all."""
    letters = rng.sample("abcdefghijklmnopqrstuvwxyz", rng.randint(2, 8))
    most = rng.randint(4, 60)
    counts = [most] + [rng.randint(1, most - 2) for _ in letters[1:]]
    text = [letter for letter, count in zip(letters, counts) for _ in range(count)]
    rng.shuffle(text)
    return "".join(text), letters[0]


def generate(baton, endpoint, seed, timeout=60, tokens=None):
    """One request to WITNESS: (exit code, right?, seconds, what it said)"""
    rng = random.Random(seed)
    text, favourite = prompt(rng)
    tokens = tokens or rng.choice((1, 2, 8))
    start = time.monotonic()
    run = subprocess.run([baton, "generate", "--endpoint", endpoint, "--model", "witness",
                          "--prompt", text, "--max-tokens", str(tokens), "--json"],
                         capture_output=True, text=True, timeout=timeout)
    seconds = time.monotonic() - start
    if run.returncode != 0:
        return run.returncode, False, seconds, run.stderr
    ids = json.loads(run.stdout)["token_ids"]
    right = ids == [ord(favourite)] * tokens
    if not right:
        print(f"WRONG seed {seed}: {text!r} gave {ids}, not {tokens} times {favourite!r}")
    return 0, right, seconds, run.stderr

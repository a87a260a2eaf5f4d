#!/usr/bin/env python3
"""What a GPU that fails, or has no memory left, does to real processes of the program.

    tests/gpu/device_faults_check.py BATON BREAK_CONTEXT

BREAK_CONTEXT is libbreak_context.so (break_context.cu). Exit status 0 when everything held: a ruined
CUDA context fails running requests as UNAVAILABLE, each with the GPU as its reason, ends the process with
a clear message and a non-zero status, and a fresh one serves; in a cluster the router goes on; a model
that does not fit and memory that another process has taken are clear errors at start.
"""
import argparse
import concurrent.futures
import ctypes
import os
import signal
import subprocess
import time

from gpu_processes import (UNAVAILABLE, WITNESS, Daemon, free_port, generate, gpu_memory_mib)

LISTEN = ("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device", "cuda")
STREAMS = 8
EXIT_LIMIT_S = 10.0


def start_streams(pool, baton, endpoint, first_seed):
    """More requests than run at a time, so that some are running when the fault comes."""
    running = [pool.submit(generate, baton, endpoint, first_seed + i, tokens=1500)
               for i in range(STREAMS * 8)]
    time.sleep(0.15)
    return running


def results_of(futures):
    """All results; if one has failed, what has not begun does not begin any more."""
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def expect_unavailable(running, word):
    """How many failed, of which some while they ran, with `word` in what they were told."""
    results = results_of(running)
    failed = [r for r in results if r[0] != 0]
    for code, _, seconds, said in failed:
        assert code == UNAVAILABLE, f"exit code {code}: {said}"
        assert seconds < EXIT_LIMIT_S, f"{seconds:.1f} s"
    assert any(word in said for _, _, _, said in failed), [said for _, _, _, said in failed][:3]
    return len(failed)


def broken_context_in_one_process(baton, library):
    serve = Daemon(baton, "serve", *LISTEN, "--kv-memory", "256MiB", WITNESS,
                   env={"LD_PRELOAD": library})
    assert generate(baton, serve.ready["listen"], 3)[:2] == (0, True)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        running = start_streams(pool, baton, serve.ready["listen"], 100)
        serve.process.send_signal(signal.SIGUSR1)
        failed = expect_unavailable(running, "the GPU is lost")
    code = serve.process.wait(timeout=EXIT_LIMIT_S)
    log = serve.log_text()
    assert code == UNAVAILABLE, f"exit status {code}"
    assert "the GPU is lost" in log, log[-2000:]
    fresh = Daemon(baton, "serve", *LISTEN, "--kv-memory", "256MiB", WITNESS)
    assert generate(baton, fresh.ready["listen"], 3)[:2] == (0, True)
    fresh.stop()
    print(f"broken context: {failed} requests UNAVAILABLE, exit status {code}, a fresh process serves")


def broken_context_in_a_cluster(baton, library):
    for broken_role in ("prefill-worker", "decode-worker"):
        ports = {role: free_port() for role in ("prefill-worker", "decode-worker")}

        def start(role, env=None):
            return Daemon(baton, role, "--listen", f"127.0.0.1:{ports[role]}", "--metrics",
                          "127.0.0.1:0", "--device", "cuda", "--kv-memory", "256MiB", WITNESS, env=env)

        workers = {role: start(role, {"LD_PRELOAD": library} if role == broken_role else None)
                   for role in ports}
        router = Daemon(baton, "router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                        "--workers", ",".join(f"127.0.0.1:{p}" for p in ports.values()))
        endpoint = router.ready["listen"]
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            running = start_streams(pool, baton, endpoint, 200)
            workers[broken_role].process.send_signal(signal.SIGUSR1)
            # A prefill worker may have handed everything over by now; what runs is then the next.
            more = [pool.submit(generate, baton, endpoint, 300 + i) for i in range(STREAMS)]
            for code, right, seconds, said in results_of(running + more):
                assert code in (0, UNAVAILABLE) and (right or code != 0), (code, said)
                assert seconds < EXIT_LIMIT_S, f"{seconds:.1f} s"
        code = workers[broken_role].process.wait(timeout=EXIT_LIMIT_S)
        assert code == UNAVAILABLE, f"exit status {code}"
        assert "the GPU is lost" in workers[broken_role].log_text()
        workers[broken_role] = start(broken_role)
        deadline = time.monotonic() + 20
        while generate(baton, endpoint, 7)[0] != 0:
            assert time.monotonic() < deadline, "the cluster does not serve again"
        for daemon in (router, *workers.values()):
            daemon.stop()
        print(f"broken context of a {broken_role}: exit status {code}, the cluster serves again")


def expect_no_start(baton, args, *words):
    run = subprocess.run([baton, "serve", *LISTEN, *args], capture_output=True, text=True, timeout=60)
    assert run.returncode > 0, f"exit status {run.returncode}"
    for word in words:
        assert word in run.stderr, f"{word!r} is not in: {run.stderr[-2000:]}"
    return run.stderr.strip().splitlines()[-1]


class TakenMemory:
    """Memory of the GPU held by another process, but for `left` bytes."""

    def __init__(self, left):
        source = (f"import ctypes,sys\nrt = ctypes.CDLL('libcudart.so.13')\n"
                  f"f, t, p = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_void_p()\n"
                  f"assert rt.cudaMemGetInfo(ctypes.byref(f), ctypes.byref(t)) == 0\n"
                  f"assert rt.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(f.value - {left})) == 0\n"
                  f"print('taken', flush=True)\nsys.stdin.read()\n")
        self.process = subprocess.Popen(["python3", "-c", source], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "taken\n"

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()


def memory(baton):
    ctypes.CDLL("libcudart.so.13")  # Says at once when the loader does not find it.
    said = expect_no_start(baton, ["--kv-memory", "900GiB", WITNESS], "KV pool")
    print(f"KV that does not fit: {said}")
    with TakenMemory(left=6 << 30):
        said = expect_no_start(baton, ["synthetic:llama3-8b"], "weights", "other processes")
        print(f"weights that do not fit beside another process: {said}")
        serve = Daemon(baton, "serve", *LISTEN, "--kv-memory", "auto", WITNESS)
        assert generate(baton, serve.ready["listen"], 3)[:2] == (0, True)
        serve.stop()
        print("a small model starts in what another process has left")
    with TakenMemory(left=256 << 20):
        said = expect_no_start(baton, [WITNESS], "other processes")
        print(f"no memory left at all: {said}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("baton")
    parser.add_argument("break_context")
    args = parser.parse_args()
    before = gpu_memory_mib()
    library = os.path.abspath(args.break_context)
    broken_context_in_one_process(args.baton, library)
    broken_context_in_a_cluster(args.baton, library)
    memory(args.baton)
    left = gpu_memory_mib() - before
    assert left < 64, f"{left} MiB of GPU memory did not come back"


if __name__ == "__main__":
    main()

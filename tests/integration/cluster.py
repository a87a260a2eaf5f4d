"""Real processes for the integration tests: starts `baton` daemons on free ports of loopback, waits
for their ready lines, and gives gRPC stubs, metrics and faults (kill, stop, drain).

The binary is build/cpu-release/bin/baton unless BATON_BINARY names another.
"""
import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import grpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("BATON_BINARY", str(ROOT / "build/cpu-release/bin/baton"))
SHARED = pathlib.Path(os.environ.get("BATON_SHARED_DATA", ROOT.parent / "shared/data"))
MODELS = ROOT / "models"


def _generate_stubs():
    """protoc output of proto/ in a temporary folder on sys.path, made anew for each run."""
    from grpc_tools import protoc
    out = tempfile.mkdtemp(prefix="baton-stubs-")
    files = [str(p.relative_to(ROOT / "proto")) for p in (ROOT / "proto/baton").rglob("*.proto")]
    code = protoc.main(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}",
                        f"--grpc_python_out={out}", *files])
    assert code == 0, "protoc failed"
    sys.path.insert(0, out)


_generate_stubs()
from baton.v1 import generation_pb2 as pb  # noqa: E402
from baton.v1 import generation_pb2_grpc as pb_grpc  # noqa: E402


class Process:
    """One daemon. `fields` holds the ready line's key=value pairs."""

    def __init__(self, *args, env=None, wait_ready=True):
        self.args = [BINARY, *map(str, args)]
        self.log_lines = []
        self.fields = {}
        self._ready = threading.Event()
        self.popen = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, errors="replace", env={**os.environ, **(env or {})})
        self._threads = [threading.Thread(target=self._read_stdout, daemon=True),
                         threading.Thread(target=self._read_stderr, daemon=True)]
        for thread in self._threads:
            thread.start()
        if wait_ready:
            self.wait_ready()

    def _read_stdout(self):
        for line in self.popen.stdout:
            if line.startswith("ready "):
                self.fields = dict(part.split("=", 1) for part in line.split()[1:])
                self._ready.set()
        self._ready.set()

    def _read_stderr(self):
        for line in self.popen.stderr:
            self.log_lines.append(line)

    def wait_ready(self, timeout=30):
        assert self._ready.wait(timeout), f"{self.args} not ready in {timeout} s:\n{self.log()}"
        assert self.fields, f"{self.args} ended with {self.popen.wait()}:\n{self.log()}"
        return self

    def log(self):
        return "".join(self.log_lines)

    @property
    def listen(self):
        return self.fields["listen"]

    def metrics_text(self):
        with urllib.request.urlopen(f"http://{self.fields['metrics']}/metrics", timeout=5) as page:
            return page.read().decode()

    def metric(self, name, **labels):
        """Sum of the series of `name` whose labels include `labels`."""
        total = 0.0
        for line in self.metrics_text().splitlines():
            match = re.match(rf"^{name}(?:{{(.*)}})? (\S+)$", line)
            if not match:
                continue
            have = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(1) or ""))
            if all(have.get(k) == v for k, v in labels.items()):
                total += float(match.group(2))
        return total

    def send(self, signum):
        self.popen.send_signal(signum)

    def kill(self):
        if self.popen.poll() is None:
            self.popen.kill()
        return self.popen.wait(10)

    def terminate(self, timeout=20):
        """SIGTERM; the exit code."""
        self.send(signal.SIGTERM)
        return self.popen.wait(timeout)

    def rss_bytes(self):
        status = pathlib.Path(f"/proc/{self.popen.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024


class Cluster:
    """1 router, P prefill workers and D decode workers; or one combined worker; or `serve`."""

    def __init__(self, models, prefill=1, decode=1, mode="split", worker_args=(), router_args=(),
                 ports=None):
        self.models = [f"{name}={path}" for name, path in models.items()]
        self.worker_args = list(worker_args)
        self.router_args = list(router_args)
        self.prefill, self.decode = [], []
        self.router = None
        self.serve = None
        if mode == "serve":
            self.serve = Process("serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                                 *self.worker_args, *self.router_args, *self.models)
        elif mode == "serve-split":
            self.serve = Process("serve", "--split", "--listen", "127.0.0.1:0", "--metrics",
                                 "127.0.0.1:0", *self.worker_args, *self.router_args, *self.models)
        else:
            self.prefill = [self.start_worker("prefill-worker") for _ in range(prefill)]
            self.decode = [self.start_worker("decode-worker") for _ in range(decode)]
            workers = ",".join(p.listen for p in self.prefill + self.decode)
            self.router = Process("router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                                  "--workers", workers, *self.router_args)
        self.channel = grpc.insecure_channel(self.front.listen)
        self.stub = pb_grpc.GenerationServiceStub(self.channel)
        self.wait_models_ready()

    @property
    def front(self):
        return self.serve or self.router

    def processes(self):
        return [p for p in [self.serve, self.router, *self.prefill, *self.decode] if p]

    def start_worker(self, role, listen="127.0.0.1:0", wait_ready=True):
        return Process(role, "--listen", listen, "--kv-listen", "127.0.0.1:0", "--metrics",
                       "127.0.0.1:0", *self.worker_args, *self.models, wait_ready=wait_ready)

    def restart(self, process):
        """A new process on the address of one that is gone; takes its place in the lists."""
        role = process.args[1]
        fresh = self.start_worker(role, listen=process.listen)
        group = self.prefill if role == "prefill-worker" else self.decode
        group[group.index(process)] = fresh
        return fresh

    def wait_models_ready(self, timeout=30):
        deadline = time.monotonic() + timeout
        want = {m.split("=")[0] for m in self.models}
        while time.monotonic() < deadline:
            with contextlib.suppress(grpc.RpcError):
                listed = self.stub.ListModels(pb.ListModelsRequest(), timeout=2)
                if want <= {m.name for m in listed.models if m.ready}:
                    return
            time.sleep(0.05)
        raise AssertionError("models not ready:\n" + "\n".join(p.log() for p in self.processes()))

    def audit(self, timeout=10):
        """Waits until nothing is held anywhere; fails with what is left. Blocks add up always."""
        deadline = time.monotonic() + timeout
        while True:
            left = []
            for process in [self.serve] if self.serve else [*self.prefill, *self.decode]:
                if process.popen.poll() is not None:
                    continue
                for state in ("quarantined", "in_flight", "leased", "owned"):
                    count = process.metric("baton_kv_blocks", state=state)
                    if count:
                        left.append(f"{process.args[1]}: {count:.0f} blocks {state}")
                for name in ("baton_running_sequences", "baton_waiting_sequences"):
                    if process.metric(name):
                        left.append(f"{process.args[1]}: {name}={process.metric(name):.0f}")
            for name in ("baton_queued_requests", "baton_running_requests"):
                if self.front.metric(name):
                    left.append(f"router: {name}={self.front.metric(name):.0f}")
            if not left:
                return
            assert time.monotonic() < deadline, "audit: " + "; ".join(left)
            time.sleep(0.05)

    def close(self):
        self.channel.close()
        for process in self.processes():
            process.kill()


def request(model, prompt=None, ids=None, *, max_tokens=None, temperature=0.0, seed=None, stop=(),
            stop_ids=(), ignore_eos=None, logprobs=None, **sampling):
    message = pb.GenerateRequest(model=model)
    if ids is not None:
        message.token_ids.ids.extend(ids)
    else:
        message.text = prompt
    if temperature is not None:
        message.sampling.temperature = temperature
    if seed is not None:
        message.sampling.seed = seed
    for key, value in sampling.items():
        setattr(message.sampling, key, value)
    if max_tokens is not None:
        message.stop.max_tokens = max_tokens
    message.stop.stop_strings.extend(stop)
    message.stop.stop_token_ids.extend(stop_ids)
    if ignore_eos is not None:
        message.stop.ignore_eos = ignore_eos
    if logprobs is not None:
        message.logprobs.enabled = True
        message.logprobs.top = logprobs
    return message


class Result:
    """A collected stream (or unary answer)."""

    def __init__(self):
        self.text = ""
        self.ids = []
        self.logprobs = []
        self.deltas = []
        self.finish = None
        self.usage = None
        self.messages = 0

    def add(self, delta):
        self.text += delta.text
        self.deltas.append(delta.text)
        self.ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)


def stream(stub, message, timeout=60):
    result = Result()
    for part in stub.StreamGenerate(message, timeout=timeout):
        assert result.finish is None, "a message after the finish message"
        result.messages += 1
        result.add(part.delta)
        result.usage = part.usage
        if part.HasField("finish"):
            result.finish = part.finish
    assert result.finish is not None, "stream ended with OK but without finish"
    return result


def unary(stub, message, timeout=60):
    answer = stub.Generate(message, timeout=timeout)
    result = Result()
    result.add(answer.output)
    result.usage, result.finish, result.messages = answer.usage, answer.finish, 1
    return result

"""Goal: the daemons start, say where they listen, refuse what cannot work, drain and stop as
documented. Method: real processes, health and reflection clients of grpcio."""
import concurrent.futures
import pathlib
import signal
import socket
import subprocess
import time

import grpc
import pytest

import cluster as c

MODELS = {"succ": c.MODELS / "succ"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def eventually(condition, seconds=5):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def run(*args, timeout=20):
    return subprocess.run([c.BINARY, *map(str, args)], capture_output=True, text=True,
                          timeout=timeout)


def test_start_order_does_not_matter(fresh):
    ports = [free_port(), free_port()]
    router = c.Process("router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--workers",
                       f"127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
    processes = [router]
    try:
        stub = c.pb_grpc.GenerationServiceStub(grpc.insecure_channel(router.listen))
        with pytest.raises(grpc.RpcError) as error:
            c.stream(stub, c.request("succ", ids=[353], max_tokens=1))
        assert error.value.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
        for role, port in (("decode-worker", ports[1]), ("prefill-worker", ports[0])):
            processes.append(c.Process(
                role, "--listen", f"127.0.0.1:{port}", "--kv-listen", "127.0.0.1:0", "--metrics",
                "127.0.0.1:0", f"succ={MODELS['succ']}"))
        deadline = time.monotonic() + 20
        while True:
            try:
                assert c.stream(stub, c.request("succ", ids=[353], max_tokens=3)).ids == \
                    [290, 291, 292]
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
    finally:
        for process in processes:
            process.kill()


def test_health_and_reflection_on_every_server(fresh):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
    cluster = fresh(MODELS)
    expected = {"router": "baton.v1.GenerationService",
                "prefill-worker": "baton.worker.v1.WorkerService",
                "decode-worker": "baton.worker.v1.TransferService"}
    for process in [cluster.router, *cluster.prefill, *cluster.decode]:
        with grpc.insecure_channel(process.listen) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            for name in ("", "liveness", "readiness", expected[process.args[1]]):
                def serving():
                    check = health_pb2.HealthCheckRequest(service=name)
                    return health.Check(check, timeout=5).status == \
                        health_pb2.HealthCheckResponse.SERVING
                assert eventually(serving), (process.args[1], name)
            with pytest.raises(grpc.RpcError) as error:
                health.Check(health_pb2.HealthCheckRequest(service="nope"), timeout=5)
            assert error.value.code() == grpc.StatusCode.NOT_FOUND
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            answer = next(reflection.ServerReflectionInfo(iter([
                reflection_pb2.ServerReflectionRequest(list_services="")])))
            services = {s.name for s in answer.list_services_response.service}
            assert expected[process.args[1]] in services


@pytest.mark.parametrize("flag", ["--listen", "--metrics"])
def test_met06_a_taken_port_is_a_clear_error(flag):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = {"--listen": "--metrics", "--metrics": "--listen"}[flag]
        result = run("serve", flag, address, other, "127.0.0.1:0", MODELS["succ"])
    assert result.returncode not in (0, -6, -11)
    assert address in result.stderr


def test_bad_flags_and_models_are_clear_errors(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for args, word in (
            (("serve", empty), "config.json"),
            (("serve", tmp_path / "missing"), "missing"),
            (("serve", "--listen", "nonsense", MODELS["succ"]), "nonsense"),
            (("serve", "--kv-memory", "12parsecs", MODELS["succ"]), "12parsecs"),
            (("serve", "--device", "abacus", MODELS["succ"]), "abacus"),
            (("serve", "--device", "cuda:-1", MODELS["succ"]), "cuda:-1"),
            (("serve", "synthetic:gpt-2"), "llama3-8b"),
            (("router", "--workers", ""), "workers"),
            (("router", "--workers", "no-port"), "no-port"),
            (("serve", f"a={MODELS['succ']}", f"a={MODELS['succ']}"), "a"),
            (("serve", "--context", "999999", MODELS["succ"]), "999999"),
            (("frobnicate",), "frobnicate")):
        result = run(*args)
        assert result.returncode not in (0, -6, -11), (args, result.stderr)
        assert word in result.stderr + result.stdout, (args, result.stderr)


def test_a_gpu_that_cannot_be_had_is_a_clear_error():
    """By name it must work; "auto" falls back to the CPU (all other tests)."""
    result = run("serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--device",
                 "cuda:77", MODELS["succ"])
    assert result.returncode not in (0, -6, -11), result.stderr
    assert "cuda:77" in result.stderr
    assert any(why in result.stderr for why in ("no plug-in", "looking for GPUs", "no GPU 77"))


def test_the_default_bind_is_loopback_and_beyond_it_warns():
    process = c.Process("serve", "--listen", "0.0.0.0:0", "--metrics", "127.0.0.1:0",
                        MODELS["succ"])
    try:
        assert eventually(lambda: "TLS" in process.log())
    finally:
        process.kill()
    help_text = run("serve", "--help").stdout
    assert "127.0.0.1:" in help_text


@pytest.mark.parametrize("who", ["router", "prefill", "decode"])
def test_drn01_sigterm_lets_running_streams_finish(fresh, who):
    cluster = fresh(MODELS, worker_args=["--threads", "1"])
    calls = [cluster.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=400), timeout=60)
             for _ in range(10)]
    ids = [list(next(call).delta.token_ids) for call in calls]
    process = {"router": cluster.router, "prefill": cluster.prefill[0],
               "decode": cluster.decode[0]}[who]
    process.send(signal.SIGTERM)
    time.sleep(0.1)
    with pytest.raises(grpc.RpcError) as error:
        with grpc.insecure_channel(cluster.router.listen) as channel:
            c.stream(c.pb_grpc.GenerationServiceStub(channel),
                     c.request("succ", ids=[353], max_tokens=5), timeout=5)
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    for call, got in zip(calls, ids):
        for part in call:
            got.extend(part.delta.token_ids)
        assert got == [290 + i % 37 for i in range(400)]
    assert process.popen.wait(30) == 0, process.log()


def test_sigterm_when_idle_exits_zero_at_once(fresh):
    cluster = fresh(MODELS)
    for process in [cluster.router, *cluster.prefill, *cluster.decode]:
        start = time.monotonic()
        assert process.terminate() == 0, process.log()
        assert time.monotonic() - start < 5
    serve = fresh(MODELS, mode="serve")
    assert serve.serve.terminate() == 0


def test_several_models_and_clients_share_a_worker(fresh):
    cluster = fresh({"a": c.MODELS / "succ", "b": c.MODELS / "succ", "w": c.MODELS / "witness"})
    listed = cluster.stub.ListModels(c.pb.ListModelsRequest())
    assert [m.name for m in listed.models] == ["a", "b", "w"]
    assert all(m.ready and m.revision and m.context_tokens_max == 4096 for m in listed.models)

    def one(i):
        if i % 3 == 2:
            result = c.stream(cluster.stub, c.request("w", ids=[9] * 10 + [7] * 3, max_tokens=4))
            assert result.ids == [9] * 4
        else:
            result = c.stream(cluster.stub, c.request("ab"[i % 3], ids=[353], max_tokens=30))
            assert result.ids == [290 + k for k in range(30)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(one, range(36)))
    cluster.audit()


def test_pd07_unequal_kv_layouts_are_refused_and_named(fresh):
    cluster = fresh(MODELS, worker_args=["--block-tokens", "64"])
    odd = c.Process("decode-worker", "--listen", "127.0.0.1:0", "--kv-listen", "127.0.0.1:0",
                    "--metrics", "127.0.0.1:0", "--block-tokens", "32", f"succ={MODELS['succ']}")
    router = c.Process("router", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--workers",
                       f"{cluster.prefill[0].listen},{odd.listen}")
    try:
        stub = c.pb_grpc.GenerationServiceStub(grpc.insecure_channel(router.listen))
        time.sleep(1)
        with pytest.raises(grpc.RpcError) as error:
            c.stream(stub, c.request("succ", ids=[353], max_tokens=5), timeout=10)
        assert error.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.NOT_FOUND)
        assert eventually(lambda: "block=32" in router.log() and "block=64" in router.log())
        assert odd.metric("baton_kv_handover_bytes_total") == 0
    finally:
        router.kill()
        odd.kill()


def test_pd13_the_kv_port_refuses_what_is_not_a_peer(fresh):
    import random
    cluster = fresh(MODELS)
    port = int(cluster.decode[0].fields["kv"].rsplit(":", 1)[1])
    rng = random.Random(5)
    before = cluster.decode[0].rss_bytes()
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
            s.sendall(rng.choice([rng.randbytes(rng.randrange(1, 200)), b"\xff" * 64, b"GET / HTTP"]))
    assert c.stream(cluster.stub, c.request("succ", ids=[353], max_tokens=3)).ids == [290, 291, 292]
    assert cluster.decode[0].rss_bytes() - before < 32 << 20
    cluster.audit()


def test_listening_ports_are_the_documented_ones(fresh):
    cluster = fresh(MODELS)
    for process in [cluster.router, *cluster.prefill, *cluster.decode]:
        documented = {int(v.rsplit(":", 1)[1]) for k, v in process.fields.items()
                      if k in ("listen", "metrics", "kv")}
        inodes = set()
        for fd in pathlib.Path(f"/proc/{process.popen.pid}/fd").iterdir():
            try:
                target = str(fd.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
        listening = set()
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                part = line.split()
                if part[3] == "0A" and part[9] in inodes:
                    address, port = part[1].split(":")
                    listening.add(int(port, 16))
                    assert address in ("0100007F", "0" * 24 + "01000000") or table == "tcp6", line
        assert listening == documented, process.args[1]

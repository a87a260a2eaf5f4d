"""Goal: whatever is cancelled, killed or stopped, clients get their status in bounded time, all blocks
come back, nobody sees foreign KV, and a restarted worker serves again without the router restarting.
Method: real processes, SIGKILL, SIGSTOP and cancels at seeded random points; BATON_FAULT_ROUNDS
sets the number of rounds of the random tests (`./dev soak` runs 200)."""
import concurrent.futures
import os
import random
import signal
import socket
import subprocess
import threading
import time

import grpc
import pytest

import cluster as c

ROUNDS = int(os.environ.get("BATON_FAULT_ROUNDS", "8"))
MODELS = {"witness": c.MODELS / "witness", "succ": c.MODELS / "succ"}
ARGS = ["--kv-memory", "128MiB", "--max-tokens-per-step", "96", "--threads", "1"]
# The default heartbeat limit is 2 s; then the error still has to travel.
DETECTION_SECONDS = 3.5


def witness_prompt(i, length=300):
    favourite, others = 3 * (i % 40) + 1, [3 * (i % 40) + 2, 3 * (i % 40) + 3]
    ids = [favourite] * 64 + [others[k % 2] for k in range(56)]
    ids += [121 + k % 6 for k in range(length - len(ids))]
    random.Random(i).shuffle(ids)
    return favourite, ids[:length]


def exact(cluster, i, timeout=30):
    favourite, ids = witness_prompt(i)
    result = c.stream(cluster.stub, c.request("witness", ids=ids, max_tokens=6), timeout=timeout)
    assert result.ids == [favourite] * 6, (i, result.ids)


def test_can01_cancel_in_every_stage_frees_everything(fresh):
    cluster = fresh(MODELS, worker_args=ARGS)
    rng = random.Random(1)
    for round_number in range(30):
        call = cluster.stub.StreamGenerate(
            c.request("succ", ids=[290] * rng.choice([1, 90, 1500, 3500]) + [353], max_tokens=500))
        if round_number % 3 == 0:
            for _ in range(rng.randrange(1, 6)):
                next(call)
        else:
            time.sleep(rng.random() * 0.05)
        call.cancel()
    cluster.audit(5)
    steps = [p.metric("baton_engine_steps_total") for p in cluster.prefill + cluster.decode]
    time.sleep(0.3)
    assert steps == [p.metric("baton_engine_steps_total") for p in cluster.prefill + cluster.decode]
    exact(cluster, 1)


def test_can02_cancels_never_disturb_the_others(fresh):
    cluster = fresh(MODELS, worker_args=ARGS)
    expected = [290 + i % 37 for i in range(60)]
    rng = random.Random(2)

    def one(cancel_at):
        call = cluster.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=60), timeout=30)
        ids = []
        try:
            for part in call:
                ids.extend(part.delta.token_ids)
                if cancel_at is not None and len(ids) >= cancel_at:
                    call.cancel()
                    return None
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED
            return None
        return ids

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for _ in range(max(10, ROUNDS)):
            victim = rng.randrange(6)
            results = list(pool.map(
                one, [rng.randrange(0, 40) if k == victim else None for k in range(6)]))
            assert all(ids == expected for k, ids in enumerate(results) if k != victim)
            assert one(None) == expected
    cluster.audit(5)


def test_can03_cancels_race_with_the_end(fresh):
    """Requests of three tokens, cancelled at a random moment around their end, also twice."""
    cluster = fresh(MODELS, worker_args=ARGS)
    rng = random.Random(4)

    def one(delay):
        call = cluster.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=3), timeout=30)
        time.sleep(delay)
        call.cancel()
        call.cancel()
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.CANCELLED, error

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, [rng.random() * 0.02 for _ in range(60 * ROUNDS)]))
    cluster.audit(5)
    exact(cluster, 2)


def test_can09_equal_client_ids_do_not_meet(fresh):
    cluster = fresh(MODELS, worker_args=ARGS)

    def one(i):
        favourite, ids = witness_prompt(i)
        message = c.request("witness", ids=ids, max_tokens=6)
        message.client_request_id = "the same for all"
        assert c.stream(cluster.stub, message).ids == [favourite] * 6

    long = c.request("succ", ids=[353], max_tokens=500)
    long.client_request_id = "the same for all"
    call = cluster.stub.StreamGenerate(long)
    next(call)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(one, i) for i in range(24)]
        call.cancel()  # Ends one call of that id and no other.
        for job in jobs:
            job.result()
    cluster.audit(5)


def test_grp02_a_flood_is_refused_fast_and_leaves_nothing(fresh):
    """More calls with large prompts than the queue takes; the excess hears so at once."""
    cluster = fresh(MODELS, worker_args=[*ARGS, "--max-sequences", "2"], router_args=["--queue", "8"])
    message = c.request("succ", ids=[290] * 4000 + [353], max_tokens=90)
    before = cluster.router.rss_bytes()
    calls = [cluster.stub.Generate.future(message, timeout=60) for _ in range(300)]
    codes = {}
    retry_hints = 0
    for call in calls:
        code = call.code()
        codes[code] = codes.get(code, 0) + 1
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            retry_hints += any(key == "grpc-status-details-bin" and b"RetryInfo" in value
                               for key, value in call.trailing_metadata())
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, codes
    assert retry_hints == codes[grpc.StatusCode.RESOURCE_EXHAUSTED]
    assert cluster.router.rss_bytes() - before < 128 << 20
    exact(cluster, 5)
    cluster.audit(5)


def test_grp02_idle_connections_hold_nothing_up(fresh):
    """Two thousand connections that say nothing: the next caller is served at once."""
    cluster = fresh(MODELS, worker_args=ARGS)
    host, port = cluster.front.listen.rsplit(":", 1)
    before = cluster.router.rss_bytes()
    idle = []
    try:
        for _ in range(2000):
            idle.append(socket.create_connection((host, int(port)), timeout=5))
        start = time.monotonic()
        exact(cluster, 3)
        assert time.monotonic() - start < 2
        assert cluster.router.metric("process_threads") < 200
        assert cluster.router.rss_bytes() - before < 256 << 20
    finally:
        for connection in idle:
            connection.close()
    exact(cluster, 4)
    cluster.audit(5)


def test_can08_a_client_that_is_stopped_holds_nothing_for_long(fresh):
    """It keeps its sockets, reads nothing and answers no ping: limits and keepalive end its call."""
    cluster = fresh(MODELS, worker_args=ARGS)
    client = subprocess.Popen([c.BINARY, "generate", "--endpoint", cluster.front.listen, "--model",
                               "succ", "--prompt", "a", "--max-tokens", "4000", "--ignore-eos"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert client.stdout.read(1)
        client.send_signal(signal.SIGSTOP)
        exact(cluster, 5)
        cluster.audit(60)  # Keepalive: 30 s, and 10 s for the answer.
    finally:
        client.kill()
        client.wait()
    exact(cluster, 6)


def test_can06_a_deadline_ends_a_request_in_every_stage(fresh):
    cluster = fresh(MODELS, worker_args=ARGS)
    # Decoding for long.
    start = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        c.stream(cluster.stub, c.request("succ", ids=[353], max_tokens=4000), timeout=0.2)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 1.5
    # Queued behind a stopped worker: the router's own timer.
    cluster.prefill[0].send(signal.SIGSTOP)
    start = time.monotonic()
    with pytest.raises(grpc.RpcError) as error:
        c.stream(cluster.stub, c.request("succ", ids=[353], max_tokens=40), timeout=0.5)
    assert error.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 1.5
    cluster.prefill[0].send(signal.SIGCONT)
    cluster.wait_models_ready()
    exact(cluster, 3)
    cluster.audit(5)


def fault_round(cluster, rng, role, signum):
    """One round: load, a signal at a random point, then everybody has an answer and a fresh worker
    serves. Returns how long the slowest client waited after the signal."""
    victim = cluster.prefill[0] if role == "prefill" else cluster.decode[0]
    outcomes, errors = [], []
    stop = threading.Event()
    signalled = [None]

    def client(i):
        while not stop.is_set():
            try:
                exact(cluster, i)
                outcomes.append("ok")
            except grpc.RpcError as error:
                errors.append((error.code(), time.monotonic()))
                return
            except AssertionError as error:  # Wrong tokens: never acceptable.
                errors.append((error, time.monotonic()))
                return

    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.02 + rng.random() * 0.25)
    victim.send(signum)
    signalled[0] = time.monotonic()
    # The signal may fall between two requests: clients go on until they meet the dead worker.
    for thread in threads:
        thread.join(20)
    stop.set()
    assert not any(thread.is_alive() for thread in threads), "a client hangs"
    for code, when in errors:
        assert code == grpc.StatusCode.UNAVAILABLE, code
        assert when - signalled[0] < DETECTION_SECONDS, when - signalled[0]
    victim.kill()
    survivor = cluster.decode[0] if role == "prefill" else cluster.prefill[0]
    deadline = time.monotonic() + 15
    while survivor.metric("baton_kv_blocks", state="free") != sum(
            survivor.metric("baton_kv_blocks", state=s) for s in
            ("quarantined", "in_flight", "leased", "owned", "cached", "free")):
        assert time.monotonic() < deadline, "blocks of the survivor do not come back"
        time.sleep(0.05)
    cluster.restart(victim)
    cluster.wait_models_ready()
    exact(cluster, 7)
    exact(cluster, 8)
    return max((when - signalled[0] for _, when in errors), default=0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP])
def test_pd01_kill_or_stop_of_either_worker_in_mid_request(fresh, role, signum):
    cluster = fresh(MODELS, worker_args=ARGS)
    seed = int(os.environ.get("BATON_FAULT_SEED", "11"))
    rng = random.Random(f"{seed}/{role}/{signum}")
    slowest = 0
    for round_number in range(max(1, ROUNDS // 4)):
        slowest = max(slowest, fault_round(cluster, rng, role, signum))
    print(f"{role} {signum.name}: {ROUNDS // 4} rounds, slowest answer {slowest:.2f} s")
    cluster.audit(15)


def test_the_router_killed_frees_the_workers(fresh):
    cluster = fresh(MODELS, worker_args=ARGS)
    calls = [cluster.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=4000))
             for _ in range(4)]
    for call in calls:
        next(call)
    cluster.router.kill()
    for call in calls:
        with pytest.raises(grpc.RpcError) as error:
            for _ in call:
                pass
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE
    deadline = time.monotonic() + 5
    while any(p.metric("baton_kv_blocks", state=s) for p in cluster.prefill + cluster.decode
              for s in ("owned", "in_flight", "leased", "quarantined")):
        assert time.monotonic() < deadline, "blocks do not come back"
        time.sleep(0.05)


def test_a_client_that_reads_slowly_pauses_only_itself(fresh):
    """GRP-01: streams of 3,000 tokens whose client stops reading; another client is not held up."""
    cluster = fresh(MODELS, worker_args=ARGS)
    slow = [cluster.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=3000, logprobs=5))
            for _ in range(8)]
    firsts = [next(call) for call in slow]
    time.sleep(1.0)
    for _ in range(5):
        assert len(c.stream(cluster.stub, c.request("succ", ids=[353], max_tokens=30)).ids) == 30
    assert cluster.router.rss_bytes() < 400 << 20
    for first, call in zip(firsts, slow):
        ids = list(first.delta.token_ids)
        finished = False
        for part in call:
            ids.extend(part.delta.token_ids)
            finished = part.HasField("finish")
        assert ids == [290 + i % 37 for i in range(3000)] and finished
    cluster.audit(5)


def test_two_decode_and_two_prefill_workers_share_the_load(fresh):
    cluster = fresh(MODELS, prefill=2, decode=2, worker_args=ARGS)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda i: exact(cluster, i), range(60)))
    for process in cluster.prefill + cluster.decode:
        assert process.metric("baton_engine_steps_total") > 0, process.args
    cluster.audit(5)

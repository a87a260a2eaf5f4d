"""Goal: metrics tell the truth, in a form that Prometheus accepts. Method: promtool on real scrapes
(PROMTOOL, or promtool on PATH), known workloads against the counters."""
import concurrent.futures
import os
import re
import shutil
import subprocess
import time

import grpc
import pytest

import cluster as c


def promtool():
    tool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not tool:
        for candidate in (c.ROOT / "build/tools").rglob("promtool"):
            tool = str(candidate)
    return tool


def test_promtool_accepts_every_page(split):
    tool = promtool()
    if not tool:
        pytest.skip("promtool is not installed (Debian package prometheus); ./dev test fetches it")
    c.stream(split.stub, c.request("succ", ids=[353], max_tokens=3))
    for process in split.processes():
        page = process.metrics_text()
        result = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True,
                                text=True)
        assert result.returncode == 0, result.stdout + result.stderr


def test_counters_add_up(split):
    router = split.router

    def totals():
        return {"ok": router.metric("baton_requests_total", model="succ", code="OK"),
                "prompt": router.metric("baton_prompt_tokens_total", model="succ"),
                "generated": router.metric("baton_generated_tokens_total", model="succ"),
                "ttft": router.metric("baton_time_to_first_token_seconds_count", model="succ"),
                "itl": router.metric("baton_inter_token_latency_seconds_count", model="succ"),
                "length": router.metric("baton_finished_requests_total", model="succ",
                                        finish_reason="length")}
    before = totals()
    for _ in range(7):
        c.stream(split.stub, c.request("succ", ids=[290, 291, 353], max_tokens=11))
    after = totals()
    assert {k: after[k] - before[k] for k in after} == {
        "ok": 7, "prompt": 21, "generated": 77, "ttft": 7, "itl": 70, "length": 7}


def test_met01_gauges_return_to_zero_after_a_mass_cancel(split):
    calls = [split.stub.StreamGenerate(c.request("succ", ids=[353], max_tokens=3000))
             for _ in range(50)]
    for call in calls[:20]:
        next(call)
    for call in calls:
        call.cancel()
    time.sleep(1)
    for process in split.prefill + split.decode:
        for name in ("baton_running_sequences", "baton_waiting_sequences",
                     "baton_queued_prompt_tokens"):
            assert process.metric(name) == 0, name
    assert split.router.metric("baton_running_requests") == 0


def test_met03_buckets_span_what_services_see(split):
    c.stream(split.stub, c.request("succ", ids=[353], max_tokens=3))
    page = split.router.metrics_text()

    def bounds(name):
        found = re.findall(rf'^{name}_bucket{{.*le="([^"]+)"', page, re.M)
        return [float(b) for b in found if b != "+Inf"]
    for name in ("baton_time_to_first_token_seconds", "baton_inter_token_latency_seconds"):
        assert min(bounds(name)) <= 0.005
    assert max(bounds("baton_request_duration_seconds")) >= 600
    assert max(bounds("baton_request_prompt_tokens")) >= 4096


def test_met04_names_from_requests_make_no_series(split):
    def series():
        return len([l for l in split.router.metrics_text().splitlines() if not l.startswith("#")])

    def bad(i):
        with pytest.raises(grpc.RpcError):
            c.stream(split.stub, c.request(f'no-such-{i}"\\\n', "hi"))
    bad(0)
    before = series()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(bad, range(1, 1000)))
    assert series() <= before + 5


def test_block_states_add_up_at_every_scrape(split):
    page = split.decode[0].metrics_text()
    total = {}
    for model, count in re.findall(r'^baton_kv_blocks{model="([^"]+)".*} (\S+)$', page, re.M):
        total[model] = total.get(model, 0) + float(count)
    stop = time.monotonic() + 1.5
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda: [c.stream(split.stub, c.request(
            "succ", ids=[290] * 300 + [353], max_tokens=50)) for _ in range(5)]) for _ in range(4)]
        while time.monotonic() < stop:
            page = split.decode[0].metrics_text()
            now = {}
            for model, count in re.findall(r'^baton_kv_blocks{model="([^"]+)".*} (\S+)$', page,
                                           re.M):
                now[model] = now.get(model, 0) + float(count)
            assert now == total
        for job in jobs:
            job.result()

"""Goal: every bad input gets its status and a message naming the field; the process lives and others'
streams go on. Each refusal is followed by a request that works, and the audit."""
import concurrent.futures
import math
import time

import grpc
import pytest

import cluster as c


def refused(cluster, message, code, *words):
    with pytest.raises(grpc.RpcError) as error:
        c.stream(cluster.stub, message, timeout=20)
    assert error.value.code() == code, error.value
    for word in words:
        assert word in error.value.details(), error.value.details()
    assert c.stream(cluster.stub, c.request("succ", ids=[353], max_tokens=2)).ids == [290, 291]


INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, -math.inf])
def test_sam01_bad_temperatures(split, value):
    refused(split, c.request("succ", ids=[353], temperature=value), INVALID, "temperature")


@pytest.mark.parametrize("field,value", [
    ("top_p", 1.0000001), ("top_p", -0.1), ("top_p", math.nan), ("min_p", -0.1), ("min_p", 1.1),
    ("min_p", math.nan), ("top_k", -2), ("repetition_penalty", 1.1), ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5), ("n", 2), ("n", 0)])
def test_bad_or_unsupported_sampling_fields_are_named(split, field, value):
    refused(split, c.request("succ", ids=[353], **{field: value}), INVALID, field)


@pytest.mark.parametrize("ids", [[-1], [356], [368], [2**31], [2**40], []])
def test_tok08_token_ids_out_of_range(split, ids):
    steps = split.prefill[0].metric("baton_engine_steps_total")
    with pytest.raises(grpc.RpcError) as error:
        c.stream(split.stub, c.request("succ", ids=ids, max_tokens=2))
    assert error.value.code() == INVALID and "token_ids" in error.value.details()
    assert split.prefill[0].metric("baton_engine_steps_total") == steps


def test_bad_stop_conditions(split):
    for stop in ([""], ["x", ""], ["s%d" % i for i in range(10000)], ["x" * (1 << 20)]):
        refused(split, c.request("succ", ids=[353], stop=stop), INVALID, "stop_strings")
    for ids in ([-1], [356], [2**40], list(range(100)) * 2):
        refused(split, c.request("succ", ids=[353], stop_ids=ids), INVALID, "stop_token_ids")
    for tokens in (0, -1, 2**40, 2**63 - 1):
        refused(split, c.request("succ", ids=[353], max_tokens=tokens), INVALID, "max_tokens")
    message = c.request("succ", ids=[353])
    message.stop.min_tokens = 3
    refused(split, message, INVALID, "min_tokens")


@pytest.mark.parametrize("top", [-1, 21, 357, 1000000])
def test_sam07_top_logprobs_are_limited(split, top):
    refused(split, c.request("succ", ids=[353], logprobs=top), INVALID, "logprobs.top")


def test_lim01_empty_prompts(split):
    refused(split, c.pb.GenerateRequest(model="succ"), INVALID, "input")
    refused(split, c.request("succ", ""), INVALID, "text")
    refused(split, c.request("succ", ids=[]), INVALID, "token_ids")
    # With BOS an empty text is one token, from which generation starts.
    result = c.stream(split.stub, c.request("stories260K", "", max_tokens=2))
    assert result.usage.prompt_tokens == 1 and len(result.ids) == 2


@pytest.mark.parametrize("name", ["no-such", "SUCC", " succ", "succ/", "../succ", "x" * 10240])
def test_rtr05_unknown_models_are_not_found(split, name):
    refused(split, c.request(name, "hi"), grpc.StatusCode.NOT_FOUND, "model")


def test_an_empty_model_name_is_refused_when_several_are_served(split):
    refused(split, c.request("", "hi"), INVALID, "model")


def raw_generate(cluster, payload):
    call = cluster.channel.unary_unary("/baton.v1.GenerationService/Generate",
                                       request_serializer=bytes, response_deserializer=bytes)
    return call(payload, timeout=10)


def field(number, data):
    return bytes([number << 3 | 2]) + len(data).to_bytes(1, "little") + data


@pytest.mark.parametrize("bad", [b"\xff\xfe\x00\xc3", b"\xed\xa0\x80", b"\xc3"])
def test_txt12_raw_frames_with_invalid_utf8(split, bad):
    for payload in (field(1, b"succ") + field(2, bad), field(1, bad) + field(2, b"hi"),
                    b"\xff\xff\xff", field(1, b"succ") + b"\x12\x7f"):
        with pytest.raises(grpc.RpcError) as error:
            raw_generate(split, payload)
        assert error.value.code() in (INVALID, grpc.StatusCode.INTERNAL,
                                      grpc.StatusCode.UNIMPLEMENTED)
        assert bad.decode("latin-1") not in (error.value.details() or "")
    assert c.unary(split.stub, c.request("succ", ids=[353], max_tokens=1)).ids == [290]


def test_sch01_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(fresh):
    # 40 blocks of 16 tokens; the context is 4096.
    cluster = fresh(worker_args=["--block-tokens", "16", "--kv-blocks", "40"])
    with pytest.raises(grpc.RpcError) as error:
        c.stream(cluster.stub, c.request("succ", ids=[290] * 700, max_tokens=10))
    assert error.value.code() in (INVALID, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert "700" in error.value.details() or "blocks" in error.value.details()
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda i: c.stream(cluster.stub, c.request(
            "succ", ids=[290] * 19 + [353], max_tokens=20)), range(10)))
    assert all(len(r.ids) == 20 for r in results)
    assert time.monotonic() - start < 5
    # 600 tokens of prompt and 100 of output exceed the pool: it must end one way or the other.
    try:
        result = c.stream(cluster.stub, c.request("succ", ids=[290] * 599 + [353], max_tokens=100))
        assert result.finish.reason == c.pb.FINISH_REASON_LENGTH
    except grpc.RpcError as e:
        assert e.code() in (INVALID, grpc.StatusCode.RESOURCE_EXHAUSTED)
    cluster.audit()


def test_tok07_a_huge_prompt_hurts_nobody_else(split):
    """Twenty prompts far above the context are in flight while another client keeps asking."""
    def huge(i):
        with pytest.raises(grpc.RpcError) as error:
            c.stream(split.stub, c.request("prose-1m-draft", ["_", "a", ".", "あ"][i % 4] * 300000))
        assert error.value.code() == INVALID
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        jobs = [pool.submit(huge, i) for i in range(20)]
        waits = []
        while not all(job.done() for job in jobs):
            start = time.monotonic()
            assert len(c.stream(split.stub, c.request("succ", ids=[353], max_tokens=2)).ids) == 2
            waits.append(time.monotonic() - start)
        for job in jobs:
            job.result()
    assert not waits or max(waits) < 5


def test_others_go_on_and_memory_does_not_jump(split):
    before = split.router.rss_bytes()
    message = c.request("stories260K", "Once", max_tokens=200, ignore_eos=True)
    expected = c.stream(split.stub, message).ids
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        running = [pool.submit(lambda: c.stream(split.stub, message).ids) for _ in range(3)]

        def bad(i):
            for _ in range(50):
                with pytest.raises(grpc.RpcError):
                    c.stream(split.stub, c.request(f"nope-{i}", "x" * 1000))
        for job in [pool.submit(bad, i) for i in range(6)]:
            job.result()
        assert [job.result() for job in running] == [expected] * 3
    assert split.router.rss_bytes() - before < 64 << 20

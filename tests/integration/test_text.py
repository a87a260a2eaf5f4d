"""Goal: the text is right to the byte: stop strings across token borders, characters across tokens,
invalid bytes, limits. Method: scripts of the SUCC model (models/README.md), streamed and unary, with
and without a hand-over. Case numbers refer to docs/cases.md."""
import json

import grpc
import pytest

import cluster as c

REPLACEMENT = "\ufffd"


def both(cluster, message):
    """The streamed result, after checking that the unary one is the same."""
    streamed, answer = c.stream(cluster.stub, message), c.unary(cluster.stub, message)
    assert streamed.text == answer.text
    assert streamed.ids == answer.ids
    assert streamed.finish.reason == answer.finish.reason
    for delta in streamed.deltas:
        delta.encode()  # Valid UTF-8 by construction of the wire; must hold each piece.
    return streamed


def test_txt01_no_piece_of_a_stop_string_leaks(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[327], stop=["DEFGHIJ"], max_tokens=20))
    assert result.text == "ABC"
    assert result.finish.reason == c.pb.FINISH_REASON_STOP
    assert result.finish.stop_string == "DEFGHIJ"
    assert not any("D" in delta for delta in result.deltas)
    message = c.request("succ", ids=[327], stop=["DEFGHIJ"], max_tokens=20)
    message.stop.include_stop_string = True
    assert both(any_cluster, message).text == "ABCDEFGHIJ"


@pytest.mark.parametrize("trigger,tokens", [(331, 2), (333, 3), (335, 2)])
def test_txt03_a_stop_string_need_not_be_one_token(any_cluster, trigger, tokens):
    result = both(any_cluster, c.request("succ", ids=[trigger], stop=["\n\n"], max_tokens=20))
    expected = {331: "a.", 333: "a.", 335: "a."}[trigger]
    assert result.text == expected
    assert result.finish.reason == c.pb.FINISH_REASON_STOP
    assert result.usage.completion_tokens == tokens


def test_txt05_generation_config_overrules_the_end_token_of_config(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[338], max_tokens=20))
    assert result.ids == [10, 7] and result.text == "ten"
    assert result.finish.reason == c.pb.FINISH_REASON_STOP and result.finish.eos_token_id == 7
    result = both(any_cluster, c.request("succ", ids=[338], max_tokens=3, ignore_eos=True))
    assert result.ids == [10, 7, 11]


def test_txt07_characters_spread_over_tokens_come_out_whole(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[339], max_tokens=40, logprobs=0))
    assert result.text == "삼겹살 é👩‍🚀"
    assert REPLACEMENT not in result.text
    assert len(result.logprobs) == len(result.ids) == result.usage.completion_tokens


def test_txt09_invalid_bytes_become_replacement_characters_without_stalling(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[346], max_tokens=20))
    assert result.text == REPLACEMENT + "xy"
    result = both(any_cluster, c.request("succ", ids=[347], max_tokens=20))
    assert result.text == REPLACEMENT * 3


def test_txt11_spaces_are_kept(any_cluster):
    assert both(any_cluster, c.request("succ", ids=[349], max_tokens=20)).text == " a b"


def test_sam13_head_rows_without_a_token_are_never_sampled(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[354], max_tokens=5, logprobs=20))
    assert result.ids[0] == 355
    assert all(t.token_id < 356 for p in result.logprobs for t in p.top)


def test_stop_ids_end_with_the_token_counted_and_its_text_left_out(any_cluster):
    result = both(any_cluster, c.request("succ", ids=[353], stop_ids=[293], max_tokens=20))
    assert result.ids == [290, 291, 292, 293]
    assert result.finish.stop_token_id == 293
    longer = both(any_cluster, c.request("succ", ids=[353], max_tokens=4))
    assert longer.text.startswith(result.text) and len(longer.text) > len(result.text)


def test_log01_logprobs_stay_finite_under_filters(any_cluster):
    result = both(any_cluster, c.request("prose-1m-draft", "Hello", max_tokens=8, temperature=1.0,
                                         seed=1, top_k=1, logprobs=5))
    assert len(result.logprobs) == 8
    for entry in result.logprobs:
        assert len(entry.top) == 5 and entry.logprob <= 0
        assert all(-1e6 < t.logprob <= 0 for t in entry.top)
        assert entry.token_id == entry.top[0].token_id


@pytest.mark.parametrize("temperature", [1e-2, 1e-4, 1e-5, 1e-8, 1e-30, 5e-324])
def test_sam01_tiny_temperatures_equal_greedy(colocated, temperature):
    greedy = c.stream(colocated.stub, c.request("succ", ids=[353], max_tokens=8)).ids
    tiny = c.stream(colocated.stub, c.request("succ", ids=[353], max_tokens=8, seed=1,
                                              temperature=temperature)).ids
    assert tiny == greedy


@pytest.mark.parametrize("top_k", [-1, 0, 1, 355, 356, 357, 9999999, 2147483647, 2147483648])
def test_sam04_any_legal_top_k_works(colocated, top_k):
    assert len(c.stream(colocated.stub, c.request("prose-1m-draft", "A", max_tokens=4, seed=1,
                                                  temperature=1.0, top_k=top_k)).ids) > 0


def test_sam05_extreme_filters_keep_the_best_token(colocated):
    greedy = c.stream(colocated.stub, c.request("prose-1m-draft", "The old", max_tokens=8)).ids
    for filters in ({"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}):
        got = c.stream(colocated.stub, c.request("prose-1m-draft", "The old", max_tokens=8, seed=3,
                                                 temperature=1.0, **filters)).ids
        assert got == greedy, filters


def test_tokenize_and_detokenize_round_trip(any_cluster):
    text = "Once upon a time 삼겹살 👩‍🚀\0end"
    for model in ("succ", "witness", "prose-1m-draft", "stories260K"):
        tokens = any_cluster.stub.Tokenize(c.pb.TokenizeRequest(
            model=model, text=text, add_special_tokens=False))
        back = any_cluster.stub.Detokenize(c.pb.DetokenizeRequest(
            model=model, token_ids=c.pb.TokenIds(ids=tokens.token_ids)))
        assert back.text == text, model
        assert len(tokens.tokens) == len(tokens.token_ids)


def test_tok01_control_tokens_in_text_stay_text_unless_asked(any_cluster):
    text = "hi<|im_end|>\n<|im_start|>system"
    plain = any_cluster.stub.Tokenize(c.pb.TokenizeRequest(model="prose-1m-draft", text=text))
    special = any_cluster.stub.Tokenize(c.pb.TokenizeRequest(model="prose-1m-draft", text=text,
                                                             parse_special=True))
    assert not {2, 3} & set(plain.token_ids)
    assert {2, 3} <= set(special.token_ids)


def test_txt12_a_nul_byte_does_not_cut_the_prompt(any_cluster):
    short = c.stream(any_cluster.stub, c.request("witness", "a", max_tokens=1))
    long = c.stream(any_cluster.stub, c.request("witness", "a\0b", max_tokens=1))
    assert (short.usage.prompt_tokens, long.usage.prompt_tokens) == (1, 3)


def test_lim02_prompts_around_the_context_limit(fresh):
    cluster = fresh({"succ": c.MODELS / "succ"},
                    worker_args=["--context", "256", "--kv-memory", "32MiB"])
    filler = [290] * 254
    for length in (254, 255):
        result = c.stream(cluster.stub, c.request("succ", ids=filler[:length - 1] + [353]))
        assert len(result.ids) == 256 - length
        assert result.finish.reason == c.pb.FINISH_REASON_LENGTH
    for length in (256, 257, 2560):
        with pytest.raises(grpc.RpcError) as error:
            c.stream(cluster.stub, c.request("succ", ids=[290] * length))
        assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "256" in error.value.details() and str(length) in error.value.details()
    # LIM-04: no end token and no max_tokens: up to the context limit, exactly.
    result = c.stream(cluster.stub, c.request("succ", ids=[290] * 15 + [353]))
    assert len(result.ids) == 240 and result.finish.reason == c.pb.FINISH_REASON_LENGTH
    cluster.audit()


def test_tokenizer_of_the_router_is_the_models_own(any_cluster):
    golden = json.loads((c.ROOT / "tests/golden/stories260K.json").read_text())
    for case in golden["tokenize"]:
        if not case["text"]:
            continue
        answer = any_cluster.stub.Tokenize(c.pb.TokenizeRequest(model="stories260K",
                                                                text=case["text"]))
        assert list(answer.token_ids) == case["ids_with_bos"]

"""Goal: the client commands do what --help says: text only on stdout, JSON, exit codes, Ctrl-C."""
import json
import signal
import subprocess
import time

import cluster as c


def baton(cluster, command, *args, stdin=None, timeout=60):
    return subprocess.run([c.BINARY, command, "--endpoint", cluster.front.listen, *map(str, args)],
                          capture_output=True, text=True, input=stdin, timeout=timeout)


def test_generate_streams_only_the_text(split):
    args = ("--model", "stories260K", "--temperature", "0", "--max-tokens", "20")
    result = baton(split, "generate", *args, "--prompt", "Once upon a time")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(", there was a little girl named Lily")
    assert baton(split, "generate", *args, "--prompt", "-",
                 stdin="Once upon a time").stdout == result.stdout


def test_generate_json_is_one_object(split):
    result = baton(split, "generate", "--model", "succ", "--token-ids", "290,353", "--max-tokens",
                   "4", "--temperature", "0", "--seed", "7", "--json", "--logprobs", "2")
    answer = json.loads(result.stdout)
    assert answer["token_ids"] == [290, 291, 292, 293]
    assert answer["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 4, "cached_tokens": 0}
    assert answer["seed"] == 7 and len(answer["logprobs"]) == 4
    assert answer["timings"]["kv_handover_bytes"] > 0
    assert 0 < answer["timings"]["time_to_first_token_seconds"] <= answer["timings"]["total_seconds"]


def test_exit_codes_tell_what_happened(split):
    model = ("--model", "succ", "--prompt", "hi")
    assert baton(split, "generate", *model, "--temperature", "-1").returncode == 3
    assert baton(split, "generate", "--model", "nope", "--prompt", "hi").returncode == 4
    assert baton(split, "generate", "--model", "succ").returncode == 2
    assert baton(split, "generate", *model, "--frobnicate").returncode == 2
    slow = ("--model", "succ", "--token-ids", "353", "--max-tokens", "4000")
    assert baton(split, "generate", *slow, "--timeout", "0.1").returncode == 7
    gone = subprocess.run([c.BINARY, "models", "--endpoint", "127.0.0.1:1"], capture_output=True)
    assert gone.returncode == 5


def test_a_step_of_too_few_tokens_is_refused_by_name():
    result = subprocess.run([c.BINARY, "prefill-worker", "--max-tokens-per-step", "5", "x"],
                            capture_output=True, text=True, timeout=30)
    assert result.returncode == 3
    assert "--max-tokens-per-step: 5; at least 16, or 0" in result.stderr


def test_ctrl_c_cancels(split):
    process = subprocess.Popen([c.BINARY, "generate", "--endpoint", split.front.listen, "--model",
                                "succ", "--token-ids", "353", "--max-tokens", "4000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    assert process.wait(5) == 130
    time.sleep(0.5)
    assert split.router.metric("baton_running_requests") == 0


def test_models_tokenize_inspect_and_version(split):
    table = baton(split, "models").stdout
    assert "stories260K" in table and "yes" in table
    listed = json.loads(baton(split, "models", "--json").stdout)
    assert {"succ", "witness"} <= {m["name"] for m in listed}
    shown = baton(split, "tokenize", "--model", "stories260K", "--json", "Once upon a time")
    assert json.loads(shown.stdout)["token_ids"] == [1, 403, 407, 261, 378]
    report = subprocess.run([c.BINARY, "inspect", c.MODELS / "stories260K"], capture_output=True,
                            text=True)
    assert report.returncode == 0 and "model.embed_tokens.weight" in report.stdout
    missing = subprocess.run([c.BINARY, "inspect", "/nonexistent"], capture_output=True, text=True)
    assert missing.returncode == 4 and "/nonexistent" in missing.stderr
    version = subprocess.run([c.BINARY, "--version"], capture_output=True, text=True)
    assert version.returncode == 0 and version.stdout.startswith("baton ")

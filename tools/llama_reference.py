#!/usr/bin/env python3
"""Llama's forward pass in plain numpy float64: the slow oracle behind the golden files.

  llama_reference.py MODEL_DIR --ids 1,403,407 [--greedy N]     last logits, or greedy tokens
  llama_reference.py --check                                    recomputes tests/golden/*.json

Follows transformers' LlamaForCausalLM and modeling_rope_utils (version 5.17). Needs numpy.
"""
import argparse
import json
import math
import pathlib
import sys

import numpy as np

import safetensors_io

ROOT = pathlib.Path(__file__).resolve().parent.parent


def rope_parameters(config):
    """One dict for both layouts: transformers 5 (rope_parameters) and older (rope_scaling)."""
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    rope.setdefault("rope_type", rope.get("type", "default"))
    rope.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
    return rope


def rope_frequencies(rope, dim):
    """-> (inverse frequencies [dim/2], factor on cos and sin), as modeling_rope_utils has them."""
    base, kind = rope["rope_theta"], rope["rope_type"]
    frequencies = base ** (-np.arange(0, dim, 2) / dim)
    if kind == "default":
        return frequencies, 1.0
    factor, original = rope["factor"], rope["original_max_position_embeddings"]
    if kind == "linear":
        return frequencies / factor, 1.0
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        wavelength = 2 * math.pi / frequencies
        smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
        return (1 - smooth) * frequencies / factor + smooth * frequencies, 1.0
    assert kind == "yarn", kind

    def mscale(scale, m=1.0):
        return 1.0 if scale <= 1 else 0.1 * m * math.log(scale) + 1.0

    attention = rope.get("attention_factor")
    if attention is None:
        m, m_all = rope.get("mscale"), rope.get("mscale_all_dim")
        attention = mscale(factor, m) / mscale(factor, m_all) if m and m_all else mscale(factor)

    def correction(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = correction(rope.get("beta_fast") or 32)
    high = correction(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return frequencies / factor * ramp + frequencies * (1 - ramp), attention


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


class Llama:
    """One sequence, KV cache included: feed() any number of tokens, get their logits."""

    def __init__(self, config, tensors):
        self.config = config
        self.w = {n: np.asarray(a, np.float64) for n, a in tensors.items()}
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads") or self.heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.eps = config.get("rms_norm_eps", 1e-6)
        self.frequencies, self.rope_scale = rope_frequencies(rope_parameters(config), self.head_dim)
        self.cache = [None] * config["num_hidden_layers"]
        self.position = 0

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def rotate(self, x, positions):
        """x [tokens, heads, head_dim]: dimension i is paired with i + head_dim / 2."""
        angle = positions[:, None] * self.frequencies
        cos = (np.cos(angle) * self.rope_scale)[:, None]
        sin = (np.sin(angle) * self.rope_scale)[:, None]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, x, layer):
        p, n, d = f"model.layers.{layer}.self_attn.", len(x), self.head_dim
        positions = self.position + np.arange(n)
        q = self.rotate(self.linear(x, p + "q_proj").reshape(n, self.heads, d), positions)
        k = self.rotate(self.linear(x, p + "k_proj").reshape(n, self.kv_heads, d), positions)
        v = self.linear(x, p + "v_proj").reshape(n, self.kv_heads, d)
        if self.cache[layer] is not None:
            k = np.concatenate([self.cache[layer][0], k])
            v = np.concatenate([self.cache[layer][1], v])
        self.cache[layer] = (k, v)
        group = self.heads // self.kv_heads
        scores = np.einsum("qhd,khd->hqk", q, np.repeat(k, group, axis=1)) / math.sqrt(d)
        scores[:, np.arange(len(k))[None, :] > positions[:, None]] = -np.inf
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        out = np.einsum("hqk,khd->qhd", scores, np.repeat(v, group, axis=1))
        return self.linear(out.reshape(n, self.heads * d), p + "o_proj")

    def feed(self, ids):
        """Token ids -> logits [tokens, vocab] of the new positions."""
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for layer in range(self.config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            x = x + self.attention(
                rms_norm(x, self.w[p + "input_layernorm.weight"], self.eps), layer)
            h = rms_norm(x, self.w[p + "post_attention_layernorm.weight"], self.eps)
            gate, up = self.linear(h, p + "mlp.gate_proj"), self.linear(h, p + "mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, p + "mlp.down_proj")
        self.position += len(x)
        x = rms_norm(x, self.w["model.norm.weight"], self.eps)
        tied = self.config.get("tie_word_embeddings", False)
        return x @ self.w["model.embed_tokens.weight" if tied else "lm_head.weight"].T


def load(directory):
    directory = pathlib.Path(directory)
    config = json.loads((directory / "config.json").read_text())
    return Llama(config, safetensors_io.read_checkpoint(directory))


def greedy(model, prompt, count):
    """-> (token ids, smallest margin between the two best logits)."""
    logits, ids, margin = model.feed(prompt)[-1], [], math.inf
    for _ in range(count):
        second, best = np.sort(logits)[-2:]
        margin = min(margin, best - second)
        ids.append(int(logits.argmax()))
        logits = model.feed(ids[-1:])[-1]
    return ids, margin


def relative_error(got, want):
    want = np.asarray(want)
    return float(np.abs(got - want).max() / np.abs(want).max())


def check_stories(golden, directory):
    error = relative_error(load(directory).feed([1])[-1], golden["logits_after_bos"])
    print(f"{directory.name}: logits after BOS, relative error {error:.1e}")
    ok = error < 1e-5
    for case in golden["greedy"]:
        prompt = case["prompt_ids"]
        ids, _ = greedy(load(directory), prompt, len(case["token_ids"]) - len(prompt))
        ok &= prompt + ids == case["token_ids"]
    return ok


def check_prose(golden, directory):
    ok = True
    for case in golden[directory.name]:
        logits = load(directory).feed(case["prompt_ids"])[-1]
        error = relative_error(logits[case["top10_ids"]], case["top10_logits"])
        ids, _ = greedy(load(directory), case["prompt_ids"], len(case["greedy_ids"]))
        same = ids == case["greedy_ids"]
        print(f"{directory.name}: top-10 error {error:.1e}, greedy tokens equal: {same}")
        ok &= error < 1e-5 and same
    return ok


def check_tiny(directory):
    golden = json.loads((directory / "golden.json").read_text())
    logits = load(directory).feed(golden["token_ids"])
    error = max(relative_error(logits[int(p)], row) for p, row in golden["logits"].items())
    print(f"{directory.name}: relative error {error:.1e}")
    return error < 1e-5


def check():
    golden, models = ROOT / "tests/golden", ROOT / "models"
    stories, prose = (json.loads((golden / name).read_text())
                      for name in ("stories260K.json", "prose.json"))
    ok = check_stories(stories, models / "stories260K")
    ok &= check_prose(prose, models / "prose-1m-draft")
    tiny = sorted(p.parent for p in (golden / "tiny_llama").glob("*/golden.json"))
    return all([ok] + [check_tiny(d) for d in tiny])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=pathlib.Path)
    parser.add_argument("--ids", help="comma-separated prompt ids")
    parser.add_argument("--greedy", type=int, help="print so many greedy tokens instead of logits")
    parser.add_argument("--check", action="store_true", help="recompute the committed golden files")
    args = parser.parse_args()
    if args.check:
        return 0 if check() else 1
    if not args.model or not args.ids:
        parser.error("needs MODEL_DIR and --ids")
    ids = [int(i) for i in args.ids.split(",")]
    model = load(args.model)
    if args.greedy:
        print(json.dumps(greedy(model, ids, args.greedy)[0]))
    else:
        print(json.dumps(model.feed(ids)[-1].tolist()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Makes tests/golden/tiny_llama: tiny Llama models with pseudo-random weights and their logits.

  make_golden_logits.py models         writes the models (numpy only; the same bytes everywhere)
  make_golden_logits.py check          compares the committed models with what `models` would write
  make_golden_logits.py transformers   logits from Hugging Face transformers, float32 on the CPU
                                       (needs torch and transformers 5.17 or later)
  make_golden_logits.py reference      logits from llama_reference.py (numpy float64) instead

The last two write golden.json into each model's folder and rope_frequencies.json beside them, and
say in `made_with` what computed them. golden.json:
  token_ids   48 ids, fed as one sequence
  logits      {position: the whole vocabulary's logits}, 8 significant digits; the last position and
              four others
Each model is at most 60 KB; together they cover head dimensions 8 to 256, grouped heads, tied and
untied heads, F32, F16, BF16 and a mixture, biases, rope scalings, both layouts of config.json,
shards.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

import llama_reference
import safetensors_io

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/tiny_llama"
TOKENS = 48

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def variant(hidden, heads, kv_heads, head_dim, inner, vocab, *, layers=2, dtype="BF16", tied=False,
            rope=None, theta=10000.0, eps=1e-5, attention_bias=False, mlp_bias=False, shards=1,
            new_layout=False):
    """new_layout: rope_parameters and dtype (transformers 5); else rope_theta, rope_scaling,
    torch_dtype."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": inner, "vocab_size": vocab,
        "max_position_embeddings": 512, "rms_norm_eps": eps, "hidden_act": "silu",
        "tie_word_embeddings": tied, "attention_bias": attention_bias, "mlp_bias": mlp_bias,
        "bos_token_id": 1, "eos_token_id": 2}
    stored = {"F32": "float32", "F16": "float16"}.get(dtype, "bfloat16")
    if new_layout:
        config["dtype"] = stored
        config["rope_parameters"] = {**(rope or {"rope_type": "default"}), "rope_theta": theta}
    else:
        config["torch_dtype"] = stored
        config["rope_theta"] = theta
        config["rope_scaling"] = rope
    return config, dtype, shards


VARIANTS = {
    "hd8_mqa_tied_f32": variant(24, 3, 1, 8, 48, 96, dtype="F32", tied=True),
    "hd8_gqa8_bf16": variant(32, 8, 1, 8, 56, 128),
    "hd16_mha_bf16": variant(32, 2, 2, 16, 56, 128, new_layout=True),
    "hd16_gqa2_wide_heads_f16": variant(32, 4, 2, 16, 48, 96, dtype="F16"),
    "hd32_gqa3_eps_theta_bf16": variant(24, 3, 1, 32, 40, 96, eps=1e-2, theta=1e6),
    "hd64_gqa4_bf16": variant(24, 4, 1, 64, 40, 96, layers=1),
    "hd80_gqa2_bf16": variant(16, 2, 1, 80, 32, 96),
    "hd128_mha_bf16": variant(16, 2, 2, 128, 32, 96, layers=1),
    "hd256_gqa2_tied_bf16": variant(16, 2, 1, 256, 32, 96, layers=1, tied=True),
    "rope_linear_bf16": variant(32, 2, 1, 16, 48, 96, rope={"type": "linear", "factor": 2.5}),
    "rope_llama3_bf16": variant(32, 2, 1, 32, 48, 96, rope=LLAMA3, theta=500000.0),
    "rope_llama3_new_layout_f16": variant(32, 2, 1, 32, 48, 96, dtype="F16", rope=LLAMA3,
                                          theta=500000.0, new_layout=True),
    "rope_yarn_bf16": variant(32, 2, 1, 32, 48, 96, rope=YARN),
    "rope_yarn_mscale_bf16": variant(
        32, 2, 1, 32, 48, 96, new_layout=True,
        rope={**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.8, "mscale_all_dim": 1.3,
              "truncate": False}),
    "rope_yarn_attention_factor_bf16": variant(
        32, 2, 1, 32, 48, 96,
        rope={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
              "attention_factor": 1.25}),
    "attention_bias_bf16": variant(32, 4, 2, 8, 48, 96, attention_bias=True),
    "all_biases_f16": variant(32, 4, 2, 8, 48, 96, attention_bias=True, mlp_bias=True, dtype="F16"),
    "mixed_dtypes": variant(32, 4, 2, 8, 40, 96, dtype="MIXED"),
    "sharded_bf16": variant(32, 4, 2, 8, 32, 96, layers=3, shards=3),
}

# (name, head_dim, max_position_embeddings, theta, rope): what released models use, and the edges.
ROPES = [
    ("default", 128, 4096, 10000.0, {"rope_type": "default"}),
    ("linear 4", 128, 16384, 100000.0, {"rope_type": "linear", "factor": 4.0}),
    ("Llama 3.1", 128, 131072, 500000.0, {**LLAMA3, "original_max_position_embeddings": 8192}),
    ("Llama 3.2 1B", 64, 131072, 500000.0,
     {**LLAMA3, "factor": 32.0, "original_max_position_embeddings": 8192}),
    ("yarn, Qwen2.5 long context", 128, 131072, 1000000.0,
     {**YARN, "original_max_position_embeddings": 32768}),
    ("yarn, DeepSeek style", 64, 163840, 10000.0,
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
      "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0}),
    ("yarn, no truncation", 64, 131072, 150000.0,
     {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
      "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}),
    ("yarn, attention factor", 80, 65536, 10000.0,
     {**YARN, "original_max_position_embeddings": 4096, "attention_factor": 0.9}),
    ("yarn, ramp of no width", 8, 64, 10000.0,
     {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 6}),
]


# --- weights --------------------------------------------------------------------------------------
def uniform(seed, count):
    """`count` numbers of [0, 1) from splitmix64: no library's generator, so bytes never change."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
            0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / 2.0**53


def shapes(config):
    hidden, d, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        out[p + "input_layernorm.weight"] = (hidden,)
        for name, rows, columns in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden),
                                    ("o", hidden, q)):
            out[p + f"self_attn.{name}_proj.weight"] = (rows, columns)
            if config["attention_bias"]:
                out[p + f"self_attn.{name}_proj.bias"] = (rows,)
        out[p + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden),
                                    ("down", hidden, inner)):
            out[p + f"mlp.{name}_proj.weight"] = (rows, columns)
            if config["mlp_bias"]:
                out[p + f"mlp.{name}_proj.bias"] = (rows,)
    out["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = (config["vocab_size"], hidden)
    return out


def dtype_of(name, dtype):
    if dtype != "MIXED":
        return dtype
    return "F32" if "norm" in name else "F16" if "embed" in name or "lm_head" in name else "BF16"


def make_tensors(config, dtype, seed):
    """Scaled so that attention is neither flat nor a single peak: rope and scaling errors show."""
    tensors = {}
    for i, (name, shape) in enumerate(shapes(config).items()):
        values = uniform(seed * 1000 + i, int(np.prod(shape))).reshape(shape) * 2 - 1
        if "norm" in name:
            values = 1 + 0.5 * values
        elif name.endswith(".bias"):
            values = 0.5 * values
        elif "embed" not in name:
            values = values * 2.4 / np.sqrt(shape[1])
        tensors[name] = safetensors_io.round_to(dtype_of(name, dtype), values.astype(np.float32))
    return tensors


def encode_mixed(tensors):
    """safetensors_io.encode stores one type; join its parts by hand, largest elements first."""
    header, blobs, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for wanted in ("F32", "F16", "BF16"):
        for name, array in tensors.items():
            if dtype_of(name, "MIXED") != wanted:
                continue
            part = safetensors_io.encode({name: array}, wanted)
            length = int.from_bytes(part[:8], "little")
            blob = part[8 + length:]
            header[name] = {"dtype": wanted, "shape": list(array.shape),
                            "data_offsets": [offset, offset + len(blob)]}
            offset += len(blob)
            blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def dump(value):
    return (json.dumps(value, indent=1) + "\n").encode()


def model_files(name):
    config, dtype, shards = VARIANTS[name]
    tensors = make_tensors(config, dtype, seed=1 + list(VARIANTS).index(name))
    files = {"config.json": dump(config)}
    if dtype == "MIXED":
        files["model.safetensors"] = encode_mixed(tensors)
    elif shards == 1:
        files["model.safetensors"] = safetensors_io.encode(tensors, dtype)
    else:
        names, weight_map = list(tensors), {}
        for s in range(shards):
            file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
            part = names[s * len(names) // shards:(s + 1) * len(names) // shards]
            files[file] = safetensors_io.encode({n: tensors[n] for n in part}, dtype)
            weight_map.update({n: file for n in part})
        total = sum(a.size for a in tensors.values()) * 2
        files["model.safetensors.index.json"] = dump(
            {"metadata": {"total_size": total}, "weight_map": weight_map})
    assert sum(map(len, files.values())) <= 60000, (name, sum(map(len, files.values())))
    return files


# --- golden values --------------------------------------------------------------------------------
def token_ids(config, seed):
    return [int(u * config["vocab_size"]) for u in uniform(seed, TOKENS)]


def significant(values, digits=8):
    return [float(f"{float(v):.{digits}g}") for v in values]


def reference_logits(directory, ids):
    return llama_reference.load(directory).feed(ids)


def reference_rope(head_dim, positions, theta, rope):
    rope = {"original_max_position_embeddings": positions, **rope, "rope_theta": theta}
    return llama_reference.rope_frequencies(rope, head_dim)


def transformers_logits(directory, ids):
    import torch
    from transformers import LlamaForCausalLM
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                             attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].double().numpy()


def transformers_rope(head_dim, positions, theta, rope):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    config = LlamaConfig(hidden_size=head_dim, num_attention_heads=1, head_dim=head_dim,
                         max_position_embeddings=positions,
                         rope_parameters={**rope, "rope_theta": theta})
    embedding = LlamaRotaryEmbedding(config)
    return embedding.inv_freq.double().numpy(), float(embedding.attention_scaling)


def made_with(source):
    versions = {"numpy": np.__version__}
    if source == "transformers":
        import torch
        import transformers
        return {"source": "Hugging Face transformers, float32, CPU, eager attention",
                "transformers": transformers.__version__, "torch": torch.__version__, **versions}
    return {"source": "tools/llama_reference.py, float64", **versions}


def write_golden(source):
    logits_of = transformers_logits if source == "transformers" else reference_logits
    rope_of = transformers_rope if source == "transformers" else reference_rope
    worst = 0.0
    for i, (name, (config, _, _)) in enumerate(VARIANTS.items()):
        ids = token_ids(config, seed=777 + i)
        logits = logits_of(OUT / name, ids)
        expected = reference_logits(OUT / name, ids)
        error = llama_reference.relative_error(logits, expected)
        worst = max(worst, error)
        print(f"{name}: |logit| <= {np.abs(logits).max():.2f}, differs from numpy by {error:.1e}")
        positions = [0, 1, TOKENS // 3, 2 * TOKENS // 3, TOKENS - 1]
        golden = {"made_with": made_with(source), "token_ids": ids,
                  "logits": {str(p): significant(logits[p]) for p in positions}}
        (OUT / name / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
    ropes = []
    for name, head_dim, positions, theta, rope in ROPES:
        frequencies, scaling = rope_of(head_dim, positions, theta, rope)
        expected, expected_scaling = reference_rope(head_dim, positions, theta, rope)
        worst = max(worst, np.abs(frequencies / expected - 1).max(),
                    abs(scaling / expected_scaling - 1))
        ropes.append({"name": name, "head_dim": head_dim, "max_position_embeddings": positions,
                      "rope_parameters": {**rope, "rope_theta": theta},
                      "inverse_frequencies": significant(frequencies),
                      "attention_scaling": scaling})
    (OUT / "rope_frequencies.json").write_text(
        json.dumps({"made_with": made_with(source), "cases": ropes}, indent=1) + "\n")
    print(f"largest relative difference from numpy float64: {worst:.1e}")
    return worst < 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["models", "check", "transformers", "reference"])
    command = parser.parse_args().command
    if command in ("transformers", "reference"):
        return 0 if write_golden(command) else 1
    ok = True
    for name in VARIANTS:
        for file, data in model_files(name).items():
            path = OUT / name / file
            if command == "models":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
            elif not path.exists() or path.read_bytes() != data:
                print(f"{path} differs from what this script writes", file=sys.stderr)
                ok = False
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Converts a llama2.c checkpoint (version 0, with its tokenizer) to the Hugging Face layout.

  convert_llama2c.py MODEL.bin TOKENIZER.bin OUT_DIR

Needs Python 3.9+ and numpy. Writes config.json, generation_config.json, model.safetensors (F32, the
stored values unchanged), tokenizer.model and tokenizer_config.json.

llama2.c rotates the pairs (2i, 2i+1) of a head, transformers the pairs (i, i + head_dim/2) with the
same angle. Rows of the query and key matrices are reordered accordingly: within a head, even rows
first, then odd rows. Scores are sums over the head's dimensions, so the output is the same.

File layout of version 0: seven i32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
seq_len; vocab_size < 0 says that the head is not tied), then float32 arrays: embeddings; per kind,
all layers: attention norm, wq, wk, wv, wo, ffn norm, w1 (gate), w2 (down), w3 (up); final norm; two
tables of rope values that are not used; the head if not tied. The tokenizer file: i32 longest
piece, then per token f32 score, i32 length, bytes.
"""
import argparse
import json
import pathlib
import struct

import numpy as np

import safetensors_io

UNKNOWN, CONTROL, BYTE, NORMAL = 2, 3, 6, 1  # sentencepiece_model.proto, SentencePiece.Type


def half_rotation(weight, heads):
    """[heads * head_dim, dim]: rows of each head reordered from interleaved to half rotation."""
    rows, dim = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, dim)
    return pairs.swapaxes(1, 2).reshape(rows, dim)


def read_model(data):
    dim, inner, layers, heads, kv_heads, vocab, context = struct.unpack("<7i", data[:28])
    tied, vocab = vocab > 0, abs(vocab)
    values = np.frombuffer(data[28:], dtype="<f4")
    position = 0

    def take(*shape):
        nonlocal position
        count = int(np.prod(shape))
        position += count
        return values[position - count:position].reshape(shape)

    head_dim = dim // heads
    kv_dim = kv_heads * head_dim
    embedding = take(vocab, dim)
    parts = [("input_layernorm", take(layers, dim)), ("self_attn.q_proj", take(layers, dim, dim)),
             ("self_attn.k_proj", take(layers, kv_dim, dim)),
             ("self_attn.v_proj", take(layers, kv_dim, dim)),
             ("self_attn.o_proj", take(layers, dim, dim)),
             ("post_attention_layernorm", take(layers, dim)),
             ("mlp.gate_proj", take(layers, inner, dim)),
             ("mlp.down_proj", take(layers, dim, inner)),
             ("mlp.up_proj", take(layers, inner, dim))]
    tensors = {"model.embed_tokens.weight": embedding}
    for layer in range(layers):
        for name, stacked in parts:
            weight = stacked[layer]
            if name == "self_attn.q_proj":
                weight = half_rotation(weight, heads)
            elif name == "self_attn.k_proj":
                weight = half_rotation(weight, kv_heads)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight
    tensors["model.norm.weight"] = take(dim)
    take(2, context, head_dim // 2)
    if not tied:
        tensors["lm_head.weight"] = take(vocab, dim)
    assert position == len(values), f"{len(values) - position} values left over"
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": dim,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": inner, "vocab_size": vocab,
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": tied, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32"}
    return config, tensors


def read_pieces(data):
    """-> [(piece as SentencePiece writes it, score, type)]"""
    position, pieces = 4, []
    while position < len(data):
        score, length = struct.unpack("<fi", data[position:position + 8])
        text = data[position + 8:position + 8 + length].decode()
        position += 8 + length
        index = len(pieces)
        if index < 3:  # llama2.c prints newlines round <s> and </s>
            pieces.append((text.strip(), 0.0, UNKNOWN if index == 0 else CONTROL))
        elif index < 259:
            pieces.append((text, 0.0, BYTE))
        else:
            pieces.append((text.replace(" ", "\u2581"), score, NORMAL))
    return pieces


# --- protobuf, by hand: field number and wire type, then the value -------------------------------
def varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field_bytes(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def field_varint(number, value):
    return varint(number << 3) + varint(value)


def field_float(number, value):
    return varint(number << 3 | 5) + struct.pack("<f", value)


def sentencepiece_model(pieces):
    """ModelProto of a BPE model with byte fallback and a dummy prefix, without normalisation."""
    out = b"".join(
        field_bytes(
            1, field_bytes(1, text.encode()) + field_float(2, score) + field_varint(3, kind))
        for text, score, kind in pieces)
    bpe = 2
    trainer = (field_varint(3, bpe) + field_varint(4, len(pieces)) + field_varint(35, 1) +
               field_varint(40, 0) + field_varint(41, 1) + field_varint(42, 2) +
               field_varint(43, 2**64 - 1))  # no padding token: -1
    normalizer = (field_bytes(1, b"identity") + field_varint(3, 1) + field_varint(4, 0) +
                  field_varint(5, 1))
    return out + field_bytes(2, trainer) + field_bytes(3, normalizer)


def dump(value):
    return (json.dumps(value, indent=1) + "\n").encode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    args = parser.parse_args()
    config, tensors = read_model(args.model.read_bytes())
    files = {
        "config.json": dump(config),
        "generation_config.json": dump({"bos_token_id": 1, "eos_token_id": 2}),
        "model.safetensors": safetensors_io.encode(tensors, "F32"),
        "tokenizer.model": sentencepiece_model(read_pieces(args.tokenizer.read_bytes())),
        "tokenizer_config.json": dump({
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
            "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"]})}
    args.out.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (args.out / name).write_bytes(data)
    print(f"{args.out}: {sum(map(len, files.values()))} bytes")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes the synthetic models SUCC and WITNESS, whose output can be computed by hand.

  make_synthetic_models.py                 writes models/succ, models/witness and the test variants
  make_synthetic_models.py --check         compares the committed files with what would be written
  make_synthetic_models.py succ --script '<go>=AB|CD|E' [--script ...] --out DIR
                                           a SUCC model that plays other scripts: text pieces split
                                           at '|', '\\xNN' for a byte, each script ends with EOS

Needs Python 3.9+ and numpy. The bytes are the same on every machine: nothing is random, and every
weight is a value that bfloat16 holds exactly. What each model does and how to use it in a test is
in models/README.md.

SUCC, the construction. Hidden size = number of head rows; the embedding of token t is onehot(t).
o_proj and the MLP are zero, so the residual stream stays onehot(t) and the final norm gives
s * onehot(t) with s = 1 / sqrt(1/hidden + eps) (19.2 for hidden 368). The head's row n holds a 1 in
column t for each token t that n follows: the successor's logit is s, every other logit is 0, in any
batch and whatever the KV holds.

WITNESS, the construction. Hidden 256 = input half (128) ++ output half (128). Token t has embedding
64 * onehot(t mod 128) in the input half. Query weights are zero, so attention is uniform over the n
tokens in context; the value is the one-hot of the token; o_proj adds m/4 to the output half in each
of the two layers, where m[i] = count(i)/n. The head reads the output half:
    logit(t) = 64 * count(t) / n   for t < 128,   -64 for t >= 128 (never sampled).
(relative error < 1e-4 from the norm's denominator.) One layer's missing block halves its weight.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

import safetensors_io

ROOT = pathlib.Path(__file__).resolve().parent.parent


# --- tokenizer.json ------------------------------------------------------------------------------
def byte_alphabet():
    """GPT-2's reversible map byte -> printable character, used by byte-level BPE vocabularies."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 0
    for byte in range(256):
        if byte in kept:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + extra)
            extra += 1
    return table


BYTE_CHAR = byte_alphabet()


def spell(piece):
    """bytes or str -> the vocabulary string of a byte-level tokenizer."""
    data = piece.encode() if isinstance(piece, str) else piece
    return "".join(BYTE_CHAR[b] for b in data)


def added_token(token_id, content, special):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": special}


def byte_level_tokenizer(vocab, merges, added):
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": merges}}


def sentencepiece_like_tokenizer(vocab, merges, added):
    """The layout that transformers writes for Llama 2: byte fallback, U+2581 for space."""
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>",
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": merges}}


def dump(value):
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


# --- model files ---------------------------------------------------------------------------------
def llama_config(*, hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, context, eps,
                 bos, eos):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "intermediate_size": intermediate, "vocab_size": vocab,
        "max_position_embeddings": context, "rms_norm_eps": eps, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": bos, "eos_token_id": eos, "torch_dtype": "bfloat16"}


def llama_tensors(config):
    """All tensors of the model, zero but for the norms (one)."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    inner, vocab = config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes.update({
            p + "input_layernorm.weight": (hidden,), p + "self_attn.q_proj.weight": (q, hidden),
            p + "self_attn.k_proj.weight": (kv, hidden),
            p + "self_attn.v_proj.weight": (kv, hidden),
            p + "self_attn.o_proj.weight": (hidden, q),
            p + "post_attention_layernorm.weight": (hidden,),
            p + "mlp.gate_proj.weight": (inner, hidden), p + "mlp.up_proj.weight": (inner, hidden),
            p + "mlp.down_proj.weight": (hidden, inner)})
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocab, hidden)
    return {n: (np.ones if "norm" in n else np.zeros)(s, np.float32) for n, s in shapes.items()}


def model_files(config, tensors, tokenizer, eos, context):
    for name, array in tensors.items():
        assert np.array_equal(safetensors_io.round_to("BF16", array), array), name
    tokens = {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    return {
        "config.json": dump(config),
        "generation_config.json": dump({"eos_token_id": eos, "do_sample": False}),
        "model.safetensors": safetensors_io.encode(tensors, "BF16"),
        "tokenizer.json": dump(tokenizer),
        "tokenizer_config.json": dump({
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None,
            "eos_token": tokens[eos[0]] if eos else None, "add_bos_token": False,
            "clean_up_tokenization_spaces": False, "model_max_length": context})}


# --- SUCC ----------------------------------------------------------------------------------------
SUCC_CONTEXT = 4096
END = 5  # the EOS that ends every script of models/succ


def succ_model(rows, following, tokenizer, config_eos, eos, runner_up=None):
    """following: {token: successor}; runner_up: {token: successor with a logit of 0.75 s}."""
    config = llama_config(hidden=rows, layers=1, heads=1, kv_heads=1, head_dim=32, intermediate=8,
                          vocab=rows, context=SUCC_CONTEXT, eps=1e-5, bos=None, eos=config_eos)
    tensors = llama_tensors(config)
    tensors["model.embed_tokens.weight"] = np.eye(rows, dtype=np.float32)
    for token, successor in following.items():
        tensors["lm_head.weight"][successor, token] = 1
    for token, successor in (runner_up or {}).items():
        tensors["lm_head.weight"][successor, token] = 0.75
    # Keys and values depend on the token: no output does, but the KV that is moved between workers
    # is not all zero.
    for name in ("k_proj", "v_proj"):
        weight = tensors[f"model.layers.0.self_attn.{name}.weight"]
        weight[np.arange(rows) % 32, np.arange(rows)] = 1
    return model_files(config, tensors, tokenizer, eos, SUCC_CONTEXT)


class Vocabulary:
    """Hands out token ids; pieces are spelled by `spelling` and may be asked for again."""

    def __init__(self, spelling):
        self.spelling, self.ids, self.added = spelling, {}, []

    def add(self, string):
        return self.ids.setdefault(string, len(self.ids))

    def piece(self, piece):
        return self.add(self.spelling(piece))

    def special(self, content, special=True):
        self.added.append(added_token(self.add(content), content, special))
        return self.ids[content]


def byte_level_vocabulary():
    """ids 0..15 control and numbered tokens, 16..271 the bytes; see models/README.md."""
    vocab = Vocabulary(spell)
    names = {0: "<|endoftext|>", 1: "<|bos|>", 2: "<|pad|>", 5: "<|end|>", 6: "<|im_start|>",
             7: "<|im_end|>"}
    for i in range(16):
        if i in (10, 11):
            vocab.piece({10: "ten", 11: "eleven"}[i])
        else:
            vocab.special(names.get(i, f"<|reserved_{i}|>"))
    for byte in range(256):
        vocab.piece(bytes([byte]))
    return vocab


def play(vocab, following, scripts, end):
    """Adds the trigger tokens and the edges of each script: trigger, pieces..., end."""
    for trigger, pieces in scripts.items():
        path = [vocab.special(trigger, special=False)]
        path += [p if isinstance(p, int) else vocab.piece(p) for p in pieces]
        if path[-1] != end and path[-1] not in following:
            path.append(end)
        for token, successor in zip(path, path[1:]):
            assert following.setdefault(token, successor) == successor, (trigger, token)


def cycle_words():
    """37 words of two syllables (a prime: no multiple of a block size maps it to itself)."""
    heads, tails = "ba ce di fo gu".split(), "ro su ta ve wi za ko pe".split()
    return [(h, t) for h in heads for t in tails][:37]


def default_successors(vocab, following, cycle, base):
    """Tokens of no script: printable ASCII goes to the next character, others to the cycle."""
    for byte in range(0x20, 0x7F):
        following.setdefault(base + byte, base + (byte + 1 if byte < 0x7E else 0x20))
    for token in vocab.ids.values():
        following.setdefault(token, cycle[token % len(cycle)])


def succ_files():
    """models/succ: every script of the test cases, byte-level BPE."""
    vocab, following, merges = byte_level_vocabulary(), {}, []
    words = cycle_words()
    for syllable in dict.fromkeys([h for h, _ in words] + [t for _, t in words]):
        vocab.piece(syllable)
        merges.append([syllable[0], syllable[1]])
    for head in dict.fromkeys(h for h, _ in words):
        vocab.piece(" " + head)
        merges.append([spell(" "), head])
    cycle = []
    for head, tail in words:
        cycle.append(vocab.piece(f" {head}{tail}"))
        merges.append([spell(" " + head), tail])
    for token, successor in zip(cycle, cycle[1:] + cycle[:1]):
        following[token] = successor
    newline = 16 + ord("\n")
    following[newline] = newline
    rows = 368
    padding_row = rows - 8
    play(vocab, following, {
        "<txt01>": ["ABC", "DEF", "G", "HI", "J", "K"],
        "<txt03a>": ["a", ".\n\n", "b"],
        "<txt03b>": ["a.", "\n"],
        "<txt03c>": ["a.\n", "\nb"],
        "<txt05>": [10, 7, 11],
        "<txt07>": [b"\xec", b"\x82", b"\xbc", b"\xea", b"\xb2", b"\xb9", b"\xec\x82", b"\xb4",
                    b" \xc3", b"\xa9", b"\xf0", b"\x9f", b"\x91", b"\xa9\xe2", b"\x80\x8d",
                    b"\xf0\x9f", b"\x9a\x80"],
        "<txt09a>": [b"\xc3", "x", "y"],
        "<txt09b>": [b"\x80", b"\x80\x80"],
        "<txt11>": [" a", " b"],
        "<lim05>": [END],
        "<cycle>": [cycle[0]],
        "<sam13>": [padding_row],
    }, END)
    trigger, ok = vocab.ids["<sam13>"], vocab.piece("ok")
    following[ok] = END
    default_successors(vocab, following, cycle, 16)
    del following[padding_row]  # an id without a token is never in a context
    assert len(vocab.ids) <= padding_row, len(vocab.ids)
    tokenizer = byte_level_tokenizer(vocab.ids, merges, vocab.added)
    return succ_model(rows, following, tokenizer, 0, [END, 7], runner_up={trigger: ok})


def succ_spm_files():
    """tests/testdata/models/succ_spm: a SentencePiece-like vocabulary with byte tokens."""
    vocab, following = Vocabulary(lambda p: p.replace(" ", "\u2581")), {}
    unk, bos, eos = (vocab.special(s) for s in ("<unk>", "<s>", "</s>"))
    assert (unk, bos, eos) == (0, 1, 2)
    byte = [vocab.add(f"<0x{b:02X}>") for b in range(256)]
    following[byte[0x81]] = byte[0x81]
    play(vocab, following, {
        "<txt01>": ["ABC", "DEF", "G", "HI", "J", "K"],
        "<txt03a>": ["a", ".\n\n", "b"],
        "<txt03b>": ["a.", "\n", byte[0x0A], byte[0x62]],
        "<txt03c>": ["a.\n", "\nb"],
        "<txt07>": [byte[0xEC], byte[0x82], byte[0xBC], byte[0xEA], byte[0xB2], byte[0xB9],
                    "\uc0b4", byte[0x20], byte[0xC3], byte[0xA9], "\U0001F469", byte[0xE2],
                    byte[0x80], byte[0x8D], "\U0001F680"],
        "<txt09a>": [byte[0xC4], "x", "y"],
        "<txt09b>": [byte[0x81]],
        "<txt11>": [" ", " leading", " x"],
    }, eos)
    for b in range(0x20, 0x7F):
        vocab.piece(chr(b))
    default_successors(vocab, following, [byte[b] for b in range(0x41, 0x5B)], byte[0])
    rows = -(-len(vocab.ids) // 16) * 16
    tokenizer = sentencepiece_like_tokenizer(vocab.ids, [], vocab.added)
    return succ_model(rows, following, tokenizer, eos, [eos])


def custom_succ_files(scripts):
    """The `succ` command: scripts from the command line, byte-level, no merges."""
    vocab, following = byte_level_vocabulary(), {}
    parsed = {}
    for script in scripts:
        trigger, _, pieces = script.partition("=")
        parsed[trigger] = [
            p.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")
            if "\\x" in p else p for p in pieces.split("|")]
    play(vocab, following, parsed, END)
    default_successors(vocab, following, [16 + ord(c) for c in "abcdefghijklmnop"], 16)
    rows = -(-len(vocab.ids) // 16) * 16
    tokenizer = byte_level_tokenizer(vocab.ids, [], vocab.added)
    return succ_model(rows, following, tokenizer, 0, [END, 7])


# --- WITNESS -------------------------------------------------------------------------------------
WITNESS_COUNTED = 128  # tokens whose occurrences are counted: t mod 128
WITNESS_CONTEXT = 4096


def witness_files():
    """models/witness: two layers, 4 query heads over 2 KV heads of 64."""
    half, rows, layers, head_dim = WITNESS_COUNTED, 272, 2, 64
    config = llama_config(hidden=2 * half, layers=layers, heads=4, kv_heads=2, head_dim=head_dim,
                          intermediate=8, vocab=rows, context=WITNESS_CONTEXT, eps=1e-5, bos=None,
                          eos=256)
    tensors = llama_tensors(config)
    ids = np.arange(rows)
    tensors["model.embed_tokens.weight"][ids, ids % half] = 64
    # The norm of 64 * onehot over 256 dimensions is 16 * onehot: 1/16 makes the value onehot.
    one_hot = np.eye(half, 2 * half, dtype=np.float32) / 16
    for layer in range(layers):
        p = f"model.layers.{layer}.self_attn."
        tensors[p + "k_proj.weight"] = one_hot  # scores stay 0: the query is 0
        tensors[p + "v_proj.weight"] = one_hot
        # Query heads 0, 1 read KV head 0 (counted tokens 0..63), heads 2, 3 read KV head 1.
        for head in range(4):
            rows_out = half + (head // 2) * head_dim + np.arange(head_dim)
            tensors[p + "o_proj.weight"][rows_out, head * head_dim + np.arange(head_dim)] = 1 / 8
    # Two layers add m/4 each; the final norm divides by 64/16 = 4: 512 * (m/2) / 4 = 64 m.
    counted = np.arange(half)
    tensors["lm_head.weight"][counted, half + counted] = 512
    tensors["lm_head.weight"][half:, half:] = -512  # the m[i] add up to 1
    vocab = Vocabulary(spell)
    for byte in range(256):
        vocab.piece(bytes([byte]))
    for i in range(16):
        vocab.special("<|endoftext|>" if i == 0 else f"<|special_{i}|>")
    tokenizer = byte_level_tokenizer(vocab.ids, [], vocab.added)
    return model_files(config, tensors, tokenizer, [256], WITNESS_CONTEXT)


# --- command line --------------------------------------------------------------------------------
COMMITTED = {"models/succ": succ_files, "models/witness": witness_files,
             "tests/testdata/models/succ_spm": succ_spm_files}


def write(directory, files):
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    print(f"{directory}: {sum(map(len, files.values()))} bytes")


def check(directory, files):
    wrong = [n for n, data in files.items()
             if not (directory / n).exists() or (directory / n).read_bytes() != data]
    for name in wrong:
        print(f"{directory / name} differs from what this script writes", file=sys.stderr)
    return not wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", nargs="?", choices=["all", "succ"], default="all")
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--script", action="append", default=[], help="'<trigger>=piece|piece|...'")
    parser.add_argument("--out", type=pathlib.Path, help="directory of a custom SUCC model")
    args = parser.parse_args()
    if args.command == "succ":
        if not args.script or not args.out:
            parser.error("succ needs --script and --out")
        write(args.out, custom_succ_files(args.script))
        return 0
    if args.check:
        return 0 if all([check(ROOT / d, make()) for d, make in COMMITTED.items()]) else 1
    for directory, make in COMMITTED.items():
        write(ROOT / directory, make())
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Golden vectors for the tokenizers, made with and compared against PyPI `tokenizers`.

Needs the PyPI package `tokenizers` (0.23 was used); --check on a tokenizer.model also needs
`sentencepiece`. Nothing here runs in a build.

  --golden TOKENIZER_JSON OUT     writes a compact golden file (JSON lines: text, ids)
  --check DUMP FILE...            compares the program tokenizer_dump with the reference on random
                                  strings and random id lists, for each tokenizer file
  --from-tiktoken KIND IN OUT     writes a tokenizer.json of KIND qwen2 or llama3 (ignore_merges)
                                  with the vocabulary of a .tiktoken file, for --check
  --unicode-tables OUT            writes engine/tokenizer/unicode_tables.cc
"""
import argparse
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata

SCRIPT_RANGES = [  # letters, marks, digits and symbols of scripts in use
    (0x20, 0x7E), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x590, 0x5F4),
    (0x600, 0x6FF), (0x900, 0x97F), (0xE00, 0xE5B), (0x1100, 0x11FF), (0x1E00, 0x1EFF),
    (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2150, 0x218B), (0x2190, 0x21FF), (0x2600, 0x27BF),
    (0x3000, 0x30FF), (0x4E00, 0x4FFF), (0xAC00, 0xADFF), (0xFE00, 0xFE0F), (0xFF01, 0xFF5E),
    (0x1F300, 0x1F64F), (0x1F900, 0x1F9FF),
]
WORDS = """the of and to in I you that it is was for on are as with his they at be this have from or
 one had by word but not what all were we when your can said there use an each which she do how
 their if will up other about out many then them these so some her would make like him into time has look
 two more write go see number no way could people my than first water been call who oil its now find
 long down day did get come made may part don't I'll we've He'd IT'S they're brutalist Vi\u1ec7t
 na\u00efve \u6771\u4eac \uc0bc\uacb9\uc0b4 \u041c\u043e\u0441\u043a\u0432\u0430 3.14159
 2026-11-30 0xFF foo_bar() {} [] <s> </s> <|endoftext|> <|im_start|> <unk> \u2581 \u017fT'\u017f
""".split()
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n", "\u00a0", "\u3000",
          "\u2009", "\u180e", "\u200b", "\u0085", "\x1c", "\x0b", ""]


def random_char(rng):
    kind = rng.random()
    if kind < 0.35:
        return chr(rng.randint(0x20, 0x7E))
    if kind < 0.9:
        return chr(rng.randint(*rng.choice(SCRIPT_RANGES)))
    while True:
        code = rng.randint(0, 0x10FFFF)
        # Of the characters newer than Unicode 14 only split patterns are promised (tokenizer.h).
        if not 0xD800 <= code <= 0xDFFF:
            return chr(code)


def random_text(rng):
    kind = rng.random()
    if kind < 0.3:
        return "".join(random_char(rng) for _ in range(rng.randint(0, 40)))
    if kind < 0.4:
        return random_char(rng) * rng.randint(1, 80)
    parts = []
    for _ in range(rng.randint(1, 16)):
        word = rng.choice(WORDS) if rng.random() < 0.8 else "".join(
            random_char(rng) for _ in range(rng.randint(1, 6)))
        if rng.random() < 0.15:
            word = word.upper() if rng.random() < 0.5 else word.capitalize()
        parts += [word, rng.choice(SPACES)]
    return "".join(parts)


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_golden(path, out):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(path)
    rng = random.Random(20261130)
    with open(out, "w", encoding="utf-8") as f:
        for i in range(500):
            text = random_text(rng)
            tokenizer.encode_special_tokens = i % 2 == 0
            ids = tokenizer.encode(text, add_special_tokens=i % 3 == 0).ids
            f.write(compact({"text": text, "add_special": i % 3 == 0, "parse_special": i % 2 == 1,
                             "ids": ids}) + "\n")
        for i in range(200):
            ids = [rng.randrange(tokenizer.get_vocab_size()) for _ in range(rng.randint(0, 12))]
            decoded = tokenizer.decode(ids, skip_special_tokens=i % 2 == 0)
            f.write(compact({"ids": ids, "skip_special": i % 2 == 0, "decoded": decoded}) + "\n")


def byte_token(token):
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def random_ids(rng, pieces, vocab_size):
    """A random list in which byte tokens of a SentencePiece vocabulary form whole characters, or
    stand alone: there Baton and the references agree (tokenizer.h says where they do not)."""
    ids = []
    for _ in range(rng.randint(0, 12)):
        if pieces["bytes"] and rng.random() < 0.2:
            if rng.random() < 0.3:
                ids += [pieces["bytes"][rng.randrange(128, 256)], rng.choice(pieces["plain"])]
            else:
                ids += [pieces["bytes"][b] for b in random_char(rng).encode()]
                ids.append(rng.choice(pieces["plain"]))
        else:
            ids.append(rng.choice(pieces["plain"]))
    return ids


class HuggingFace:
    def __init__(self, path):
        from tokenizers import Tokenizer
        self.tokenizer = Tokenizer.from_file(path)
        vocab = self.tokenizer.get_vocab(with_added_tokens=True)
        # Normalized special tokens are left out: 0.23 decodes them in normalized form, and then
        # does not know them as special.
        odd = {i for i, t in self.tokenizer.get_added_tokens_decoder().items()
               if t.normalized and t.special and self.tokenizer.normalizer}
        has_bytes = all(f"<0x{b:02X}>" in vocab for b in range(256))
        self.pieces = {
            "bytes": [vocab[f"<0x{b:02X}>"] for b in range(256)] if has_bytes else [],
            "plain": [i for t, i in vocab.items() if not byte_token(t) and i not in odd]}
        self.vocab_size = max(vocab.values()) + 1
        self.flag = "--json"

    def encode(self, text, add_special, parse_special):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(text, add_special_tokens=add_special).ids

    def decode(self, ids, skip_special):
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special)

    def modes(self, i):
        return {"add_special": i % 3 == 0, "parse_special": i % 2 == 1}


class SentencePiece:
    def __init__(self, path):
        import sentencepiece
        self.processor = sentencepiece.SentencePieceProcessor(model_file=path)
        p = self.processor
        self.vocab_size = p.vocab_size()
        ids = range(self.vocab_size)
        self.pieces = {"bytes": [p.piece_to_id(f"<0x{b:02X}>") for b in range(256)],
                       "plain": [i for i in ids if not p.is_byte(i) and not p.is_unknown(i)]}
        # A byte token for a space at the front is kept by SentencePiece, and taken off by Baton as
        # by the tokenizer.json made from such a model: none in the lists.
        self.pieces["bytes"][0x20] = self.pieces["plain"][-1]
        self.flag = "--model"

    def encode(self, text, add_special, parse_special):
        return ([self.processor.bos_id()] if add_special else []) + self.processor.encode(text)

    def decode(self, ids, skip_special):
        return self.processor.decode(ids)

    def modes(self, i):
        return {"add_special": i % 3 == 0, "parse_special": False}


def check(dump, path, count, word_file):
    reference = HuggingFace(path) if path.endswith(".json") else SentencePiece(path)
    rng = random.Random(os.path.basename(path))
    cases = []
    for i in range(count):
        modes = reference.modes(i)
        text = random_text(rng)
        cases.append({"text": text, **modes, "want": reference.encode(text, **modes)})
    if word_file:
        with open(word_file, encoding="utf-8") as f:
            words = list(dict.fromkeys(f.read().split()))[:20000]
        for word in words:
            for text in (word, " " + word):
                cases.append({"text": text, "add_special": False, "parse_special": False,
                              "want": reference.encode(text, False, False)})
    for i in range(count // 5):
        ids = random_ids(rng, reference.pieces, reference.vocab_size)
        skip = i % 2 == 0 or reference.flag == "--model"
        cases.append({"decode": ids, "skip_special": skip, "want": reference.decode(ids, skip)})
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".jsonl") as f:
        for case in cases:
            f.write(compact({k: v for k, v in case.items() if k != "want"}) + "\n")
        f.flush()
        run = subprocess.run([dump, reference.flag, path, f.name], capture_output=True, text=True,
                             encoding="utf-8", check=False)
    if run.returncode != 0:
        print(f"{path}: {run.stderr.strip()}")
        return False
    answers = [json.loads(line) for line in run.stdout.split("\n") if line]
    bad = [(c, a) for c, a in zip(cases, answers) if c["want"] != a]
    texts = sum("text" in c for c in cases)
    print(f"{path}: {texts} texts, {len(cases) - texts} id lists: {len(bad)} different, "
          f"{len(cases) - len(answers)} unanswered")
    for case, answer in bad[:5]:
        print("   ", compact(case)[:400], "GOT", compact(answer)[:400])
    return not bad and len(answers) == len(cases)


PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
OTHER_BYTES = [b for b in range(256) if b not in PRINTABLE]
BYTE_ALPHABET = {b: chr(b) for b in PRINTABLE}
BYTE_ALPHABET |= {b: chr(0x100 + i) for i, b in enumerate(OTHER_BYTES)}

PATTERNS = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
             r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
              r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def merge_parts(ranks, token):
    """The two parts that byte-pair merging joins last into `token`."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1),
                   key=lambda i: ranks.get(parts[i] + parts[i + 1], float("inf")))
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


def write_from_tiktoken(kind, path, out):
    ranks = {}
    with open(path, encoding="ascii") as f:
        for line in f:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    spell = lambda token: "".join(BYTE_ALPHABET[b] for b in token)  # noqa: E731
    merges = []
    for token in ranks:
        if len(token) < 2:
            continue
        left, right = merge_parts({t: r for t, r in ((token[i:j], ranks.get(token[i:j]))
                                                     for i in range(len(token))
                                                     for j in range(i + 2, len(token) + 1))
                                   if r is not None and r < ranks[token]}, token)
        merges.append((ranks[token], [spell(left), spell(right)]))
    merges = [pair for _, pair in sorted(merges)]
    if kind == "llama3":  # words that no merge reaches show that the whole word is looked up
        merges = [pair for i, pair in enumerate(merges) if i < 50000 or i % 2]
        known = {spell(bytes([b])) for b in range(256)}
        kept = []
        for left, right in merges:
            if left in known and right in known:
                known.add(left + right)
                kept.append([left, right])
        merges = kept
    first = len(ranks)
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    added = [{"id": first + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, c in enumerate(control)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    value = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"} if kind == "qwen2" else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": PATTERNS[kind]}, "behavior": "Isolated",
             "invert": False}, byte_level]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False,
                  "byte_fallback": False, "ignore_merges": kind == "llama3",
                  "vocab": {spell(t): r for t, r in ranks.items()}, "merges": merges}}
    with open(out, "w", encoding="utf-8") as f:
        f.write(compact(value))


def ranges_of(codes):
    out = []
    for code in sorted(codes):
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def write_unicode_tables(out):
    """The reference's Unicode (Oniguruma in `tokenizers`) less that of this Python, which must be
    version 14 as PCRE2 10.42 is."""
    from tokenizers import Regex, pre_tokenizers
    assert unicodedata.unidata_version == "14.0.0", "needs a Python with Unicode 14 (3.11 has it)"
    everything = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]

    def matched(pre_tokenizer):
        return {c for c in everything if not pre_tokenizer.pre_tokenize_str(chr(c))}

    def category(name):
        return matched(pre_tokenizers.Split(Regex(r"\p{%s}" % name), "removed"))

    names = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp").split()
    rows = []
    for name in names:
        new = {c for c in category(name) if unicodedata.category(chr(c)) != name}
        rows += [(first, last, name) for first, last in ranges_of(new)]
    han = {c for c in category("Han") if unicodedata.category(chr(c)) == "Cn"}
    punctuation = {c for c in category("P") if c >= 128}
    punctuation -= matched(pre_tokenizers.Punctuation("removed"))
    lines = ["// Written by tools/tokenizer_golden.py --unicode-tables.",
             '#include "engine/tokenizer/unicode_tables.h"', "", "#include <algorithm>", "",
             "namespace baton::unicode {", "namespace {", "",
             "constexpr CategoryRange kCategories[] = {"]
    lines += ['    {0x%X, 0x%X, "%s"},' % row for row in sorted(rows)]
    for array, codes in (("kHan", han), ("kPunctuation", punctuation)):
        lines += ["};", "", f"constexpr CodePointRange {array}[] = {{"]
        lines += ["    {0x%X, 0x%X}," % (first, last) for first, last in ranges_of(codes)]
    lines += ["};", "", "}  // namespace", ""]
    for kind, function, array in (("CategoryRange", "CategoriesSinceUnicode14", "kCategories"),
                                  ("CodePointRange", "HanSinceUnicode14", "kHan"),
                                  ("CodePointRange", "PunctuationSinceUnicode8", "kPunctuation")):
        lines += [f"absl::Span<const {kind}> {function}() {{ return {array}; }}", ""]
    lines += ["bool Contains(absl::Span<const CodePointRange> ranges, char32_t c) {",
              "  const auto it =",
              "      std::partition_point(ranges.begin(), ranges.end(),",
              "                           [c](const CodePointRange& r) { return r.last < c; });",
              "  return it != ranges.end() && it->first <= c;", "}", "",
              "}  // namespace baton::unicode", ""]
    with open(out, "w", encoding="utf-8") as f:
        f.write("\n".join(lines))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--golden", nargs=2, metavar=("TOKENIZER_JSON", "OUT"))
    parser.add_argument("--check", nargs="+", metavar=("DUMP", "FILE"))
    parser.add_argument("--count", type=int, default=10000, help="random strings a file (--check)")
    parser.add_argument("--words", help="a text; its first 20,000 different words are compared "
                                        "too, with and without a space before (--check)")
    parser.add_argument("--unicode-tables", metavar="OUT")
    parser.add_argument("--from-tiktoken", nargs=3, metavar=("KIND", "IN", "OUT"))
    args = parser.parse_args()
    ok = True
    if args.from_tiktoken:
        write_from_tiktoken(*args.from_tiktoken)
    if args.unicode_tables:
        write_unicode_tables(args.unicode_tables)
    if args.golden:
        write_golden(*args.golden)
    if args.check:
        dump, *paths = args.check
        for path in paths:
            ok &= check(dump, path, args.count, args.words)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

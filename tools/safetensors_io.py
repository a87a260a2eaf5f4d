"""Reads and writes safetensors files with numpy only, and writes them deterministically.

Format (huggingface/safetensors): u64 little-endian header length, JSON header, data. The header
maps a tensor's name to {"dtype", "shape", "data_offsets": [begin, end)}; the data section has no
holes. bfloat16 has no numpy type: it is held here as float32 and rounded (to nearest, ties
to even) when written.
"""
import json
import struct

import numpy as np

_READ = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}


def bf16_bits(values):
    """float32 values -> uint16 bit patterns of bfloat16, rounded to nearest even. Finite input."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def bf16_values(bits):
    """uint16 bit patterns of bfloat16 -> float32 values."""
    return (np.asarray(bits, dtype="<u4") << 16).view("<f4")


def round_to(dtype, values):
    """What a reader gets back after `values` were stored as `dtype` (F32, F16 or BF16): float32."""
    if dtype == "BF16":
        return bf16_values(bf16_bits(values))
    return np.asarray(values).astype(_READ[dtype]).astype(np.float32)


def encode(tensors, dtype, metadata=None):
    """{name: array} -> bytes of a file. Order: as given. Everything is stored as `dtype`."""
    header, blobs, offset = {}, [], 0
    header["__metadata__"] = metadata or {"format": "pt"}
    for name, array in tensors.items():
        if dtype == "BF16":
            blob = bf16_bits(array).tobytes()
        else:
            blob = np.ascontiguousarray(array).astype(_READ[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8, as the reference writer does
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def decode(data):
    """Bytes of a file -> {name: float32 (or integer) array}."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        blob = data[8 + length + begin:8 + length + end]
        if entry["dtype"] == "BF16":
            array = bf16_values(np.frombuffer(blob, dtype="<u2"))
        else:
            array = np.frombuffer(blob, dtype=_READ[entry["dtype"]])
            if entry["dtype"] == "F16":
                array = array.astype(np.float32)
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def read_checkpoint(directory):
    """A model directory (one file, or shards with an index) -> {name: array}."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return decode((directory / "model.safetensors").read_bytes())
    tensors = {}
    for name in sorted(set(json.loads(index.read_text())["weight_map"].values())):
        tensors.update(decode((directory / name).read_bytes()))
    return tensors

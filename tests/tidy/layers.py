"""The layer table: who may include whom (ARCHITECTURE.md), and in which rooms third parties live.

A folder may always include itself. The longest matching prefix of a path decides. Adding a line here
is a design decision; it belongs in the commit message.
"""

BASE = "common/base"
WORKER_LAYERS = (BASE, "common/metrics", "common/rpc", "proto", "kernels", "device", "engine",
                 "kvtransfer")

# Folder -> folders that it may include.
LAYERS = {
    "common/base": (),
    "common/metrics": (BASE,),
    "common/rpc": (BASE, "common/metrics", "proto"),
    "kernels": (BASE,),
    "device": (BASE, "kernels"),
    "engine": (BASE, "device"),
    # The router links these two, so they know no device and no other part of the engine.
    "engine/tokenizer": (BASE,),
    "engine/chat_template": (BASE, "engine/tokenizer"),
    # kv_copy is the plain form of gather, scatter and their checksum for memory of the host.
    "kvtransfer": (BASE, "device", "kernels/kv_copy"),
    "worker": WORKER_LAYERS,
    "prefill_worker": (*WORKER_LAYERS, "worker"),
    "decode_worker": (*WORKER_LAYERS, "worker"),
    "router": (BASE, "common/metrics", "common/rpc", "proto", "engine/tokenizer",
               "engine/chat_template"),
    "cli": (*WORKER_LAYERS, "worker", "prefill_worker", "decode_worker", "router"),
    "bench": (*WORKER_LAYERS, "worker", "prefill_worker", "decode_worker", "router", "tests"),
    "tests": (*WORKER_LAYERS, "worker", "prefill_worker", "decode_worker", "router", "cli"),
}

# First part of the include -> folders in which it may appear. Tests beside the code may include what
# their folder may, and GoogleTest.
THIRD_PARTIES = {
    "hwy": ("kernels",),
    "pcre2.h": ("engine/tokenizer",),
    "utf8proc.h": ("engine/tokenizer",),
    "nlohmann": ("engine", "cli", "bench", "tests"),
    "prometheus": ("common/metrics",),
    "spdlog": ("common/base/log.cc",),
    "xxhash.h": ("kvtransfer", "kernels/kv_copy"),
    "openssl": ("engine/weights", "router", "worker"),
    "CLI": ("cli", "bench"),
    "grpc": ("common/rpc", "worker", "prefill_worker", "decode_worker", "router", "cli", "bench",
             "tests"),
    "google": ("common/rpc", "worker", "prefill_worker", "decode_worker", "router", "cli", "bench",
               "tests", "engine/tokenizer"),
    "nccl.h": ("kvtransfer/nccl",),
    "cuda_runtime.h": ("kernels", "device/cuda", "kvtransfer/nccl"),
    "cuda_runtime_api.h": ("kernels", "device/cuda", "kvtransfer/nccl"),
    "cuda.h": ("kernels", "device/cuda", "kvtransfer/nccl"),
    "cublasLt.h": ("device/cuda",),
}
THIRD_PARTY_ALIASES = {"grpcpp": "grpc"}
# prometheus-cpp stays out of our headers too: nobody who counts something compiles it.
SOURCES_ONLY = ("prometheus", "spdlog", "pcre2.h", "utf8proc.h", "xxhash.h", "openssl")

# Where generated protobuf code may be included, besides tests: where messages enter and leave.
# engine/tokenizer reads tokenizer.model, which is a protobuf file.
GENERATED_OK = ("common/rpc", "worker", "router", "cli", "bench", "tests", "engine/tokenizer")
GENERATED_OK_PARTS = ("service", "convert")

# Roots of generated headers below proto/.
GENERATED_ROOTS = ("baton", "google/rpc", "inference")

// Element types of tensors: those of the safetensors format. Weights and activations use kF32, kF16
// and kBF16; the others are known so that files which hold them can be checked and described.
#ifndef BATON_COMMON_BASE_DTYPE_H_
#define BATON_COMMON_BASE_DTYPE_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace baton {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBool,
};

inline constexpr DType kAllDTypes[] = {DType::kF32,    DType::kF16,    DType::kBF16, DType::kF64,
                                       DType::kF8E4M3, DType::kF8E5M2, DType::kI8,   DType::kI16,
                                       DType::kI32,    DType::kI64,    DType::kU8,   DType::kU16,
                                       DType::kU32,    DType::kU64,    DType::kBool};

// As safetensors spells it: "F32", "BF16", "F8_E4M3", "BOOL".
constexpr absl::string_view DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kF64:
      return "F64";
    case DType::kF8E4M3:
      return "F8_E4M3";
    case DType::kF8E5M2:
      return "F8_E5M2";
    case DType::kI8:
      return "I8";
    case DType::kI16:
      return "I16";
    case DType::kI32:
      return "I32";
    case DType::kI64:
      return "I64";
    case DType::kU8:
      return "U8";
    case DType::kU16:
      return "U16";
    case DType::kU32:
      return "U32";
    case DType::kU64:
      return "U64";
    case DType::kBool:
      return "BOOL";
  }
  return "?";
}

// Size of one element in bytes: 1, 2, 4 or 8.
constexpr int64_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  return 0;
}

// The types that kernels compute with; every other type is for checking only.
constexpr bool IsWeightDType(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_DTYPE_H_

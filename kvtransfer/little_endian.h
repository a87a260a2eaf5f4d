// Integers as the wires' frames store them: little-endian, any alignment. Pure.
#ifndef BATON_KVTRANSFER_LITTLE_ENDIAN_H_
#define BATON_KVTRANSFER_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>

namespace baton::kvtransfer {

template <typename T>
void StoreLittleEndian(T value, std::byte* to) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <typename T>
T LoadLittleEndian(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(std::to_integer<uint8_t>(from[i])) << (8 * i));
  }
  return value;
}

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_LITTLE_ENDIAN_H_

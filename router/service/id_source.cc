#include "router/service/id_source.h"

#include <openssl/rand.h>

#include "common/base/status_macros.h"

namespace baton::router {

absl::StatusOr<uint64_t> RandomUint64() {
  uint64_t value = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&value), sizeof(value)) != 1) {
    return absl::InternalError("no random numbers");
  }
  return value;
}

absl::StatusOr<std::unique_ptr<IdSource>> IdSource::Create() {
  ASSIGN_OR_RETURN(const uint64_t random, RandomUint64());
  return std::unique_ptr<IdSource>(
      new IdSource(random));  // NOLINT(banned-new): private constructor
}

}  // namespace baton::router

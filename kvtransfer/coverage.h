// Which bytes of a transfer's destination blocks have been announced so far. This is where D judges
// the ranges that a peer names: only granted logical blocks, only inside them, every byte once.
// Thread rule: owned by the receiver's core thread.
#ifndef BATON_KVTRANSFER_COVERAGE_H_
#define BATON_KVTRANSFER_COVERAGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kvtransfer/control.h"
#include "kvtransfer/transfer.h"

namespace baton::kvtransfer {

// Disjoint pieces a transfer's coverage may consist of: bounds memory under hostile ranges.
inline constexpr size_t kCoveragePiecesMax = 1 << 16;

class Coverage {
 public:
  // ERRORS: InvalidArgument: a logical block is named twice.
  static absl::StatusOr<Coverage> Create(const std::vector<DestinationBlock>& blocks);

  // Marks the ranges covered and returns where their bytes belong, in order. ERRORS:
  // InvalidArgument (nothing may be written then): a logical block that was not granted; a range
  // that is empty, leaves its block or overlaps an earlier one; lengths that do not add up to
  // `total_bytes`; ResourceExhausted: too many pieces.
  absl::StatusOr<std::vector<absl::Span<std::byte>>> Claim(absl::Span<const BlockRange> ranges,
                                                           uint64_t total_bytes);
  // OK when every byte of every block was claimed; InvalidArgument names a block with a hole.
  absl::Status CheckComplete() const;

 private:
  struct Block {
    absl::Span<std::byte> bytes;
    std::map<uint64_t, uint64_t> pieces;  // Offset -> end; disjoint and not adjacent.
  };

  absl::Status Cover(const BlockRange& range, Block* block);

  std::unordered_map<uint32_t, Block> blocks_;
  size_t num_pieces_ = 0;
};

}  // namespace baton::kvtransfer

#endif  // BATON_KVTRANSFER_COVERAGE_H_

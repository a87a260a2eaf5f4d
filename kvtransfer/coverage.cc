#include "kvtransfer/coverage.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::kvtransfer {
namespace {

std::string Describe(const BlockRange& range) {
  return absl::StrCat("range [offset ", range.offset, ", length ", range.length,
                      "] of logical block ", range.logical_block);
}

}  // namespace

absl::StatusOr<Coverage> Coverage::Create(const std::vector<DestinationBlock>& blocks) {
  Coverage coverage;
  for (const DestinationBlock& block : blocks) {
    if (!coverage.blocks_.try_emplace(block.logical_block, Block{block.bytes, {}}).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("logical block ", block.logical_block, " is named twice"));
    }
  }
  return coverage;
}

absl::StatusOr<std::vector<absl::Span<std::byte>>> Coverage::Claim(
    absl::Span<const BlockRange> ranges, uint64_t total_bytes) {
  std::vector<absl::Span<std::byte>> destinations;
  destinations.reserve(ranges.size());
  uint64_t sum = 0;
  for (const BlockRange& range : ranges) {
    auto it = blocks_.find(range.logical_block);
    if (it == blocks_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(range), " was not granted"));
    }
    Block& block = it->second;
    // In this order nothing can overflow, whatever the peer wrote.
    if (range.length == 0 || range.offset > block.bytes.size() ||
        range.length > block.bytes.size() - range.offset) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(range), " is empty or leaves the ",
                                                     block.bytes.size(), " bytes of its block"));
    }
    if (range.length > total_bytes - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("the ranges are longer than the ", total_bytes, " bytes announced"));
    }
    RETURN_IF_ERROR(Cover(range, &block));
    sum += range.length;
    destinations.push_back(block.bytes.subspan(range.offset, range.length));
  }
  if (sum != total_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ranges add up to ", sum, " bytes, ", total_bytes, " were announced"));
  }
  return destinations;
}

absl::Status Coverage::Cover(const BlockRange& range, Block* block) {
  const uint64_t end = range.offset + range.length;
  auto next = block->pieces.lower_bound(range.offset);
  const bool has_previous = next != block->pieces.begin();
  auto previous = has_previous ? std::prev(next) : next;
  if ((next != block->pieces.end() && next->first < end) ||
      (has_previous && previous->second > range.offset)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(range), " overlaps what was sent before"));
  }
  const bool joins_next = next != block->pieces.end() && next->first == end;
  const bool joins_previous = has_previous && previous->second == range.offset;
  const uint64_t piece_end = joins_next ? next->second : end;
  if (joins_next) {
    block->pieces.erase(next);
    --num_pieces_;
  }
  if (joins_previous) {
    previous->second = piece_end;
    return absl::OkStatus();
  }
  if (num_pieces_ >= kCoveragePiecesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the transfer consists of more than ", kCoveragePiecesMax, " pieces"));
  }
  block->pieces.emplace(range.offset, piece_end);
  ++num_pieces_;
  return absl::OkStatus();
}

absl::Status Coverage::CheckComplete() const {
  for (const auto& [logical_block, block] : blocks_) {
    if (block.bytes.empty()) continue;
    const auto first = block.pieces.begin();
    const bool whole =
        block.pieces.size() == 1 && first->first == 0 && first->second == block.bytes.size();
    if (!whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("logical block ", logical_block,
                       " is not covered: the transfer is final with bytes of its ",
                       block.bytes.size(), " missing"));
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::kvtransfer

// Gather and scatter against plain copies and the definition of the checksum, for sizes round the
// word and window borders, with guard bytes round every output.
#include "kernels/kv_copy/kv_copy.h"

#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kv_copy/kv_checksum_mix.h"

namespace baton::kernels {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::byte kGuard{0xA5};

Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Bytes out(size);
  for (auto& b : out) b = static_cast<std::byte>(rng());
  return out;
}

// Straight from the header's definition.
uint64_t ChecksumByDefinition(const Bytes& bytes) {
  Bytes padded = bytes;
  padded.resize((bytes.size() + 7) / 8 * 8, std::byte{0});
  uint64_t sum = KvChecksumMix(bytes.size(), kKvChecksumLengthIndex);
  for (size_t i = padded.size() / 8; i-- > 0;) {
    uint64_t word = 0;
    for (int b = 7; b >= 0; --b) {
      word = word << 8 | static_cast<uint64_t>(padded[i * 8 + static_cast<size_t>(b)]);
    }
    sum += KvChecksumMix(word, i);
  }
  return sum;
}

TEST(KvChecksum, EqualsItsDefinitionForEveryLength) {
  for (const size_t size : {0, 1, 7, 8, 9, 63, 64, 8191, 8192, 8193, 100003}) {
    const Bytes bytes = RandomBytes(size, size);
    EXPECT_EQ(KvChecksum(bytes), ChecksumByDefinition(bytes)) << size;
  }
}

TEST(KvChecksum, HasTheValuesOfItsFirstVersion) {
  // Two processes of different builds compare these sums: the function may never change.
  EXPECT_EQ(KvChecksum({}), KvChecksumMix(0, kKvChecksumLengthIndex));
  Bytes bytes(20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i + 1);
  EXPECT_EQ(KvChecksum(bytes), 0xF3FCBC8BAFE1C123u);
}

TEST(KvChecksum, SeesFlippedBitsExchangedWordsAndLostOrAddedZeros) {
  Bytes bytes = RandomBytes(4096, 1);
  const uint64_t sum = KvChecksum(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 97) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(KvChecksum(bytes), sum) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
  }
  std::swap_ranges(bytes.begin(), bytes.begin() + 8, bytes.begin() + 8);
  EXPECT_NE(KvChecksum(bytes), sum);
  EXPECT_NE(KvChecksum(Bytes(8)), KvChecksum(Bytes(16)));
  EXPECT_NE(KvChecksum(Bytes(3)), KvChecksum(Bytes(4)));
}

TEST(KvCopy, GathersAndScattersAnyCutOfTheBytes) {
  std::mt19937_64 rng(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Bytes> blocks;
    std::vector<absl::Span<const std::byte>> sources;
    Bytes expected;
    const size_t num_ranges = rng() % 9;
    for (size_t r = 0; r < num_ranges; ++r) {
      // Small odd sizes, zero, and sizes longer than a window.
      const size_t size = rng() % 3 == 0 ? rng() % 20000 : rng() % 40;
      blocks.push_back(RandomBytes(size, rng()));
      expected.insert(expected.end(), blocks.back().begin(), blocks.back().end());
    }
    for (const Bytes& block : blocks) sources.emplace_back(block.data(), block.size());
    Bytes staging(expected.size() + 16, kGuard);
    const uint64_t sum =
        GatherBytes(sources, absl::MakeSpan(staging).subspan(0, expected.size() + 8));
    EXPECT_EQ(sum, ChecksumByDefinition(expected));
    Bytes tail(staging.begin() + static_cast<ptrdiff_t>(expected.size()), staging.end());
    EXPECT_EQ(tail, Bytes(16, kGuard));
    staging.resize(expected.size());
    EXPECT_EQ(staging, expected);

    std::vector<Bytes> received;
    for (const Bytes& block : blocks) received.emplace_back(block.size() + 8, kGuard);
    std::vector<absl::Span<std::byte>> destinations;
    for (Bytes& block : received) destinations.emplace_back(block.data(), block.size() - 8);
    EXPECT_EQ(ScatterBytes(staging, destinations), sum);
    for (size_t r = 0; r < num_ranges; ++r) {
      EXPECT_TRUE(std::equal(blocks[r].begin(), blocks[r].end(), received[r].begin())) << r;
      for (size_t g = blocks[r].size(); g < received[r].size(); ++g) {
        EXPECT_EQ(received[r][g], kGuard);
      }
    }
  }
}

TEST(KvCopyDeathTest, RefusesRangesThatDoNotFitTheStaging) {
  Bytes source(16);
  Bytes staging(8);
  const absl::Span<const std::byte> sources[] = {source};
  const absl::Span<std::byte> destinations[] = {absl::MakeSpan(source)};
  EXPECT_DEATH(GatherBytes(sources, absl::MakeSpan(staging)), "kv_copy.cc.*total");
  EXPECT_DEATH(ScatterBytes(staging, destinations), "kv_copy.cc.*total");
}

}  // namespace
}  // namespace baton::kernels

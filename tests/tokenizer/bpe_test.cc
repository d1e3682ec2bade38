#include "tokenizer/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace braid {
namespace {

using Ids = std::vector<TokenId>;

struct RandomModel {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;
};

// Letters, and random merges of what there is already, in random order of priority.
RandomModel random_model(std::mt19937_64& random) {
  RandomModel model;
  const std::string letters = "abcd";
  for (size_t i = 0; i < letters.size(); ++i) {
    model.vocabulary.insert(static_cast<TokenId>(i), letters.substr(i, 1));
  }
  for (int tries = 0; tries < 40; ++tries) {
    const auto left = static_cast<TokenId>(random() % model.vocabulary.size());
    const auto right = static_cast<TokenId>(random() % model.vocabulary.size());
    const std::string text =
        std::string(model.vocabulary.text(left)) + std::string(model.vocabulary.text(right));
    if (text.size() > 12) continue;
    auto id = model.vocabulary.find(text);
    if (!id) {
      id = model.vocabulary.size();
      model.vocabulary.insert(*id, text);
    }
    model.merges.push_back({left, right, *id, static_cast<uint32_t>(random() % 50)});
  }
  return model;
}

// The definition: merge the pair of the smallest priority, leftmost first, until nothing merges.
Ids merge_directly(const RandomModel& model, const std::string& text) {
  std::map<std::pair<TokenId, TokenId>, Bpe::Merge> merges;
  for (const Bpe::Merge& merge : model.merges) merges[{merge.left, merge.right}] = merge;
  Ids ids;
  for (const char c : text) ids.push_back(*model.vocabulary.find(std::string(1, c)));
  while (true) {
    size_t best = ids.size();
    uint32_t best_priority = UINT32_MAX;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = merges.find({ids[i], ids[i + 1]});
      if (found != merges.end() && found->second.priority < best_priority) {
        best = i;
        best_priority = found->second.priority;
      }
    }
    if (best == ids.size()) return ids;
    ids[best] = merges[{ids[best], ids[best + 1]}].result;
    ids.erase(ids.begin() + best + 1);
  }
}

// Lengths on both sides of the switch from the scan to the heap.
TEST(Bpe, AgreesWithTheDefinitionOnRandomModels) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const RandomModel model = random_model(random);
    const Bpe bpe(model.vocabulary, model.merges, {});
    Bpe::Scratch scratch;
    for (int i = 0; i < 20; ++i) {
      std::string text(random() % 200, 'a');
      const size_t letters = 1 + random() % 4;
      for (char& c : text) c = static_cast<char>('a' + random() % letters);
      Ids ids;
      bpe.encode(text, scratch, ids);
      EXPECT_EQ(ids, merge_directly(model, text)) << text;
    }
  }
}

TEST(Bpe, AMegabyteOfOneLetterMergesToTheLongestTokens) {
  Vocabulary vocabulary;
  std::vector<Bpe::Merge> merges;
  std::string text = "a";
  for (TokenId id = 0; id < 8; ++id, text += text) {
    vocabulary.insert(id, text);
    if (id > 0) merges.push_back({id - 1, id - 1, id, static_cast<uint32_t>(id)});
  }
  const Bpe bpe(vocabulary, merges, {});
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode(std::string((1 << 20) + 1, 'a'), scratch, ids);
  ASSERT_EQ(ids.size(), (1u << 13) + 1);
  EXPECT_EQ(ids[0], 7);
  EXPECT_EQ(ids.back(), 0);
}

TEST(Bpe, UnknownCharactersFuseWhenAsked) {
  Vocabulary vocabulary;
  vocabulary.insert(0, "?");
  vocabulary.insert(1, "a");
  Bpe::Scratch scratch;
  for (const bool fuse : {false, true}) {
    const Bpe bpe(vocabulary, {}, {.unk = 0, .fuse_unk = fuse});
    Ids ids;
    bpe.encode("axyaz", scratch, ids);
    EXPECT_EQ(ids, fuse ? (Ids{1, 0, 1, 0}) : (Ids{1, 0, 0, 1, 0}));
  }
}

// A merge may take a byte token: the text must not be cut beside it.
TEST(Bpe, ByteTokensMayMerge) {
  Vocabulary vocabulary;
  vocabulary.insert(0, "a");
  vocabulary.insert(1, "<0x62>");
  vocabulary.insert(2, "a<0x62>");
  const Bpe bpe(vocabulary, {{0, 1, 2, 0}}, {.byte_fallback = true});
  Bpe::Scratch scratch;
  Ids ids;
  bpe.encode("aab", scratch, ids);
  EXPECT_EQ(ids, (Ids{0, 2}));
}

}  // namespace
}  // namespace braid

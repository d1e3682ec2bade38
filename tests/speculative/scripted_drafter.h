#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "speculative/drafter_setup.h"

namespace braid::testing {

// Knows how texts go on, and tells the truth with a given probability for each draft; otherwise it
// names another token. Checks that the engine keeps to the interface.
class ScriptedDrafter : public Drafter {
 public:
  struct Script {
    std::vector<std::vector<int32_t>> texts;  // prompt and reply
    double quality = 1;                       // 1: all drafts are right, 0: none
    bool wants_hidden = false;
    uint64_t seed = 0;
  };

  ScriptedDrafter(const DrafterSetup& setup, const Script& script)
      : vocab_size_(setup.target.vocab_size()),
        hidden_size_(setup.target.hidden_size()),
        max_drafts_(setup.max_drafts),
        script_(script),
        random_(script.seed) {}

  static DrafterFactory factory(Script script) {
    return [script = std::move(script)](const DrafterSetup& setup) {
      return std::make_unique<ScriptedDrafter>(setup, script);
    };
  }

  std::string_view name() const override { return "scripted"; }
  bool wants_hidden() const override { return script_.wants_hidden; }

  void draft(std::span<DraftRequest> requests) override {
    for (DraftRequest& request : requests) {
      check(request);
      const std::vector<int32_t>* text = find(request.tokens);
      const size_t known = request.tokens.size();
      for (int64_t i = 0; i < request.max_drafts; ++i) {
        // Texts that are not in the script, and their ends, get anything.
        const int32_t right = text != nullptr && known + i < text->size() ? (*text)[known + i] : 3;
        const bool lie = std::uniform_real_distribution<>()(random_) >= script_.quality;
        request.drafts.push_back(lie ? static_cast<int32_t>((right + 1) % vocab_size_) : right);
      }
    }
  }

  void rewind(int64_t sequence, int64_t length) override {
    ASSERT_LE(length, lengths_.at(sequence));
    lengths_[sequence] = length;
  }

  void forget(int64_t sequence) override { lengths_.erase(sequence); }

  size_t num_known() const { return lengths_.size(); }

 private:
  void check(const DraftRequest& request) {
    const int64_t length = request.target->length();
    ASSERT_EQ(request.target->reserved(), 0);
    ASSERT_LE(request.max_drafts, max_drafts_);
    ASSERT_TRUE(request.drafts.empty());
    ASSERT_LT(length, static_cast<int64_t>(request.tokens.size()));
    if (request.max_drafts > 0) {
      ASSERT_EQ(length + 1, static_cast<int64_t>(request.tokens.size()));
    }
    ASSERT_EQ(request.key.position, request.tokens.size());
    int64_t& known = lengths_[request.sequence];
    ASSERT_GT(length, known);
    if (script_.wants_hidden) {
      ASSERT_EQ(request.num_hidden, length - known);
      ASSERT_LE(request.first_hidden + request.num_hidden, request.hidden.dim(0));
      ASSERT_EQ(request.hidden.dim(1), hidden_size_);
    }
    known = length;
  }

  const std::vector<int32_t>* find(std::span<const int32_t> tokens) const {
    for (const auto& text : script_.texts) {
      if (text.size() >= tokens.size() && std::equal(tokens.begin(), tokens.end(), text.begin())) {
        return &text;
      }
    }
    return nullptr;
  }

  int64_t vocab_size_;
  int64_t hidden_size_;
  int64_t max_drafts_;
  Script script_;
  std::mt19937_64 random_;
  std::map<int64_t, int64_t> lengths_;  // of the target, in the last round of each sequence
};

}  // namespace braid::testing

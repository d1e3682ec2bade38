#pragma once

#include <optional>
#include <string_view>

#include "quant/quant_format.h"

namespace braid {

// What matrices of made-up weights are stored as: all the same, or by a recipe.
class DummyFormats {
 public:
  DummyFormats(const QuantFormat& all) : body_(&all), kept_(&all) {}  // NOLINT: implicit by design

  // A format ("q4_0", "w4g64_asym"; of panels: "q4_0x16"), or a recipe, likewise:
  //   w4a16  layers in w4g128 (smaller groups where 128 does not divide a row)
  //   w8a8   layers in w8c
  // with embeddings, head, routers and gates in bf16. Nothing: an unknown name.
  static std::optional<DummyFormats> find(std::string_view name);

  // By the matrix's canonical name.
  const QuantFormat& of(std::string_view tensor) const;

 private:
  DummyFormats(const QuantFormat& body, const QuantFormat& kept) : body_(&body), kept_(&kept) {}

  const QuantFormat* body_;
  const QuantFormat* kept_;
};

}  // namespace braid

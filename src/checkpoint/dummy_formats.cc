#include "checkpoint/dummy_formats.h"

#include <array>

#include "quant/panels.h"

namespace braid {
namespace {

struct Recipe {
  std::string_view name;
  FormatId body;
};
constexpr std::array kRecipes = {Recipe{"w4a16", FormatId::kW4G128},
                                 Recipe{"w8a8", FormatId::kW8C}};
constexpr std::string_view kPanelSuffix = "x16";
static_assert(kPanelRows == 16);

// Matrices whose rounding costs more than their bytes are worth, as published recipes have it.
constexpr std::array<std::string_view, 9> kKept = {
    "embed_tokens", "lm_head",    "router.",    "mlp.gate.", "shared_expert_gate",
    "in_proj_ba",   "in_proj_b.", "in_proj_a.", "mtp.fc."};

}  // namespace

std::optional<DummyFormats> DummyFormats::find(std::string_view name) {
  if (const QuantFormat* format = find_quant_format(name)) return DummyFormats(*format);
  if (const QuantFormat* format = find_panel_format(name)) return DummyFormats(*format);
  const bool panels = name.ends_with(kPanelSuffix);
  if (panels) name.remove_suffix(kPanelSuffix.size());
  for (const Recipe& recipe : kRecipes) {
    if (recipe.name != name) continue;
    const QuantFormat& body = quant_format(recipe.body);
    return DummyFormats(panels ? *panel_format(body) : body, quant_format(FormatId::kBF16));
  }
  return std::nullopt;
}

const QuantFormat& DummyFormats::of(std::string_view tensor) const {
  for (const std::string_view part : kKept) {
    if (tensor.find(part) != tensor.npos) return *kept_;
  }
  return *body_;
}

}  // namespace braid

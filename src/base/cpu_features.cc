#include "base/cpu_features.h"

#include <atomic>
#include <cstdlib>

#include "base/error.h"

namespace braid {
namespace {

constexpr Isa kAllIsas[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512};

Isa choose_isa() {
  if (const char* name = std::getenv("BRAID_ISA"); name != nullptr && *name != '\0') {
    const Isa isa = parse_isa(name);
    if (!isa_supported(isa)) throw Error("BRAID_ISA={}: this processor cannot run it", name);
    return isa;
  }
  return supported_isas().back();
}

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa{choose_isa()};
  return isa;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  // F16C, whose name clang 14 does not know here, comes with every processor that has AVX2.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  switch (isa) {
    case Isa::kPortable:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
  }
  return false;
#else
  return isa == Isa::kPortable;
#endif
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa active_isa() { return active().load(std::memory_order_relaxed); }

void force_isa(Isa isa) {
  if (!isa_supported(isa)) {
    throw Error("instruction set '{}': this processor cannot run it", isa_name(isa));
  }
  active().store(isa, std::memory_order_relaxed);
}

Isa parse_isa(std::string_view name) {
  for (Isa isa : kAllIsas) {
    if (name == isa_name(isa)) return isa;
  }
  throw UsageError("instruction set '{}': expected portable, avx2 or avx512", name);
}

}  // namespace braid

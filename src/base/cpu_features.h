#pragma once

#include <string_view>
#include <vector>

namespace braid {

// Instruction sets for which the CPU kernels are compiled, from the slowest to the fastest.
//   portable  what the target architecture guarantees (x86-64: SSE2)
//   avx2      AVX2, FMA, F16C, BMI2
//   avx512    the above and AVX-512 F, BW, DQ, VL, VNNI, BF16
enum class Isa { kPortable, kAvx2, kAvx512 };

std::string_view isa_name(Isa isa);

// True if this processor and operating system can run kernels for `isa`.
bool isa_supported(Isa isa);

// The supported ones, slowest first; never empty.
std::vector<Isa> supported_isas();

// The instruction set in use: the fastest supported one, unless force_isa or the environment
// variable BRAID_ISA (portable, avx2, avx512) chose another.
Isa active_isa();

// Makes active_isa() return `isa` from now on. Throws Error if it is not supported. Call it before
// the first kernel runs, or between kernels in a single-threaded test.
void force_isa(Isa isa);

// "avx2" -> Isa::kAvx2. Throws UsageError that lists the names for anything else.
Isa parse_isa(std::string_view name);

}  // namespace braid

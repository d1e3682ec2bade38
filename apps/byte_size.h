#pragma once

#include <cstdint>
#include <string>

namespace braid {

// "10GiB", "512 MiB", "1.5G", "200MB", "1000000": bytes. KiB, MiB, GiB, TiB (and K, M, G, T alone)
// are powers of 1024, kB, MB, GB, TB of 1000. Throws UsageError for anything else, and for less
// than one byte.
int64_t parse_byte_size(const std::string& text);

}  // namespace braid

#include "text.hpp"

#include <cstdio>

namespace dsakit::harness {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      out += c;
    } else {
      char escape[5];
      std::snprintf(escape, sizeof escape, "\\x%02x", byte);
      out += escape;
    }
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  return "'" + escaped(text.substr(0, kLongest)) + (text.size() > kLongest ? "...'" : "'");
}

} // namespace dsakit::harness

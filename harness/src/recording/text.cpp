#include "text.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "ordinary_file.hpp"

namespace dsakit::harness {

namespace {

/// Bytes of the character at text[at]; 0: it is a control character or no UTF-8.
std::size_t shown_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return first < 0x20 || first == 0x7F ? 0 : 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  // Too long a form, a surrogate, or beyond U+10FFFF; U+0080 to U+009F, which a terminal may take
  // for escape sequences.
  const unsigned char second = byte(at + 1);
  const bool none = (first == 0xC2 && second < 0xA0) || (first == 0xE0 && second < 0xA0) ||
                    (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
                    (first == 0xF4 && second > 0x8F);
  return none ? 0 : length;
}

} // namespace

std::string hex_escape(char c) {
  char text[5];
  std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(c));
  return text;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t shown = shown_bytes(text, at);
    out += shown > 0 ? std::string(text.substr(at, shown)) : hex_escape(text[at]);
    at += std::max<std::size_t>(shown, 1);
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  out += escaped(text.substr(0, kLongest)) + (text.size() > kLongest ? "...'" : "'");
  return out;
}

Result<std::string> read_text_file(const std::string& path) {
  DSAKIT_TRY(size_of_ordinary_file(path));
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char block[1 << 14];
  while (file.read(block, sizeof block), file.gcount() > 0) // no exception where it fails
    text.append(block, static_cast<std::size_t>(file.gcount()));
  if (!file.eof()) return bad_input(path + ": cannot be read");
  return text;
}

} // namespace dsakit::harness

#include "text.hpp"

#include <cstdio>
#include <fstream>

#include "ordinary_file.hpp"

namespace dsakit::harness {

std::string hex_escape(char c) {
  char text[5];
  std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(c));
  return text;
}

std::size_t control_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x20 || byte(at) == 0x7F) return 1;
  // U+0080 to U+009F: a terminal may take them for escape sequences.
  const bool two = byte(at) == 0xC2 && at + 1 < text.size() && byte(at + 1) >= 0x80;
  return two && byte(at + 1) <= 0x9F ? 2 : 0;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t control = control_bytes(text, at);
    if (control == 0) out += text[at++];
    for (std::size_t i = 0; i < control; ++i)
      out += hex_escape(text[at++]);
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

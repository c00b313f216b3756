#include "text.hpp"

#include <cstdio>
#include <fstream>
#include <iterator>

#include "ordinary_file.hpp"

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
  std::string out = "'";
  out += escaped(text.substr(0, kLongest)) + (text.size() > kLongest ? "...'" : "'");
  return out;
}

Result<std::string> read_text_file(const std::string& path) {
  DSAKIT_TRY(size_of_ordinary_file(path));
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return bad_input(path + ": cannot be read");
  return text;
}

} // namespace dsakit::harness

#include "text.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

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
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status))
    return bad_input(path + ": found a folder, want a file");
  if (!std::filesystem::exists(status)) return bad_input(path + ": no such file");
  if (!std::filesystem::is_regular_file(status))
    return bad_input(path + ": found a special file, want an ordinary one");
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) return bad_input(path + ": cannot be read");
  return text;
}

} // namespace dsakit::harness

#include "superblock.hpp"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string_view>

#include "ordinary_file.hpp"
#include "text.hpp"

namespace dsakit::harness {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

std::uint64_t little_endian(const char* bytes, std::size_t count) {
  std::uint64_t value = 0;
  for (std::size_t i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

} // namespace

Status check_superblock(const std::string& path) {
  const auto bytes = size_of_ordinary_file(path);
  DSAKIT_TRY(bytes);
  const std::uint64_t size = *bytes;
  std::ifstream file(path, std::ios::binary);
  char head[48] = {};
  file.read(head, sizeof head);
  if (std::string_view(head, kSignature.size()) != kSignature) {
    for (std::uint64_t offset = 512; offset < size; offset *= 2) {
      char block[kSignature.size()] = {};
      file.clear();
      file.seekg(static_cast<std::streamoff>(offset));
      file.read(block, sizeof block);
      if (std::string_view(block, sizeof block) == kSignature)
        return bad_input(path + ": found a user block of " + std::to_string(offset) +
                         " bytes, want none");
    }
    return bad_input(
        path + ": found no HDF5 signature, want a recording (HDF5)" +
        (size > 8 && head[8] == '{' ? "; a safetensors file needs dsakit import" : ""));
  }
  const int version = static_cast<unsigned char>(head[8]);
  if (version < 2)
    return bad_input(path + ": found HDF5 superblock version " + std::to_string(version) +
                     ", want 2 or 3: rewrite it with h5repack --low=2 --high=2");
  if (version > 3)
    return bad_input(path + ": found HDF5 superblock version " + std::to_string(version) +
                     ", want 2 or 3");
  // version 2 and 3: sizes at 9 and 10, flags at 11, then base, extension, end-of-file addresses
  if (head[9] != 8 || head[10] != 8)
    return bad_input(path + ": found a damaged superblock, want addresses of 8 bytes");
  const std::uint64_t end = little_endian(head + 28, 8);
  if (end > size)
    return bad_input(path + ": found " + std::to_string(size) + " bytes, want " +
                     std::to_string(end) + ": the file is truncated");
  return {};
}

} // namespace dsakit::harness

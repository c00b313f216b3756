#include "resources.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "../golden/manifest.hpp"
#include "dsakit/optimized/code_objects.hpp"

namespace dsakit::harness {
namespace {

constexpr std::uint32_t kMetadataNote = 32; // NT_AMDGPU_METADATA: msgpack

constexpr std::pair<const char*, const char*> kResources[] = {
    {"vgprs", ".vgpr_count"},
    {"agprs", ".agpr_count"},
    {"sgprs", ".sgpr_count"},
    {"vgpr_spills", ".vgpr_spill_count"},
    {"sgpr_spills", ".sgpr_spill_count"},
    {"scratch", ".private_segment_fixed_size"},
    {"lds", ".group_segment_fixed_size"}};

template <class T>
T read_at(const std::byte* data, std::size_t at) {
  T value;
  std::memcpy(&value, data + at, sizeof value);
  return value;
}

std::size_t padded_to_four(std::size_t bytes) {
  return (bytes + 3) / 4 * 4;
}

/// The kernels of a code object that this build made, so that its form is known.
nlohmann::json kernels_of(const optimized::CodeObject& object) {
  const auto header = read_at<Elf64_Ehdr>(object.data, 0);
  for (int i = 0; i < header.e_phnum; ++i) {
    const auto segment = read_at<Elf64_Phdr>(
        object.data, header.e_phoff + static_cast<std::size_t>(i) * header.e_phentsize);
    if (segment.p_type != PT_NOTE) continue;
    for (std::size_t at = segment.p_offset;
         at + sizeof(Elf64_Nhdr) <= segment.p_offset + segment.p_filesz;) {
      const auto note = read_at<Elf64_Nhdr>(object.data, at);
      const std::size_t text = at + sizeof note + padded_to_four(note.n_namesz);
      if (note.n_type == kMetadataNote) {
        const auto* bytes = reinterpret_cast<const std::uint8_t*>(object.data + text);
        const auto metadata =
            nlohmann::json::from_msgpack(bytes, bytes + note.n_descsz, true, false);
        return metadata.is_object() ? metadata.value("amdhsa.kernels", nlohmann::json::array())
                                    : nlohmann::json::array();
      }
      at = text + padded_to_four(note.n_descsz);
    }
  }
  return nlohmann::json::array();
}

/// visit(object, kernel) for each kernel with one of the symbols.
template <class Visit>
void for_each_kernel(optimized::Arch arch, const std::set<std::string>& symbols,
                     const Visit& visit) {
  if (symbols.empty()) return;
  for (const optimized::CodeObject& object : optimized::code_objects()) {
    if (object.arch != arch) continue;
    for (const auto& kernel : kernels_of(object))
      if (symbols.contains(kernel.value(".name", ""))) visit(object, kernel);
  }
}

} // namespace

std::map<std::string, std::int64_t> kernel_resources(optimized::Arch arch,
                                                     const std::set<std::string>& symbols) {
  std::map<std::string, std::int64_t> most;
  for_each_kernel(arch, symbols, [&](const optimized::CodeObject&, const nlohmann::json& kernel) {
    for (const auto& [name, key] : kResources)
      if (const auto found = kernel.find(key); found != kernel.end())
        most[name] = std::max(most[name], found->get<std::int64_t>());
  });
  if (most.contains("vgpr_spills")) most["spills"] = most["vgpr_spills"] + most["sgpr_spills"];
  most.erase("vgpr_spills");
  most.erase("sgpr_spills");
  return most;
}

Result<std::string> code_hash(optimized::DeviceKind kind, optimized::Arch arch,
                              const std::set<std::string>& symbols) {
  if (kind != optimized::DeviceKind::hip) {
    static const Result<std::string> program = sha256_of("/proc/self/exe");
    return program;
  }
  std::string hashes;
  for_each_kernel(arch, symbols, [&](const optimized::CodeObject& object, const nlohmann::json&) {
    const std::string one = sha256_of_bytes({object.data, object.bytes});
    if (hashes.find(one) == std::string::npos) hashes += one;
  });
  if (hashes.size() <= 64) return hashes;
  return sha256_of_bytes(std::as_bytes(std::span(hashes)));
}

} // namespace dsakit::harness

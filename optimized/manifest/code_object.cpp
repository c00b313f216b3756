#include "code_object.hpp"

#include <elf.h>

#include <cstring>

#include <nlohmann/json.hpp>

namespace dsakit::code_object {
namespace {

using nlohmann::json;

constexpr unsigned kMachMask = 0xFF;    // EF_AMDGPU_MACH
constexpr unsigned kMetadataNote = 32;  // NT_AMDGPU_METADATA
constexpr Elf64_Half kAmdGpu = 224;     // EM_AMDGPU
constexpr std::size_t kDescriptor = 64; // bytes of a kernel's descriptor, its symbol's size

template <class T>
T read(const char* image, std::size_t offset) {
  T value;
  std::memcpy(&value, image + offset, sizeof value);
  return value;
}

std::vector<Elf64_Shdr> sections(const char* image, const Elf64_Ehdr& header) {
  std::vector<Elf64_Shdr> all;
  for (std::size_t i = 0; i < header.e_shnum; ++i)
    all.push_back(read<Elf64_Shdr>(image, header.e_shoff + i * header.e_shentsize));
  return all;
}

/// The metadata map of the note "AMDGPU".
json metadata(const char* image, const std::vector<Elf64_Shdr>& all) {
  for (const Elf64_Shdr& section : all) {
    if (section.sh_type != SHT_NOTE) continue;
    const auto aligned = [](std::size_t n) { return (n + 3) / 4 * 4; };
    for (std::size_t at = section.sh_offset; at < section.sh_offset + section.sh_size;) {
      const auto note = read<Elf64_Nhdr>(image, at);
      const char* name = image + at + sizeof note;
      const char* content = name + aligned(note.n_namesz);
      if (note.n_type == kMetadataNote && std::string(name) == "AMDGPU")
        return json::from_msgpack(content, content + note.n_descsz);
      at += sizeof note + aligned(note.n_namesz) + aligned(note.n_descsz);
    }
  }
  return {};
}

/// The symbol is there and is a kernel descriptor.
bool has_descriptor(const char* image, const std::vector<Elf64_Shdr>& all,
                    const std::string& symbol) {
  for (const Elf64_Shdr& section : all) {
    if (section.sh_type != SHT_DYNSYM) continue;
    const char* strings = image + all[section.sh_link].sh_offset;
    for (std::size_t at = 0; at < section.sh_size; at += sizeof(Elf64_Sym)) {
      const auto entry = read<Elf64_Sym>(image, section.sh_offset + at);
      if (symbol == strings + entry.st_name) return entry.st_size == kDescriptor;
    }
  }
  return false;
}

KernelInfo kernel_info(const json& entry) {
  KernelInfo kernel{};
  kernel.name = entry.at(".name");
  kernel.kernarg_bytes = entry.at(".kernarg_segment_size");
  kernel.lds_bytes = entry.at(".group_segment_fixed_size");
  kernel.max_lanes = entry.at(".max_flat_workgroup_size");
  kernel.wave_size = entry.at(".wavefront_size");
  for (const json& argument : entry.at(".args")) {
    const std::string kind = argument.at(".value_kind");
    if (kind.rfind("hidden_", 0) != 0)
      kernel.arguments.push_back({argument.at(".offset"), argument.at(".size"), kind});
  }
  return kernel;
}

} // namespace

std::optional<CodeObjectInfo> read_code_object(const void* image) {
  const auto* bytes = static_cast<const char*>(image);
  const auto header = read<Elf64_Ehdr>(bytes, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kAmdGpu) return {};
  const std::vector<Elf64_Shdr> all = sections(bytes, header);
  const json map = metadata(bytes, all);
  if (!map.contains("amdhsa.kernels")) return {};
  CodeObjectInfo object{header.e_flags & kMachMask, {}};
  for (const json& entry : map["amdhsa.kernels"]) {
    KernelInfo kernel = kernel_info(entry);
    if (has_descriptor(bytes, all, entry.at(".symbol"))) object.kernels[kernel.name] = kernel;
  }
  return object;
}

} // namespace dsakit::code_object

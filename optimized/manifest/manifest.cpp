// A JSON manifest for each code object, for people who load modules themselves (docs/amd.md).
//
//   dsakit_manifest CODE_OBJECTS_FOLDER WORKSPACES.json
//
// Reads <object>.<arch>.hsaco and writes <object>.<arch>.json beside it. Symbols, LDS and lanes are
// the code object's own metadata; the fields of the one struct that a kernel takes by value, the
// compiler's.
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>
#include <typeindex>
#include <vector>

#include <nlohmann/json.hpp>

#include "code_object.hpp"
#include "headers.inc"

namespace {

using Json = nlohmann::ordered_json;
using namespace dsakit::optimized;

struct Field {
  std::string name;
  std::size_t offset;
  std::size_t bytes;
  std::size_t alignment;
  std::string kind;
  std::type_index type;
};

template <class T>
std::string kind_of() {
  return std::is_class_v<T>            ? "struct"
         : std::is_pointer_v<T>        ? "pointer"
         : std::is_enum_v<T>           ? "enum"
         : std::is_floating_point_v<T> ? "float"
                                       : "integer";
}

struct Struct {
  std::size_t bytes = 0;
  std::size_t alignment = 1;
  std::type_index type = typeid(void);
  std::vector<Field> fields;
};
using Structs = std::map<std::string, Struct>;

Structs structs() {
  Structs all;
#define DSAKIT_FIELD(Params, field)                                                                \
  {                                                                                                \
    Struct& into = all[#Params];                                                                   \
    into.bytes = sizeof(Params);                                                                   \
    into.alignment = alignof(Params);                                                              \
    into.type = typeid(Params);                                                                    \
    into.fields.push_back({#field, offsetof(Params, field), sizeof(Params::field),                 \
                           alignof(decltype(Params::field)), kind_of<decltype(Params::field)>(),   \
                           typeid(decltype(Params::field))});                                      \
  }
#include "fields.inc"
#undef DSAKIT_FIELD
  return all;
}

/// Symbol -> the struct that it takes.
const std::map<std::string, std::string> kTakes = {
#define DSAKIT_KERNEL_OF(symbol, Params, object) {#symbol, #Params},
#include "kernels.inc"
#undef DSAKIT_KERNEL_OF
};

/// Empty, or what is wrong. A field that the list missed shows as a gap that alignment does not
/// explain.
std::string gap_in(const Struct& of) {
  const auto aligned = [](std::size_t at, std::size_t to) { return (at + to - 1) / to * to; };
  std::size_t end = 0;
  for (const Field& field : of.fields) {
    if (field.offset != aligned(end, field.alignment))
      return "between byte " + std::to_string(end) + " and " + field.name;
    end = field.offset + field.bytes;
  }
  return of.bytes == aligned(end, of.alignment) ? "" : "after byte " + std::to_string(end);
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "dsakit_manifest: %s\n", what.c_str());
  std::exit(2);
}

/// The fields, those of a struct within as "cache.pages".
void add_fields(Json& fields, const Structs& known, const Struct& of, const std::string& prefix,
                std::size_t base) {
  if (const std::string gap = gap_in(of); !gap.empty())
    fail(std::string(of.type.name()) + ": found a field that is not listed, " + gap);
  for (const Field& field : of.fields) {
    if (field.kind != "struct") {
      fields.push_back({{"name", prefix + field.name},
                        {"offset", base + field.offset},
                        {"bytes", field.bytes},
                        {"kind", field.kind}});
      continue;
    }
    for (const auto& [name, inner] : known)
      if (inner.type == field.type)
        add_fields(fields, known, inner, prefix + field.name + ".", base + field.offset);
  }
}

Json kernel_json(const dsakit::code_object::KernelInfo& kernel, const Structs& known,
                 const std::string& name, const std::string& workspace) {
  Json fields = Json::array();
  add_fields(fields, known, known.at(name), "", 0);
  return {{"symbol", kernel.name},        {"block", kernel.max_lanes},
          {"wave", kernel.wave_size},     {"lds_bytes", kernel.lds_bytes},
          {"workspace_bytes", workspace}, {"argument_bytes", kernel.argument_bytes()},
          {"argument_struct", name},      {"arguments", std::move(fields)}};
}

void write_manifests(const std::string& folder, const std::string& formulas_file) {
  namespace fs = std::filesystem;
  std::ifstream formulas(formulas_file);
  const auto workspaces = Json::parse(formulas);
  const auto known = structs();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const fs::path& file = entry.path();
    if (file.extension() != ".hsaco") continue;
    std::ifstream in(file, std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(in), {}};
    const auto object = dsakit::code_object::read_code_object(image.data());
    if (!object) fail(file.string() + ": found no code object with metadata, want one");

    const std::string arch = file.stem().extension().string().substr(1);
    Json kernels = Json::array();
    for (const auto& [symbol, kernel] : object->kernels) {
      const auto takes = kTakes.find(symbol);
      if (takes == kTakes.end()) fail(file.string() + ": found kernel " + symbol + " of no source");
      const Struct& fields = known.at(takes->second);
      if (fields.bytes != kernel.argument_bytes())
        fail(file.string() + ": " + symbol + ": found " + std::to_string(kernel.argument_bytes()) +
             " bytes of arguments, want " + std::to_string(fields.bytes) + " of " + takes->second);
      kernels.push_back(
          kernel_json(kernel, known, takes->second, workspaces.value(takes->second, "0")));
    }
    const Json manifest = {{"code_object", file.filename().string()},
                           {"arch", arch},
                           {"operation", file.stem().stem().string()},
                           {"kernels", std::move(kernels)}};
    std::ofstream(fs::path(file).replace_extension(".json")) << manifest.dump(2) << "\n";
  }
}

} // namespace

int main(int count, char** arguments) {
  if (count != 3) fail("usage: dsakit_manifest CODE_OBJECTS_FOLDER WORKSPACES.json");
  try {
    write_manifests(arguments[1], arguments[2]);
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

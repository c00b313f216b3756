#include "dsakit/harness/safetensors.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>

#include "../recording/atomic_file.hpp"
#include "../recording/ordinary_file.hpp"
#include "../recording/text.hpp"
#include "json.hpp"

namespace dsakit::harness {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kLargestHeader = 100'000'000; // of the format

struct DtypeName {
  std::string_view name;
  Dtype dtype;
};
constexpr DtypeName kDtypeNames[] = {
    {"BF16", Dtype::bfloat16},
    {"F16", Dtype::float16},
    {"F32", Dtype::float32},
    {"I32", Dtype::int32},
    {"I64", Dtype::int64},
    {"U8", Dtype::uint8},
    {"F8_E4M3", Dtype::float8_e4m3fn},
    {"F8_E4M3FNUZ", Dtype::float8_e4m3fnuz},
    {"F8_E8M0", Dtype::float8_e8m0fnu},
};

std::string_view safetensors_name(Dtype dtype) {
  for (const DtypeName& known : kDtypeNames)
    if (known.dtype == dtype) return known.name;
  return "U8"; // packed fp4
}

/// An unsigned number below 2^63, as the format writes extents and offsets.
std::optional<std::uint64_t> natural(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return std::nullopt;
  return number;
}

struct Range {
  std::uint64_t begin, end;
  std::string name;
};

Result<SafetensorsReader::Entry> parse_entry(const std::string& path, const std::string& name,
                                             const Json& json, std::uint64_t payload,
                                             Range& range) {
  const auto fail = [&](const std::string& text) {
    return bad_input(path + ": " + in_quotes(name) + ": " + text);
  };
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets"))
    return fail("found other keys, want dtype, shape and data_offsets");
  const Json &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];

  SafetensorsReader::Entry entry{};
  const auto* known = std::find_if(std::begin(kDtypeNames), std::end(kDtypeNames),
                                   [&](const DtypeName& d) { return dtype == d.name; });
  if (known == std::end(kDtypeNames)) {
    std::string wanted;
    for (const DtypeName& d : kDtypeNames)
      wanted += (wanted.empty() ? "" : " | ") + std::string(d.name);
    return fail("found dtype " + in_quotes(dtype.dump()) + ", want " + wanted);
  }
  entry.dtype = known->dtype;

  if (!shape.is_array()) return fail("found a shape that is no array of extents");
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t bytes = size_of(entry.dtype);
  bool empty = false;
  for (const Json& value : shape) {
    const auto extent = natural(value);
    if (!extent) return fail("found extent " + in_quotes(value.dump()) + ", want a number >= 0");
    if (*extent != 0 && bytes > kMost / *extent)
      return fail("found a shape of more than 2^63 bytes, want one that fits");
    bytes *= std::max<std::uint64_t>(*extent, 1);
    empty = empty || *extent == 0;
    entry.shape.push_back(static_cast<std::int64_t>(*extent));
  }
  if (empty) bytes = 0;

  const auto begin = offsets.is_array() && offsets.size() == 2 ? natural(offsets[0]) : std::nullopt;
  const auto end = begin ? natural(offsets[1]) : std::nullopt;
  if (!end) return fail("found data_offsets " + in_quotes(offsets.dump()) + ", want [begin, end]");
  if (*begin > *end || *end > payload)
    return fail("found data_offsets " + in_quotes(offsets.dump()) + ", want them within the " +
                std::to_string(payload) + " bytes of payload: the file is truncated or damaged");
  if (*end - *begin != bytes)
    return fail("found " + std::to_string(*end - *begin) + " bytes, want " + std::to_string(bytes) +
                " for " + std::string(known->name) + " " + to_string(entry.shape));
  entry.offset = *begin;
  range = {*begin, *end, name};
  return entry;
}

/// Every byte of the payload belongs to exactly one tensor.
Status check_ranges(const std::string& path, std::vector<Range> ranges, std::uint64_t payload) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t next = 0;
  for (const Range& range : ranges) {
    if (range.begin != next)
      return bad_input(path + ": " + in_quotes(range.name) + ": found a payload from byte " +
                       std::to_string(range.begin) + ", want " + std::to_string(next) +
                       ": payloads overlap or leave a gap");
    next = range.end;
  }
  if (next != payload)
    return bad_input(path + ": found " + std::to_string(payload) + " bytes of payload, want " +
                     std::to_string(next));
  return {};
}

} // namespace

Result<SafetensorsReader> SafetensorsReader::open(const std::string& path) {
  const auto bytes = size_of_ordinary_file(path);
  DSAKIT_TRY(bytes);
  const std::uint64_t size = *bytes;
  std::ifstream file(path, std::ios::binary);
  unsigned char prefix[8] = {};
  file.read(reinterpret_cast<char*>(prefix), sizeof prefix);
  std::uint64_t length = 0;
  for (int i = 8; i-- > 0;)
    length = length << 8 | prefix[i];
  if (size < 8 || length > std::min(size - 8, kLargestHeader))
    return bad_input(path + ": found " + std::to_string(size) + " bytes and a header of " +
                     std::to_string(length) + ", want a .safetensors file");
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::streamsize>(length));
  if (!file) return bad_input(path + ": cannot be read: " + std::strerror(errno));

  auto header = parse_json(path + ": header", text, 3);
  if (!header) return header.status();
  if (!header->is_object()) return bad_input(path + ": header: found no JSON object, want one");
  SafetensorsReader reader;
  reader.path_ = path;
  const std::uint64_t payload = size - 8 - length;
  std::vector<Range> ranges;
  for (const auto& [name, value] : header->items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return bad_input(path + ": __metadata__: found no object of texts");
      for (const auto& [key, text_value] : value.items()) {
        if (!text_value.is_string())
          return bad_input(path + ": __metadata__: found no text for " + in_quotes(key));
        reader.metadata_.emplace(key, text_value.get<std::string>());
      }
      continue;
    }
    Range range{};
    auto entry = parse_entry(path, name, value, payload, range);
    if (!entry) return entry.status();
    entry->offset += 8 + length;
    ranges.push_back(std::move(range));
    reader.tensors_.emplace(name, std::move(*entry));
  }
  DSAKIT_TRY(check_ranges(path, std::move(ranges), payload));
  return reader;
}

BlockSource SafetensorsReader::source(const std::string& name) const {
  auto file = std::make_shared<std::ifstream>(path_, std::ios::binary);
  file->seekg(static_cast<std::streamoff>(tensors_.at(name).offset));
  return [file, path = path_](std::span<std::byte> block) -> Status {
    file->read(reinterpret_cast<char*>(block.data()), static_cast<std::streamsize>(block.size()));
    if (!*file) return bad_input(path + ": cannot be read: " + std::strerror(errno));
    return {};
  };
}

Result<Tensor> SafetensorsReader::read(const std::string& name) const {
  const Entry& entry = tensors_.at(name);
  Tensor tensor(entry.dtype, entry.shape);
  DSAKIT_TRY(source(name)(tensor.bytes));
  return tensor;
}

Status write_safetensors(const std::string& path,
                         const std::map<std::string, std::string>& metadata,
                         const std::vector<SafetensorsOutput>& tensors) {
  Json header;
  header["__metadata__"] = metadata;
  std::uint64_t next = 0;
  for (const SafetensorsOutput& tensor : tensors) {
    const auto bytes =
        static_cast<std::uint64_t>(element_count(tensor.shape)) * size_of(tensor.dtype);
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {next, next + bytes}}};
    next += bytes;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' '); // payloads start aligned
  char prefix[8];
  for (std::size_t i = 0; i < 8; ++i)
    prefix[i] = static_cast<char>(text.size() >> (8 * i));

  auto target = AtomicFile::create(path);
  if (!target) return target.status();
  std::ofstream file(target->temporary(), std::ios::binary);
  const auto cannot_write = [&] {
    return bad_input(path + ": cannot be written: " + std::strerror(errno));
  };
  file.write(prefix, sizeof prefix);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const SafetensorsOutput& tensor : tensors)
    DSAKIT_TRY(tensor.payload([&](std::span<const std::byte> block) -> Status {
      file.write(reinterpret_cast<const char*>(block.data()),
                 static_cast<std::streamsize>(block.size()));
      return file ? Status{} : cannot_write();
    }));
  file.close();
  if (!file) return cannot_write();
  return target->commit();
}

} // namespace dsakit::harness

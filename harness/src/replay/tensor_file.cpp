#include "tensor_file.hpp"

#include <algorithm>
#include <fstream>

#include "../recording/names.hpp"
#include "../recording/ordinary_file.hpp"
#include "../recording/text.hpp"

namespace dsakit::harness {

Result<NameMap> parse_map(const std::string& text) {
  const auto equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    return bad_input("--map: found '" + text + "', want REGEX=REPLACEMENT");
  try {
    return NameMap{text, std::regex(text.substr(0, equals)), text.substr(equals + 1)};
  } catch (const std::regex_error& error) {
    return bad_input("--map: found '" + text + "', want a regular expression: " + error.what());
  }
}

std::string mapped(const std::string& name, const std::vector<NameMap>& maps,
                   std::vector<char>& used) {
  std::string result = name;
  for (std::size_t i = 0; i < maps.size(); ++i) {
    if (!std::regex_search(result, maps[i].pattern)) continue;
    used[i] = 1;
    result = std::regex_replace(result, maps[i].pattern, maps[i].replacement);
  }
  return result;
}

namespace {

/// As `export` writes it.
Dtype exported_dtype(Dtype dtype) {
  return dtype == Dtype::float4_e2m1fn_x2 ? Dtype::uint8 : dtype;
}

} // namespace

bool is_safetensors(const std::string& path) {
  if (!size_of_ordinary_file(path)) return false; // a FIFO may never begin
  char head[9] = {}; // the length of the header, and the header's first byte
  std::ifstream(path, std::ios::binary).read(head, sizeof head);
  return head[8] == '{';
}

Result<TensorFile> TensorFile::open(const std::string& path) {
  DSAKIT_TRY(size_of_ordinary_file(path));
  TensorFile file;
  file.path_ = path;
  if (is_safetensors(path)) {
    auto reader = SafetensorsReader::open(path);
    DSAKIT_TRY(reader);
    file.safetensors_ = std::make_unique<SafetensorsReader>(std::move(*reader));
    for (const auto& [name, entry] : file.safetensors_->tensors())
      DSAKIT_TRY(file.add(name, {entry.dtype, entry.shape, name}));
    return file;
  }
  auto reader = RecordingReader::open(path);
  DSAKIT_TRY(reader);
  file.recording_ = std::make_unique<RecordingReader>(std::move(*reader));
  const auto add_all = [&](const std::vector<TensorInfo>& tensors) -> Status {
    for (const TensorInfo& info : tensors) {
      file.infos_.emplace(info.object, info);
      DSAKIT_TRY(file.add(exported_name(info.object),
                          {exported_dtype(info.dtype), info.shape, info.object}));
    }
    return {};
  };
  for (const OperationId& id : file.recording_->operations())
    for (const Side side : {Side::inputs, Side::outputs})
      DSAKIT_TRY(add_all(file.recording_->tensors(id, side)));
  DSAKIT_TRY(add_all(file.recording_->weights()));
  return file;
}

Status TensorFile::add(const std::string& name, Entry entry) {
  // Rules and maps match by std::regex, which recurses once a character.
  constexpr std::size_t kLongest = 255;
  if (name.empty() || name.size() > kLongest || escaped(name) != name)
    return bad_input(path_ + ": found tensor " + in_quotes(name) +
                     ", want a name of 1 to 255 bytes without control characters");
  tensors_.emplace(name, std::move(entry));
  return {};
}

Status TensorFile::rename(const std::vector<NameMap>& maps, std::vector<char>& used) {
  std::map<std::string, Entry> before;
  std::swap(before, tensors_);
  std::map<std::string, std::string> old_names;
  for (auto& [name, entry] : before) {
    const std::string renamed = mapped(name, maps, used);
    if (const auto [other, fresh] = old_names.emplace(renamed, name); !fresh)
      return bad_input(path_ + ": found " + in_quotes(other->second) + " and " + in_quotes(name) +
                       ", which --map both makes " + in_quotes(renamed) + ", want a name for each");
    DSAKIT_TRY(add(renamed, std::move(entry)));
  }
  return {};
}

Status TensorFile::stream(const Entry& entry, const BlockSink& sink) const {
  if (recording_) return recording_->stream(infos_.at(entry.stored), sink);
  constexpr std::int64_t kBlock = 16 << 20;
  const BlockSource pull = source(entry);
  std::vector<std::byte> block;
  std::int64_t left = element_count(entry.shape) * static_cast<std::int64_t>(size_of(entry.dtype));
  for (; left > 0; left -= static_cast<std::int64_t>(block.size())) {
    block.resize(static_cast<std::size_t>(std::min(left, kBlock)));
    DSAKIT_TRY(pull(block));
    DSAKIT_TRY(sink(block));
  }
  return {};
}

BlockSource TensorFile::source(const Entry& entry) const {
  return safetensors_->source(entry.stored);
}

} // namespace dsakit::harness

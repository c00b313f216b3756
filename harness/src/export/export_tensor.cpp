#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>

#include "../recording/atomic_file.hpp"
#include "../recording/text.hpp"
#include "dsakit/harness/compare.hpp"
#include "dsakit/harness/export.hpp"
#include "dsakit/harness/safetensors.hpp"
#include "dsakit/reference/formats.hpp"
#include "slice.hpp"

namespace dsakit::harness {
namespace {

template <class Items, class Text>
std::string joined(const Items& items, Text text) {
  std::string list;
  for (const auto& item : items)
    list += (list.empty() ? "" : ", ") + text(item);
  return list;
}

/// The operation that the options name.
Result<OperationId> find_operation_id(const RecordingReader& reader,
                                      const ExportTensorOptions& options) {
  std::vector<OperationId> found;
  for (const OperationId& id : reader.operations())
    if (id.operation == options.operation && (!options.step || id.step == *options.step))
      found.push_back(id);
  if (found.size() == 1) return found.front();
  if (!found.empty())
    return bad_input(reader.path() + ": found " + options.operation + " in steps " +
                     joined(found, [](const OperationId& id) { return std::to_string(id.step); }) +
                     ", want --step with one of them");
  return bad_input(reader.path() + ": found no operation " + in_quotes(options.operation) +
                   (options.step ? " in step " + std::to_string(*options.step) : "") +
                   ", want one of: " + joined(reader.operations(), [](const OperationId& id) {
                     return id.operation + " (step " + std::to_string(id.step) + ")";
                   }));
}

Result<TensorInfo> find_tensor(const RecordingReader& reader, const OperationId& id,
                               const std::string& tensor) {
  std::vector<TensorInfo> found, all;
  for (const Side side : {Side::inputs, Side::outputs})
    for (const TensorInfo& info : reader.tensors(id, side)) {
      all.push_back(info);
      if (info.name() == tensor || info.object.ends_with("/" + tensor)) found.push_back(info);
    }
  if (found.size() == 1) return found.front();
  const auto name = [](const TensorInfo& info) {
    const std::size_t side = info.object.rfind('/', info.object.rfind('/') - 1);
    return info.object.substr(side + 1);
  };
  const std::string where =
      reader.path() + ": step " + std::to_string(id.step) + " " + id.operation;
  if (!found.empty())
    return bad_input(where + ": found " + in_quotes(tensor) + " on both sides, want " +
                     name(found[0]) + " or " + name(found[1]));
  return bad_input(where + ": found no tensor " + in_quotes(tensor) +
                   ", want one of: " + joined(all, name));
}

/// What numpy calls a dtype that it has.
std::string_view numpy_name(Dtype dtype) {
  switch (dtype) {
  case Dtype::float16:
    return "<f2";
  case Dtype::float32:
    return "<f4";
  case Dtype::int32:
    return "<i4";
  case Dtype::int64:
    return "<i8";
  case Dtype::uint8:
    return "|u1";
  default:
    return {};
  }
}

/// Elements that one stored element stands for.
std::int64_t elements_in(Dtype dtype) {
  return dtype == Dtype::float4_e2m1fn_x2 ? 2 : 1;
}

std::vector<float> decoded(Dtype dtype, std::span<const std::byte> run) {
  std::vector<float> values;
  if (dtype == Dtype::float4_e2m1fn_x2) {
    for (const std::byte pair : run)
      for (const int shift : {0, 4})
        values.push_back(
            reference::decode_e2m1(std::to_integer<std::uint8_t>(pair >> shift & std::byte{15})));
    return values;
  }
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.bytes.assign(run.begin(), run.end());
  const auto elements = static_cast<std::int64_t>(run.size() / size_of(dtype));
  for (std::int64_t i = 0; i < elements; ++i)
    values.push_back(static_cast<float>(element(tensor, i)));
  return values;
}

/// One tensor on its way out.
struct Source {
  const RecordingReader& reader;
  TensorInfo info;
  std::vector<Range> ranges;

  /// Of what is written: packed fp4 counts elements.
  Shape decoded_shape() const {
    Shape shape = shape_of(ranges);
    const std::int64_t each = elements_in(info.dtype);
    if (!ranges.back().index)
      shape.back() *= each;
    else if (each > 1)
      shape.push_back(each);
    return shape;
  }

  /// In runs of at most 1 MiB: as text they are many times larger.
  Status stream(const RunSink& sink) const {
    constexpr std::size_t kPiece = 1 << 20;
    Selection selection(info, ranges);
    return reader.stream(info, [&](std::span<const std::byte> block) -> Status {
      for (; !block.empty(); block = block.subspan(std::min(kPiece, block.size())))
        DSAKIT_TRY(selection.push(block.first(std::min(kPiece, block.size())), sink));
      return {};
    });
  }
};

std::string npy_header(std::string_view dtype, const Shape& shape) {
  std::string extents;
  for (const std::int64_t extent : shape)
    extents += std::to_string(extent) + ",";
  std::string text = "{'descr': '" + std::string(dtype) + "', 'fortran_order': False, 'shape': (" +
                     extents + "), }";
  constexpr std::size_t kPrefix = 10;
  text.append(63 - (kPrefix + text.size()) % 64, ' '); // with the newline a multiple of 64
  text += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(text.size() & 0xFF) +
         static_cast<char>(text.size() >> 8) + text;
}

Status write_npy(std::ostream& out, const Source& source) {
  const std::string_view own = numpy_name(source.info.dtype);
  out << npy_header(own.empty() ? "<f4" : own, source.decoded_shape());
  return source.stream([&](std::int64_t, std::span<const std::byte> run) -> Status {
    if (own.empty()) {
      const std::vector<float> values = decoded(source.info.dtype, run);
      out.write(reinterpret_cast<const char*>(values.data()),
                static_cast<std::streamsize>(values.size() * sizeof(float)));
    } else {
      out.write(reinterpret_cast<const char*>(run.data()),
                static_cast<std::streamsize>(run.size()));
    }
    return {};
  });
}

/// A field of a CSV file (RFC 4180).
std::string field_of(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text)
    field += c == '"' ? std::string("\"\"") : std::string(1, c);
  return field + "\"";
}

template <class T>
std::string text(T value) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  return {digits, end};
}

template <class T>
std::vector<std::string> integers(std::span<const std::byte> run) {
  std::vector<std::string> values;
  for (std::size_t i = 0; i < run.size(); i += sizeof(T)) {
    T value;
    std::memcpy(&value, run.data() + i, sizeof value);
    values.push_back(text(value));
  }
  return values;
}

/// The shortest text of each element that reads back as the same value.
std::vector<std::string> texts(Dtype dtype, std::span<const std::byte> run) {
  if (dtype == Dtype::int64) return integers<std::int64_t>(run);
  if (dtype == Dtype::int32) return integers<std::int32_t>(run);
  if (dtype == Dtype::uint8) return integers<std::uint8_t>(run);
  std::vector<std::string> values;
  for (const float value : decoded(dtype, run))
    values.push_back(std::isnan(value) ? "nan" : text(value));
  return values;
}

Status write_csv(std::ostream& out, const Source& source) {
  const std::int64_t each = elements_in(source.info.dtype);
  Shape whole = source.info.shape;
  whole.back() *= each;
  for (const std::string& axis : source.info.axes)
    out << field_of(axis) << ',';
  out << "value\n";
  return source.stream([&](std::int64_t first, std::span<const std::byte> run) -> Status {
    std::int64_t flat = first * each;
    for (const std::string& value : texts(source.info.dtype, run)) {
      for (const std::int64_t at : coordinates(whole, flat++))
        out << at << ',';
      out << value << '\n';
    }
    return {};
  });
}

/// Writes through `write` to a file that appears when it is whole.
template <class Write>
Status write_file(const std::string& path, Write write) {
  auto file = AtomicFile::create(path);
  DSAKIT_TRY(file);
  std::ofstream out(file->temporary(), std::ios::binary);
  DSAKIT_TRY(write(out));
  out.close();
  if (!out) return bad_input(path + ": cannot be written: " + std::strerror(errno));
  return file->commit();
}

} // namespace

Result<std::string> export_tensor(const ExportTensorOptions& options) {
  DSAKIT_TRY(check_not_input(options.output, options.recording));
  const auto is = [&](std::string_view ending) { return options.output.ends_with(ending); };
  if (!is(".npy") && !is(".csv") && !is(".safetensors"))
    return bad_input(options.output + ": found another ending, want .npy, .safetensors or .csv");
  const auto reader = RecordingReader::open(options.recording);
  DSAKIT_TRY(reader);
  const auto id = find_operation_id(*reader, options);
  DSAKIT_TRY(id);
  const auto info = find_tensor(*reader, *id, options.tensor);
  DSAKIT_TRY(info);
  const auto ranges = parse_slice(options.slice, *info);
  if (!ranges) return bad_input(options.recording + ": " + ranges.status().what());
  const Source source{*reader, *info, *ranges};

  const std::string recorded(name(info->dtype));
  if (is(".safetensors")) {
    const SafetensorsOutput tensor{
        info->name(), info->dtype, shape_of(*ranges), [&](const BlockSink& sink) {
          return source.stream(
              [&](std::int64_t, std::span<const std::byte> run) { return sink(run); });
        }};
    DSAKIT_TRY(write_safetensors(options.output, {{"format", "pt"}}, {tensor}));
    return recorded + " " + to_string(tensor.shape);
  }
  DSAKIT_TRY(write_file(options.output, [&](std::ostream& out) {
    return is(".npy") ? write_npy(out, source) : write_csv(out, source);
  }));
  const bool as_is = !numpy_name(info->dtype).empty();
  return (as_is ? recorded : "float32") + " " + to_string(source.decoded_shape()) +
         (as_is ? "" : ", decoded from " + recorded);
}

} // namespace dsakit::harness

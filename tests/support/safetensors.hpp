// Reads a .safetensors file: 8 bytes with the length of a JSON header, the header, the payload.
// For tests only: a file that is not well-formed throws.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "dsakit/core/tensor.hpp"

namespace dsakit::testing {

class Safetensors {
public:
  explicit Safetensors(const std::string& path) : file_(path, std::ios::binary) {
    std::uint64_t header_bytes = 0;
    file_.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
    if (!file_ || header_bytes > kLargestHeader)
      throw std::runtime_error(path + ": not a safetensors file");
    std::string header(header_bytes, ' ');
    file_.read(header.data(), static_cast<std::streamsize>(header_bytes));
    header_ = nlohmann::json::parse(header);
    payload_ = static_cast<std::streamoff>(sizeof header_bytes + header_bytes);
  }

  bool has(const std::string& name) const { return header_.contains(name); }

  /// A value of the metadata; "" without it.
  std::string metadata(const std::string& key) const {
    return header_.value("__metadata__", nlohmann::json::object()).value(key, "");
  }

  Tensor read(const std::string& name) {
    const nlohmann::json& entry = header_.at(name);
    Tensor tensor(dtype_of(entry.at("dtype")), entry.at("shape").get<Shape>());
    const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::size_t, std::size_t>>();
    if (end - begin != tensor.bytes.size())
      throw std::runtime_error(name + ": payload and shape disagree");
    file_.seekg(payload_ + static_cast<std::streamoff>(begin));
    file_.read(reinterpret_cast<char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
    if (!file_) throw std::runtime_error(name + ": the file ends early");
    return tensor;
  }

  /// The elements of a tensor; T must have the size of its dtype.
  template <class T>
  std::vector<T> values(const std::string& name) {
    const Tensor tensor = read(name);
    if (size_of(tensor.dtype) != sizeof(T))
      throw std::runtime_error(name + ": is " + std::string(dsakit::name(tensor.dtype)));
    std::vector<T> elements(static_cast<std::size_t>(tensor.elements()));
    std::memcpy(elements.data(), tensor.bytes.data(), tensor.bytes.size());
    return elements;
  }

  std::int64_t extent(const std::string& name, std::size_t axis) const {
    return header_.at(name).at("shape").at(axis).get<std::int64_t>();
  }

private:
  static constexpr std::uint64_t kLargestHeader = 100 << 20;

  static Dtype dtype_of(const std::string& text) {
    static const std::vector<std::pair<std::string, Dtype>> names = {
        {"BF16", Dtype::bfloat16},
        {"F16", Dtype::float16},
        {"F8_E4M3", Dtype::float8_e4m3fn},
        {"F8_E4M3FNUZ", Dtype::float8_e4m3fnuz},
        {"F32", Dtype::float32},
        {"I32", Dtype::int32},
        {"I64", Dtype::int64},
        {"U8", Dtype::uint8}};
    for (const auto& [name, dtype] : names)
      if (name == text) return dtype;
    throw std::runtime_error("unknown safetensors dtype " + text);
  }

  std::ifstream file_;
  nlohmann::json header_;
  std::streamoff payload_ = 0;
};

} // namespace dsakit::testing

// Writes .safetensors files by hand, right or wrong, independently of our own writer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsakit/core/tensor.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::testing {

/// Length, header, payload.
inline std::string safetensors_bytes(const std::string& header, const std::string& payload) {
  std::string bytes;
  for (int i = 0; i < 8; ++i)
    bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + payload;
}

class SafetensorsFile {
public:
  std::map<std::string, std::string> metadata;

  template <class T>
  void add(const std::string& name, const std::string& dtype, const Shape& shape,
           const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    header_[name] = {{"dtype", dtype},
                     {"shape", shape},
                     {"data_offsets", {payload_.size(), payload_.size() + bytes}}};
    payload_.append(reinterpret_cast<const char*>(values.data()), bytes);
  }

  void write(const std::string& path) const {
    nlohmann::json header = header_;
    if (!metadata.empty()) header["__metadata__"] = metadata;
    write_file(path, safetensors_bytes(header.dump(), payload_));
  }

private:
  nlohmann::json header_ = nlohmann::json::object();
  std::string payload_;
};

} // namespace dsakit::testing

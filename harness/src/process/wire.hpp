// Values as bytes, between two processes of one program: as they lie in memory, lists and texts
// behind their sizes. A type of several fields has a function `fields(wire, value)` that names
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "dsakit/core/tensor.hpp"

namespace dsakit::harness {

template <class T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class WireWriter {
public:
  /// `put` takes all those bytes, never none, or returns false.
  explicit WireWriter(std::function<bool(const void*, std::size_t)> put) : put_(std::move(put)) {}

  /// false: something was not taken; nothing more was offered then.
  bool fine() const { return fine_; }

  template <class... Ts>
  void operator()(const Ts&... values) {
    (one(values), ...);
  }

private:
  void move(const void* bytes, std::size_t count) {
    if (count > 0) fine_ = fine_ && put_(bytes, count);
  }

  template <Plain T>
  void one(const T& value) {
    move(&value, sizeof value);
  }
  void one(const std::string& text) {
    one(text.size());
    move(text.data(), text.size());
  }
  template <class T>
  void one(const std::vector<T>& values) {
    one(values.size());
    for (const T& value : values)
      one(value);
  }
  template <class T>
  void one(const std::optional<T>& value) {
    one(value.has_value());
    if (value) one(*value);
  }
  template <class V, class C>
  void one(const std::map<std::string, V, C>& entries) {
    one(entries.size());
    for (const auto& [key, value] : entries)
      (*this)(key, value);
  }
  void one(const Tensor& tensor) {
    (*this)(tensor.dtype, tensor.shape);
    move(tensor.bytes.data(), tensor.bytes.size());
  }
  template <class T>
    requires std::is_class_v<T>
  void one(const T& value) {
    fields(*this, value);
  }

  std::function<bool(const void*, std::size_t)> put_;
  bool fine_ = true;
};

/// What a WireWriter wrote.
class WireReader {
public:
  /// `get` fills all those bytes, never none, or returns false.
  explicit WireReader(std::function<bool(void*, std::size_t)> get) : get_(std::move(get)) {}

  /// false: there was less; what was read last is incomplete.
  bool fine() const { return fine_; }

  template <class... Ts>
  void operator()(Ts&... values) {
    (one(values), ...);
  }

private:
  void move(void* bytes, std::size_t count) {
    if (count > 0) fine_ = fine_ && get_(bytes, count);
  }
  std::size_t size() {
    std::size_t count = 0;
    one(count);
    return fine_ ? count : 0;
  }

  template <Plain T>
  void one(T& value) {
    move(&value, sizeof value);
  }
  void one(std::string& text) {
    text.resize(size());
    move(text.data(), text.size());
  }
  template <class T>
  void one(std::vector<T>& values) {
    values.resize(size());
    for (T& value : values)
      one(value);
  }
  template <class T>
  void one(std::optional<T>& value) {
    bool there = false;
    one(there);
    if (fine_ && there) one(value.emplace());
  }
  template <class V, class C>
  void one(std::map<std::string, V, C>& entries) {
    for (std::size_t left = size(); fine_ && left > 0; --left) {
      std::string key;
      one(key);
      one(entries[key]);
    }
  }
  void one(Tensor& tensor) {
    Dtype dtype{};
    Shape shape;
    (*this)(dtype, shape);
    if (!fine_) return;
    tensor = Tensor(dtype, shape);
    move(tensor.bytes.data(), tensor.bytes.size());
  }
  template <class T>
    requires std::is_class_v<T>
  void one(T& value) {
    fields(*this, value);
  }

  std::function<bool(void*, std::size_t)> get_;
  bool fine_ = true;
};

} // namespace dsakit::harness

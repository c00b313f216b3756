// A small RAII layer over the HDF5 C API: handles, attributes, element types, error text.
#pragma once

// The 1.10 names of versioned functions, also with a newer HDF5.
#define H5_USE_110_API
#include <hdf5.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness::hdf5 {

/// Owns an identifier; negative means the call failed.
class Handle {
public:
  using Close = herr_t (*)(hid_t);

  Handle() = default;
  Handle(hid_t id, Close close) : id_(id), close_(close) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }

  explicit operator bool() const { return id_ >= 0; }
  operator hid_t() const { return id_; }
  /// Closes now, so that the caller sees whether that worked.
  herr_t close() { return id_ >= 0 ? close_(std::exchange(id_, H5I_INVALID_HID)) : 0; }

private:
  hid_t id_ = H5I_INVALID_HID;
  Close close_ = nullptr;
};

/// Error printing, plug-ins and the exit handler off. Call before any other HDF5 function.
void initialise();

/// What HDF5 said of its last failure, once.
std::string last_error();

/// "FILE: OBJECT: TEXT"
Status fail(const std::string& path, std::string_view object, const std::string& text);

/// Type of the stored elements. fp8, fp4 and e8m0 are uint8; bfloat16 and float16 are real floats
/// (bfloat16 with the bit layout of HDF5 2's predefined type), so that h5dump shows numbers.
Handle element_type(Dtype dtype);
/// Whether `type` holds elements of `dtype` as they are read; HDF5 2's own e4m3 counts.
bool holds(hid_t type, Dtype dtype);
/// "4-byte big-endian float"
std::string describe_type(hid_t type);

/// Text attributes in fixed-length strings: those lie in checksummed metadata. HDF5's
/// variable-length ones do not, and a flipped bit there crashes HDF5 1.10.
herr_t write_attribute(hid_t object, const std::string& name, std::string_view value);
herr_t write_attributes(hid_t object, const Attributes& values);
/// All attributes of `object`, each of which must be a text of fixed length.
Result<Attributes> read_attributes(hid_t object, const std::string& path, std::string_view name);

using Extents = std::vector<hsize_t>;

/// Storage chunk: about 1 MiB, contiguous in row-major order.
Extents chunk_shape(const Shape& shape, std::size_t element_bytes);
/// Unit of transfer: at most 64 MiB, contiguous in row-major order, whole chunks.
Extents block_shape(const Shape& shape, std::size_t element_bytes);

/// Selects one block after the other of a dataset's file space, in row-major order.
class Blocks {
public:
  Blocks(const Shape& shape, std::size_t element_bytes);

  bool done() const { return done_; }
  std::size_t bytes() const; ///< of this block
  herr_t select(hid_t file_space) const;
  Handle memory_space() const;
  void next();

private:
  Extents shape_, block_, start_, count_;
  std::size_t element_bytes_;
  bool done_;

  void clamp();
};

} // namespace dsakit::harness::hdf5

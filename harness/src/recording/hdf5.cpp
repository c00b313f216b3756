#include "hdf5.hpp"

#include <algorithm>

#include "text.hpp"

namespace dsakit::harness::hdf5 {
namespace {

/// A little-endian IEEE-like float of two bytes that HDF5 1.10 does not name.
Handle half_type(std::size_t exponent_bits, std::size_t mantissa_bits) {
  Handle type(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
  H5Tset_fields(type, 15, mantissa_bits, exponent_bits, 0, mantissa_bits);
  H5Tset_ebias(type, (std::size_t{1} << (exponent_bits - 1)) - 1);
  H5Tset_precision(type, 16);
  H5Tset_size(type, 2);
  return type;
}

/// Extents of a row-major contiguous part of at most `limit` bytes: whole trailing axes, a part of
/// one axis, one of each leading axis.
Extents contiguous_part(const Shape& shape, std::size_t element_bytes, std::uint64_t limit) {
  Extents part(shape.size(), 1);
  std::uint64_t bytes = element_bytes;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const auto extent = static_cast<std::uint64_t>(std::max<std::int64_t>(shape[axis], 1));
    part[axis] = std::min(extent, limit / bytes);
    if (part[axis] < extent) break;
    bytes *= extent;
  }
  return part;
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Text of the last failure: every HDF5 call clears HDF5's own record of it, closing a handle too.
std::string& recorded_error() {
  static std::string text;
  return text;
}

/// Called by HDF5 where a call fails; keeps what the innermost function said.
herr_t record_error(hid_t stack, void*) {
  return H5Ewalk2(
      stack, H5E_WALK_UPWARD,
      [](unsigned depth, const H5E_error2_t* error, void*) -> herr_t {
        if (depth == 0) recorded_error() = error->desc ? error->desc : "";
        return 0;
      },
      nullptr);
}

} // namespace

void initialise() {
  static const bool once = [] {
    H5dont_atexit(); // HDF5 1.10 crashes at exit after a full disk
    H5open();
    H5Eset_auto2(H5E_DEFAULT, record_error, nullptr);
    H5PLset_loading_state(0);
    return true;
  }();
  (void)once;
}

std::string last_error() {
  std::string text = std::exchange(recorded_error(), {});
  // System failures come as "..., errno = 28, error message = 'No space left on device', ...".
  constexpr std::string_view kMark = "error message = '";
  if (const auto mark = text.find(kMark); mark != std::string::npos) {
    const auto begin = mark + kMark.size();
    text = text.substr(begin, text.find('\'', begin) - begin);
  }
  return text.empty() ? "HDF5 gives no reason" : text;
}

Status fail(const std::string& path, std::string_view object, const std::string& text) {
  return bad_input(path + ": " + escaped(object) + ": " + text);
}

Handle element_type(Dtype dtype) {
  switch (dtype) {
  case Dtype::bfloat16:
    return half_type(8, 7);
  case Dtype::float16:
    return half_type(5, 10);
  case Dtype::float32:
    return {H5Tcopy(H5T_IEEE_F32LE), H5Tclose};
  case Dtype::int32:
    return {H5Tcopy(H5T_STD_I32LE), H5Tclose};
  case Dtype::int64:
    return {H5Tcopy(H5T_STD_I64LE), H5Tclose};
  case Dtype::float8_e4m3fn:
  case Dtype::float8_e4m3fnuz:
  case Dtype::float4_e2m1fn_x2:
  case Dtype::float8_e8m0fnu:
  case Dtype::uint8:
    break;
  }
  return {H5Tcopy(H5T_STD_U8LE), H5Tclose};
}

bool holds(hid_t type, Dtype dtype) {
  if (H5Tequal(type, element_type(dtype)) > 0) return true;
  if (dtype != Dtype::float8_e4m3fn || H5Tget_class(type) != H5T_FLOAT || H5Tget_size(type) != 1)
    return false;
  std::size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
  return H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 &&
         sign == 7 && exponent == 3 && exponent_bits == 4 && mantissa == 0 && mantissa_bits == 3 &&
         H5Tget_ebias(type) == 7;
}

std::string describe_type(hid_t type) {
  const H5T_class_t type_class = H5Tget_class(type);
  std::string kind;
  switch (type_class) {
  case H5T_INTEGER:
    kind = H5Tget_sign(type) == H5T_SGN_NONE ? "unsigned integer" : "integer";
    break;
  case H5T_FLOAT:
    kind = "float";
    break;
  case H5T_STRING:
    kind = H5Tis_variable_str(type) > 0 ? "variable-length string" : "string";
    break;
  default:
    kind = "HDF5 type of class " + std::to_string(static_cast<int>(type_class));
  }
  const bool big_endian = (type_class == H5T_INTEGER || type_class == H5T_FLOAT) &&
                          H5Tget_size(type) > 1 && H5Tget_order(type) == H5T_ORDER_BE;
  return std::to_string(H5Tget_size(type)) + "-byte " + (big_endian ? "big-endian " : "") + kind;
}

herr_t write_attribute(hid_t object, const std::string& name, std::string_view value) {
  Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, std::max<std::size_t>(value.size(), 1)); // HDF5 has no string of size 0
  H5Tset_strpad(type, H5T_STR_NULLPAD);
  H5Tset_cset(type, H5T_CSET_UTF8);
  Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  Handle create(H5Pcreate(H5P_ATTRIBUTE_CREATE), H5Pclose);
  H5Pset_char_encoding(create, H5T_CSET_UTF8);
  Handle attribute(H5Acreate2(object, name.c_str(), type, space, create, H5P_DEFAULT), H5Aclose);
  if (!attribute) return -1;
  const std::string padded = value.empty() ? std::string(1, '\0') : std::string(value);
  return H5Awrite(attribute, type, padded.data());
}

herr_t write_attributes(hid_t object, const Attributes& values) {
  for (const auto& [name, value] : values)
    if (write_attribute(object, name, value) < 0) return -1;
  return 0;
}

Result<Attributes> read_attributes(hid_t object, const std::string& path, std::string_view name) {
  H5O_info_t info;
  if (H5Oget_info(object, &info) < 0) return fail(path, name, "cannot be read: " + last_error());
  Attributes values;
  for (hsize_t i = 0; i < info.num_attrs; ++i) {
    Handle attribute(
        H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT),
        H5Aclose);
    const ssize_t length = attribute ? H5Aget_name(attribute, 0, nullptr) : -1;
    if (length < 0) return fail(path, name, "has an unreadable attribute: " + last_error());
    std::string key(static_cast<std::size_t>(length) + 1, '\0');
    H5Aget_name(attribute, key.size(), key.data());
    key.pop_back();

    const std::string where = "attribute " + in_quotes(key) + ": ";
    Handle type(H5Aget_type(attribute), H5Tclose);
    if (!type || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0)
      return fail(path, name,
                  where + "found a " + describe_type(type) +
                      ", want a string of fixed length (h5py: numpy.bytes_)");
    Handle space(H5Aget_space(attribute), H5Sclose);
    if (H5Sget_simple_extent_type(space) != H5S_SCALAR)
      return fail(path, name, where + "found an array, want one string");
    std::string value(H5Tget_size(type), '\0');
    if (H5Aread(attribute, type, value.data()) < 0)
      return fail(path, name, where + "cannot be read: " + last_error());
    value.erase(std::min(value.find('\0'), value.size()));
    values.emplace(std::move(key), std::move(value));
  }
  return values;
}

Extents chunk_shape(const Shape& shape, std::size_t element_bytes) {
  return contiguous_part(shape, element_bytes, kMiB);
}

Extents block_shape(const Shape& shape, std::size_t element_bytes) {
  Extents block = contiguous_part(shape, element_bytes, 64 * kMiB);
  const Extents chunk = chunk_shape(shape, element_bytes);
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    if (block[axis] < static_cast<hsize_t>(shape[axis])) // the axis that is cut
      block[axis] -= block[axis] % chunk[axis];
  return block;
}

Blocks::Blocks(const Shape& shape, std::size_t element_bytes)
    : shape_(shape.begin(), shape.end()), block_(block_shape(shape, element_bytes)),
      start_(shape.size(), 0), count_(block_), element_bytes_(element_bytes),
      done_(element_count(shape) == 0) {
  clamp();
}

std::size_t Blocks::bytes() const {
  std::size_t n = element_bytes_;
  for (hsize_t extent : count_)
    n *= extent;
  return n;
}

herr_t Blocks::select(hid_t file_space) const {
  return H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start_.data(), nullptr, count_.data(),
                             nullptr);
}

Handle Blocks::memory_space() const {
  // Of the block's own shape: with another, HDF5 moves the elements one by one.
  return {H5Screate_simple(static_cast<int>(count_.size()), count_.data(), nullptr), H5Sclose};
}

void Blocks::next() {
  for (std::size_t axis = shape_.size(); axis-- > 0;) {
    start_[axis] += count_[axis];
    if (start_[axis] < shape_[axis]) {
      clamp();
      return;
    }
    start_[axis] = 0;
  }
  done_ = true;
}

void Blocks::clamp() {
  for (std::size_t axis = 0; axis < shape_.size(); ++axis)
    count_[axis] = std::min(block_[axis], shape_[axis] - start_[axis]);
}

} // namespace dsakit::harness::hdf5

#include "dataset.hpp"

#include <algorithm>
#include <limits>

#include "text.hpp"

namespace dsakit::harness::hdf5 {
namespace {

struct Link {
  std::string name;
  H5L_type_t type;
};

std::vector<std::string> split_axes(const std::string& text) {
  std::vector<std::string> axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    axes.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return axes;
}

/// Filters and layout of a dataset whose payload would take `bytes`.
Status check_storage(hid_t dataset, std::uint64_t bytes, const Shape& shape,
                     const std::string& path, const std::string& object) {
  Handle create(H5Dget_create_plist(dataset), H5Pclose);
  if (!create) return fail(path, object, "cannot be read: " + last_error());
  if (H5Pget_external_count(create) != 0)
    return fail(path, object, "found external storage, want the payload in this file");
  const H5D_layout_t layout = H5Pget_layout(create);
  if (layout != H5D_CHUNKED && layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
    return fail(path, object, "found a virtual dataset, want the payload in this file");

  bool deflated = false;
  const int filters = H5Pget_nfilters(create);
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0;
    std::size_t values = 0;
    char filter_name[64] = {};
    const H5Z_filter_t filter =
        H5Pget_filter2(create, static_cast<unsigned>(i), &flags, &values, nullptr,
                       sizeof filter_name - 1, filter_name, nullptr);
    if (filter != H5Z_FILTER_FLETCHER32 && filter != H5Z_FILTER_SHUFFLE &&
        filter != H5Z_FILTER_DEFLATE)
      return fail(path, object,
                  "found filter " + std::to_string(filter) + " " + in_quotes(filter_name) +
                      ", want fletcher32, shuffle or deflate");
    deflated = deflated || filter == H5Z_FILTER_DEFLATE;
  }
  if (bytes == 0) return {};

  // What was never written, or cannot be there, must not be allocated and read as zeros.
  constexpr std::uint64_t kDeflateRatio = 1032; // at most
  const std::uint64_t stored = H5Dget_storage_size(dataset);
  if (bytes / (deflated ? kDeflateRatio : 1) > stored)
    return fail(path, object,
                "found " + std::to_string(stored) + " bytes of storage, want " +
                    std::to_string(bytes) + " for shape " + to_string(shape));
  if (layout == H5D_CHUNKED) {
    Handle space(H5Dget_space(dataset), H5Sclose);
    std::vector<hsize_t> chunk(shape.size());
    hsize_t found = 0;
    if (H5Pget_chunk(create, static_cast<int>(chunk.size()), chunk.data()) < 0 ||
        H5Dget_num_chunks(dataset, space, &found) < 0)
      return fail(path, object, "cannot be read: " + last_error());
    hsize_t want = 1;
    for (std::size_t i = 0; i < chunk.size(); ++i)
      want *= (static_cast<hsize_t>(shape[i]) + chunk[i] - 1) / chunk[i];
    if (found != want)
      return fail(path, object,
                  "found " + std::to_string(found) + " chunks, want " + std::to_string(want));
  }
  return {};
}

Result<Shape> read_shape(hid_t dataset, std::size_t element_bytes, std::uint64_t& bytes,
                         const std::string& path, const std::string& object) {
  Handle space(H5Dget_space(dataset), H5Sclose);
  const int rank = space ? H5Sget_simple_extent_ndims(space) : -1;
  if (rank < 0) return fail(path, object, "cannot be read: " + last_error());
  if (rank == 0) return fail(path, object, "found a scalar, want at least one axis");
  std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  // Extents that a zero hides must be sane too, so the product skips zeros.
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  std::uint64_t product = element_bytes;
  for (hsize_t extent : extents) {
    if (extent > 0 && product > kMost / extent)
      return fail(path, object, "found a shape of more than 2^63 bytes, want one that fits");
    product *= std::max<hsize_t>(extent, 1);
  }
  bytes = std::count(extents.begin(), extents.end(), 0) ? 0 : product;
  return Shape(extents.begin(), extents.end());
}

} // namespace

Result<std::vector<std::string>> list(hid_t group, const std::string& path,
                                      const std::string& name) {
  std::vector<Link> links;
  const herr_t status = H5Literate(
      group, H5_INDEX_NAME, H5_ITER_INC, nullptr,
      [](hid_t, const char* link, const H5L_info_t* info, void* out) -> herr_t {
        static_cast<std::vector<Link>*>(out)->push_back({link, info->type});
        return 0;
      },
      &links);
  if (status < 0) return fail(path, name, "cannot be read: " + last_error());
  for (const Link& link : links)
    if (link.type != H5L_TYPE_HARD)
      return fail(path, (name == "/" ? "" : name) + "/" + link.name,
                  std::string("found ") +
                      (link.type == H5L_TYPE_SOFT       ? "a soft"
                       : link.type == H5L_TYPE_EXTERNAL ? "an external"
                                                        : "a user-defined") +
                      " link, want an object of this file");
  std::vector<std::string> names;
  for (Link& link : links)
    names.push_back(std::move(link.name));
  return names;
}

Result<TensorInfo> describe(hid_t dataset, const std::string& path, const std::string& object,
                            bool with_payload) {
  auto attributes = read_attributes(dataset, path, object);
  if (!attributes) return attributes.status();
  for (const char* wanted : {"dtype", "axes"})
    if (!attributes->count(wanted))
      return fail(path, object, std::string("found no attribute ") + wanted + ", want one");

  TensorInfo info;
  info.object = object;
  const std::string dtype_text = attributes->at("dtype");
  const auto dtype = parse_dtype(dtype_text);
  if (!dtype)
    return fail(path, object,
                "found dtype " + in_quotes(dtype_text) + ", want a name that is known");
  info.dtype = *dtype;
  Handle type(H5Dget_type(dataset), H5Tclose);
  if (!type || !holds(type, *dtype))
    return fail(path, object,
                "found elements of " + describe_type(type) + ", want " +
                    describe_type(element_type(*dtype)) + " for dtype " + dtype_text);

  std::uint64_t bytes = 0;
  auto shape = read_shape(dataset, size_of(*dtype), bytes, path, object);
  if (!shape) return shape.status();
  info.shape = *shape;
  info.axes = split_axes(attributes->at("axes"));
  if (info.axes.size() != info.shape.size())
    return fail(path, object,
                "found axes " + in_quotes(attributes->at("axes")) + ", want one for each axis of " +
                    to_string(info.shape));
  DSAKIT_TRY(check_storage(dataset, with_payload ? bytes : 0, info.shape, path, object));
  attributes->erase("dtype");
  attributes->erase("axes");
  info.attributes = std::move(*attributes);
  return info;
}

} // namespace dsakit::harness::hdf5

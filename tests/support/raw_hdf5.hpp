// Makes recordings that our writer would never write, with the C API alone: a good one is changed
// in place, and gets valid checksums for what it then holds.
#pragma once

#define H5_USE_110_API
#include <hdf5.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace dsakit::testing {

/// An open file. Every call must work: a fixture that is not what it says tests nothing.
class RawHdf5 {
public:
  /// Opens an existing file to change it.
  explicit RawHdf5(const std::string& path) : RawHdf5() {
    file_ = good(H5Fopen(path.c_str(), H5F_ACC_RDWR, access_), "open");
  }
  /// Creates one with these format bounds and user block.
  RawHdf5(const std::string& path, H5F_libver_t low, hsize_t user_block) : RawHdf5() {
    const hid_t creation = good(H5Pcreate(H5P_FILE_CREATE), "plist");
    good(H5Pset_userblock(creation, user_block), "user block");
    good(H5Pset_libver_bounds(access_, low, H5F_LIBVER_LATEST), "bounds");
    file_ = good(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access_), "create");
    H5Pclose(creation);
  }
  ~RawHdf5() {
    good(H5Fclose(file_), "close");
    H5Pclose(access_);
  }
  RawHdf5(const RawHdf5&) = delete;
  RawHdf5& operator=(const RawHdf5&) = delete;

  operator hid_t() const { return file_; }

  void remove(const std::string& object) {
    good(H5Ldelete(file_, object.c_str(), H5P_DEFAULT), object);
  }
  void group(const std::string& object) {
    H5Gclose(
        good(H5Gcreate2(file_, object.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), object));
  }
  void hard_link(const std::string& existing, const std::string& object) {
    good(H5Lcreate_hard(file_, existing.c_str(), file_, object.c_str(), H5P_DEFAULT, H5P_DEFAULT),
         object);
  }
  void remove_attribute(const std::string& object, const std::string& name) {
    good(H5Adelete_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT), name);
  }
  void set_attribute(const std::string& object, const std::string& name, const std::string& text) {
    if (H5Aexists_by_name(file_, object.c_str(), name.c_str(), H5P_DEFAULT) > 0)
      remove_attribute(object, name);
    const hid_t type = good(H5Tcopy(H5T_C_S1), "type");
    good(H5Tset_size(type, text.size()), "size");
    add_attribute(object, name, type, text.data());
    H5Tclose(type);
  }
  void add_attribute(const std::string& object, const std::string& name, hid_t type,
                     const void* value) {
    const hid_t space = good(H5Screate(H5S_SCALAR), "space");
    const hid_t attribute = good(H5Acreate_by_name(file_, object.c_str(), name.c_str(), type, space,
                                                   H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                 name);
    good(H5Awrite(attribute, type, value), name);
    H5Aclose(attribute);
    H5Sclose(space);
  }

  /// Puts a dataset of zeros in the place of `object`, with its attributes dtype and axes.
  /// `creation` says how it is stored; nothing is written where `write` is false.
  void replace(const std::string& object, hid_t type, const std::vector<hsize_t>& shape,
               const std::string& dtype, hid_t creation = H5P_DEFAULT, bool write = true) {
    if (H5Lexists(file_, object.c_str(), H5P_DEFAULT) > 0) remove(object);
    const hid_t space = good(
        shape.empty() ? H5Screate(H5S_SCALAR)
                      : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
        "space");
    const hid_t dataset = good(
        H5Dcreate2(file_, object.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT), object);
    if (write) {
      std::vector<char> zeros(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)) *
                              H5Tget_size(type));
      good(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()), object);
    }
    H5Dclose(dataset);
    H5Sclose(space);
    set_attribute(object, "dtype", dtype);
    std::string axes = "a";
    for (std::size_t i = 1; i < shape.size(); ++i)
      axes += ",a";
    set_attribute(object, "axes", axes);
  }

private:
  RawHdf5() : access_(good(H5Pcreate(H5P_FILE_ACCESS), "plist")) {}

  static hid_t good(hid_t result, const std::string& what) {
    EXPECT_GE(result, 0) << "fixture: " << what;
    return result;
  }

  hid_t file_ = H5I_INVALID_HID;
  hid_t access_;
};

} // namespace dsakit::testing

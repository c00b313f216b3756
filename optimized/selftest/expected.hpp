// What the selftest's kernels must give, in plain C++: none of it comes from the device layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dsakit/optimized/kernel.hpp"

namespace dsakit::optimized {

/// The values of one primitive, at the places where a kernel writes them.
struct SelftestSection {
  std::string primitive;
  std::string (*place)(std::size_t index); ///< "lane 3"
  bool floats = false;                     ///< any NaN is as good as another
  std::vector<std::uint32_t> values;
};

/// One launch.
struct SelftestCase {
  std::string kernel; ///< dsakit_selftest_<kernel>
  std::int32_t workgroups;
  std::size_t scratch_words = 0;
  std::vector<std::uint32_t> input;
  std::vector<SelftestSection> sections; ///< one after the other in the output
};

std::vector<SelftestCase> selftest_cases(Arch arch);

/// The launches of the matrix units; selftest_cases has them, too.
std::vector<SelftestCase> selftest_matrix_cases(Arch arch);

/// e4m3 in plain C++, for both files.
struct SelftestFp8 {
  bool fnuz;
  bool native; ///< the device's own encoding

  /// What the hardware reads for a code, as a multiple of its value.
  double misread() const { return native ? 1 : fnuz ? 2 : 0.5; }
  double value(unsigned code) const; ///< NaN for NaN
  unsigned nearest(double x) const;  ///< ties to even, saturating
};

/// The encodings e4m3fn and e4m3fnuz as `arch` has them.
SelftestFp8 selftest_fp8(Arch arch, bool fnuz);

} // namespace dsakit::optimized

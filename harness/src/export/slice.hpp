// A part of a tensor: a range of each axis.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dsakit/core/status.hpp"
#include "dsakit/harness/recording.hpp"

namespace dsakit::harness {

struct Range {
  std::int64_t begin, end;
  bool index; ///< one index, whose axis the part does not have
};

/// "0:4,:,17": for each axis BEGIN:END with either left out, or an index; below 0 counted from the
/// end; axes that are not named are whole. bad_input names axis and extent where a bound lies
/// outside, and for a range of nothing.
Result<std::vector<Range>> parse_slice(const std::string& text, const TensorInfo& info);

Shape shape_of(const std::vector<Range>& ranges);

/// Part of a payload that lies together: the flat index of its first element in the whole tensor.
using RunSink = std::function<Status(std::int64_t first, std::span<const std::byte> run)>;

/// Picks the runs of a part out of a payload that is pushed front to back.
class Selection {
public:
  Selection(const TensorInfo& info, const std::vector<Range>& ranges);

  Status push(std::span<const std::byte> block, const RunSink& sink);

private:
  std::int64_t run_begin() const;
  void next_run();

  std::vector<Range> outer_;          ///< of the axes before the one that runs lie along
  std::vector<std::int64_t> at_;      ///< coordinate along each of them
  std::vector<std::int64_t> strides_; ///< of them, in elements
  std::int64_t offset_ = 0;           ///< of a run in its outer coordinate, in elements
  std::int64_t length_ = 0;           ///< of each run
  std::int64_t position_ = 0;         ///< elements pushed so far
  std::int64_t element_bytes_;
  bool done_ = false;
};

} // namespace dsakit::harness

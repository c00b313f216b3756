#include "slice.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

#include "../recording/text.hpp"

namespace dsakit::harness {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (const char c : text)
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string where(const TensorInfo& info, std::size_t axis) {
  return info.object + ": --slice: axis " + std::to_string(axis) + " " +
         in_quotes(info.axes[axis]) + " of extent " + std::to_string(info.shape[axis]) + ": ";
}

Result<Range> parse_range(const std::string& text, const TensorInfo& info, std::size_t axis) {
  const std::int64_t extent = info.shape[axis];
  if (text == ":") return Range{0, extent, false};
  const auto fail = [&](const std::string& want) {
    return bad_input(where(info, axis) + "found " + in_quotes(text) + ", want " + want);
  };
  const std::vector<std::string> bounds = split(text, ':');
  if (bounds.size() > 2) return fail("BEGIN:END or an index");
  std::vector<std::int64_t> values = {0, extent};
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    if (bounds.size() == 2 && bounds[i].empty()) continue;
    const auto value = number(bounds[i]);
    if (!value) return fail("BEGIN:END or an index");
    values[i] = *value < 0 ? *value + extent : *value;
    // An end may be the extent, an index may not.
    const std::int64_t last = bounds.size() == 2 ? extent : extent - 1;
    if (values[i] < 0 || values[i] > last)
      return fail(std::to_string(-extent) + " to " + std::to_string(last));
  }
  if (bounds.size() == 1) return Range{values[0], values[0] + 1, true};
  if (values[0] >= values[1]) return fail("a begin before the end");
  return Range{values[0], values[1], false};
}

} // namespace

Result<std::vector<Range>> parse_slice(const std::string& text, const TensorInfo& info) {
  std::vector<Range> ranges;
  const auto parts = text.empty() ? std::vector<std::string>{} : split(text, ',');
  if (parts.size() > info.shape.size())
    return bad_input(info.object + ": --slice: found " + std::to_string(parts.size()) +
                     " axes, want at most the " + std::to_string(info.shape.size()) + " of " +
                     to_string(info.shape));
  for (std::size_t axis = 0; axis < info.shape.size(); ++axis) {
    const auto range = parse_range(axis < parts.size() ? parts[axis] : ":", info, axis);
    DSAKIT_TRY(range);
    ranges.push_back(*range);
  }
  return ranges;
}

Shape shape_of(const std::vector<Range>& ranges) {
  Shape shape;
  for (const Range& range : ranges)
    if (!range.index) shape.push_back(range.end - range.begin);
  return shape;
}

Selection::Selection(const TensorInfo& info, const std::vector<Range>& ranges)
    : element_bytes_(static_cast<std::int64_t>(size_of(info.dtype))) {
  const auto whole = [&](std::size_t axis) {
    return ranges[axis].begin == 0 && ranges[axis].end == info.shape[axis];
  };
  // A run lies along the last axis that is cut, and all of those behind it.
  std::size_t along = ranges.size() - 1;
  std::int64_t stride = 1;
  for (; along > 0 && whole(along); --along)
    stride *= info.shape[along];
  offset_ = ranges[along].begin * stride;
  length_ = (ranges[along].end - ranges[along].begin) * stride;
  outer_.assign(ranges.begin(), ranges.begin() + static_cast<std::ptrdiff_t>(along));
  strides_.resize(along);
  for (std::size_t axis = along; axis-- > 0;)
    strides_[axis] = stride *= info.shape[axis + 1];
  for (const Range& range : outer_)
    at_.push_back(range.begin);
  done_ = element_count(shape_of(ranges)) == 0;
}

std::int64_t Selection::run_begin() const {
  std::int64_t begin = offset_;
  for (std::size_t axis = 0; axis < at_.size(); ++axis)
    begin += at_[axis] * strides_[axis];
  return begin;
}

void Selection::next_run() {
  for (std::size_t axis = at_.size(); axis-- > 0;) {
    if (++at_[axis] < outer_[axis].end) return;
    at_[axis] = outer_[axis].begin;
  }
  done_ = true;
}

Status Selection::push(std::span<const std::byte> block, const RunSink& sink) {
  const std::int64_t end = position_ + static_cast<std::int64_t>(block.size()) / element_bytes_;
  while (!done_) {
    const std::int64_t begin = run_begin();
    const std::int64_t from = std::max(begin, position_);
    const std::int64_t to = std::min(begin + length_, end);
    if (from < to)
      DSAKIT_TRY(
          sink(from, block.subspan(static_cast<std::size_t>((from - position_) * element_bytes_),
                                   static_cast<std::size_t>((to - from) * element_bytes_))));
    if (begin + length_ > end) break; // its rest is in the next block
    next_run();
  }
  position_ = end;
  return {};
}

} // namespace dsakit::harness

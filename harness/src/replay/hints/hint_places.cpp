// Hints from places: where the wrong elements lie, and where else the values that they hold belong.
#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "../../recording/tensor_rules.hpp"
#include "../names.hpp"
#include "dsakit/reference/mla_cache.hpp"
#include "failure.hpp"

namespace dsakit::harness {
namespace {

/// The place along an axis that an element's value was taken from.
struct Move {
  std::string text; ///< what every element of the axis holds
  std::function<std::int64_t(std::int64_t)> from;
};

/// Values are compared by their bits, or where both were rounded by their value.
bool same_value(const WrongElements& wrong, std::int64_t i, std::int64_t j) {
  if (wrong.odd_bits(i) == wrong.right_bits(j)) return true;
  if (wrong.dtype() != Dtype::bfloat16 && wrong.dtype() != Dtype::float32) return false;
  const double odd = wrong.odd(i), right = wrong.right(j);
  return std::abs(odd - right) < wrong.slack() * std::abs(right);
}

/// An axis, or neighbouring ones as one.
struct Along {
  std::int64_t extent;
  std::int64_t stride; ///< elements
  std::string name;
};

/// Nearly all wrong elements hold what belongs at the place that `from` gives them along the axis,
/// and among them are several values: in constant data every move fits.
template <class From>
bool fits(const WrongElements& wrong, const Along& along, const From& from) {
  constexpr std::size_t kElements = 2 * kEnough; // many moves are tried
  constexpr std::size_t kValues = 4;
  std::set<std::uint64_t> values;
  return wrong.nearly_all(
             [&](std::int64_t i) {
               const std::int64_t at = i / along.stride % along.extent, source = from(at);
               if (source < 0 || source >= along.extent ||
                   !same_value(wrong, i, i + (source - at) * along.stride))
                 return false;
               if (values.size() < kValues) values.insert(wrong.odd_bits(i));
               return true;
             },
             kElements) &&
         values.size() == kValues;
}

/// The shift that fits, of those the smallest.
std::optional<std::int64_t> shift(const WrongElements& wrong, const Along& along) {
  constexpr std::int64_t kFarthest = std::int64_t{1} << 16; // beyond it the search takes seconds
  for (std::int64_t distance = 1; distance < std::min(along.extent, kFarthest); ++distance)
    for (const std::int64_t by : {distance, -distance})
      if (fits(wrong, along, [=](std::int64_t at) { return at + by; })) return by;
  return std::nullopt;
}

/// A part of an axis in which `unit` elements are one.
struct AxisPart {
  std::int64_t first;
  std::int64_t extent; ///< units
  std::int64_t unit;
};

/// Both directions of the exchange between pairs (0 1)(2 3).. and halves (0 n/2)(1 n/2+1)..
std::vector<Move> half_splits(const AxisPart& part) {
  const auto within = [=](auto from) {
    return [=](std::int64_t at) {
      const std::int64_t in = at - part.first;
      return in < 0 || in >= part.extent * part.unit
                 ? at
                 : part.first + from(in / part.unit) * part.unit + in % part.unit;
    };
  };
  const std::int64_t half = part.extent / 2;
  return {
      {"halves where pairs belong",
       within([=](std::int64_t i) { return i < half ? 2 * i : 2 * (i - half) + 1; })},
      {"pairs where halves belong", within([=](std::int64_t i) { return i / 2 + i % 2 * half; })}};
}

std::vector<Move> moves_along(std::int64_t extent) {
  std::vector<Move> moves;
  const auto add = [&](std::string text, std::function<std::int64_t(std::int64_t)> from) {
    moves.push_back({std::move(text), std::move(from)});
  };
  std::vector<AxisPart> parts;
  if (extent % 2 == 0 && extent > 2) parts.push_back({0, extent, 1});
  for (const std::int64_t dims : {64, 128})
    if (extent > dims) {
      parts.push_back({extent - dims, dims, 1});
      parts.push_back({0, dims, 1});
    }
  if (extent == reference::kMlaRecord)
    parts = {{extent - 2 * reference::kMlaPe, reference::kMlaPe, 2}}; // two bytes an element
  for (const AxisPart& part : parts)
    for (Move& move : half_splits(part))
      add(std::move(move.text) + ": half-split against interleaved", std::move(move.from));
  for (std::int64_t step = 1; step < extent; step *= 2) {
    const std::string n = std::to_string(step);
    if (extent % (2 * step) == 0)
      add("neighbours " + n + " apart exchanged", [=](std::int64_t at) { return at ^ step; });
    if (step == 1) continue;
    add("the first " + n + " over and over", [=](std::int64_t at) { return at % step; });
    add("the first of each " + n, [=](std::int64_t at) { return at - at % step; });
  }
  add("the first everywhere", [](std::int64_t) { return 0; });
  add("the reverse order", [=](std::int64_t at) { return extent - 1 - at; });
  for (std::int64_t group = 4; group < extent; group *= 2)
    if (extent % group == 0)
      add("each " + std::to_string(group) + " in reverse order",
          [=](std::int64_t at) { return at - at % group + group - 1 - at % group; });
  return moves;
}

/// The tensor's rule; nullptr for one that has none.
const TensorRule* rule_of(const Failure& f) {
  for (const TensorRule& rule : kTensorRules)
    if (applies(rule, f.data.operation()) && rule.tensor == f.c.output) return &rule;
  return nullptr;
}

/// The name of an axis, for a sentence.
std::string axis_name(const Failure& f, std::size_t axis) {
  const TensorRule* rule = rule_of(f);
  const auto names = split_names(rule ? rule->shape : "");
  const std::string name = axis < names.size() ? names[axis] : "";
  return name.empty() || name.find_first_not_of("0123456789") == std::string::npos
             ? "axis " + std::to_string(axis)
             : "axis " + std::to_string(axis) + " (" + name + ")";
}

Hint moved_along(const Failure& f, const Along& along) {
  for (const Move& move : moves_along(along.extent))
    if (fits(f.wrong, along, move.from))
      return whose(f.c) + " lie in another order along " + along.name + ": " + move.text;
  return {};
}

} // namespace

Hint from_elsewhere(const Failure& f) {
  const Shape& shape = f.wrong.shape();
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0; stride *= shape[axis]) {
    const Along along{shape[axis], stride, axis_name(f, axis)};
    if (const auto by = shift(f.wrong, along))
      return whose(f.c) + " are those " + std::to_string(std::abs(*by)) +
             (*by > 0 ? " further on" : " before") + " along " + along.name +
             ": shifted by a row, a page or a stride";
    if (const Hint hint = moved_along(f, along); !hint.empty()) return hint;
  }
  if (shape.size() < 3) return {};
  // Heads and their dims are one axis to whoever projects.
  const std::size_t last = shape.size() - 1;
  return moved_along(f, {shape[last - 1] * shape[last], 1,
                         axis_name(f, last - 1) + " and " + axis_name(f, last) + " as one"});
}

Hint one_group_of_heads(const Failure& f) {
  const TensorRule* rule = rule_of(f);
  if (!rule) return {};
  const auto names = split_names(rule->shape);
  const auto found = std::find(names.begin(), names.end(), "heads");
  if (found == names.end()) return {};
  const auto axis = static_cast<std::size_t>(found - names.begin());
  const std::int64_t heads = f.wrong.shape()[axis];
  std::int64_t stride = 1;
  for (std::size_t a = axis + 1; a < f.wrong.shape().size(); ++a)
    stride *= f.wrong.shape()[a];
  std::set<std::int64_t> rows; // of all heads of all tokens
  std::int64_t first = heads, last = -1;
  for (const std::int64_t i : f.wrong.at()) {
    rows.insert(i / stride);
    first = std::min(first, i / stride % heads);
    last = std::max(last, i / stride % heads);
  }
  const std::int64_t width = last - first + 1;
  // n places drawn from all heads lie within some `width` neighbours that often.
  const auto n = static_cast<double>(rows.size());
  const double by_chance =
      n * std::pow(static_cast<double>(width) / static_cast<double>(heads), n - 1);
  if (width >= heads || by_chance >= kByChance) return {};
  return "only heads " + std::to_string(first) + " to " + std::to_string(last) + " of " +
         std::to_string(heads) + " are wrong";
}

Hint one_place_of_each_page(const Failure& f) {
  const auto page_size = parse_page_size(f.data.contract);
  const std::string& operation = f.data.id.operation;
  if (!page_size || *page_size < 2) return {};
  const Shape& shape = f.wrong.shape();
  // The position of an element among the keys of its request, and what is read with it as one.
  std::function<std::int64_t(std::int64_t)> position, one;
  if (operation == "topk_slots" && f.c.output == "slots") {
    one = [](std::int64_t i) { return i; };
    position = [&](std::int64_t i) { return f.data.input("topk_indices").as<std::int32_t>()[i]; };
  } else if (operation == "index_logits_decode") {
    one = [](std::int64_t i) { return i; };
    position = [&](std::int64_t i) { return i % shape[1]; };
  } else if (operation == "index_cache_gather") {
    one = [&](std::int64_t i) { return i / (f.wrong.right_tensor().elements() / shape[0]); };
    position = [&](std::int64_t i) {
      const Tensor& starts = f.data.input("cu_seq_lens");
      const std::int32_t* first = starts.as<std::int32_t>();
      const auto row = static_cast<std::int32_t>(one(i));
      const std::int32_t* after = std::upper_bound(first, first + starts.elements(), row);
      return std::int64_t{row - (after == first ? 0 : after[-1])};
    };
  } else {
    return {};
  }
  std::set<std::int64_t> places, tokens;
  for (const std::int64_t i : f.wrong.at()) {
    places.insert(position(i) % *page_size);
    tokens.insert(one(i));
  }
  const double by_chance =
      std::pow(1 / static_cast<double>(*page_size), static_cast<double>(tokens.size()) - 1);
  if (places.size() != 1 || by_chance >= kByChance) return {};
  return "only token " + std::to_string(*places.begin()) + " of pages of " +
         std::to_string(*page_size) + " is wrong: a seam of pages";
}

} // namespace dsakit::harness

#include <algorithm>
#include <charconv>
#include <string_view>

#include "dsakit/harness/record.hpp"

namespace dsakit::harness {
namespace {

/// Takes a whole number off the front of `text`; -1 where there is none.
std::int64_t take_number(std::string_view& text) {
  std::int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || text.starts_with('-')) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool parse_group(std::string_view text, RequestGroup& group) {
  group.prefill = take(text, "prefill:");
  if (!group.prefill && !take(text, "decode:")) return false;
  group.count = 1;
  group.context = take_number(text);
  if (take(text, "x")) {
    group.count = group.context;
    group.context = take_number(text);
  }
  if (take(text, "+")) {
    group.added = take_number(text);
  } else if (group.prefill) {
    group.added = group.context;
    group.context = 0;
  } else {
    group.added = 1;
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 30; // positions and slots are int32
  return text.empty() && group.count >= 1 && group.context >= 0 && group.added >= 1 &&
         group.count <= kMost && group.context <= kMost && group.added <= kMost &&
         group.count * (group.context + group.added) <= kMost;
}

} // namespace

Result<std::vector<RequestGroup>> parse_requests(const std::string& text) {
  std::vector<RequestGroup> groups;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    RequestGroup group{};
    if (!parse_group(item, group))
      return bad_input("--requests: found '" + item +
                       "', want prefill:[COUNTx]TOKENS[+NEW] or decode:[COUNTx]CONTEXT[+NEW] of at "
                       "most 2^30 tokens");
    groups.push_back(group);
    begin = end + 1;
  }
  return groups;
}

} // namespace dsakit::harness

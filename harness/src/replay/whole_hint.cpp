#include "whole_hint.hpp"

#include <algorithm>
#include <sstream>
#include <vector>

namespace dsakit::harness {
namespace {

/// The hints of a text, without its counts and coordinates.
std::vector<std::string> kinds_of(std::string text) {
  constexpr std::string_view kOr = "; or: ";
  std::vector<std::string> kinds;
  for (std::size_t end = 0; end != std::string::npos && !text.empty();) {
    end = text.find(kOr);
    std::istringstream words(text.substr(0, end));
    std::string kind;
    for (std::string word; words >> word;)
      if (word.find_first_not_of("0123456789[],") != std::string::npos) kind += word + " ";
    kinds.push_back(std::move(kind));
    if (end != std::string::npos) text = text.substr(end + kOr.size());
  }
  return kinds;
}

} // namespace

bool is_part_of_hint(const std::string& hint, const std::string& of_the_whole) {
  const auto all = kinds_of(of_the_whole), some = kinds_of(hint);
  return std::all_of(some.begin(), some.end(), [&](const std::string& kind) {
    return std::find(all.begin(), all.end(), kind) != all.end();
  });
}

std::string hint_as_of_the_whole(const Attributes& provenance, const std::string& tensor,
                                 const std::string& found) {
  const auto noted = provenance.find(kWholeHint);
  const std::string before = tensor + ": ";
  if (noted == provenance.end() || !noted->second.starts_with(before)) return found;
  const std::string whole = noted->second.substr(before.size());
  if (whole == "none") return {};
  return !found.empty() && is_part_of_hint(found, whole)
             ? found
             : whole + " (as seen in the recording that this was cut from)";
}

} // namespace dsakit::harness

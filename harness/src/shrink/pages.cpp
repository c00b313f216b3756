// Caches: tokens written, pages written or read, and the tables that name them.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "../operations/index_pages.hpp"
#include "../recording/structure.hpp"
#include "../replay/names.hpp"
#include "axes.hpp"

namespace dsakit::harness {
namespace {

const char* cache_name(const Problem& problem) {
  return problem.has("mla_cache") ? "mla_cache" : "index_cache";
}

Indices sorted(const std::set<std::int64_t>& set) {
  return {set.begin(), set.end()};
}

// Written caches.

void keep_tokens(Problem& problem, const Indices& tokens) {
  keep(problem.input("slot_mapping"), 0, tokens);
  for (const char* rows : {"index_k", "kv_c", "k_pe"}) // rows past the slots go as well
    if (problem.has(rows)) keep(problem.input(rows), 0, tokens);
}

/// The bytes of the cache that the tokens write, as the reference has it: what it writes is the
/// same over 00 and over FF.
std::optional<std::vector<bool>> written_bytes(const Problem& problem) {
  std::vector<std::byte> over[2];
  for (const int fill : {0, 1}) {
    Problem filled = problem;
    auto& bytes = filled.input(cache_name(problem)).bytes;
    std::fill(bytes.begin(), bytes.end(), fill ? std::byte{0xFF} : std::byte{0});
    auto expected = find_adapter(problem.id.operation)->reference(filled.data());
    if (!expected) return std::nullopt;
    over[fill] = std::move(expected->front().value.tensor.bytes);
  }
  std::vector<bool> written(over[0].size());
  for (std::size_t i = 0; i < written.size(); ++i)
    written[i] = over[0][i] == over[1][i];
  return written;
}

std::set<std::int64_t> pages_of_slots(const Problem& problem) {
  std::set<std::int64_t> pages;
  const Tensor& slots = problem.input("slot_mapping");
  for (std::int64_t t = 0; t < slots.elements(); ++t)
    if (const std::int64_t slot = slots.as<std::int64_t>()[t]; slot >= 0)
      pages.insert(slot / problem.page_size());
  return pages;
}

// Read caches.

/// Of each line of the table, how many of its columns are used.
std::vector<std::int64_t> used_columns(const Problem& problem) {
  const Tensor& table = problem.input("block_table");
  std::vector<std::int64_t> used(static_cast<std::size_t>(table.shape[0]));
  const auto note = [&](std::int64_t request, std::int64_t length) {
    if (request < 0 || request >= table.shape[0]) return;
    const std::int64_t columns = (length + problem.page_size() - 1) / problem.page_size();
    auto& most = used[static_cast<std::size_t>(request)];
    most = std::clamp(columns, most, std::max(most, table.shape[1]));
  };
  if (problem.has("cu_seq_lens")) {
    const auto lens = int32s(problem.input("cu_seq_lens"));
    for (std::size_t b = 0; b + 1 < lens.size(); ++b)
      note(static_cast<std::int64_t>(b), lens[b + 1] - lens[b]);
  } else {
    const auto lens = int32s(problem.input("row_lens"));
    const auto requests = int32s(problem.input("row_request"));
    for (std::size_t r = 0; r < lens.size(); ++r)
      note(requests[r], lens[r]);
  }
  return used;
}

/// The rows of each request of a gather; those of none are left out.
std::vector<std::pair<std::int64_t, std::int64_t>> gathered_ranges(const Problem& problem) {
  const auto lens = int32s(problem.input("cu_seq_lens"));
  const std::int64_t rows = extent_of(problem, "rows");
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (std::size_t b = 0; b + 1 < lens.size(); ++b)
    ranges.emplace_back(std::clamp<std::int64_t>(lens[b], 0, rows),
                        std::clamp<std::int64_t>(lens[b + 1], 0, rows));
  return ranges;
}

/// A gather of those rows, ascending, `lengths` of them for each request.
void keep_gathered(Problem& problem, const Indices& rows,
                   const std::vector<std::int64_t>& lengths) {
  keep_extent(problem, "rows", rows);
  Tensor cu_seq_lens(Dtype::int32, {static_cast<std::int64_t>(lengths.size()) + 1});
  for (std::size_t b = 0; b < lengths.size(); ++b)
    cu_seq_lens.as<std::int32_t>()[b + 1] =
        cu_seq_lens.as<std::int32_t>()[b] + static_cast<std::int32_t>(lengths[b]);
  problem.input("cu_seq_lens") = std::move(cu_seq_lens);
}

Indices used_pages(const Problem& problem) {
  std::set<std::int64_t> pages;
  const std::int64_t pool = problem.input(cache_name(problem)).shape[0];
  const auto note = [&](std::int64_t page) {
    if (page >= 0 && page < pool) pages.insert(page);
  };
  if (problem.has("slots")) {
    for (const std::int32_t slot : int32s(problem.input("slots")))
      if (slot >= 0) note(slot / problem.page_size());
  } else {
    const Tensor& table = problem.input("block_table");
    const auto used = used_columns(problem);
    for (std::int64_t b = 0; b < table.shape[0]; ++b)
      for (std::int64_t column = 0; column < used[static_cast<std::size_t>(b)]; ++column)
        note(table.as<std::int32_t>()[b * table.shape[1] + column]);
  }
  if (pages.empty()) pages.insert(0);
  return sorted(pages);
}

/// Slots of pages that move.
bool renumber_slots(Tensor& slots, const Indices& kept, std::int64_t pool, std::int64_t page_size) {
  Indices kept_slots;
  for (const std::int64_t page : kept)
    for (std::int64_t i = 0; i < page_size; ++i)
      kept_slots.push_back(page * page_size + i);
  return renumber(slots, kept_slots, pool * page_size, [](std::int64_t) { return true; });
}

} // namespace

ShrinkAxis written_tokens() {
  return {"tokens", [](const Problem& p) { return p.input("slot_mapping").elements(); },
          // A token that goes was written before: its record stands in the cache already.
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            const auto places = new_places(kept, p.input("slot_mapping").elements());
            Indices dropped;
            for (std::size_t t = 0; t < places.size(); ++t)
              if (places[t] < 0) dropped.push_back(static_cast<std::int64_t>(t));
            Problem others = p;
            keep_tokens(others, dropped);
            const auto written = written_bytes(others);
            if (!written) return std::nullopt;
            Problem smaller = p;
            keep_tokens(smaller, kept);
            auto& before = smaller.input(cache_name(p)).bytes;
            const auto& after = smaller.tensors.outputs.begin()->second.tensor.bytes;
            for (std::size_t i = 0; i < before.size(); ++i)
              if ((*written)[i]) before[i] = after[i];
            return smaller;
          },
          // In the page, or the record, where the first wrong byte lies.
          [](const Problem& p, const Place& place) {
            Indices tokens;
            const Tensor& slots = p.input("slot_mapping");
            for (std::int64_t t = 0; t < slots.elements() && !place.at.empty(); ++t) {
              const std::int64_t slot = slots.as<std::int64_t>()[t];
              if (slot >= 0 && slot / p.page_size() == place.at[0] &&
                  (place.at.size() < 3 || slot % p.page_size() == place.at[1]))
                tokens.push_back(t);
            }
            return tokens;
          }};
}

ShrinkAxis written_pages() {
  return {"pages", [](const Problem& p) { return p.input(cache_name(p)).shape[0]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            Problem smaller = p;
            const std::int64_t pool = p.input(cache_name(p)).shape[0];
            if (!renumber_slots(smaller.input("slot_mapping"), kept, pool, p.page_size()))
              return std::nullopt;
            keep_extent(smaller, "pages", kept);
            return smaller;
          },
          [](const Problem& p, const Place& place) {
            auto pages = pages_of_slots(p);
            if (!place.at.empty()) pages.insert(place.at[0]);
            return sorted(pages);
          }};
}

ShrinkAxis requests() {
  return {
      "requests", [](const Problem& p) { return p.input("block_table").shape[0]; },
      [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
        Problem smaller = p;
        const auto lens =
            p.has("row_lens") ? int32s(p.input("row_lens")) : std::span<const std::int32_t>{};
        const auto is_used = [&](std::int64_t row) {
          return lens.empty() || lens[static_cast<std::size_t>(row)] > 0;
        };
        if (!renumber(smaller.input("row_request"), kept, p.input("block_table").shape[0], is_used))
          return std::nullopt;
        // A row without keys may name any request.
        for (std::int32_t& request :
             std::span(smaller.input("row_request").as<std::int32_t>(),
                       static_cast<std::size_t>(smaller.input("row_request").elements())))
          if (p.id.operation == "index_logits_decode") request = std::max(request, 0);
        keep(smaller.input("block_table"), 0, kept);
        return smaller;
      },
      [](const Problem& p, const Place&) {
        std::set<std::int64_t> used;
        for (const std::int32_t request : int32s(p.input("row_request")))
          if (request >= 0 && request < p.input("block_table").shape[0]) used.insert(request);
        return sorted(used);
      }};
}

ShrinkAxis gathered_requests() {
  return {"requests", [](const Problem& p) { return p.input("block_table").shape[0]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            const auto ranges = gathered_ranges(p);
            Indices rows;
            std::vector<std::int64_t> lengths;
            for (const std::int64_t b : kept) {
              const auto [begin, end] = ranges[static_cast<std::size_t>(b)];
              for (std::int64_t row = begin; row < end; ++row)
                rows.push_back(row);
              lengths.push_back(end - begin);
            }
            if (rows.empty()) return std::nullopt;
            Problem smaller = p;
            if (p.has("row_request"))
              renumber(smaller.input("row_request"), kept, p.input("block_table").shape[0],
                       [](std::int64_t) { return false; });
            keep(smaller.input("block_table"), 0, kept);
            keep_gathered(smaller, rows, lengths);
            return smaller;
          },
          [](const Problem& p, const Place& place) {
            if (place.at.empty()) return Indices{};
            const auto ranges = gathered_ranges(p);
            for (std::size_t b = 0; b < ranges.size(); ++b)
              if (place.at[0] >= ranges[b].first && place.at[0] < ranges[b].second)
                return Indices{static_cast<std::int64_t>(b)};
            return Indices{};
          }};
}

ShrinkAxis table_columns() {
  return {"page columns", [](const Problem& p) { return p.input("block_table").shape[1]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            const std::int64_t page_size = p.page_size();
            const auto places = new_places(kept, p.input("block_table").shape[1]);
            const auto stays = [&](std::int64_t position) {
              const std::int64_t column = position / page_size;
              return column < std::ssize(places) && places[static_cast<std::size_t>(column)] >= 0;
            };
            Problem smaller = p;
            keep(smaller.input("block_table"), 1, kept);
            if (p.has("cu_seq_lens")) {
              Indices rows;
              std::vector<std::int64_t> lengths;
              for (const auto& [begin, end] : gathered_ranges(p)) {
                const std::size_t before = rows.size();
                for (std::int64_t row = begin; row < end; ++row)
                  if (stays(row - begin)) rows.push_back(row);
                lengths.push_back(static_cast<std::int64_t>(rows.size() - before));
              }
              if (rows.empty()) return std::nullopt;
              keep_gathered(smaller, rows, lengths);
              return smaller;
            }
            Indices columns;
            for (std::int64_t key = 0; key < extent_of(p, "keys"); ++key)
              if (stays(key)) columns.push_back(key);
            if (columns.empty()) return std::nullopt;
            Tensor& lens = smaller.input("row_lens");
            for (std::int64_t row = 0; row < lens.elements(); ++row) {
              std::int32_t& length = lens.as<std::int32_t>()[row];
              length = static_cast<std::int32_t>(
                  std::lower_bound(columns.begin(), columns.end(), length) - columns.begin());
            }
            keep_extent(smaller, "keys", columns);
            return smaller;
          },
          [](const Problem& p, const Place& place) {
            if (place.at.empty()) return Indices{};
            std::int64_t position = place.at.back();
            if (p.has("cu_seq_lens")) {
              position = -1;
              for (const auto& [begin, end] : gathered_ranges(p))
                if (place.at[0] >= begin && place.at[0] < end) position = place.at[0] - begin;
            }
            return position < 0 ? Indices{} : Indices{position / p.page_size()};
          }};
}

ShrinkAxis read_pages() {
  return {"pages", [](const Problem& p) { return p.input(cache_name(p)).shape[0]; },
          [](const Problem& p, const Indices& kept) -> std::optional<Problem> {
            Problem smaller = p;
            const std::int64_t pool = p.input(cache_name(p)).shape[0];
            if (p.has("slots")) {
              if (!renumber_slots(smaller.input("slots"), kept, pool, p.page_size()))
                return std::nullopt;
            } else {
              const auto used = used_columns(p);
              const std::int64_t columns = p.input("block_table").shape[1];
              if (!renumber(smaller.input("block_table"), kept, pool, [&](std::int64_t i) {
                    return i % columns < used[static_cast<std::size_t>(i / columns)];
                  }))
                return std::nullopt;
            }
            keep_extent(smaller, "pages", kept);
            return smaller;
          },
          [](const Problem& p, const Place&) { return used_pages(p); }};
}

/// Zero where no token writes, and where both caches hold the same.
std::optional<Problem> blank_unwritten(const Problem& problem, const Place&) {
  const auto written = written_bytes(problem);
  if (!written) return std::nullopt;
  Problem smaller = problem;
  auto& before = smaller.input(cache_name(problem)).bytes;
  auto& after = smaller.tensors.outputs.begin()->second.tensor.bytes;
  bool changes = false;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if ((*written)[i] || before[i] != after[i] || before[i] == std::byte{0}) continue;
    before[i] = after[i] = std::byte{0};
    changes = true;
  }
  return changes ? std::optional(std::move(smaller)) : std::nullopt;
}

/// The records that are read, one after the other.
std::optional<Problem> pack_slots(const Problem& problem, const Place&) {
  std::set<std::int64_t> used;
  for (const std::int32_t slot : int32s(problem.input("slots")))
    if (slot >= 0) used.insert(slot);
  const RecordedTensor& recorded = problem.tensors.inputs.at("mla_cache");
  const Tensor& cache = recorded.tensor;
  const std::int64_t page_size = cache.shape[1], pool = cache.shape[0] * page_size;
  const auto records = static_cast<std::int64_t>(used.size());
  const std::int64_t pages = std::max<std::int64_t>(1, (records + page_size - 1) / page_size);
  if (pages == cache.shape[0]) return std::nullopt;
  Problem smaller = problem;
  renumber(smaller.input("slots"), sorted(used), pool, [](std::int64_t) { return true; });
  Tensor& packed = smaller.input("mla_cache");
  packed = Tensor(cache.dtype, {pages, page_size, cache.shape[2]});
  std::byte* to = packed.bytes.data();
  const std::size_t record = cache.bytes.size() / static_cast<std::size_t>(pool);
  for (const std::int64_t slot : used) {
    std::memcpy(to, cache.bytes.data() + static_cast<std::size_t>(slot) * record, record);
    to += record;
  }
  return smaller;
}

std::optional<Problem> name_row_requests(const Problem& problem, const Place&) {
  if (problem.id.operation != "index_logits_decode" || problem.has("row_request"))
    return std::nullopt;
  const std::int64_t rows = extent_of(problem, "rows");
  const auto requests = row_requests(problem.tensors, rows, problem.input("block_table").shape[0]);
  if (!requests) return std::nullopt;
  Problem named = problem;
  RecordedTensor& row_request = named.tensors.inputs["row_request"];
  row_request.tensor = Tensor(Dtype::int32, {rows});
  row_request.axes = {"rows"};
  std::copy(requests->begin(), requests->end(), row_request.tensor.as<std::int32_t>());
  return named;
}

} // namespace dsakit::harness

#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>

namespace fake_hip {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 256;
constexpr std::uint8_t kPattern = 0xD5;

struct Allocation {
  std::size_t bytes;     // as asked for
  std::uint8_t* mapping; // one closed page, `pages` bytes, one closed page
  std::size_t pages;

  std::uint8_t* open() const { return mapping + kPage; }
};

std::map<std::uint8_t*, Allocation> allocations;

void protect_all(int protection) {
  for (const auto& [memory, allocation] : allocations)
    mprotect(allocation.open(), allocation.pages, protection);
}

bool all_pattern(const std::uint8_t* begin, const std::uint8_t* end) {
  return std::all_of(begin, end, [](std::uint8_t byte) { return byte == kPattern; });
}

} // namespace

void* allocate_memory(std::size_t bytes) {
  const std::size_t pages = (bytes + kPage - 1) / kPage * kPage;
  void* mapping = mmap(nullptr, pages + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const Allocation allocation{bytes, static_cast<std::uint8_t*>(mapping), pages};
  mprotect(allocation.open(), pages, PROT_READ | PROT_WRITE);
  std::memset(allocation.open(), kPattern, pages);
  mprotect(allocation.open(), pages, PROT_NONE);
  // As late as the alignment allows, so that what runs past the end meets the closed page.
  std::uint8_t* memory = allocation.open() + (pages - bytes) / kAlignment * kAlignment;
  allocations[memory] = allocation;
  return memory;
}

bool free_memory(void* memory) {
  const auto found = allocations.find(static_cast<std::uint8_t*>(memory));
  if (found == allocations.end()) return false;
  munmap(found->second.mapping, found->second.pages + 2 * kPage);
  allocations.erase(found);
  return true;
}

bool is_device_memory(const void* memory, std::size_t bytes) {
  const auto* begin = static_cast<const std::uint8_t*>(memory);
  return std::any_of(allocations.begin(), allocations.end(), [&](const auto& entry) {
    return begin >= entry.first && begin + bytes <= entry.first + entry.second.bytes;
  });
}

DeviceAccess::DeviceAccess() {
  protect_all(PROT_READ | PROT_WRITE);
}

DeviceAccess::~DeviceAccess() {
  protect_all(PROT_NONE);
}

bool DeviceAccess::margins_intact() const {
  return std::all_of(allocations.begin(), allocations.end(), [](const auto& entry) {
    const auto& [memory, allocation] = entry;
    return all_pattern(allocation.open(), memory) &&
           all_pattern(memory + allocation.bytes, allocation.open() + allocation.pages);
  });
}

} // namespace fake_hip

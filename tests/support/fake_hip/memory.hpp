// Device memory of the stand-in: pages of the host that only the device's work can touch, each
// allocation between pages that nobody can.
#pragma once

#include <cstddef>

namespace fake_hip {

/// 256-byte aligned, filled with a pattern; nullptr where there is no memory.
void* allocate_memory(std::size_t bytes);

/// False where `memory` is no live allocation's.
bool free_memory(void* memory);

/// All of [memory, memory + bytes) lies in one live allocation.
bool is_device_memory(const void* memory, std::size_t bytes);

/// While one lives, the memory is open; otherwise touching it is a fault.
class DeviceAccess {
public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;

  /// Bytes between an allocation's ends and the closed pages around it are as they were.
  bool margins_intact() const;
};

} // namespace fake_hip

// The selftest on gfx942 host lanes, out of a program that has its kernels over a faulty device
// layer. Prints the wrong primitives; exit code 1 where there are any.
#include <cstdio>
#include <exception>

#include "dsakit/optimized/selftest.hpp"

int main() try {
  using namespace dsakit::optimized;
  const auto device = open_device(DeviceKind::host);
  if (!device) return 2;
  const auto results = selftest(**device);
  if (!results) {
    std::printf("FAIL %s\n", results.status().what().c_str());
    return 1;
  }
  int code = 0;
  for (const SelftestResult& result : *results)
    if (!result.fault.empty()) {
      std::printf("FAIL %s: %s\n", result.primitive.c_str(), result.fault.c_str());
      code = 1;
    }
  return code;
} catch (const std::exception& error) {
  std::fprintf(stderr, "selftest_probe: %s\n", error.what());
  return 2;
}

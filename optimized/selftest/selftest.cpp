#include "dsakit/optimized/selftest.hpp"

#include <bit>
#include <cmath>
#include <cstdio>

#include "selftest/expected.hpp"

namespace dsakit::optimized {
namespace {

constexpr std::uint32_t kUnwritten = 0xDEADBEEF;

/// Words on the device, released at the end.
class Words {
public:
  explicit Words(Device& device) : device_(device) {}
  ~Words() {
    if (memory_) device_.release(memory_);
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  Status upload(const std::vector<std::uint32_t>& values) {
    if (values.empty()) return {};
    auto memory = device_.allocate(values.size() * 4);
    DSAKIT_TRY(memory);
    memory_ = static_cast<std::uint32_t*>(*memory);
    return device_.upload(memory_, values.data(), values.size() * 4);
  }
  std::uint32_t* data() { return memory_; }

private:
  Device& device_;
  std::uint32_t* memory_ = nullptr;
};

/// What the kernel wrote.
Result<std::vector<std::uint32_t>> run(Device& device, const SelftestCase& c, std::size_t values) {
  const Kernel<SelftestParams>* kernel = nullptr;
  for (const Kernel<SelftestParams>& one : kernels<SelftestParams>(device.arch()))
    if (one.name == c.kernel) kernel = &one;
  if (!kernel)
    return unsupported("selftest " + c.kernel + ": not built for " +
                       std::string(name(device.arch())));

  std::vector<std::uint32_t> found(values, kUnwritten);
  Words input(device);
  Words output(device);
  Words scratch(device);
  DSAKIT_TRY(input.upload(c.input));
  DSAKIT_TRY(output.upload(found));
  DSAKIT_TRY(scratch.upload(std::vector<std::uint32_t>(c.scratch_words)));
  const SelftestParams params{input.data(), output.data(), scratch.data(), c.workgroups};
  DSAKIT_TRY(kernel->launch(params, nullptr, 0, device.stream()));
  DSAKIT_TRY(device.synchronize());
  DSAKIT_TRY(device.download(found.data(), output.data(), values * 4));
  return found;
}

std::string text(std::uint32_t value, bool is_float) {
  char buffer[48];
  if (value == kUnwritten)
    std::snprintf(buffer, sizeof buffer, "nothing written");
  else if (is_float)
    std::snprintf(buffer, sizeof buffer, "%.9g (0x%08x)",
                  static_cast<double>(std::bit_cast<float>(value)), value);
  else
    std::snprintf(buffer, sizeof buffer, "%d (0x%08x)", static_cast<std::int32_t>(value), value);
  return buffer;
}

bool same(std::uint32_t found, std::uint32_t want, bool is_float) {
  if (found == want) return true;
  return is_float && std::isnan(std::bit_cast<float>(found)) &&
         std::isnan(std::bit_cast<float>(want));
}

SelftestResult compare(const SelftestSection& want, const std::uint32_t* found) {
  SelftestResult result{want.primitive, want.values.size(), {}};
  std::size_t wrong = 0;
  for (std::size_t i = want.values.size(); i-- > 0;) {
    if (same(found[i], want.values[i], want.floats)) continue;
    ++wrong;
    result.fault = want.place(i) + ": found " + text(found[i], want.floats) + ", want " +
                   text(want.values[i], want.floats);
  }
  if (wrong != 0) result.fault += "; " + std::to_string(wrong) + " wrong";
  return result;
}

} // namespace

Result<std::vector<SelftestResult>> selftest(Device& device) {
  std::vector<SelftestResult> results;
  for (const SelftestCase& c : selftest_cases(device.arch())) {
    std::size_t values = 0;
    for (const SelftestSection& section : c.sections)
      values += section.values.size();
    const auto found = run(device, c, values);
    DSAKIT_TRY(found);
    const std::uint32_t* next = found->data();
    for (const SelftestSection& section : c.sections) {
      results.push_back(compare(section, next));
      next += section.values.size();
    }
  }
  return results;
}

} // namespace dsakit::optimized

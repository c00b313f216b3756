// Status and Result: how every dsakit library reports a failure. Libraries return, tools exit.
// C++17, header only: kernels' launchers use it too.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace dsakit {

/// What kind of failure. `tools/dsakit/exit_codes.hpp` maps each to the process exit code.
enum class Code : std::uint8_t {
  ok,
  bad_input,    ///< file, argument, shape or contract is wrong (exit 2)
  unsupported,  ///< well-formed, but no kernel or reference takes it (exit 3)
  device_error, ///< a kernel failed, hung or broke a rule of the host executor (exit 3)
  no_device,    ///< the device asked for is not on this machine (exit 77)
  interrupted,  ///< the user stopped it (exit 130)
};

/// Success, or a code with one line that names the value found and the value wanted.
class [[nodiscard]] Status {
public:
  Status() = default;
  Status(Code code, std::string what) : code_(code), what_(std::move(what)) {}

  explicit operator bool() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& what() const { return what_; }

private:
  Code code_ = Code::ok;
  std::string what_;
};

inline Status bad_input(std::string what) {
  return {Code::bad_input, std::move(what)};
}
inline Status unsupported(std::string what) {
  return {Code::unsupported, std::move(what)};
}

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status failure) : state_(std::move(failure)) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() { return std::get<0>(state_); }
  const T& operator*() const { return std::get<0>(state_); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  Status status() const { return *this ? Status{} : std::get<1>(state_); }

private:
  std::variant<T, Status> state_;
};

} // namespace dsakit

/// Returns the failure of `expression` (a Status or a Result) from the calling function.
#define DSAKIT_TRY(expression)                                                                     \
  do {                                                                                             \
    if (auto&& dsakit_try = (expression); !dsakit_try)                                             \
      return ::dsakit::detail::failure(dsakit_try);                                                \
  } while (false)

namespace dsakit::detail {
inline Status failure(Status s) {
  return s;
}
template <class T>
Status failure(const Result<T>& r) {
  return r.status();
}
} // namespace dsakit::detail

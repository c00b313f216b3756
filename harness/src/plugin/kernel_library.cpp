#include "dsakit/harness/kernel_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>

#include "dsakit/core/operations.hpp"

namespace dsakit::harness {
namespace {

/// The function `symbol` of a library that was loaded.
template <class Function>
Result<Function*> entry_point(void* library, const std::string& path, const char* symbol) {
  if (void* found = ::dlsym(library, symbol)) return reinterpret_cast<Function*>(found);
  return Status(Code::device_error,
                path + ": found no symbol " + symbol + ", want the two of dsakit/plugin.h");
}

} // namespace

Result<KernelLibrary> KernelLibrary::load(const std::string& path) {
  // A name without a slash would be looked for where the system has its libraries.
  const std::filesystem::path file = std::filesystem::absolute(path);
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return Status(Code::device_error, "cannot load it: " + std::string(::dlerror()));
  const auto abi = entry_point<decltype(dsakit_kernel_abi)>(library, path, "dsakit_kernel_abi");
  DSAKIT_TRY(abi);
  if (const std::uint32_t version = (*abi)(); version != DSAKIT_PLUGIN_ABI)
    return Status(Code::device_error, path + ": found plug-in ABI " + std::to_string(version) +
                                          ", want " + std::to_string(DSAKIT_PLUGIN_ABI) +
                                          " (dsakit/plugin.h)");
  const auto kernel = entry_point<decltype(dsakit_kernel)>(library, path, "dsakit_kernel");
  DSAKIT_TRY(kernel);
  return KernelLibrary(file.filename().string(), *kernel);
}

Result<const dsakit_kernel_v1*> KernelLibrary::find(const std::string& operation) const {
  const dsakit_kernel_v1* kernel = kernel_(operation.c_str());
  if (!kernel) return kernel;
  if (!kernel->name || !kernel->launch)
    return Status(Code::device_error,
                  name_ + ": found a kernel for " + operation + " without name or launch");
  return kernel;
}

Result<std::vector<std::string>> KernelLibrary::operations() const {
  std::vector<std::string> served;
  for (const Operation& operation : kOperations) {
    const std::string name(operation.name);
    if (std::find(served.begin(), served.end(), name) != served.end()) continue; // another format
    const auto kernel = find(name);
    DSAKIT_TRY(kernel);
    if (*kernel) served.push_back(name);
  }
  return served;
}

} // namespace dsakit::harness

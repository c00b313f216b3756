// What the generators of golden recordings share: numbers that are the same on every machine,
// tensors, and a recording whose outputs come from the reference.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dsakit/core/contract.hpp"
#include "dsakit/harness/operations.hpp"
#include "dsakit/harness/recording.hpp"
#include "dsakit/reference/formats.hpp"

namespace dsakit::golden {

using harness::RecordedTensor;

[[noreturn]] inline void die(const std::string& what) {
  std::fprintf(stderr, "golden_generate: %s\n", what.c_str());
  std::exit(2);
}

inline void must(const Status& status) {
  if (!status) die(status.what());
}

/// Uniform and independent for every (stream, counter); splitmix64's finaliser.
class Random {
public:
  explicit Random(std::uint64_t stream) : stream_(stream * 0x9E3779B97F4A7C15) {}

  std::uint64_t bits() {
    std::uint64_t x = stream_ + 0x9E3779B97F4A7C15 * ++counter_;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  }
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(n));
  }
  /// Close to normal, variance 1: a sum of twelve uniform numbers, the same on every machine.
  float normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i)
      sum += static_cast<double>(bits() >> 40) * 0x1p-24;
    return static_cast<float>(sum);
  }
  std::vector<std::int64_t> permutation(std::int64_t n) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const auto j = static_cast<std::size_t>(below(i + 1));
      order[static_cast<std::size_t>(i)] = order[j];
      order[j] = i;
    }
    return order;
  }

private:
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
};

using Axes = std::vector<std::string>;

inline RecordedTensor empty(Dtype dtype, Shape shape, Axes axes) {
  RecordedTensor recorded;
  recorded.tensor = Tensor(dtype, std::move(shape));
  recorded.axes = std::move(axes);
  return recorded;
}

template <class T>
RecordedTensor tensor(Dtype dtype, Shape shape, Axes axes, const std::vector<T>& values) {
  RecordedTensor recorded = empty(dtype, std::move(shape), std::move(axes));
  if (recorded.tensor.bytes.size() != values.size() * sizeof(T)) die("a shape of another size");
  std::memcpy(recorded.tensor.bytes.data(), values.data(), recorded.tensor.bytes.size());
  return recorded;
}

template <class Value>
RecordedTensor bf16(Shape shape, Axes axes, Value value) {
  RecordedTensor recorded = empty(Dtype::bfloat16, std::move(shape), std::move(axes));
  auto* out = recorded.tensor.as<std::uint16_t>();
  for (std::int64_t i = 0; i < recorded.tensor.elements(); ++i)
    out[i] = reference::float_to_bf16(value(i));
  return recorded;
}

inline RecordedTensor bytes(Shape shape, Axes axes, Random& random) {
  RecordedTensor recorded = empty(Dtype::uint8, std::move(shape), std::move(axes));
  for (std::byte& byte : recorded.tensor.bytes)
    byte = static_cast<std::byte>(random.bits());
  return recorded;
}

/// One golden file: operations are added in order, their outputs come from the reference.
class Golden {
public:
  Golden(const std::string& folder, const std::string& name, ContractValues contract,
         harness::Attributes config)
      : contract_(std::move(contract)), config_(std::move(config)),
        writer_(create(folder + "/" + name + ".h5")) {
    must(writer_.contract(contract_));
    must(writer_.config(config_));
    must(writer_.provenance({{"producer", "dsakit reference"},
                             {"command", "golden_generate"},
                             {"notes", "generated inputs; outputs of the reference, exact tier"}}));
  }

  void step(std::int64_t number, const ContractValues& differing) {
    step_ = number;
    step_contract_ = contract_;
    for (const auto& [key, value] : differing)
      step_contract_[key] = value;
    if (!differing.empty()) must(writer_.step_contract(number, differing));
  }

  const ContractValues& contract() const { return step_contract_; }

  /// `outputs`: shape, dtype and attributes of each; the values are filled in. Returns them.
  std::map<std::string, RecordedTensor> add(const std::string& operation,
                                            std::map<std::string, RecordedTensor> inputs,
                                            std::map<std::string, RecordedTensor> outputs) {
    harness::RecordedOperation recorded{std::move(inputs), std::move(outputs)};
    harness::OperationData data{{step_, operation}, step_contract_, recorded, config_};
    for (const auto& [name, output] : recorded.outputs)
      if (const auto read = output.attributes.find("mla_scale_read");
          read != output.attributes.end())
        data.contract.insert(*read);
    auto expected = harness::find_adapter(operation)->reference(data);
    if (!expected) die(operation + ": " + expected.status().what());
    for (harness::Expected& output : *expected)
      if (const auto asked = recorded.outputs.find(output.output); asked != recorded.outputs.end())
        asked->second.tensor = std::move(output.value.tensor);

    for (const auto& [name, input] : recorded.inputs)
      store(harness::object_path(data.id, harness::Side::inputs, name), input);
    for (const auto& [name, output] : recorded.outputs)
      store(harness::object_path(data.id, harness::Side::outputs, name), output);
    return std::move(recorded.outputs);
  }

  void commit() { must(writer_.commit()); }

private:
  static harness::RecordingWriter create(const std::string& path) {
    auto writer = harness::RecordingWriter::create(path);
    if (!writer) die(writer.status().what());
    return std::move(*writer);
  }

  /// Stored once: what recurs is linked.
  void store(const std::string& object, const RecordedTensor& recorded) {
    for (const auto& [path, other] : stored_)
      if (other.tensor.bytes == recorded.tensor.bytes &&
          other.tensor.shape == recorded.tensor.shape &&
          other.tensor.dtype == recorded.tensor.dtype && other.axes == recorded.axes &&
          other.attributes == recorded.attributes)
        return must(writer_.link(path, object));
    must(writer_.add(object, recorded));
    stored_.emplace_back(object, recorded);
  }

  ContractValues contract_;
  ContractValues step_contract_;
  harness::Attributes config_;
  harness::RecordingWriter writer_;
  std::int64_t step_ = 0;
  std::vector<std::pair<std::string, RecordedTensor>> stored_;
};

struct Encoding {
  const char* name;
  Dtype dtype;
  const char* qmax;
  float largest;
};
inline constexpr Encoding kFn{"e4m3fn", Dtype::float8_e4m3fn, "448", 448};
inline constexpr Encoding kFnuz{"e4m3fnuz", Dtype::float8_e4m3fnuz, "224", 224};

void index_file(const std::string& folder, const Encoding& encoding);
void dense_file(const std::string& folder);
void attention_file(const std::string& folder, const Encoding& encoding);
void topk_file(const std::string& folder);
void mxfp4_file(const std::string& folder);
void context_parallel_file(const std::string& folder);

} // namespace dsakit::golden

// What a RecordingReader knows of its file.
#pragma once

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dsakit/harness/recording.hpp"
#include "hdf5.hpp"

namespace dsakit::harness {

struct RecordingReader::State {
  struct OperationEntry {
    OperationId id;
    std::vector<TensorInfo> inputs, outputs;
  };

  std::string path;
  std::string level; ///< full, stats or meta
  hdf5::Handle file;
  ContractValues contract;
  std::map<std::int64_t, ContractValues> step_contracts;
  Attributes config, provenance;
  std::vector<OperationId> operations;
  std::vector<OperationEntry> entries; ///< as operations
  std::vector<TensorInfo> weights;
  std::set<haddr_t> groups;
  std::map<std::string, haddr_t> datasets; ///< address of each object

  Status load(Levels levels);
  Result<hdf5::Handle> open_group(const std::string& name);
  Result<std::vector<std::string>> children(const std::string& group);
  Status only(const std::string& group, std::initializer_list<std::string_view> names);
  Status load_attributes(const std::string& group, Attributes& values);
  Status load_tensors(const std::string& group, std::vector<TensorInfo>& tensors);
  Status load_step(const std::string& step);
  void name_stored_objects();
  Status check_operations();
  ContractValues contract_of(std::int64_t step) const;
  const OperationEntry* find(const OperationId& id) const;
  Status stream(const TensorInfo& info, const BlockSink& sink) const;
  Result<RecordedTensor> read(const TensorInfo& info) const;
};

} // namespace dsakit::harness

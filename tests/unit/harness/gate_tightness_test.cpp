// Gates are tight: outputs that lack one head, 32 dimensions of the dot or one key, or where two
// keys have each other's scale, fail against the reference, as our kernel's and as each recorded
// producer's. On every recording with logits or attention, under the gate that replay takes.
#include <filesystem>

#include "dsakit/harness/import.hpp"
#include "dsakit/harness/rules.hpp"
#include "planted_faults.hpp"
#include "replay/judge.hpp"
#include "support/recordings.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

class GateTightness : public ::testing::TestWithParam<std::string> {
protected:
  /// Judges the faults of every operation that has some; returns how many those are.
  std::int64_t check(const std::string& path) {
    auto reader = RecordingReader::open(path);
    EXPECT_TRUE(reader) << reader.status().what();
    if (!reader) return 0;
    std::int64_t faults = 0;
    for (const OperationId& id : reader->operations()) {
      if (id.operation != "index_logits_decode" && id.operation != "index_logits_prefill" &&
          id.operation != "sparse_attention")
        continue;
      SCOPED_TRACE("step " + std::to_string(id.step) + " " + id.operation);
      const auto recorded = reader->read(id, reader->contract(id.step));
      if (recorded.status().code() == Code::unsupported) continue; // MLA rows of bf16
      EXPECT_TRUE(recorded) << recorded.status().what();
      if (recorded) faults += check(id, *reader, *recorded);
    }
    return faults;
  }

private:
  std::int64_t check(const OperationId& id, const RecordingReader& reader,
                     const RecordedOperation& recorded) {
    const bool attention = id.operation == "sparse_attention";
    const RecordedOperation tensors =
        attention ? one_row(recorded, longest_row(recorded.inputs.at("slots").tensor)) : recorded;
    OperationData data{id, reader.contract(id.step), tensors, reader.config()};
    std::set<Accumulation> accumulations = {Accumulation::fp32}; // our kernel's
    for (const auto& [name, output] : tensors.outputs) {
      accumulations.insert(*parse_accumulation(output.attributes.at("accumulation")));
      if (attention) data.contract["mla_scale_read"] = output.attributes.at("mla_scale_read");
    }
    const OperationAdapter& adapter = *find_adapter(id.operation);
    ReferenceRun reference(adapter, data);
    const Faults faults = attention
                              ? attention_faults(adapter, data)
                              : logits_faults(data, (*reference.expected("logits"))->value.tensor,
                                              GetParam().find("cancel") != std::string::npos);
    for (const Fault& fault : faults) {
      const auto outputs = adapter.reference({id, data.contract, fault.tensors, data.config});
      EXPECT_TRUE(outputs) << outputs.status().what();
      for (const Accumulation accumulation : accumulations) {
        if (fault.within_wgmma && accumulation == Accumulation::sm90_wgmma_fp8) continue;
        const double share = used(*outputs, accumulation, reference);
        EXPECT_GT(share, 1) << fault.what << " under " << name(accumulation);
        EXPECT_TRUE(std::isfinite(share)) << fault.what << ": caught by NaN or an infinity alone";
      }
    }
    return std::ssize(faults);
  }

  /// Share of its gate that the worst of the outputs uses.
  double used(const std::vector<Expected>& outputs, Accumulation accumulation,
              ReferenceRun& reference) {
    double most = 0;
    for (const Expected& output : outputs) {
      const auto rule = rules_.find(reference.data().id.operation, output.output, "kernel");
      const Producer faulty{Producer::Kind::kernel, &output.value.tensor, accumulation};
      const auto judged =
          judge({output.output, (*rule)->gate, faulty, {Producer::Kind::reference}}, reference);
      EXPECT_TRUE(judged) << judged.status().what();
      most = std::max(most, judged->comparison.used);
    }
    return most;
  }

  Rules rules_ = Rules::built_in();
};

class GateTightnessGolden : public GateTightness {};

TEST_P(GateTightnessGolden, LostAndSwappedPartsFail) {
  const std::string path = std::string(DSAKIT_SOURCE) + "/golden/data/" + GetParam() + ".h5";
  if (check(path) == 0) GTEST_SKIP() << "holds neither logits nor attention";
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(DSAKIT_SOURCE "/golden/data"))
    names.push_back(file.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Files, GateTightnessGolden, ::testing::ValuesIn(golden_names()),
                         [](const auto& info) { return info.param; });

class GateTightnessShared : public GateTightness {};

TEST_P(GateTightnessShared, LostAndSwappedPartsFail) {
  DSAKIT_NEED_RECORDING(GetParam());
  const testing::TempFolder folder;
  ImportOptions import;
  import.input = testing::recording_path(GetParam());
  import.output = folder / "recording.h5";
  import.command = "dsakit import";
  const auto imported = import_safetensors(import);
  ASSERT_TRUE(imported) << imported.status().what();
  EXPECT_GT(check(import.output), 0);
}

/// Those with logits or attention that is replayed.
INSTANTIATE_TEST_SUITE_P(
    Files, GateTightnessShared,
    ::testing::Values("decode_fnuz", "decode_mxfp4", "decode_next_n2",
                      "kernel_logits_paged_cancel_h32_n1", "kernel_logits_paged_cancel_h64_n1",
                      "kernel_logits_paged_h32_n1", "kernel_logits_paged_h64_n2",
                      "kernel_logits_paged_rocm_h32_n1", "kernel_logits_paged_rocm_h32_n2",
                      "kernel_logits_paged_rocm_h64_n1", "kernel_logits_paged_rocm_h64_n2",
                      "kernel_logits_prefill_h32", "kernel_logits_prefill_h64",
                      "kernel_mla_decode_h64", "prefill_no_q_lora_rmsnorm_yarn",
                      "prefill_q_lora_layernorm_gate"),
    [](const auto& info) { return info.param; });

} // namespace
} // namespace dsakit::harness

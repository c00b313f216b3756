// Every file of ../shared/recordings, imported and replayed, agrees with the reference and the
// kernels; and fails where its contract is changed.
#include <filesystem>

#include "dsakit/harness/import.hpp"
#include "replay_fixture.hpp"
#include "support/recordings.hpp"

namespace dsakit::harness {
namespace {

class ReplayKnownFiles : public testing::ReplayTest {
protected:
  Report replay_shared(const std::string& name, ReplayOptions options = {}) {
    options.paths = {path(name + ".h5")};
    if (!std::filesystem::exists(options.paths[0])) {
      ImportOptions import;
      import.input = testing::recording_path(name);
      import.output = options.paths[0];
      import.command = "dsakit import";
      const auto imported = import_safetensors(import);
      EXPECT_TRUE(imported) << imported.status().what();
    }
    auto report = run(options);
    EXPECT_TRUE(report) << report.status().what();
    return report ? *report : Report{};
  }

  static ReplayOptions with(const char* override_text) {
    ReplayOptions options;
    options.overrides = {*parse_override(override_text)};
    return options;
  }
};

struct File {
  const char* name;
  std::int64_t comparisons; ///< 0: nothing of it is replayed. Of a layer 3 an output, and 2 of the
                            ///< layer as a whole
  std::int64_t chained = 0; ///< comparisons of a layer's chained replay; else 0
};

class ReplayKnownFile : public ReplayKnownFiles, public ::testing::WithParamInterface<File> {
protected:
  static void expect_equal_selections(const Report& report) {
    for (const char* subject : {"kernel", "reference"}) {
      const ReportLine* line = find(report, "topk", "topk_indices", subject, "recorded");
      EXPECT_EQ(line->gate, "exact");
      EXPECT_EQ(line->verdict, Verdict::pass);
    }
  }
};

TEST_P(ReplayKnownFile, PassesOnBothModels) {
  DSAKIT_NEED_RECORDING(GetParam().name);
  const bool layer = GetParam().chained > 0;
  for (const optimized::Arch arch : {optimized::Arch::gfx942, optimized::Arch::gfx950})
    for (const ReplayMode mode : {ReplayMode::fed, ReplayMode::chained}) {
      if (mode == ReplayMode::chained && !layer) continue;
      ReplayOptions options;
      options.host.arch = arch;
      options.mode = mode;
      const Report report = replay_shared(GetParam().name, options);
      const std::int64_t want =
          mode == ReplayMode::fed ? GetParam().comparisons : GetParam().chained;
      const auto passed = std::count_if(report.lines.begin(), report.lines.end(),
                                        [](const auto& l) { return l.verdict == Verdict::pass; });
      EXPECT_EQ(passed, want);
      EXPECT_EQ(report.verdict(), want ? Verdict::pass : Verdict::skipped) << to_text(report, {});
      if (layer && mode == ReplayMode::fed) expect_equal_selections(report);
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shared, ReplayKnownFile,
    ::testing::Values(
        File{"decode_fnuz", 115, 92}, File{"decode_mxfp4", 110, 88},
        File{"decode_next_n2", 115, 92}, File{"kernel_cache_write", 12},
        File{"kernel_cp_merge", 21}, File{"kernel_fp8_cast", 0}, File{"kernel_index_convert", 111},
        File{"kernel_index_insert_normal", 15}, File{"kernel_index_insert_shuffle", 12},
        File{"kernel_logits_paged_cancel_h32_n1", 5}, File{"kernel_logits_paged_cancel_h64_n1", 5},
        File{"kernel_logits_paged_h32_n1", 3}, File{"kernel_logits_paged_h64_n2", 3},
        File{"kernel_logits_paged_rocm_h32_n1", 5}, File{"kernel_logits_paged_rocm_h32_n2", 5},
        File{"kernel_logits_paged_rocm_h64_n1", 5}, File{"kernel_logits_paged_rocm_h64_n2", 5},
        File{"kernel_logits_prefill_h32", 5}, File{"kernel_logits_prefill_h64", 5},
        File{"kernel_mla_decode_h64", 6}, File{"kernel_mla_prefill_bf16_h16", 1},
        File{"kernel_mxfp4_insert_flat", 9}, File{"kernel_mxfp4_quant", 6},
        File{"kernel_norms", 37}, File{"kernel_quant_q", 10}, File{"kernel_topk", 3},
        File{"prefill_no_q_lora_rmsnorm_yarn", 100, 80},
        File{"prefill_q_lora_layernorm_gate", 115, 92}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ReplayKnownFiles, AttentionFailsUnderTheOtherReadingOfTheScalesAndTheFieldIsNamed) {
  DSAKIT_NEED_RECORDING("kernel_mla_decode_h64");
  const Report report = replay_shared("kernel_mla_decode_h64", with("mla_scale_read=fp32"));
  EXPECT_EQ(report.verdict(), Verdict::fail);
  const ReportLine* bad = first_bad(report);
  ASSERT_NE(bad, nullptr);
  EXPECT_NE(bad->hint.find("mla_scale_read=bf16: the contract field is mla_scale_read"),
            std::string::npos)
      << bad->hint;
}

TEST_F(ReplayKnownFiles, DenseRowsAreReadByTheReferenceAlone) {
  DSAKIT_NEED_RECORDING("kernel_mla_prefill_bf16_h16");
  for (const ReplayMode mode : {ReplayMode::fed, ReplayMode::chained}) {
    ReplayOptions options;
    options.mode = mode;
    const Report report = replay_shared("kernel_mla_prefill_bf16_h16", options);
    EXPECT_EQ(report.verdict(), Verdict::pass);
    ASSERT_EQ(report.lines.size(), 2u);
    const ReportLine* kernel = find(report, "sparse_attention", "latent", "kernel", "reference");
    EXPECT_EQ(kernel->verdict, Verdict::skipped);
    EXPECT_EQ(kernel->reason, "reference only: no kernel reads mla_record bf16_576");
    const ReportLine* line = find(report, "sparse_attention", "latent", "reference", "recorded");
    EXPECT_EQ(line->verdict, Verdict::pass);
    EXPECT_EQ(line->gate, "derived");
    EXPECT_GT(*line->used, 0.1);
    const std::string text = to_text(report, {});
    EXPECT_NE(text.find("reference only: no kernel reads mla_record bf16_576\n"), std::string::npos)
        << text;
    EXPECT_EQ(text.find("not replayed"), std::string::npos);
  }
}

TEST_F(ReplayKnownFiles, NormsFailUnderTheOtherRounding) {
  DSAKIT_NEED_RECORDING("kernel_norms");
  for (const char* rounding : {"rmsnorm_rounding=one", "rmsnorm_rounding=two"}) {
    const Report report = replay_shared("kernel_norms", with(rounding));
    EXPECT_EQ(report.verdict(), Verdict::fail) << rounding;
    const auto bad = std::find_if(report.lines.begin(), report.lines.end(), [](const auto& line) {
      return line.verdict == Verdict::fail && line.gate == "exact";
    });
    ASSERT_NE(bad, report.lines.end());
    EXPECT_NE(bad->hint.find("the contract field is rmsnorm_rounding"), std::string::npos)
        << bad->hint;
  }
}

} // namespace
} // namespace dsakit::harness

// The manifests beside the code objects say what a launch needs: each is held to the launcher's
// own.
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "dsakit/optimized/code_objects.hpp"
#include "dsakit/optimized/kernel.hpp"
#include "dsakit/optimized/sparse_attention.hpp"
#include "dsakit/optimized/topk_slots.hpp"

namespace {

using namespace dsakit::optimized;
using Json = nlohmann::json;
namespace fs = std::filesystem;

Json manifest(const std::string& name) {
  std::ifstream in(fs::path(DSAKIT_CODE_OBJECTS) / (name + ".json"));
  return in ? Json::parse(in) : Json();
}

/// The kernel of that symbol, of the first arch that was built.
Json kernel(const std::string& object, const std::string& symbol) {
  for (const char* arch : {".gfx942", ".gfx950"}) {
    const Json found = manifest(object + arch);
    if (found.is_null()) continue;
    for (const Json& one : found.at("kernels"))
      if (one.at("symbol") == symbol) return one;
  }
  ADD_FAILURE() << "no manifest with " << symbol;
  return {};
}

TEST(Manifest, EveryCodeObjectHasOne) {
  ASSERT_FALSE(code_objects().empty());
  for (const CodeObject& object : code_objects()) {
    const std::string name =
        std::string(object.operation) + "." + std::string(dsakit::optimized::name(object.arch));
    const Json found = manifest(name);
    ASSERT_FALSE(found.is_null()) << name;
    EXPECT_EQ(found.at("code_object"), name + ".hsaco");
    EXPECT_EQ(found.at("arch"), dsakit::optimized::name(object.arch));
    EXPECT_FALSE(found.at("kernels").empty()) << name;
    for (const Json& one : found.at("kernels")) {
      EXPECT_EQ(one.at("wave"), 64) << one;
      EXPECT_EQ(one.at("block").get<int>() % 64, 0) << one;
      EXPECT_FALSE(one.at("arguments").empty()) << one;
    }
  }
}

TEST(Manifest, ArgumentsLieWhereTheCompilerPutsThem) {
  const Json found = kernel("topk_slots", "dsakit_topk_slots");
  EXPECT_EQ(found.at("argument_bytes"), sizeof(TopkSlotsParams));
  EXPECT_EQ(found.at("block"), 256);
  EXPECT_EQ(found.at("lds_bytes"), 0);
  EXPECT_EQ(found.at("workspace_bytes"), "0");
  std::map<std::string, std::size_t> at;
  for (const Json& field : found.at("arguments"))
    at[field.at("name")] = field.at("offset");
  EXPECT_EQ(at.size(), 16);
  EXPECT_EQ(at.at("slots"), offsetof(TopkSlotsParams, slots));
  EXPECT_EQ(at.at("table_stride"), offsetof(TopkSlotsParams, table_stride));
  EXPECT_EQ(at.at("dcp_rank"), offsetof(TopkSlotsParams, dcp_rank));
  EXPECT_EQ(kernel("topk_slots", "dsakit_topk_slots_compact").at("lds_bytes"), 256 * 4);
}

// clang-format off
#define WORKSPACE (splits > 1) * tokens * splits * heads * (512 + 1) * 4
// clang-format on
#define TEXT_OF(expression) #expression
#define TEXT(macro) TEXT_OF(macro)

TEST(Manifest, TheWorkspaceIsWhatTheLauncherWants) {
  EXPECT_EQ(kernel("sparse_attention", "dsakit_sparse_attention_e4m3fn").at("workspace_bytes"),
            TEXT(WORKSPACE));
  for (const std::int64_t splits : {1, 2, 7})
    for (const std::int64_t tokens : {0, 1, 5})
      for (const std::int64_t heads : {1, 12}) {
        SparseAttentionParams params{};
        params.splits = static_cast<std::int32_t>(splits);
        params.tokens = tokens;
        params.heads = static_cast<std::int32_t>(heads);
        for (const Kernel<SparseAttentionParams>& one :
             kernels<SparseAttentionParams>(Arch::gfx942))
          EXPECT_EQ(one.workspace_bytes(params), static_cast<std::size_t>(WORKSPACE));
      }
}

} // namespace

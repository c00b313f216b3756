#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "dsakit/harness/export.hpp"
#include "dsakit/harness/recording.hpp"
#include "export/slice.hpp"
#include "support/safetensors.hpp"
#include "support/temp_folder.hpp"

namespace dsakit::harness {
namespace {

using testing::read_file;
using testing::TempFolder;

TensorInfo info_of(const Shape& shape) {
  TensorInfo info;
  info.object = "/steps/0/layer/inputs/x";
  info.dtype = Dtype::int32;
  info.shape = shape;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    info.axes.push_back("axis" + std::to_string(axis));
  return info;
}

/// Flat indices that a slice selects, of a payload pushed in blocks of `block` elements.
std::vector<std::int32_t> selected(const TensorInfo& info, const std::string& slice,
                                   std::size_t block) {
  std::vector<std::int32_t> payload(static_cast<std::size_t>(element_count(info.shape)));
  std::iota(payload.begin(), payload.end(), 0);
  const auto ranges = parse_slice(slice, info);
  EXPECT_TRUE(ranges) << ranges.status().what();
  if (!ranges) return {};
  std::vector<std::int32_t> values;
  Selection selection(info, *ranges);
  for (std::size_t at = 0; at < payload.size(); at += block) {
    const std::span part(payload.data() + at, std::min(block, payload.size() - at));
    const Status status = selection.push(std::as_bytes(part),
                                         [&](std::int64_t first, std::span<const std::byte> run) {
                                           for (std::size_t i = 0; i < run.size() / 4; ++i) {
                                             std::int32_t value = 0;
                                             std::memcpy(&value, run.data() + 4 * i, 4);
                                             EXPECT_EQ(value, first + static_cast<std::int64_t>(i));
                                             values.push_back(value);
                                           }
                                           return Status{};
                                         });
    EXPECT_TRUE(status);
  }
  return values;
}

TEST(Slice, SelectsTheSameWhereverBlocksBegin) {
  const TensorInfo info = info_of({3, 4, 5});
  const auto index = [](int a, int b, int c) { return 20 * a + 5 * b + c; };
  struct {
    const char* slice;
    int begin[3], end[3];
  } const cases[] = {{"", {0, 0, 0}, {3, 4, 5}},        {":", {0, 0, 0}, {3, 4, 5}},
                     {"1", {1, 0, 0}, {2, 4, 5}},       {"-1,1:3", {2, 1, 0}, {3, 3, 5}},
                     {":,:,2:4", {0, 0, 2}, {3, 4, 4}}, {":2,3,-2:", {0, 3, 3}, {2, 4, 5}},
                     {"0:3,:,4", {0, 0, 4}, {3, 4, 5}}, {"1:2,:-1,0", {1, 0, 0}, {2, 3, 1}}};
  for (const auto& c : cases) {
    std::vector<std::int32_t> want;
    for (int x = c.begin[0]; x < c.end[0]; ++x)
      for (int y = c.begin[1]; y < c.end[1]; ++y)
        for (int z = c.begin[2]; z < c.end[2]; ++z)
          want.push_back(index(x, y, z));
    for (const std::size_t block : {1, 3, 7, 20, 60})
      EXPECT_EQ(selected(info, c.slice, block), want) << c.slice << " in blocks of " << block;
  }
}

TEST(Slice, AnIndexTakesItsAxisAway) {
  const TensorInfo info = info_of({3, 4, 5});
  EXPECT_EQ(shape_of(*parse_slice("1,:,2:4", info)), (Shape{4, 2}));
  EXPECT_EQ(shape_of(*parse_slice("1,1,1", info)), Shape{});
  EXPECT_EQ(shape_of(*parse_slice(":", info_of({0, 2}))), (Shape{0, 2}));
  EXPECT_TRUE(selected(info_of({2, 0}), ":", 1).empty());
}

TEST(Slice, RefusalsNameAxisAndExtent) {
  const TensorInfo info = info_of({3, 4});
  const auto refusal = [&](const std::string& text) {
    return parse_slice(text, info).status().what();
  };
  const std::string axis1 = "/steps/0/layer/inputs/x: --slice: axis 1 'axis1' of extent 4: ";
  EXPECT_EQ(refusal(":,4"), axis1 + "found '4', want -4 to 3");
  EXPECT_EQ(refusal(":,-5:"), axis1 + "found '-5:', want -4 to 4");
  EXPECT_EQ(refusal(":,0:5"), axis1 + "found '0:5', want -4 to 4");
  EXPECT_EQ(refusal(":,2:2"), axis1 + "found '2:2', want a begin before the end");
  EXPECT_EQ(refusal(":,0:4:2"), axis1 + "found '0:4:2', want BEGIN:END or an index");
  EXPECT_EQ(refusal(":,x"), axis1 + "found 'x', want BEGIN:END or an index");
  EXPECT_EQ(refusal(":,"), axis1 + "found '', want BEGIN:END or an index");
  EXPECT_EQ(refusal(":,:,:"),
            "/steps/0/layer/inputs/x: --slice: found 3 axes, want at most the 2 of [3, 4]");
}

class ExportTensor : public ::testing::Test {
protected:
  ExportTensor() {
    options_.recording = folder_ / "a.h5";
    options_.operation = "layer";
    options_.step = 0;
    auto writer = RecordingWriter::create(options_.recording);
    const auto add = [&](std::int64_t step, Side side, const char* name, Dtype dtype, Shape shape,
                         std::vector<std::uint8_t> bytes) {
      RecordedTensor tensor{Tensor(dtype, shape), {}, {}};
      std::memcpy(tensor.tensor.bytes.data(), bytes.data(), bytes.size());
      for (std::size_t axis = 0; axis < shape.size(); ++axis)
        tensor.axes.emplace_back(axis == 0 ? "row" : "a \"b\"");
      EXPECT_TRUE(writer->add(object_path({step, "layer"}, side, name), tensor));
    };
    add(0, Side::inputs, "bf16", Dtype::bfloat16, {2, 2},
        {0x80, 0x3F, 0xCD, 0x3D, 0xC0, 0x7F, 0x80, 0xFF}); // 1, about 0.1, NaN, -infinity
    add(0, Side::inputs, "fp4", Dtype::float4_e2m1fn_x2, {2, 1}, {0x21, 0x8F});
    add(0, Side::inputs, "ids", Dtype::int64, {1},
        {1, 0, 0, 0, 0, 0, 0, 0x40}); // no double holds it
    add(0, Side::inputs, "both", Dtype::uint8, {1}, {1});
    add(0, Side::outputs, "both", Dtype::uint8, {1}, {2});
    add(3, Side::outputs, "late", Dtype::float32, {1}, {0, 0, 0x80, 0x3F});
    EXPECT_TRUE(writer->commit());
  }

  std::string written(const std::string& tensor, const std::string& output,
                      const std::string& slice = "") {
    options_.tensor = tensor;
    options_.output = folder_ / output;
    options_.slice = slice;
    const auto done = export_tensor(options_);
    EXPECT_TRUE(done) << done.status().what();
    return done ? *done : "";
  }

  std::string refusal(const std::string& tensor, const std::string& output = "x.npy") {
    options_.tensor = tensor;
    options_.output = folder_ / output;
    const auto done = export_tensor(options_);
    EXPECT_FALSE(done);
    EXPECT_EQ(folder_.entries(), std::vector<std::string>{"a.h5"}) << "nothing is left behind";
    return done.status().what().substr(folder_.operator/("").size());
  }

  TempFolder folder_;
  ExportTensorOptions options_;
};

TEST_F(ExportTensor, NpyHasAHeaderAndDecodedElements) {
  EXPECT_EQ(written("bf16", "x.npy"), "float32 [2, 2], decoded from bfloat16");
  const std::string file = read_file(folder_ / "x.npy");
  ASSERT_EQ(file.size(), 128u + 16);
  EXPECT_EQ(file.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  const std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,2,), }";
  EXPECT_EQ(file.substr(10, header.size()), header);
  EXPECT_EQ(file[127], '\n');
  float values[4];
  std::memcpy(values, file.data() + 128, sizeof values);
  EXPECT_EQ(values[0], 1);
  EXPECT_TRUE(std::isnan(values[2]));
  EXPECT_TRUE(std::isinf(values[3]) && values[3] < 0);

  EXPECT_EQ(written("ids", "y.npy"), "int64 [1]");
  EXPECT_EQ(read_file(folder_ / "y.npy").substr(128), std::string("\1\0\0\0\0\0\0\x40", 8));
  EXPECT_EQ(written("bf16", "z.npy", "0,0"), "float32 [], decoded from bfloat16");
  EXPECT_NE(read_file(folder_ / "z.npy").find("'shape': (), }"), std::string::npos);
}

TEST_F(ExportTensor, CsvHasCoordinatesOfTheWholeTensor) {
  EXPECT_EQ(written("bf16", "x.csv", "1:,:"), "float32 [1, 2], decoded from bfloat16");
  EXPECT_EQ(read_file(folder_ / "x.csv"), "row,\"a \"\"b\"\"\",value\n1,0,nan\n1,1,-inf\n");
  written("bf16", "y.csv", "0,1");
  EXPECT_EQ(read_file(folder_ / "y.csv"), "row,\"a \"\"b\"\"\",value\n0,1,0.100097656\n");
  written("ids", "z.csv");
  EXPECT_EQ(read_file(folder_ / "z.csv"), "row,value\n0,4611686018427387905\n");
}

TEST_F(ExportTensor, AByteOfFp4IsTwoElements) {
  EXPECT_EQ(written("fp4", "x.csv"), "float32 [2, 2], decoded from float4_e2m1fn_x2");
  EXPECT_EQ(read_file(folder_ / "x.csv"),
            "row,\"a \"\"b\"\"\",value\n0,0,0.5\n0,1,1\n1,0,-6\n1,1,-0\n");
  EXPECT_EQ(written("fp4", "y.npy", "1,0"), "float32 [2], decoded from float4_e2m1fn_x2");
}

TEST_F(ExportTensor, SafetensorsKeepsTheDtype) {
  EXPECT_EQ(written("bf16", "x.safetensors", ":,1"), "bfloat16 [2]");
  testing::Safetensors file(folder_ / "x.safetensors");
  EXPECT_EQ(file.read("bf16").dtype, Dtype::bfloat16);
  EXPECT_EQ(file.values<std::uint16_t>("bf16"), (std::vector<std::uint16_t>{0x3DCD, 0xFF80}));
}

TEST_F(ExportTensor, ANameOnBothSidesNeedsItsSide) {
  EXPECT_EQ(refusal("both"), "a.h5: step 0 layer: found 'both' on both sides, want inputs/both or "
                             "outputs/both");
  written("outputs/both", "x.csv");
  EXPECT_EQ(read_file(folder_ / "x.csv"), "row,value\n0,2\n");
}

TEST_F(ExportTensor, TheStepMayBeLeftOutWhereOneHasTheOperation) {
  options_.step.reset();
  EXPECT_EQ(refusal("late"), "a.h5: found layer in steps 0, 3, want --step with one of them");
  options_.step = 1;
  EXPECT_EQ(refusal("late"), "a.h5: found no operation 'layer' in step 1, want one of: layer (step "
                             "0), layer (step 3)");
  options_.step = 3;
  EXPECT_EQ(written("late", "x.npy"), "float32 [1]");
}

TEST_F(ExportTensor, RefusalsLeaveNothingBehind) {
  EXPECT_EQ(refusal("none"),
            "a.h5: step 0 layer: found no tensor 'none', want one of: inputs/bf16, "
            "inputs/both, inputs/fp4, inputs/ids, outputs/both");
  EXPECT_EQ(refusal("bf16", "x.txt"),
            "x.txt: found another ending, want .npy, .safetensors or .csv");
  options_.slice = "7";
  EXPECT_EQ(refusal("bf16"), "a.h5: /steps/0/layer/inputs/bf16: --slice: axis 0 'row' of extent 2: "
                             "found '7', want -2 to 1");
}

} // namespace
} // namespace dsakit::harness

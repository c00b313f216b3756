// What is written is what is read, the bytes are reproducible, and a file appears whole or not at
// all.
#include "dsakit/harness/recording.hpp"

#include <csignal>
#include <filesystem>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "dsakit/harness/text.hpp"
#include "support/raw_hdf5.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

constexpr Dtype kAllDtypes[] = {Dtype::bfloat16,
                                Dtype::float16,
                                Dtype::float8_e4m3fn,
                                Dtype::float8_e4m3fnuz,
                                Dtype::float4_e2m1fn_x2,
                                Dtype::float8_e8m0fnu,
                                Dtype::float32,
                                Dtype::int32,
                                Dtype::int64,
                                Dtype::uint8};

const OperationId kLayer{0, "layer"};

/// Every byte differs from its neighbours, NaN patterns included.
RecordedTensor ramp(Dtype dtype, Shape shape) {
  RecordedTensor recorded;
  recorded.tensor = Tensor(dtype, std::move(shape));
  for (std::size_t i = 0; i < recorded.tensor.bytes.size(); ++i)
    recorded.tensor.bytes[i] = static_cast<std::byte>(i * 151 + i / 256 + 0x7F);
  for (std::size_t axis = 0; axis < recorded.tensor.shape.size(); ++axis)
    recorded.axes.push_back("axis" + std::to_string(axis));
  recorded.attributes = {{"producer", "a ramp, \xC3\xA9"}, {"empty", ""}};
  return recorded;
}

void expect_ok(const Status& status) {
  EXPECT_TRUE(status) << status.what();
}

/// A recording with one tensor of each dtype, a link, an empty tensor, a weight and two steps.
void write_everything(const std::string& path, WriterOptions options = {}) {
  auto writer = RecordingWriter::create(path, options);
  ASSERT_TRUE(writer) << writer.status().what();
  expect_ok(writer->contract({{"page_size", "64"}, {"scale_kind", "ue8m0"}}));
  expect_ok(writer->config({{"softmax_scale", "0.07216878364870322"}}));
  expect_ok(writer->provenance({{"producer", "a test"}}));
  expect_ok(writer->step_contract(12, {{"page_size", "16"}}));
  for (Dtype dtype : kAllDtypes)
    expect_ok(writer->add(object_path(kLayer, Side::inputs, name(dtype)), ramp(dtype, {3, 5, 7})));
  expect_ok(writer->add(object_path({12, "fp8_cast"}, Side::outputs, "empty"),
                        ramp(Dtype::int64, {0, 4})));
  expect_ok(writer->add(weight_path("o_proj"), ramp(Dtype::bfloat16, {9, 2})));
  expect_ok(writer->link("/steps/0/layer/inputs/float32", "/steps/12/fp8_cast/inputs/x"));
  expect_ok(writer->commit());
}

TEST(Recording, TensorOfEveryDtypeComesBackByteForByte) {
  TempFolder folder;
  for (bool deflate : {false, true}) {
    write_everything(folder / "all.h5", {deflate});
    auto reader = RecordingReader::open(folder / "all.h5");
    ASSERT_TRUE(reader) << reader.status().what();
    EXPECT_EQ(reader->tensors(kLayer, Side::inputs).size(), std::size(kAllDtypes));
    for (const TensorInfo& info : reader->tensors(kLayer, Side::inputs)) {
      const RecordedTensor want = ramp(info.dtype, {3, 5, 7});
      EXPECT_EQ(info.name(), name(info.dtype));
      auto got = reader->read(info);
      ASSERT_TRUE(got) << got.status().what();
      EXPECT_EQ(got->tensor.dtype, info.dtype);
      EXPECT_EQ(got->tensor.shape, want.tensor.shape);
      EXPECT_EQ(got->tensor.bytes, want.tensor.bytes);
      EXPECT_EQ(got->axes, want.axes);
      EXPECT_EQ(got->attributes, want.attributes);
    }
  }
}

TEST(Recording, TextsAndStepsComeBack) {
  TempFolder folder;
  write_everything(folder / "all.h5");
  auto reader = RecordingReader::open(folder / "all.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->contract(), (ContractValues{{"page_size", "64"}, {"scale_kind", "ue8m0"}}));
  EXPECT_EQ(reader->contract(0), reader->contract());
  EXPECT_EQ(reader->contract(12), (ContractValues{{"page_size", "16"}, {"scale_kind", "ue8m0"}}));
  EXPECT_EQ(reader->config().at("softmax_scale"), "0.07216878364870322");
  EXPECT_EQ(reader->provenance().at("producer"), "a test");
  ASSERT_EQ(reader->weights().size(), 1u);
  EXPECT_EQ(reader->weights()[0].object, "/weights/o_proj");
  expect_ok(reader->verify());
}

TEST(Recording, OperationsComeByStepAndInCausalOrder) {
  TempFolder folder;
  auto writer = RecordingWriter::create(folder / "order.h5");
  ASSERT_TRUE(writer);
  const std::vector<std::pair<std::int64_t, std::string>> want = {
      {2, "layer"}, {2, "fp8_cast"}, {10, "layer"}};
  for (std::size_t i = want.size(); i-- > 0;)
    expect_ok(writer->add(object_path({want[i].first, want[i].second}, Side::inputs, "x"),
                          ramp(Dtype::uint8, {2})));
  expect_ok(writer->commit());
  auto reader = RecordingReader::open(folder / "order.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  std::vector<std::pair<std::int64_t, std::string>> got;
  for (const OperationId& id : reader->operations())
    got.emplace_back(id.step, id.operation);
  EXPECT_EQ(got, want);
}

TEST(Recording, LinkedTensorIsStoredOnce) {
  TempFolder folder;
  write_everything(folder / "all.h5");
  auto reader = RecordingReader::open(folder / "all.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  const auto& linked = reader->tensors({12, "fp8_cast"}, Side::inputs);
  ASSERT_EQ(linked.size(), 1u);
  EXPECT_EQ(linked[0].object, "/steps/12/fp8_cast/inputs/x");
  EXPECT_EQ(linked[0].stored_as, "/steps/0/layer/inputs/float32");
  auto got = reader->read(linked[0]);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->tensor.bytes, ramp(Dtype::float32, {3, 5, 7}).tensor.bytes);
}

TEST(Recording, Bfloat16IsAFloatWithTheBitLayoutThatHdf5Names) {
  TempFolder folder;
  write_everything(folder / "all.h5");
  RawHdf5 file(folder / "all.h5");
  const hid_t dataset = H5Dopen2(file, "/steps/0/layer/inputs/bfloat16", H5P_DEFAULT);
  const hid_t type = H5Dget_type(dataset);
  std::size_t sign = 0, exponent = 0, exponent_bits = 0, mantissa = 0, mantissa_bits = 0;
  H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits);
  EXPECT_EQ(H5Tget_class(type), H5T_FLOAT);
  EXPECT_EQ(H5Tget_size(type), 2u);
  EXPECT_EQ(H5Tget_precision(type), 16u);
  EXPECT_EQ(H5Tget_offset(type), 0);
  EXPECT_EQ(H5Tget_order(type), H5T_ORDER_LE);
  EXPECT_EQ(H5Tget_ebias(type), 127u);
  EXPECT_EQ(std::make_tuple(sign, exponent, exponent_bits, mantissa, mantissa_bits),
            std::make_tuple(15u, 7u, 8u, 0u, 7u));
  // HDF5's own conversion, as h5dump and h5py use it, gives the numbers.
  std::vector<float> values(3 * 5 * 7);
  EXPECT_GE(H5Dread(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  const RecordedTensor want = ramp(Dtype::bfloat16, {3, 5, 7});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float exact = reference::bf16_to_float(want.tensor.as<std::uint16_t>()[i]);
    EXPECT_TRUE(values[i] == exact || (std::isnan(values[i]) && std::isnan(exact))) << i;
  }
  H5Tclose(type);
  H5Dclose(dataset);
}

TEST(Recording, EveryDatasetHasAChecksumAndChunksOfAboutOneMiB) {
  TempFolder folder;
  auto writer = RecordingWriter::create(folder / "rows.h5");
  ASSERT_TRUE(writer);
  expect_ok(writer->add("/steps/0/layer/inputs/x", ramp(Dtype::float32, {1000, 3, 250})));
  expect_ok(writer->commit());
  RawHdf5 file(folder / "rows.h5");
  const hid_t dataset = H5Dopen2(file, "/steps/0/layer/inputs/x", H5P_DEFAULT);
  const hid_t creation = H5Dget_create_plist(dataset);
  hsize_t chunk[3] = {};
  ASSERT_EQ(H5Pget_chunk(creation, 3, chunk), 3);
  EXPECT_EQ(chunk[0], (1u << 20) / (3 * 250 * 4));
  EXPECT_EQ(chunk[1], 3u);
  EXPECT_EQ(chunk[2], 250u);
  EXPECT_TRUE(H5Pall_filters_avail(creation));
  ASSERT_EQ(H5Pget_nfilters(creation), 1);
  unsigned flags = 0;
  std::size_t none = 0;
  EXPECT_EQ(H5Pget_filter2(creation, 0, &flags, &none, nullptr, 0, nullptr, nullptr),
            H5Z_FILTER_FLETCHER32);
  H5Pclose(creation);
  H5Dclose(dataset);
}

/// Shapes whose blocks are cut in the first, a middle and the last axis.
class RecordingBlocks : public ::testing::TestWithParam<Shape> {};

TEST_P(RecordingBlocks, PayloadStreamsInOrderInBlocksOfAtMost64MiB) {
  TempFolder folder;
  const RecordedTensor want = ramp(Dtype::uint8, GetParam());
  auto writer = RecordingWriter::create(folder / "big.h5");
  ASSERT_TRUE(writer);
  expect_ok(writer->add("/steps/0/layer/inputs/x", want));
  expect_ok(writer->commit());
  auto reader = RecordingReader::open(folder / "big.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  std::vector<std::byte> got;
  std::size_t blocks = 0;
  expect_ok(reader->stream(reader->tensors(kLayer, Side::inputs)[0],
                           [&](std::span<const std::byte> block) -> Status {
                             EXPECT_LE(block.size(), std::size_t{64} << 20);
                             got.insert(got.end(), block.begin(), block.end());
                             ++blocks;
                             return {};
                           }));
  EXPECT_GT(blocks, 1u);
  EXPECT_TRUE(got == want.tensor.bytes);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RecordingBlocks,
                         ::testing::Values(Shape{70'001, 1'000}, Shape{3, 2'500, 9'001},
                                           Shape{2, 34 << 20}));

TEST(Recording, StreamStopsWhereTheReceiverFails) {
  TempFolder folder;
  write_everything(folder / "all.h5");
  auto reader = RecordingReader::open(folder / "all.h5");
  ASSERT_TRUE(reader);
  const Status stopped = reader->stream(reader->weights()[0], [](std::span<const std::byte>) {
    return Status(Code::interrupted, "enough");
  });
  EXPECT_EQ(stopped.code(), Code::interrupted);
}

TEST(Recording, SameCallsGiveTheSameBytes) {
  TempFolder folder;
  for (bool deflate : {false, true}) {
    write_everything(folder / "a.h5", {deflate});
    ::usleep(1'100'000); // a second passes, in case a time is stored
    write_everything(folder / "b.h5", {deflate});
    EXPECT_TRUE(read_file(folder / "a.h5") == read_file(folder / "b.h5"));
  }
}

TEST(Recording, NothingAppearsBeforeCommitOrWithoutIt) {
  TempFolder folder;
  write_file(folder / "x.h5", "old");
  {
    auto writer = RecordingWriter::create(folder / "x.h5");
    ASSERT_TRUE(writer);
    expect_ok(writer->add("/steps/0/layer/inputs/x", ramp(Dtype::uint8, {3})));
    EXPECT_EQ(read_file(folder / "x.h5"), "old");
  }
  EXPECT_EQ(read_file(folder / "x.h5"), "old");
  EXPECT_EQ(folder.entries(), std::vector<std::string>{"x.h5"});
}

TEST(Recording, KilledWriterLeavesNothingUnderTheFinalName) {
  TempFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    auto writer = RecordingWriter::create(folder / "x.h5");
    if (!writer || !writer->add("/steps/0/layer/inputs/x", ramp(Dtype::uint8, {3}))) ::_exit(1);
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(std::filesystem::exists(folder / "x.h5"));
}

TEST(Recording, UnusableTensorIsRefusedBeforeItIsWritten) {
  TempFolder folder;
  auto writer = RecordingWriter::create(folder / "x.h5");
  ASSERT_TRUE(writer);
  EXPECT_FALSE(writer->add("/steps/0/layer/inputs/x", ramp(Dtype::uint8, {})));
  EXPECT_FALSE(writer->add("/steps/0/layer/inputs/", ramp(Dtype::uint8, {3})));
  EXPECT_FALSE(writer->add("/steps/0/layer/inputs/a\nb", ramp(Dtype::uint8, {3})));
  RecordedTensor few_axes = ramp(Dtype::uint8, {3, 2});
  few_axes.axes.pop_back();
  EXPECT_FALSE(writer->add("/steps/0/layer/inputs/x", few_axes));
  RecordedTensor comma = ramp(Dtype::uint8, {3});
  comma.axes = {"a,b"};
  EXPECT_FALSE(writer->add("/steps/0/layer/inputs/x", comma));
}

TEST(Recording, NameThatNoReaderTakesIsRefusedOnOneLine) {
  TempFolder folder;
  auto writer = RecordingWriter::create(folder / "x.h5");
  ASSERT_TRUE(writer);
  const auto add = [&](const std::string& object) {
    const std::string what = writer->add(object, ramp(Dtype::uint8, {3})).what();
    EXPECT_EQ(what.find_first_of(std::string("\n\0", 2)), std::string::npos) << what;
    return what;
  };
  const std::string good = "/steps/0/layer/inputs/";
  for (const std::string& bad :
       {good + ".", good + "..", good + "a/b", good + std::string("a\0b", 3), good + "a\nb",
        good + std::string(256, 'x'), std::string("/steps/00/layer/inputs/x"),
        std::string("/steps/0/other/inputs/x"), std::string("/steps/0/layer/sides/x"),
        std::string("/weights/a/b"), std::string("x"), std::string()})
    EXPECT_EQ(add(bad).find((folder / "x.h5") + ": found object '"), 0u) << bad;
  EXPECT_NE(add(good + "a\nb").find("'/steps/0/layer/inputs/a\\x0ab', want"), std::string::npos);
  EXPECT_EQ(add(good + std::string(255, 'x')), "");
  EXPECT_EQ(add("/weights/a.b"), "");
  expect_ok(writer->commit());
  auto reader = RecordingReader::open(folder / "x.h5");
  EXPECT_TRUE(reader) << reader.status().what();
}

TEST(Recording, AxisWithoutANameKeepsItsPlace) {
  TempFolder folder;
  RecordedTensor tensor = ramp(Dtype::uint8, {2, 3, 4});
  tensor.axes = {"", "b", ""};
  auto writer = RecordingWriter::create(folder / "x.h5");
  ASSERT_TRUE(writer);
  expect_ok(writer->add("/steps/0/layer/inputs/x", tensor));
  expect_ok(writer->commit());
  auto reader = RecordingReader::open(folder / "x.h5");
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->tensors(kLayer, Side::inputs)[0].axes, tensor.axes);
}

TEST(Recording, EscapedTextIsOneLine) {
  EXPECT_EQ(escaped(std::string_view("a\n\x1b[1m\0\x7f\xC3\xA9", 10)),
            "a\\x0a\\x1b[1m\\x00\\x7f\xC3\xA9");
}

/// Writes far more than fits, in a child; 0 if that ended as it must.
int overfill(const std::string& path, const std::string& folder) {
  auto writer = RecordingWriter::create(path);
  if (!writer) return 10;
  Status status;
  for (int i = 0; i < 8 && status; ++i)
    status = writer->add("/steps/0/layer/inputs/x" + std::to_string(i),
                         ramp(Dtype::uint8, {1024, 1024}));
  if (status) status = writer->commit();
  if (status || status.code() != Code::bad_input) return 11;
  if (status.what().find(path) != 0) return 12;
  if (status.what().find("cannot be written: ") == std::string::npos) return 13;
  {
    const RecordingWriter closed = std::move(*writer);
  }
  return std::filesystem::is_empty(folder) ? 0 : 14;
}

/// The child leaves through exit(), where HDF5 would crash after a full disk.
template <class Body>
int in_child(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) ::exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Recording, FileThatMayNotGrowFurtherIsUnlinked) {
  TempFolder folder;
  for (rlim_t limit : {100u, 3000u, 100'000u, 1'100'000u, 5'000'000u})
    EXPECT_EQ(in_child([&] {
                ::signal(SIGXFSZ, SIG_IGN);
                rlimit before{};
                ::getrlimit(RLIMIT_FSIZE, &before);
                const rlimit most{limit, before.rlim_max};
                if (::setrlimit(RLIMIT_FSIZE, &most) != 0) return 20;
                const int code = overfill(folder / "x.h5", folder / "");
                ::setrlimit(RLIMIT_FSIZE, &before); // sanitizers write when the process ends
                return code;
              }),
              0)
        << limit;
}

TEST(Recording, FullDiskLeavesNothing) {
  constexpr int kNotAllowed = 77;
  TempFolder folder;
  for (const char* size : {"size=16k", "size=1100k", "size=4m"}) {
    const int code = in_child([&] {
      if (::unshare(CLONE_NEWNS) != 0 ||
          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("tmpfs", (folder / "").c_str(), "tmpfs", 0, size) != 0)
        return kNotAllowed;
      return overfill(folder / "x.h5", folder / "");
    });
    if (code == kNotAllowed) GTEST_SKIP() << "NOT CHECKED: mounting a small disk needs root";
    EXPECT_EQ(code, 0) << size;
  }
}

TEST(Recording, PlaceThatCannotBeWrittenIsNamed) {
  TempFolder folder;
  const auto refusal = [](const std::string& path) {
    auto writer = RecordingWriter::create(path);
    return writer ? "" : writer.status().what();
  };
  EXPECT_EQ(refusal(folder / "no/x.h5"),
            (folder / "no/x.h5") + ": cannot be written: No such file or directory");
  EXPECT_EQ(refusal(folder / ""), (folder / "") + ": found a directory, want a file to write");
}

TEST(Recording, SpecialFileIsNeverReplaced) {
  TempFolder folder;
  const std::string fifo = folder / "fifo", device = folder / "device";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", device);
  for (const std::string& path : {fifo, device})
    EXPECT_EQ(RecordingWriter::create(path).status().what(),
              path + ": found a special file, want a file to write");

  const std::string late = folder / "late"; // comes while the recording is written
  auto writer = RecordingWriter::create(late);
  ASSERT_TRUE(writer);
  ASSERT_EQ(::mkfifo(late.c_str(), 0600), 0);
  EXPECT_EQ(writer->commit().what(), late + ": found a special file, want a file to write");
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_fifo(late));
}

TEST(Recording, SymbolicLinkStaysAndItsTargetIsReplaced) {
  TempFolder folder;
  std::filesystem::create_directory(folder / "far");
  write_file(folder / "far/old.h5", "old");
  std::filesystem::create_symlink("far/link", folder / "link");
  std::filesystem::create_symlink("old.h5", folder / "far/link");
  std::filesystem::create_symlink("far/new.h5", folder / "dangling");
  for (const auto& [link, target] : {std::pair("link", "far/old.h5"), {"dangling", "far/new.h5"}}) {
    write_everything(folder / link);
    EXPECT_TRUE(std::filesystem::is_symlink(folder / link));
    EXPECT_FALSE(std::filesystem::is_symlink(folder / target));
    EXPECT_TRUE(RecordingReader::open(folder / target)) << link;
  }
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(RecordingWriter::create(folder / "loop").status().what(),
            (folder / "loop") + ": cannot be written: Too many levels of symbolic links");
}

} // namespace
} // namespace dsakit::testing

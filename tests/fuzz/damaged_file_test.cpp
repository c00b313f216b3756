// Damaged files: cut anywhere, or with one byte changed. Never a crash or a hang, always either one
// line of refusal or exactly what was written.
#include <functional>
#include <random>

#include <sys/wait.h>

#include <gtest/gtest.h>

#include "dsakit/harness/export.hpp"
#include "dsakit/harness/import.hpp"
#include "dsakit/harness/recording.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

constexpr unsigned kLongestSeconds = 300;

/// Everything that the recording says, payloads included; the status of what failed.
Result<std::string> content(const std::string& path) {
  auto opened = RecordingReader::open(path);
  if (!opened) return opened.status();
  const RecordingReader& reader = *opened;
  std::string text;
  const auto add = [&](const std::map<std::string, std::string>& values) {
    for (const auto& [key, value] : values)
      text += key + "=" + value + ";";
  };
  const auto add_tensor = [&](const TensorInfo& info) -> Status {
    auto tensor = reader.read(info);
    if (!tensor) return tensor.status();
    text += info.object + " " + std::string(name(info.dtype)) + to_string(info.shape);
    for (const std::string& axis : info.axes)
      text += axis + ",";
    add(info.attributes);
    text.append(reinterpret_cast<const char*>(tensor->tensor.bytes.data()),
                tensor->tensor.bytes.size());
    return {};
  };
  add(reader.contract());
  add(reader.config());
  add(reader.provenance());
  for (const TensorInfo& info : reader.weights())
    DSAKIT_TRY(add_tensor(info));
  for (const OperationId& id : reader.operations()) {
    add(reader.contract(id.step));
    for (Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : reader.tensors(id, side))
        DSAKIT_TRY(add_tensor(info));
    if (auto operation = reader.read(id, reader.contract(id.step)); !operation)
      return operation.status();
  }
  return text;
}

/// One line that names the file, or nothing at all.
bool is_proper_refusal(const Status& status, const std::string& path) {
  return status.code() == Code::bad_input && status.what().find(path) == 0 &&
         status.what().find('\n') == std::string::npos;
}

/// Runs `body` in a process of its own, which may neither die nor take long; it returns how many
/// cases went wrong.
void expect_survives(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(kLongestSeconds);
    ::_exit(std::min(body(), 100));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status) << "; last case above";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "cases gone wrong";
}

class DamagedFile : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "damaged";

  /// How many of `cases` damages end neither in a refusal nor in the content of `good`.
  int wrong(const std::string& good, int cases,
            const std::function<Result<std::string>(const std::string&)>& read,
            const std::function<std::string(int)>& damage) {
    write_file(path_, good);
    auto want = read(path_);
    if (!want) {
      std::fprintf(stderr, "the undamaged file: %s\n", want.status().what().c_str());
      return 1;
    }
    int count = 0;
    for (int i = 0; i < cases; ++i) {
      write_file(path_, damage(i));
      write_file(folder_ / "case", std::to_string(i));
      auto got = read(path_);
      const bool fine = got ? *got == *want : is_proper_refusal(got.status(), path_);
      if (!fine)
        std::fprintf(stderr, "case %d: %s\n", i,
                     got ? "reads differently" : got.status().what().c_str());
      count += !fine;
    }
    return count;
  }

  void expect_cuts_survived(const std::string& good, std::size_t stride,
                            const std::function<Result<std::string>(const std::string&)>& read) {
    const auto cuts = static_cast<int>((good.size() + stride - 1) / stride);
    expect_survives([&] {
      int count = wrong(good, cuts, read, [&](int i) {
        return good.substr(0, static_cast<std::size_t>(i) * stride);
      });
      for (int i = 0; i < cuts; ++i) { // a part is never the whole
        write_file(path_, good.substr(0, static_cast<std::size_t>(i) * stride));
        count += static_cast<bool>(read(path_));
      }
      return count;
    });
  }

  void
  expect_mutations_survived(const std::string& good, int cases,
                            const std::function<Result<std::string>(const std::string&)>& read) {
    expect_survives([&] {
      return wrong(good, cases, read, [&](int seed) {
        std::mt19937 random(static_cast<unsigned>(seed));
        std::string bytes = good;
        char& byte = bytes[random() % bytes.size()];
        byte = static_cast<char>(byte ^ (1 + random() % 255));
        return bytes;
      });
    });
  }

  std::string tiny() {
    tiny_recording().write(folder_ / "tiny.h5");
    return read_file(folder_ / "tiny.h5");
  }

  /// The tiny recording with a config long enough for HDF5's dense attributes, a step that differs,
  /// a linked and an empty tensor, compressed.
  std::string rich() {
    const std::string path = folder_ / "rich.h5";
    auto writer = RecordingWriter::create(path, {true});
    EXPECT_TRUE(writer);
    std::map<std::string, std::string> config;
    for (int i = 0; i < 20; ++i)
      config["key" + std::to_string(i)] = std::string(static_cast<std::size_t>(i) * 7, 'x');
    EXPECT_TRUE(writer->config(config));
    EXPECT_TRUE(writer->step_contract(1, {{"page_size", "2"}}));
    RecordedTensor tensor =
        tiny_recording().operations.at("index_cache_write").inputs.at("index_k");
    EXPECT_TRUE(writer->add("/steps/0/layer/inputs/x", tensor));
    EXPECT_TRUE(writer->link("/steps/0/layer/inputs/x", "/steps/1/layer/inputs/x"));
    tensor.tensor = Tensor(Dtype::bfloat16, {0, 3});
    EXPECT_TRUE(writer->add("/weights/empty", tensor));
    EXPECT_TRUE(writer->commit());
    return read_file(path);
  }

  std::string exported() {
    tiny();
    EXPECT_TRUE(export_safetensors(folder_ / "tiny.h5", folder_ / "tiny.safetensors"));
    return read_file(folder_ / "tiny.safetensors");
  }

  /// Imports `path`; nothing may appear where that fails.
  Result<std::string> imported(const std::string& path) {
    ImportOptions options;
    options.input = path;
    options.output = folder_ / "imported.h5";
    std::filesystem::remove(options.output);
    if (auto summary = import_safetensors(options); !summary) {
      if (std::filesystem::exists(options.output)) return bad_input("a file is left behind");
      return summary.status();
    }
    return content(options.output);
  }
};

TEST_F(DamagedFile, RecordingCutAnywhere) {
  expect_cuts_survived(tiny(), 64, content);
}

TEST_F(DamagedFile, RecordingWithOneByteChanged) {
  expect_mutations_survived(tiny(), 2000, content);
}

TEST_F(DamagedFile, CompressedRecordingCutAnywhere) {
  expect_cuts_survived(rich(), 64, content);
}

TEST_F(DamagedFile, CompressedRecordingWithOneByteChanged) {
  expect_mutations_survived(rich(), 500, content);
}

TEST_F(DamagedFile, SafetensorsCutAnywhere) {
  expect_cuts_survived(exported(), 64, [&](const std::string& path) { return imported(path); });
}

/// This format has no checksum: a changed payload is another payload, but nothing worse.
TEST_F(DamagedFile, SafetensorsWithOneByteOfTheHeaderChanged) {
  const std::string good = exported();
  expect_survives([&] {
    int count = 0;
    for (int seed = 0; seed < 500; ++seed) {
      std::mt19937 random(static_cast<unsigned>(seed));
      std::string bytes = good;
      char& byte = bytes[random() % std::min<std::size_t>(bytes.size(), 8000)];
      byte = static_cast<char>(byte ^ (1 + random() % 255));
      write_file(path_, bytes);
      write_file(folder_ / "case", std::to_string(seed));
      auto got = imported(path_);
      const bool fine = got || is_proper_refusal(got.status(), path_);
      if (!fine) std::fprintf(stderr, "case %d: %s\n", seed, got.status().what().c_str());
      count += !fine;
    }
    return count;
  });
}

} // namespace
} // namespace dsakit::testing

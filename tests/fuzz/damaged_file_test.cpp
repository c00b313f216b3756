// Damaged files: cut anywhere, or with one byte changed. Never a crash or a hang, and for a
// recording always one line of refusal.
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

/// Reads everything that the recording says, payloads included.
Status read_all(const std::string& path) {
  const auto reader = RecordingReader::open(path);
  DSAKIT_TRY(reader);
  for (const TensorInfo& info : reader->weights())
    DSAKIT_TRY(reader->read(info));
  for (const OperationId& id : reader->operations()) {
    for (Side side : {Side::inputs, Side::outputs})
      for (const TensorInfo& info : reader->tensors(id, side))
        DSAKIT_TRY(reader->read(info));
    DSAKIT_TRY(reader->read(id, reader->contract(id.step)));
  }
  return {};
}

/// To another value.
void change_byte(char& byte, std::uint64_t random) {
  byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1 + random % 255));
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

  /// How many of `cases` damages do not end in a refusal.
  int wrong(const std::string& good, int cases,
            const std::function<Status(const std::string&)>& read,
            const std::function<std::string(int)>& damage) {
    write_file(path_, good);
    if (const Status undamaged = read(path_); !undamaged) {
      std::fprintf(stderr, "the undamaged file: %s\n", undamaged.what().c_str());
      return 1;
    }
    int count = 0;
    for (int i = 0; i < cases; ++i) {
      write_file(path_, damage(i));
      write_file(folder_ / "case", std::to_string(i));
      const Status got = read(path_);
      const bool fine = !got && is_proper_refusal(got, path_);
      if (!fine) std::fprintf(stderr, "case %d: %s\n", i, got ? "was read" : got.what().c_str());
      count += !fine;
    }
    return count;
  }

  void expect_cuts_survived(const std::string& good, std::size_t stride,
                            const std::function<Status(const std::string&)>& read) {
    const auto cuts = static_cast<int>((good.size() + stride - 1) / stride);
    expect_survives([&] {
      return wrong(good, cuts, read,
                   [&](int i) { return good.substr(0, static_cast<std::size_t>(i) * stride); });
    });
  }

  void expect_mutations_survived(const std::string& good, int cases,
                                 const std::function<Status(const std::string&)>& read) {
    expect_survives([&] {
      return wrong(good, cases, read, [&](int seed) {
        std::mt19937 random(static_cast<unsigned>(seed));
        std::string bytes = good;
        change_byte(bytes[random() % bytes.size()], random());
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

  std::string exported(const std::string& recording) {
    write_file(folder_ / "whole.h5", recording);
    EXPECT_TRUE(export_safetensors(folder_ / "whole.h5", folder_ / "whole.safetensors"));
    return read_file(folder_ / "whole.safetensors");
  }

  /// Imports `path`; nothing may appear where that fails.
  Status imported(const std::string& path) {
    ImportOptions options;
    options.input = path;
    options.output = folder_ / "imported.h5";
    std::filesystem::remove(options.output);
    if (auto summary = import_safetensors(options); !summary) {
      if (std::filesystem::exists(options.output)) return bad_input("a file is left behind");
      return summary.status();
    }
    return read_all(options.output);
  }
};

TEST_F(DamagedFile, RecordingCutAnywhere) {
  expect_cuts_survived(tiny(), 64, read_all);
}

TEST_F(DamagedFile, RecordingWithOneByteChanged) {
  expect_mutations_survived(tiny(), 2000, read_all);
}

TEST_F(DamagedFile, CompressedRecordingCutAnywhere) {
  expect_cuts_survived(rich(), 64, read_all);
}

TEST_F(DamagedFile, CompressedRecordingWithOneByteChanged) {
  expect_mutations_survived(rich(), 500, read_all);
}

TEST_F(DamagedFile, SafetensorsCutAnywhere) {
  expect_cuts_survived(exported(tiny()), 64,
                       [&](const std::string& path) { return imported(path); });
}

/// This format has no checksum: a changed payload is another payload, but nothing worse.
TEST_F(DamagedFile, SafetensorsWithOneByteOfTheHeaderChanged) {
  for (const std::string& good : {exported(tiny()), exported(rich())})
    expect_survives([&] {
      const std::size_t header = good.rfind('}');
      int count = 0;
      for (unsigned seed = 0; seed < 400; ++seed) {
        std::mt19937 random(seed);
        std::string bytes = good;
        change_byte(bytes[random() % header], random());
        write_file(path_, bytes);
        write_file(folder_ / "case", std::to_string(seed));
        const Status got = imported(path_);
        const bool fine = got || is_proper_refusal(got, path_);
        if (!fine) std::fprintf(stderr, "case %u: %s\n", seed, got.what().c_str());
        count += !fine;
      }
      return count;
    });
}

} // namespace
} // namespace dsakit::testing

// Everything that a recording must not be ends in one line with file, object, found and wanted.
#include "dsakit/harness/recording.hpp"

#include <functional>
#include <sys/stat.h>
#include <sys/wait.h>

#include <gtest/gtest.h>

#include "support/raw_hdf5.hpp"
#include "support/temp_folder.hpp"
#include "support/tiny_recording.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

/// What open() says of `path`, without the path; "" if it opens.
std::string refusal(const std::string& path) {
  auto reader = RecordingReader::open(path);
  if (reader) return "";
  const std::string what = reader.status().what();
  EXPECT_EQ(reader.status().code(), Code::bad_input);
  EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  EXPECT_EQ(what.find(path + ": "), 0u) << what;
  return what.substr(path.size() + 2);
}

class RecordingRefusal : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "x.h5";
  const std::string write_ = "/steps/0/index_cache_write";
  const std::string gather_ = "/steps/0/index_cache_gather";
  const std::string decode_ = "/steps/0/index_logits_decode";

  /// What a good recording says after `change` with valid checksums.
  std::string after(const std::function<void(RawHdf5&)>& change) {
    tiny_recording().write(path_);
    EXPECT_EQ(refusal(path_), "");
    {
      RawHdf5 file(path_);
      change(file);
    }
    return refusal(path_);
  }

  /// The same for a change of the tensors before they are written.
  std::string with(const std::function<void(TinyRecording&)>& change) {
    TinyRecording recording = tiny_recording();
    change(recording);
    recording.write(path_);
    return refusal(path_);
  }
};

// ---- files

TEST_F(RecordingRefusal, NoFile) {
  EXPECT_EQ(refusal(folder_ / "none.h5"), "cannot be opened: No such file or directory");
}

TEST_F(RecordingRefusal, Directory) {
  EXPECT_EQ(refusal(folder_ / ""), "found a directory, want a file");
}

TEST_F(RecordingRefusal, NamedPipeIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(folder_ / "pipe"), "found a special file, want an ordinary one");
}

TEST_F(RecordingRefusal, FileThatMayNotBeRead) {
  tiny_recording().write(path_);
  ASSERT_EQ(::chmod(path_.c_str(), 0), 0);
  if (::getuid() != 0) {
    EXPECT_EQ(refusal(path_), "cannot be opened: Permission denied");
    return;
  }
  const pid_t child = ::fork(); // as nobody
  if (child == 0)
    ::_exit(::setgid(65534) == 0 && ::setuid(65534) == 0 &&
                    refusal(path_) == "cannot be opened: Permission denied"
                ? 0
                : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST_F(RecordingRefusal, ForeignBytes) {
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(5000, 'x'),
                                   std::string(7, '\x89'), std::string("\x89HDF\r\n\x1a\n")})
    if (write_file(path_, bytes); bytes.size() != 8)
      EXPECT_EQ(refusal(path_), "found no HDF5 signature, want a recording (HDF5)");
    else
      EXPECT_NE(refusal(path_), "");
}

TEST_F(RecordingRefusal, SafetensorsFileIsToldHowToImport) {
  write_file(path_, std::string("\x02\0\0\0\0\0\0\0{}", 10));
  EXPECT_EQ(refusal(path_),
            "found no HDF5 signature, want a recording (HDF5); a safetensors file needs dsakit "
            "import");
}

TEST_F(RecordingRefusal, OldSuperblockNamesH5repack) {
  {
    RawHdf5 file(path_, H5F_LIBVER_EARLIEST, 0);
  }
  ASSERT_EQ(read_file(path_)[8], 0);
  EXPECT_EQ(refusal(path_),
            "found HDF5 superblock version 0, want 2 or 3: rewrite it with h5repack "
            "--low=2 --high=2");
}

TEST_F(RecordingRefusal, NewerSuperblock) {
  tiny_recording().write(path_);
  std::string bytes = read_file(path_);
  bytes[8] = 4;
  write_file(path_, bytes);
  EXPECT_EQ(refusal(path_), "found HDF5 superblock version 4, want 2 or 3");
}

TEST_F(RecordingRefusal, UserBlock) {
  for (hsize_t size : {512u, 4096u}) {
    {
      RawHdf5 file(path_, H5F_LIBVER_V110, size);
    }
    EXPECT_EQ(refusal(path_),
              "found a user block of " + std::to_string(size) + " bytes, want none");
  }
}

TEST_F(RecordingRefusal, TruncatedFileTellsBothSizes) {
  tiny_recording().write(path_);
  const std::string bytes = read_file(path_);
  write_file(path_, bytes.substr(0, bytes.size() - 1));
  EXPECT_EQ(refusal(path_), "found " + std::to_string(bytes.size() - 1) + " bytes, want " +
                                std::to_string(bytes.size()) + ": the file is truncated");
}

TEST_F(RecordingRefusal, ForeignHdf5) {
  {
    RawHdf5 file(path_, H5F_LIBVER_V110, 0);
  }
  EXPECT_EQ(refusal(path_), "/: found no attribute format, want dsakit-recording/1");
}

TEST_F(RecordingRefusal, OtherFormatOrLevel) {
  EXPECT_EQ(after([](RawHdf5& file) { file.set_attribute("/", "format", "dsakit-recording/2"); }),
            "/: found format 'dsakit-recording/2', want dsakit-recording/1");
  EXPECT_EQ(after([](RawHdf5& file) { file.set_attribute("/", "level", "stats"); }),
            "/: found level 'stats', want full");
  EXPECT_EQ(after([](RawHdf5& file) { file.remove_attribute("/", "level"); }),
            "/: found level none, want full");
  const auto any = [&] { return RecordingReader::open(path_, Levels::any); };
  EXPECT_EQ(any().status().what(), path_ + ": /: found level none, want full, stats or meta");
  after([](RawHdf5& file) { file.set_attribute("/", "level", "most"); });
  EXPECT_EQ(any().status().what(), path_ + ": /: found level 'most', want full, stats or meta");
}

TEST_F(RecordingRefusal, WhatHoldsNoValuesIsDescribedAndNotRead) {
  for (const char* level : {"stats", "meta"}) {
    after([&](RawHdf5& file) { file.set_attribute("/", "level", level); });
    const auto reader = RecordingReader::open(path_, Levels::any);
    ASSERT_TRUE(reader) << reader.status().what();
    EXPECT_EQ(reader->level(), level);
    EXPECT_TRUE(reader->verify());
    const OperationId id = reader->operations().at(0);
    const std::string object = reader->tensors(id, Side::inputs).at(0).object;
    const std::string want = path_ + ": " + object + ": found level " + level + ", want full";
    EXPECT_EQ(reader->read(reader->tensors(id, Side::inputs).at(0)).status().what(), want);
    EXPECT_EQ(reader->read(id, reader->contract(id.step)).status().what(), want);
  }
}

// ---- the tree

TEST_F(RecordingRefusal, LinkThatIsNotHard) {
  EXPECT_EQ(after([&](RawHdf5& file) {
              H5Lcreate_soft((write_ + "/inputs/index_k").c_str(), file,
                             (write_ + "/inputs/soft").c_str(), H5P_DEFAULT, H5P_DEFAULT);
            }),
            write_ + "/inputs/soft: found a soft link, want an object of this file");
  EXPECT_EQ(after([&](RawHdf5& file) {
              H5Lcreate_external("/etc/passwd", "/x", file, "/contract/far", H5P_DEFAULT,
                                 H5P_DEFAULT);
            }),
            "/contract/far: found an external link, want an object of this file");
}

TEST_F(RecordingRefusal, GroupCycle) {
  EXPECT_EQ(after([](RawHdf5& file) { file.hard_link("/steps", "/steps/0/topk"); }),
            "/steps/0/topk: found a group that appears twice, want a tree");
}

TEST_F(RecordingRefusal, OneGroupForBothSides) {
  EXPECT_EQ(after([&](RawHdf5& file) {
              file.group("/steps/0/topk");
              file.group("/steps/0/topk/inputs");
              file.hard_link("/steps/0/topk/inputs", "/steps/0/topk/outputs");
            }),
            "/steps/0/topk/outputs: found a group that appears twice, want a tree");
}

TEST_F(RecordingRefusal, ObjectThatDoesNotBelong) {
  EXPECT_EQ(after([](RawHdf5& file) { file.group("/extra"); }),
            "/extra: found an object that does not belong there");
  EXPECT_EQ(after([&](RawHdf5& file) { file.group(write_ + "/temporaries"); }),
            write_ + "/temporaries: found an object that does not belong there");
  EXPECT_EQ(after([&](RawHdf5& file) { file.group(write_ + "/inputs/deeper"); }),
            write_ + "/inputs/deeper: found no dataset, want one");
  EXPECT_EQ(after([](RawHdf5& file) { file.replace("/contract/x", H5T_STD_U8LE, {2}, "uint8"); }),
            "/contract/x: found an object that does not belong there");
}

TEST_F(RecordingRefusal, MissingGroup) {
  for (const char* group : {"/contract", "/config", "/provenance", "/steps", "/weights"})
    EXPECT_EQ(after([&](RawHdf5& file) { file.remove(group); }),
              std::string(group) + ": is missing");
  EXPECT_EQ(after([&](RawHdf5& file) { file.remove(write_ + "/outputs"); }),
            write_ + "/outputs: is missing");
  EXPECT_EQ(after([&](RawHdf5& file) { file.remove("/steps/0"); }),
            "/steps: found no step, want at least one");
}

TEST_F(RecordingRefusal, StepOrOperationOfAnotherName) {
  for (const char* step : {"00", "-1", "first", "99999999999999999999"})
    EXPECT_EQ(after([&](RawHdf5& file) { file.group(std::string("/steps/") + step); }),
              std::string("/steps/") + step + ": found step '" + step + "', want a number");
  EXPECT_EQ(after([](RawHdf5& file) { file.group("/steps/0/index_cache_wirte"); }),
            "/steps/0/index_cache_wirte: found operation 'index_cache_wirte', want one that is "
            "known");
}

TEST_F(RecordingRefusal, DatasetWhereAGroupBelongs) {
  EXPECT_EQ(after([](RawHdf5& file) { file.replace("/steps/0/topk", H5T_STD_U8LE, {2}, "uint8"); }),
            "/steps/0/topk: found no group, want one");
}

// ---- attributes

TEST_F(RecordingRefusal, AttributeThatIsNoFixedLengthText) {
  const int number = 64;
  EXPECT_EQ(
      after([&](RawHdf5& file) { file.add_attribute("/config", "n", H5T_STD_I32LE, &number); }),
      "/config: attribute 'n': found a 4-byte integer, want a string of fixed length (h5py: "
      "numpy.bytes_)");
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t type = H5Tcopy(H5T_C_S1);
              H5Tset_size(type, H5T_VARIABLE);
              const char* text = "64";
              file.add_attribute("/config", "n", type, static_cast<const void*>(&text));
              H5Tclose(type);
            }),
            "/config: attribute 'n': found a 8-byte variable-length string, want a string of fixed "
            "length (h5py: numpy.bytes_)");
}

TEST_F(RecordingRefusal, DatasetWithoutDtypeOrAxes) {
  for (const char* name : {"dtype", "axes"})
    EXPECT_EQ(
        after([&](RawHdf5& file) { file.remove_attribute(write_ + "/inputs/index_k", name); }),
        write_ + "/inputs/index_k: found no attribute " + name + ", want one");
  EXPECT_EQ(after([&](RawHdf5& file) {
              file.set_attribute(write_ + "/inputs/index_k", "axes", "tokens");
            }),
            write_ + "/inputs/index_k: found axes 'tokens', want one for each axis of [6, 128]");
  EXPECT_EQ(after([&](RawHdf5& file) {
              file.set_attribute(write_ + "/inputs/index_k", "dtype", "float64\nfoo");
            }),
            write_ + "/inputs/index_k: found dtype 'float64\\x0afoo', want a name that is known");
}

TEST_F(RecordingRefusal, NameThatNoWriterGives) {
  const std::string inputs = write_ + "/inputs";
  const std::string want =
      ", want a name of 1 to 255 bytes without '/' and control characters, not '.' or '..'";
  const auto named = [&](const std::string& name) {
    return after([&](RawHdf5& file) { file.hard_link(inputs + "/index_k", inputs + "/" + name); });
  };
  EXPECT_EQ(named("a\nb"), inputs + ": found tensor name 'a\\x0ab'" + want);
  EXPECT_EQ(named(".."), inputs + ": found tensor name '..'" + want);
  EXPECT_EQ(named(std::string(256, 'x')),
            inputs + ": found tensor name '" + std::string(60, 'x') + "...'" + want);
}

// ---- storage

TEST_F(RecordingRefusal, ElementsOfAnotherType) {
  const std::string slots = write_ + "/inputs/slot_mapping";
  EXPECT_EQ(after([&](RawHdf5& file) { file.replace(slots, H5T_STD_I64BE, {5}, "int64"); }),
            slots + ": found elements of 8-byte big-endian integer, want 8-byte integer for dtype "
                    "int64");
  EXPECT_EQ(after([&](RawHdf5& file) { file.replace(slots, H5T_STD_U64LE, {5}, "int64"); }),
            slots + ": found elements of 8-byte unsigned integer, want 8-byte integer for dtype "
                    "int64");
  const std::string index_k = write_ + "/inputs/index_k";
  EXPECT_EQ(
      after([&](RawHdf5& file) { file.replace(index_k, H5T_STD_U16LE, {6, 128}, "bfloat16"); }),
      index_k + ": found elements of 2-byte unsigned integer, want 2-byte float for dtype "
                "bfloat16");
  // IEEE half has bfloat16's size and class, not its fields.
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t half = H5Tcopy(H5T_IEEE_F32LE);
              H5Tset_fields(half, 15, 10, 5, 0, 10);
              H5Tset_ebias(half, 15);
              H5Tset_size(half, 2);
              file.replace(index_k, half, {6, 128}, "bfloat16");
              H5Tclose(half);
            }),
            index_k + ": found elements of 2-byte float, want 2-byte float for dtype bfloat16");
}

TEST_F(RecordingRefusal, Hdf5sOwnE4m3IsAccepted) {
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t e4m3 = H5Tcopy(H5T_IEEE_F32LE);
              H5Tset_fields(e4m3, 7, 3, 4, 0, 3);
              H5Tset_ebias(e4m3, 7);
              H5Tset_size(e4m3, 1);
              file.replace(gather_ + "/outputs/k_fp8", e4m3, {5, 128}, "float8_e4m3fn");
              H5Tclose(e4m3);
            }),
            "");
}

TEST_F(RecordingRefusal, ScalarDataset) {
  EXPECT_EQ(after([](RawHdf5& file) { file.replace("/weights/x", H5T_STD_U8LE, {}, "uint8"); }),
            "/weights/x: found a scalar, want at least one axis");
}

TEST_F(RecordingRefusal, ExternalStorage) {
  const std::string outside = folder_ / "outside.bin";
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
              H5Pset_external(creation, outside.c_str(), 0, 8);
              file.replace("/weights/x", H5T_STD_U8LE, {8}, "uint8", creation);
              H5Pclose(creation);
            }),
            "/weights/x: found external storage, want the payload in this file");
}

TEST_F(RecordingRefusal, VirtualDataset) {
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
              const hsize_t extent = 8;
              const hid_t space = H5Screate_simple(1, &extent, nullptr);
              H5Pset_virtual(creation, space, "other.h5", "/x", space);
              file.replace("/weights/x", H5T_STD_U8LE, {8}, "uint8", creation, false);
              H5Sclose(space);
              H5Pclose(creation);
            }),
            "/weights/x: found a virtual dataset, want the payload in this file");
}

TEST_F(RecordingRefusal, FilterThatIsNotOurs) {
  const auto filtered = [&](const std::function<void(hid_t)>& set) {
    return after([&](RawHdf5& file) {
      const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
      const hsize_t chunk = 8;
      H5Pset_chunk(creation, 1, &chunk);
      set(creation);
      file.replace("/weights/x", H5T_STD_U8LE, {8}, "uint8", creation);
      H5Pclose(creation);
    });
  };
  EXPECT_EQ(filtered([](hid_t creation) { H5Pset_nbit(creation); }),
            "/weights/x: found filter 5 'nbit', want fletcher32, shuffle or deflate");
  EXPECT_EQ(filtered([](hid_t creation) {
              H5Pset_filter(creation, 32015, H5Z_FLAG_OPTIONAL, 0, nullptr);
            }),
            "/weights/x: found filter 32015 '', want fletcher32, shuffle or deflate");
}

TEST_F(RecordingRefusal, ShapeBeyondAnything) {
  const auto chunked = [&](const std::vector<hsize_t>& shape, bool deflate) {
    return after([&](RawHdf5& file) {
      const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
      const std::vector<hsize_t> chunk = {16, 2};
      H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
      if (deflate) H5Pset_deflate(creation, 1);
      file.replace("/weights/x", H5T_STD_I64LE, shape, "int64", creation, false);
      H5Pclose(creation);
    });
  };
  constexpr hsize_t kHuge = hsize_t{1} << 40;
  for (bool deflate : {false, true}) {
    EXPECT_EQ(chunked({kHuge, kHuge}, deflate),
              "/weights/x: found a shape of more than 2^63 bytes, want one that fits");
    EXPECT_EQ(chunked({kHuge, 2}, deflate),
              "/weights/x: found 0 bytes of storage, want 17592186044416 for shape "
              "[1099511627776, 2]");
  }
}

TEST_F(RecordingRefusal, PartThatWasNeverWritten) {
  EXPECT_EQ(after([&](RawHdf5& file) {
              const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
              const hsize_t chunk = 1000, extent = 2000;
              H5Pset_chunk(creation, 1, &chunk);
              H5Pset_deflate(creation, 1);
              file.replace("/weights/x", H5T_STD_U8LE, {extent}, "uint8", creation, false);
              const hid_t dataset = H5Dopen2(file, "/weights/x", H5P_DEFAULT);
              std::vector<char> half(chunk, 7);
              H5Dwrite_chunk(dataset, H5P_DEFAULT, 1, &chunk, chunk, half.data());
              H5Dclose(dataset);
              H5Pclose(creation);
            }),
            "/weights/x: found 1 chunks, want 2");
}

TEST_F(RecordingRefusal, FlippedBitNamesTheDataset) {
  tiny_recording().write(path_);
  const std::string bytes = read_file(path_);
  for (const char* tensor : {"index_q_fp8", "index_weights_folded", "index_cache"}) {
    const std::string object = decode_ + "/inputs/" + tensor;
    const Tensor payload = tiny_recording().input("index_logits_decode", tensor);
    const std::string as_text(reinterpret_cast<const char*>(payload.bytes.data()),
                              payload.bytes.size());
    // index_cache is written by two operations: the last of them is this one's
    const auto at = bytes.rfind(as_text);
    ASSERT_NE(at, std::string::npos);
    for (std::size_t offset : {std::size_t{0}, as_text.size() / 2, as_text.size() - 1})
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = bytes;
        damaged[at + offset] = static_cast<char>(damaged[at + offset] ^ (1 << bit));
        write_file(path_, damaged);
        auto reader = RecordingReader::open(path_);
        ASSERT_TRUE(reader) << reader.status().what();
        const std::string want =
            path_ + ": " + object + ": cannot be read: data error detected by Fletcher32 checksum";
        EXPECT_EQ(reader->verify().what(), want);
        EXPECT_EQ(reader->read({0, "index_logits_decode"}, reader->contract()).status().what(),
                  want);
      }
  }
}

// ---- contract, tensors and shapes of the replayed operations

TEST_F(RecordingRefusal, EveryContractKeyOfItsOperations) {
  for (const auto& [key, value] : tiny_recording().contract)
    EXPECT_EQ(with([&](TinyRecording& r) { r.contract.erase(key); }),
              "/contract (step 0): found no key " + key + ", want it for index_cache_write");
  EXPECT_EQ(with([&](TinyRecording& r) {
              r.contract.erase("page_size");
              r.operations.erase("index_cache_write");
            }),
            "/contract (step 0): found no key page_size, want it for index_cache_gather");
  EXPECT_EQ(with([&](TinyRecording& r) {
              r.contract.erase("qmax"); // nobody else needs it
              r.operations.erase("index_cache_write");
            }),
            "");
}

TEST_F(RecordingRefusal, ContractValueOutOfItsSet) {
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["index_fp8_encoding"] = "e5m2"; }),
            "/contract (step 0): contract key index_fp8_encoding: found 'e5m2', want e4m3fn | "
            "e4m3fnuz");
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["qmax"] = "127"; }),
            "/contract (step 0): contract key qmax: found '127', want 448 | 240 | 224");
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["page_size"] = "2.5"; }),
            "/contract (step 0): contract key page_size: found '2.5', want a whole number of "
            "tokens");
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["page_size"] = "2.0"; }),
            "/contract (step 0): contract key page_size: found '2.0', want a whole number of "
            "tokens");
  for (const char* text : {"0x2", " 2", "2 ", "+2", "", "nan"})
    EXPECT_EQ(with([&](TinyRecording& r) {
                r.contract["page_size"] = text;
              }).find("/contract (step 0): contract key page_size: found '"),
              0u)
        << text;
}

// S26: none is taken to be zero.
TEST_F(RecordingRefusal, EveryRequiredTensor) {
  const TinyRecording good = tiny_recording();
  for (const auto& [name_of_operation, tensors] : good.operations) {
    const Operation& operation = *find_operation(name_of_operation);
    const std::string group = "/steps/0/" + name_of_operation;
    for (const auto& [name, tensor] : tensors.inputs) {
      const std::string want = std::string(operation.optional).find(name) == std::string::npos
                                   ? group + "/inputs/" + name + ": is missing"
                                   : "";
      EXPECT_EQ(with([&](TinyRecording& r) {
                  r.operations.at(std::string(operation.name)).inputs.erase(name);
                }),
                want);
    }
    for (const auto& [name, tensor] : tensors.outputs)
      EXPECT_EQ(with([&](TinyRecording& r) {
                  r.operations.at(std::string(operation.name)).outputs.erase(name);
                }),
                group + "/outputs/" + name + ": is missing");
  }
}

TEST_F(RecordingRefusal, OutputThatTheOperationDoesNotHave) {
  EXPECT_EQ(with([](TinyRecording& r) {
              auto& outputs = r.operations.at("index_logits_decode").outputs;
              outputs["logitz"] = outputs.at("logits");
            }),
            decode_ + "/outputs/logitz: found output 'logitz', want one of: logits");
}

TEST_F(RecordingRefusal, AccumulationOfTheLogits) {
  EXPECT_EQ(with([](TinyRecording& r) {
              r.operations.at("index_logits_decode").outputs.at("logits").attributes.clear();
            }),
            decode_ + "/outputs/logits: found no attribute accumulation, want exact | fp32 | "
                      "sm90_wgmma_fp8");
  EXPECT_EQ(
      with([](TinyRecording& r) {
        r.operations.at("index_logits_decode").outputs.at("logits").attributes["accumulation"] =
            "fp16";
      }),
      decode_ + "/outputs/logits: contract key accumulation: found 'fp16', want exact | fp32 | "
                "sm90_wgmma_fp8");
}

TEST_F(RecordingRefusal, EveryTensorOfAnotherDtype) {
  for (const auto& [operation, tensors] : tiny_recording().operations)
    for (Side side : {Side::inputs, Side::outputs})
      for (const auto& [name, tensor] : side == Side::inputs ? tensors.inputs : tensors.outputs) {
        const Dtype found =
            tensor.tensor.dtype == Dtype::float16 ? Dtype::bfloat16 : Dtype::float16;
        const std::string what = with([&, &name = name, &operation = operation](TinyRecording& r) {
          auto& op = r.operations.at(operation);
          Tensor& changed = (side == Side::inputs ? op.inputs : op.outputs).at(name).tensor;
          changed = Tensor(found, changed.shape);
        });
        EXPECT_EQ(what, object_path({0, operation}, side, name) + ": found dtype " +
                            std::string(dsakit::name(found)) + ", want " +
                            std::string(dsakit::name(tensor.tensor.dtype)));
      }
}

TEST_F(RecordingRefusal, Fp8TensorOfTheOtherEncoding) {
  EXPECT_EQ(with([](TinyRecording& r) {
              r.input("index_logits_decode", "index_q_fp8").dtype = Dtype::float8_e4m3fnuz;
            }),
            decode_ + "/inputs/index_q_fp8: found dtype float8_e4m3fnuz, want float8_e4m3fn");
}

/// An axis more, and each axis one longer: nothing else in the recording has that extent.
TEST_F(RecordingRefusal, EveryTensorOfAnotherRankOrShape) {
  for (const auto& [operation, tensors] : tiny_recording().operations)
    for (Side side : {Side::inputs, Side::outputs})
      for (const auto& [name, tensor] : side == Side::inputs ? tensors.inputs : tensors.outputs) {
        const Shape good = tensor.tensor.shape;
        const auto reshaped = [&, &name = name, &operation = operation](const Shape& shape) {
          return with([&](TinyRecording& r) {
            auto& op = r.operations.at(operation);
            auto& changed = (side == Side::inputs ? op.inputs : op.outputs).at(name);
            changed.tensor = Tensor(changed.tensor.dtype, shape);
            changed.axes.resize(shape.size(), "more");
          });
        };
        Shape longer = good;
        longer.push_back(1);
        const std::string object = object_path({0, operation}, side, name);
        EXPECT_EQ(reshaped(longer).find(object + ": found shape " + to_string(longer) + ", want ["),
                  0u);
        for (std::size_t axis = 0; axis < good.size(); ++axis) {
          Shape shape = good;
          shape[axis] += 1;
          const std::string what = reshaped(shape);
          // Free extents: rows of index_k, the longest row of logits, columns of a block table and
          // its requests where row_request names them, pages and bytes where no output is alike.
          const bool free =
              (name == "index_k" && axis == 0) || (name == "logits" && axis == 1) ||
              (name == "slot_mapping") ||
              (name == "block_table" && (axis == 1 || operation == "index_logits_decode")) ||
              (name == "index_cache" && operation != "index_cache_write");
          EXPECT_EQ(what.empty(), free) << object << " " << to_string(shape) << " " << what;
          EXPECT_TRUE(what.empty() || what.find(": found shape [") != std::string::npos) << what;
        }
      }
}

TEST_F(RecordingRefusal, InconsistentShapeTellsWhereTheOtherExtentCameFrom) {
  EXPECT_EQ(with([](TinyRecording& r) {
              r.input("index_cache_gather", "cu_seq_lens") = Tensor(Dtype::int32, {5});
            }),
            gather_ + "/inputs/cu_seq_lens: found shape [5], want [3 (requests + 1 of "
                      "block_table)]");
}

TEST_F(RecordingRefusal, PageThatDoesNotFitARow) {
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["page_size"] = "3"; }),
            write_ + "/inputs/index_cache: found rows of 264 bytes, want at least 396 from byte 0 "
                     "(page_size 3)");
  const auto with_offset = [&](const std::string& in, const std::string& out) {
    return with([&](TinyRecording& r) {
      r.contract["page_size"] = "1";
      auto& operation = r.operations.at("index_cache_write");
      operation.inputs.at("index_cache").attributes["page_offset"] = in;
      operation.outputs.at("index_cache").attributes["page_offset"] = out;
      r.operations.erase("index_cache_gather");
      r.operations.erase("index_logits_decode");
    });
  };
  EXPECT_EQ(with_offset("132", "132"), "");
  EXPECT_EQ(with_offset("133", "133"),
            write_ +
                "/inputs/index_cache: found rows of 264 bytes, want at least 132 from byte 133 "
                "(page_size 1)");
  EXPECT_EQ(with_offset("9223372036854775807", "132"),
            write_ + "/inputs/index_cache: found rows of 264 bytes, want at least 132 from byte "
                     "9223372036854775807 (page_size 1)");
  EXPECT_EQ(with_offset("132", "16"),
            write_ + "/outputs/index_cache: found page_offset 16, want 132 as in the input");
  for (const char* text : {"-1", "", "12x", "99999999999999999999"})
    EXPECT_EQ(with_offset(text, "0"),
              write_ + "/inputs/index_cache: found page_offset '" + text + "', want bytes >= 0");
}

TEST_F(RecordingRefusal, S09_Fp8TensorsUnderALayoutOfMxfp4) {
  EXPECT_EQ(with([](TinyRecording& r) { r.contract["index_page_layout"] = "flat"; }),
            "/contract (step 0): found no key hadamard, want it for index_cache_write");
  EXPECT_EQ(with([](TinyRecording& r) {
              r.contract["index_page_layout"] = "flat";
              r.contract["hadamard"] = "none";
            }),
            "/steps/0/index_cache_gather/outputs/k_fp8: found output 'k_fp8', want one of: "
            "k_packed k_scale");
}

} // namespace
} // namespace dsakit::testing

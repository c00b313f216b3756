// The .safetensors reader takes well-formed files and refuses every other in one line.
#include "dsakit/harness/safetensors.hpp"

#include <gtest/gtest.h>

#include "support/safetensors_writer.hpp"

namespace dsakit::testing {
namespace {

using namespace harness;

class ImportSafetensors : public ::testing::Test {
protected:
  TempFolder folder_;
  const std::string path_ = folder_ / "x.safetensors";

  /// What opening these bytes says, without the path; "" if they open.
  std::string open(const std::string& bytes) {
    write_file(path_, bytes);
    auto reader = SafetensorsReader::open(path_);
    if (reader) return "";
    const std::string what = reader.status().what();
    EXPECT_EQ(reader.status().code(), Code::bad_input);
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    EXPECT_EQ(what.find(path_ + ": "), 0u) << what;
    return what.substr(path_.size() + 2);
  }
  /// The same for one tensor `x` described by `entry`, with 8 bytes of payload.
  std::string entry(const std::string& entry) {
    return open(safetensors_bytes(R"({"x":)" + entry + "}", "12345678"));
  }
};

TEST_F(ImportSafetensors, TensorsOfEveryDtypeComeBack) {
  SafetensorsFile file;
  file.metadata = {{"op", "x"}, {"note", "caf\xC3\xA9 \"quoted\"\n"}};
  file.add<std::uint16_t>("bf16", "BF16", {3, 1}, {0x3F80, 0x7FC1, 0xFF80});
  file.add<std::uint16_t>("f16", "F16", {1}, {0x3C00});
  file.add<float>("f32", "F32", {2}, {1.5F, -0.0F});
  file.add<std::int32_t>("i32", "I32", {1}, {-7});
  file.add<std::int64_t>("i64", "I64", {1}, {-1});
  file.add<std::uint8_t>("u8", "U8", {5}, {0, 1, 2, 254, 255});
  file.add<std::uint8_t>("fn", "F8_E4M3", {1}, {0x7F});
  file.add<std::uint8_t>("fnuz", "F8_E4M3FNUZ", {1}, {0x80});
  file.add<std::uint8_t>("e8m0", "F8_E8M0", {1}, {0xFF});
  file.add<float>("empty", "F32", {0, 4}, {});
  file.write(path_);
  auto reader = SafetensorsReader::open(path_);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->metadata(), file.metadata);
  EXPECT_EQ(reader->tensors().size(), 10u);
  const auto dtype = [&](const char* name) { return reader->tensors().at(name).dtype; };
  EXPECT_EQ(dtype("fn"), Dtype::float8_e4m3fn);
  EXPECT_EQ(dtype("fnuz"), Dtype::float8_e4m3fnuz);
  EXPECT_EQ(dtype("e8m0"), Dtype::float8_e8m0fnu);
  auto bf16 = reader->read("bf16");
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->shape, (Shape{3, 1}));
  EXPECT_EQ(bf16->as<std::uint16_t>()[1], 0x7FC1);
  EXPECT_EQ(reader->read("i64")->as<std::int64_t>()[0], -1);
  EXPECT_EQ(reader->read("empty")->bytes.size(), 0u);
}

TEST_F(ImportSafetensors, WhatIsNoFile) {
  EXPECT_EQ(SafetensorsReader::open(folder_ / "none").status().what(),
            (folder_ / "none") + ": cannot be opened: No such file or directory");
  EXPECT_EQ(SafetensorsReader::open(folder_ / "").status().what(),
            (folder_ / "") + ": found a directory, want a file");
}

TEST_F(ImportSafetensors, HeaderLength) {
  EXPECT_EQ(open(""), "found 0 bytes and a header of 0, want a .safetensors file");
  EXPECT_EQ(open("1234567"),
            "found 7 bytes and a header of 15540725856023089, want a .safetensors file");
  EXPECT_EQ(open(std::string("\x03\0\0\0\0\0\0\0{}", 10)),
            "found 10 bytes and a header of 3, want a .safetensors file");
  EXPECT_EQ(open(std::string(8, '\xFF') + "{}"),
            "found 10 bytes and a header of 18446744073709551615, want a .safetensors file");
}

TEST_F(ImportSafetensors, HeaderThatIsNoJsonObject) {
  EXPECT_EQ(open(safetensors_bytes("{}", "")), "");
  EXPECT_EQ(open(safetensors_bytes("{}   ", "")), ""); // padded
  for (const auto& [header, byte] :
       {std::pair("", "1"), std::pair("{", "2"), std::pair("{\"\xFF\":1}", "3")}) {
    const std::string what = open(safetensors_bytes(header, ""));
    EXPECT_EQ(what.find("header: line 1, column " + std::string(byte) + " (byte " + byte +
                        "): found no valid JSON, want some"),
              0u)
        << what;
  }
  EXPECT_EQ(open(safetensors_bytes("[]", "")), "header: found no JSON object, want one");
  EXPECT_EQ(open(safetensors_bytes("null", "")), "header: found no JSON object, want one");
}

TEST_F(ImportSafetensors, DeepJsonIsRefusedWithoutRecursion) {
  for (const auto& [opening, closing] : {std::pair("[", "]"), std::pair("{\"a\":", "}")}) {
    std::string deep = "{\"a\":";
    for (int i = 0; i < 1'000'000; ++i)
      deep += opening;
    EXPECT_NE(open(safetensors_bytes(deep, "")), "");
    deep += "1";
    for (int i = 0; i < 1'000'000; ++i)
      deep += closing;
    EXPECT_EQ(open(safetensors_bytes(deep + "}", "")),
              "header: found JSON nested deeper than 3, want less");
  }
}

TEST_F(ImportSafetensors, NameThatOccursTwice) {
  const std::string x = R"("x":{"dtype":"U8","shape":[8],"data_offsets":[0,8]})";
  EXPECT_EQ(open(safetensors_bytes("{" + x + "}", "12345678")), "");
  EXPECT_EQ(open(safetensors_bytes("{" + x + "," + x + "}", "12345678")),
            "header: found the key 'x' twice, want it once");
  EXPECT_EQ(entry(R"({"dtype":"U8","dtype":"F32","shape":[8],"data_offsets":[0,8]})"),
            "header: found the key 'dtype' twice, want it once");
}

TEST_F(ImportSafetensors, Metadata) {
  EXPECT_EQ(open(safetensors_bytes(R"({"__metadata__":{"a":"b"}})", "")), "");
  EXPECT_EQ(open(safetensors_bytes(R"({"__metadata__":[]})", "")),
            "__metadata__: found no object of texts");
  EXPECT_EQ(open(safetensors_bytes(R"({"__metadata__":{"a":1}})", "")),
            "__metadata__: found no text for 'a'");
}

TEST_F(ImportSafetensors, EntryOfAnotherForm) {
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8]})"), "");
  const std::string want = "'x': found other keys, want dtype, shape and data_offsets";
  EXPECT_EQ(entry("7"), want);
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":[8]})"), want);
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1})"), want);
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":8,"data_offsets":[0,8]})"),
            "'x': found a shape that is no array of extents");
}

TEST_F(ImportSafetensors, UnknownDtype) {
  for (const char* dtype : {R"("F64")", R"("f32")", "1", "null"})
    EXPECT_EQ(entry(std::string(R"({"dtype":)") + dtype + R"(,"shape":[1],"data_offsets":[0,8]})"),
              "'x': found dtype '" + std::string(dtype) +
                  "', want BF16 | F16 | F32 | I32 | I64 | U8 | F8_E4M3 | F8_E4M3FNUZ | F8_E8M0");
}

TEST_F(ImportSafetensors, ExtentThatIsNone) {
  for (const char* extent : {"-1", "1.5", "\"8\"", "9223372036854775808", "1e3"})
    EXPECT_EQ(
        entry(std::string(R"({"dtype":"U8","shape":[)") + extent + R"(],"data_offsets":[0,8]})")
            .find("'x': found extent "),
        0u)
        << extent;
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]})"),
            "'x': found a shape of more than 2^63 bytes, want one that fits");
  // A zero does not hide an overflow: strides would be computed from the others.
  EXPECT_EQ(entry(R"({"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]})"),
            "'x': found a shape of more than 2^63 bytes, want one that fits");
}

TEST_F(ImportSafetensors, OffsetsOutOfTheFile) {
  const auto offsets = [&](const std::string& text) {
    return entry(R"({"dtype":"U8","shape":[8],"data_offsets":)" + text + "}");
  };
  EXPECT_EQ(offsets("[0,9]"), "'x': found data_offsets '[0,9]', want them within the 8 bytes of "
                              "payload: the file is truncated or damaged");
  EXPECT_EQ(offsets("[8,0]"), "'x': found data_offsets '[8,0]', want them within the 8 bytes of "
                              "payload: the file is truncated or damaged");
  for (const char* bad : {"[0]", "[0,8,8]", "[-1,7]", "[0,8.0]", "{}", "[0,18446744073709551615]"})
    EXPECT_EQ(offsets(bad),
              std::string("'x': found data_offsets '") + bad + "', want [begin, end]");
}

TEST_F(ImportSafetensors, SizeThatIsNotTheShapes) {
  EXPECT_EQ(entry(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"),
            "'x': found 8 bytes, want 12 for F32 [3]");
}

TEST_F(ImportSafetensors, PayloadsThatOverlapOrLeaveAGap) {
  const auto two = [&](const std::string& a, const std::string& b) {
    return open(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + a +
                                      R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + b +
                                      "}}",
                                  "12345678"));
  };
  EXPECT_EQ(two("[0,4]", "[4,8]"), "");
  EXPECT_EQ(two("[4,8]", "[0,4]"), "");
  EXPECT_EQ(two("[0,4]", "[3,7]"), "'b': found a payload from byte 3, want 4: payloads overlap or "
                                   "leave a gap");
  EXPECT_EQ(two("[0,4]", "[0,4]"), "'b': found a payload from byte 0, want 4: payloads overlap or "
                                   "leave a gap");
  EXPECT_EQ(open(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
                                   "12345678")),
            "'a': found a payload from byte 4, want 0: payloads overlap or leave a gap");
  EXPECT_EQ(open(safetensors_bytes(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
                                   "12345678")),
            "found 8 bytes of payload, want 4");
}

TEST_F(ImportSafetensors, WrittenFileIsReadBack) {
  const std::vector<std::byte> payload = {std::byte{1}, std::byte{2}, std::byte{3}};
  const auto push = [&](const BlockSink& sink) { return sink(payload); };
  ASSERT_TRUE(write_safetensors(
      path_, {{"key", "value"}},
      {{"b", Dtype::float4_e2m1fn_x2, {3, 1}, push}, {"a", Dtype::float8_e4m3fnuz, {3}, push}}));
  auto reader = SafetensorsReader::open(path_);
  ASSERT_TRUE(reader) << reader.status().what();
  EXPECT_EQ(reader->metadata().at("key"), "value");
  EXPECT_EQ(reader->tensors().at("a").dtype, Dtype::float8_e4m3fnuz);
  EXPECT_EQ(reader->tensors().at("b").dtype, Dtype::uint8);
  EXPECT_EQ(reader->read("b")->bytes, payload);
}

TEST_F(ImportSafetensors, FailedPayloadLeavesNoFile) {
  const auto fail = [](const BlockSink&) { return bad_input("no payload"); };
  EXPECT_EQ(write_safetensors(path_, {}, {{"a", Dtype::uint8, {3}, fail}}).what(), "no payload");
  EXPECT_TRUE(folder_.entries().empty());
}

} // namespace
} // namespace dsakit::testing

#include "model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "support/checkpoint_writer.h"
#include "support/prop.h"
#include "support/user_error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A file: the header's length as announced (its own by default), the header, and `data_bytes` bytes of data.
std::string file_of(const std::string& header, size_t data_bytes, std::optional<uint64_t> announced = {}) {
  const uint64_t length = announced.value_or(header.size());
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(length >> (8 * i) & 255);
  return out + header + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), file.size(), "dir/model.safetensors");
}
std::string error_of(const std::string& file) {
  const std::string message = user_error([&] { parse(file); });
  EXPECT_THAT(message, HasSubstr("dir/model.safetensors"));
  return message;
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + R"(": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}";
}

TEST(SafetensorsHeader, ReadsNamesTypesShapesAndRanges) {
  const auto header = parse(file_of("{" + entry("b", "F32", "[2, 3]", "[4, 28]") + "," + entry("a", "BF16", "[2]", "[0, 4]") +
                                        R"(, "__metadata__": {"format": "pt", "x": ""}}   )",
                                    28));
  ASSERT_EQ(header.tensors.size(), 2u);
  const TensorEntry& b = header.tensors.at("b");
  EXPECT_EQ(b.dtype, DType::f32);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.begin, 4u);
  EXPECT_EQ(b.end, 28u);
  EXPECT_EQ(header.tensors.at("a").dtype, DType::bf16);
}

TEST(SafetensorsHeader, EmptyTensorsAndEmptyFilesAreFine) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors.empty());
  EXPECT_TRUE(parse(file_of(R"({"__metadata__": {}})", 0)).tensors.empty());
  EXPECT_EQ(parse(file_of("{" + entry("a", "F32", "[0, 5]", "[0, 0]") + "," + entry("b", "U8", "[]", "[0, 1]") + "}", 1))
                .tensors.size(),
            2u);
  EXPECT_EQ(parse(file_of("{" + entry("a", "F32", "[4294967296, 4294967296, 0]", "[0, 0]") + "}", 0)).tensors.size(), 1u);
}

TEST(SafetensorsHeader, AShapeProductThatWrapsToZeroIsRefused) {
  for (const char* shape :
       {"[4294967296, 4294967296]", "[9223372036854775807, 2]", "[4611686018427387904, 4]", "[4294967296, 2147483648, 2]"}) {
    EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", shape, "[0, 0]") + "}", 0)), HasSubstr("more elements"));
  }
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", "[4294967296, 4294967296]", "[0, 1099511627776]") + "}", 8)),
              HasSubstr("incomplete download?"));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F6_X", "[4294967296, 4294967296]", "[0, 0]") + "}", 0)),
              HasSubstr("more elements"));
  // The product fits, the bytes do not.
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", "[4611686018427387904]", "[0, 0]") + "}", 0)),
              HasSubstr("more elements"));
}

TEST(SafetensorsHeader, OffsetsAreCheckedBeforeTheTypeIsLookedAt) {
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F6_X", "[1]", "[100, 101]") + "}", 8)), HasSubstr("incomplete download?"));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F6_X", "[1]", "[8, 4]") + "}", 8)), HasSubstr("ends before it begins"));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F6_X", "[1]", "[0, 18446744073709551615]") + "}", 8)), HasSubstr("shorter"));
  const auto header = parse(file_of("{" + entry("a", "F6_X", "[1]", "[0, 8]") + "}", 8));
  EXPECT_FALSE(header.tensors.at("a").dtype) << "an unknown type only fails when it is needed";
  EXPECT_EQ(header.tensors.at("a").dtype_name, "F6_X");
}

TEST(SafetensorsHeader, BytesMustBeShapeTimesSizeExactly) {
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", "[1000, 1000]", "[0, 4]") + "}", 4)),
              AllOf(HasSubstr("takes 4000000 bytes"), HasSubstr("span 4")));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "BF16", "[3]", "[0, 8]") + "}", 8)), HasSubstr("takes 6 bytes"));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", "[0]", "[0, 8]") + "}", 8)), HasSubstr("takes 0 bytes"));
}

TEST(SafetensorsHeader, ImpossibleHeaderLengthsAreRefusedWithoutAllocating) {
  const std::string good = "{" + entry("a", "F32", "[2]", "[0, 8]") + "}";
  const uint64_t file_bytes = 8 + good.size() + 8;
  EXPECT_THAT(error_of(file_of(good, 8, 0)), HasSubstr("not a safetensors file"));
  EXPECT_THAT(error_of(file_of(good, 8, 1)), HasSubstr("not valid JSON"));
  for (const uint64_t length : {uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 7, uint64_t{100'000'001}}) {
    EXPECT_THAT(error_of(file_of(good, 8, length)), HasSubstr("at most 100000000"));
  }
  EXPECT_THAT(error_of(file_of(good, 8, file_bytes)), HasSubstr("longer than the file"));
  EXPECT_THAT(error_of(file_of(good, 8, file_bytes - 8 + 1)), HasSubstr("longer than the file"));
  EXPECT_THAT(error_of(file_of(good, 8, file_bytes - 8)), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(""), AllOf(HasSubstr("too short"), HasSubstr("file 0 bytes")));
  EXPECT_THAT(error_of(std::string(7, '\0')), AllOf(HasSubstr("too short"), HasSubstr("file 7 bytes")));
}

TEST(SafetensorsHeader, OverlapsHolesAndTrailingBytesAreRefused) {
  const std::string a = entry("a", "F32", "[2]", "[0, 8]");
  EXPECT_THAT(error_of(file_of("{" + a + "," + entry("b", "F32", "[2]", "[4, 12]") + "}", 12)),
              AllOf(HasSubstr("overlap"), HasSubstr("\"b\"")));
  EXPECT_THAT(error_of(file_of("{" + a + "," + entry("b", "F32", "[2]", "[0, 8]") + "}", 8)), HasSubstr("overlap"));
  EXPECT_THAT(error_of(file_of("{" + a + "," + entry("b", "F32", "[2]", "[12, 20]") + "}", 20)),
              AllOf(HasSubstr("hole"), HasSubstr("\"b\"")));
  EXPECT_THAT(error_of(file_of("{" + entry("a", "F32", "[2]", "[4, 12]") + "}", 12)), HasSubstr("hole"));
  EXPECT_THAT(error_of(file_of("{" + a + "}", 9)), AllOf(HasSubstr("1 bytes after its last tensor"), HasSubstr("expected")));
  EXPECT_THAT(error_of(file_of("{}", 4)), HasSubstr("4 bytes after"));
}

TEST(SafetensorsHeader, ATruncatedFileSaysWhatIsMissing) {
  const std::string whole = file_of("{" + entry("a", "F32", "[4]", "[0, 16]") + "}", 16);
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const std::string message = error_of(whole.substr(0, bytes));
    EXPECT_THAT(message, AllOf(HasSubstr("incomplete download?"), HasSubstr("expected"),
                               HasSubstr("file " + std::to_string(bytes) + " bytes")));
  }
  EXPECT_THAT(error_of(whole.substr(0, whole.size() - 1)), HasSubstr("expected " + std::to_string(whole.size()) + " bytes"));
  EXPECT_NO_THROW(parse(whole));
}

TEST(SafetensorsHeader, FilesThatAreSomethingElseAreRecognised) {
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"), HasSubstr("git lfs pull"));
  EXPECT_THAT(error_of("<!DOCTYPE html>\n<html><body>404</body></html>"), HasSubstr("web page"));
  EXPECT_THAT(error_of("<html>"), HasSubstr("web page"));
  const std::string header = "{" + entry("a", "F32", "[2]", "[0, 8]") + "}";
  EXPECT_NO_THROW(parse(file_of(header + std::string(256 + '<' - header.size(), ' '), 8))) << "a length that begins like a tag";
  EXPECT_THAT(error_of("PK\x03\x04 a zip file of pytorch weights"), HasSubstr("not a safetensors file"));
}

TEST(SafetensorsHeader, JsonThatIsNotTheFormatIsRefused) {
  const std::string a = entry("a", "F32", "[2]", "[0, 8]");
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"[1]", "opening brace"},
      {" {}", "opening brace"},
      {"{" + a + "," + a + "}", "twice"},
      {R"({"a": 1})", "a number"},
      {R"({"a": null})", "null"},
      {R"({"a": []})", "a list"},
      {R"({"a": {}})", "needs dtype"},
      {R"({"a": {"dtype": "F32", "shape": [2]}})", "needs dtype"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}})", "two data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9]}})", "a number"},
      {R"({"a": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})", "a field twice"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], "extra": 1}})", "unknown field"},
      {R"({"a": {"dtype": 7, "shape": [2], "data_offsets": [0, 8]}})", "a number"},
      {R"({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}})", "negative"},
      {R"({"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}})", "not whole"},
      {R"({"a": {"dtype": "F32", "shape": [2e0], "data_offsets": [0, 8]}})", "not whole"},
      {R"({"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}})", "a string"},
      {R"({"a": {"dtype": "F32", "shape": [[2]], "data_offsets": [0, 8]}})", "a list"},
      {R"({"a": {"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 8]}})", "at most 8 sizes"},
      {R"({"a": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 8]}})", "too large"},
      {R"({"a": {"dtype": "F32", "shape": [99999999999999999999999], "data_offsets": [0, 8]}})", "not whole"},
      {R"({"__metadata__": {"a": 1}})", "a number"},
      {R"({"__metadata__": {"a": {}}})", "an object"},
      {R"({"__metadata__": {"a": "", "a": ""}})", "twice"},
      {R"({"__metadata__": {}, "__metadata__": {}})", "twice"},
      {R"({"__metadata__": "x"})", "a string"},
      {"{" + a + "} x", "not valid JSON"},
      {"{" + a, "not valid JSON"},
      {"{" + a + "/* */}", "not valid JSON"},
      {"{\"a\xff\": 1}", "not valid JSON"},
      {"{\"a\": 1e999}", "not valid JSON"},
      {"{\"a\": " + std::string(100000, '[') + "}", "a list"},
      {"{\"a\": " + std::string(100000, '{') + "}", "not valid JSON"},
      {"{\"a\\nb\\u0000\": {\"dtype\": \"F32\"}}", "\\x0ab\\x00"},
  };
  for (const auto& [header, expected] : cases) {
    SCOPED_TRACE(header.substr(0, 200));
    EXPECT_THAT(error_of(file_of(header, 8)), HasSubstr(expected));
  }
}

// --- folders ----------------------------------------------------------------------------------------------------------------

void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary | std::ios::trunc) << text; }

/// A file with one F32 tensor per name, all elements `value`.
void write_tensors(const fs::path& path, const std::vector<std::string>& names, float value) {
  SafetensorsWriter writer;
  const std::vector<float> data(3, value);
  for (const auto& name : names) writer.add(name, DType::f32, {3}, std::as_bytes(std::span(data)));
  writer.write(path);
}

float first(const Checkpoint& checkpoint, const char* name) {
  float value = 0;
  const Checkpoint::Tensor* tensor = checkpoint.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor != nullptr) std::memcpy(&value, tensor->bytes.data(), sizeof value);
  return value;
}

std::string error_in(const fs::path& dir) {
  return user_error([&] { Checkpoint checkpoint(dir); });
}

TEST(Checkpoint, WhatIsWrittenIsReadBack) {
  test::for_each_case(
      [](test::Gen& gen) {
        const TemporaryFolder dir;
        SafetensorsWriter writer;
        std::map<std::string, std::vector<std::byte>> written;
        for (int i = 0; i < gen.in(0, 6); ++i) {
          const DType dtype =
              gen.pick({DType::f32, DType::bf16, DType::f16, DType::f8_e4m3, DType::i32, DType::i64, DType::u8, DType::u64});
          const std::vector<int64_t> shape = {gen.in(0, 5), gen.in(1, 7)};
          std::vector<std::byte> bytes(static_cast<size_t>(shape[0] * shape[1]) * size_of(dtype));
          for (auto& b : bytes) b = static_cast<std::byte>(gen.bits());
          const std::string name = "t" + std::to_string(i) + gen.pick({".weight", "\"quoted\"", "\n"});
          writer.add(name, dtype, shape, bytes);
          written[name] = bytes;
        }
        writer.write(dir.path() / "model.safetensors");
        const Checkpoint checkpoint(dir.path());
        ASSERT_EQ(checkpoint.tensors().size(), written.size());
        uint64_t total = 0;
        for (const auto& [name, bytes] : written) {
          const auto* tensor = checkpoint.find(name);
          ASSERT_NE(tensor, nullptr);
          EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), tensor->bytes.begin(), tensor->bytes.end()));
          EXPECT_EQ(tensor->file, "model.safetensors");
          total += bytes.size();
        }
        EXPECT_EQ(checkpoint.bytes(), total);
        EXPECT_EQ(checkpoint.find("t"), nullptr);
      },
      50);
}

TEST(Checkpoint, TheIndexIsTheOnlyTruth) {
  const TemporaryFolder dir;
  write_tensors(dir.path() / "model-1.safetensors", {"a", "b"}, 1);
  write_tensors(dir.path() / "overlay.safetensors", {"b", "unlisted"}, 2);
  write_tensors(dir.path() / "consolidated.safetensors", {"a", "b", "c"}, 3);
  write_tensors(dir.path() / "model.safetensors", {"a"}, 4);
  write(dir.path() / "model.safetensors.index.json",
        R"({"metadata": {"total_size": 7}, "weight_map": {"a": "model-1.safetensors", "b": "overlay.safetensors"}})");
  const Checkpoint checkpoint(dir.path());
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(first(checkpoint, "a"), 1);
  EXPECT_EQ(first(checkpoint, "b"), 2);
  EXPECT_EQ(checkpoint.bytes(), 24u);
}

TEST(Checkpoint, WithoutAnIndexOnlyTheOneFileCounts) {
  const TemporaryFolder dir;
  EXPECT_THAT(error_in(dir.path()), AllOf(HasSubstr("neither model.safetensors nor"), HasSubstr("0 other")));
  write_tensors(dir.path() / "model-00001-of-00002.safetensors", {"a"}, 1);
  EXPECT_THAT(error_in(dir.path()), HasSubstr("1 other"));
  write_tensors(dir.path() / "model.safetensors", {"b"}, 2);
  EXPECT_EQ(Checkpoint(dir.path()).tensors().size(), 1u);
  EXPECT_THAT(error_in(dir.path() / "nowhere"), HasSubstr("no such model folder"));
  EXPECT_THAT(error_in(dir.path() / "model.safetensors"), HasSubstr("no such model folder"));
}

TEST(Checkpoint, NamesInTheIndexStayInTheFolder) {
  const TemporaryFolder outer;
  const fs::path dir = outer.path() / "model";
  fs::create_directory(dir);
  write_tensors(outer.path() / "secret.safetensors", {"a"}, 1);
  fs::create_directory(dir / "sub");
  write_tensors(dir / "sub" / "x.safetensors", {"a"}, 1);
  for (const std::string name :
       {"../secret.safetensors", "../../etc/passwd", "/etc/passwd", "sub/x.safetensors", "..", ".", "", "config.json",
        "a\\\\b.safetensors", "a\\u0000.safetensors", ".hidden.safetensors", "a b.safetensors", "a\\nb.safetensors"}) {
    write(dir / "model.safetensors.index.json", R"({"weight_map": {"a": ")" + name + "\"}}");
    EXPECT_THAT(error_in(dir), HasSubstr("index names a file that is not a plain NAME.safetensors"));
  }
  write(dir / "model.safetensors.index.json",
        R"({"weight_map": {"a": ")" + (outer.path() / "secret.safetensors").string() + "\"}}");
  EXPECT_THAT(error_in(dir), HasSubstr("not a plain NAME"));
}

TEST(Checkpoint, FollowsTheLinksOfAHuggingFaceCache) {
  const TemporaryFolder cache;
  fs::create_directories(cache.path() / "blobs");
  fs::create_directories(cache.path() / "snapshots" / "abc");
  write_tensors(cache.path() / "blobs" / "0123", {"a"}, 5);
  fs::create_symlink("../../blobs/0123", cache.path() / "snapshots" / "abc" / "model.safetensors");
  EXPECT_EQ(first(Checkpoint(cache.path() / "snapshots" / "abc"), "a"), 5);
}

TEST(Checkpoint, OnlyRegularFilesAreOpened) {
  const TemporaryFolder dir;
  ASSERT_EQ(mkfifo((dir.path() / "model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(error_in(dir.path()), HasSubstr("regular file"));  // And it does not wait for a writer.
  fs::remove(dir.path() / "model.safetensors");
  fs::create_directory(dir.path() / "model.safetensors");
  EXPECT_THAT(error_in(dir.path()), HasSubstr("regular file"));
  ASSERT_EQ(mkfifo((dir.path() / "model.safetensors.index.json").c_str(), 0600), 0);
  EXPECT_THAT(error_in(dir.path()), HasSubstr("regular file"));
  fs::remove(dir.path() / "model.safetensors.index.json");
  write(dir.path() / "model.safetensors.index.json", R"({"weight_map": {"a": "missing.safetensors"}})");
  EXPECT_THAT(error_in(dir.path()), AllOf(HasSubstr("cannot open"), HasSubstr("missing.safetensors")));
}

TEST(Checkpoint, ABadIndexIsRefused) {
  const TemporaryFolder dir;
  write_tensors(dir.path() / "x.safetensors", {"a"}, 1);
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "not valid JSON"},
      {"[]", "no weight_map"},
      {"{}", "no weight_map"},
      {R"({"weight_map": {}})", "no weight_map"},
      {R"({"weight_map": ["a"]})", "no weight_map"},
      {R"({"weight_map": {"a": 1}})", "must be a file name"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "twice"},
      {R"({"weight_map": {"b": "x.safetensors"}})", "but it is not"},
      {R"({"weight_map": )" + std::string(100000, '[') + "}", "nested too deep"},
      {"version https://git-lfs.github.com/spec/v1", "not valid JSON"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text.substr(0, 100));
    write(dir.path() / "model.safetensors.index.json", text);
    EXPECT_THAT(error_in(dir.path()), HasSubstr(expected));
  }
}

TEST(Checkpoint, ABrokenShardNamesItsPath) {
  const TemporaryFolder dir;
  write_tensors(dir.path() / "a.safetensors", {"a"}, 1);
  write_tensors(dir.path() / "b.safetensors", {"b"}, 1);
  fs::resize_file(dir.path() / "b.safetensors", fs::file_size(dir.path() / "b.safetensors") - 1);
  write(dir.path() / "model.safetensors.index.json", R"({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}})");
  EXPECT_THAT(error_in(dir.path()), AllOf(HasSubstr("b.safetensors"), HasSubstr("incomplete download?")));
  write(dir.path() / "b.safetensors", "");
  EXPECT_THAT(error_in(dir.path()), AllOf(HasSubstr("b.safetensors"), HasSubstr("file 0 bytes")));
}

TEST(SafetensorsWriter, ManyTensorsTakeNoLongerEach) {
  const TemporaryFolder dir;
  SafetensorsWriter writer;
  const float value = 1;
  // Were every name compared with all before, this would be a matter of minutes.
  constexpr int kTensors = 50'000;
  for (int i = 0; i < kTensors; ++i)
    writer.add("a tensor of the number " + std::to_string(i), DType::f32, {1}, std::as_bytes(std::span(&value, 1)));
  writer.write(dir.path() / "model.safetensors");
  EXPECT_EQ(Checkpoint(dir.path()).tensors().size(), size_t{kTensors});
}

TEST(SafetensorsWriter, AWriteThatFailsLeavesTheOlderFile) {
  const TemporaryFolder dir;
  const fs::path path = dir.path() / "out.safetensors";
  write_tensors(path, {"old"}, 1);
  fs::create_directory(dir.path() / "out.safetensors.partial");  // in the way of the new file
  SafetensorsWriter writer;
  EXPECT_THROW(writer.write(path), SystemError);
  fs::remove(dir.path() / "out.safetensors.partial");
  fs::rename(path, dir.path() / "model.safetensors");
  EXPECT_NE(Checkpoint(dir.path()).find("old"), nullptr);
  writer.write(dir.path() / "model.safetensors");
  EXPECT_FALSE(fs::exists(dir.path() / "model.safetensors.partial"));
}

TEST(SafetensorsWriter, AFileThatCannotBeWrittenIsASystemError) {
  SafetensorsWriter writer;
  EXPECT_THROW(writer.write("/nowhere/at/all.safetensors"), SystemError);
}

}  // namespace
}  // namespace weft

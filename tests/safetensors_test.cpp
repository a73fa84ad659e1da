// safetensors files: every type there and back, strides, the golden files, and headers that lie.
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::TempDir;
using testing::HasSubstr;

const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                            at::kLong,   at::kInt,   at::kShort,    at::kChar,
                                            at::kByte,   at::kBool};

at::Tensor counting(at::IntArrayRef shape, at::ScalarType type) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  const at::Tensor values = at::arange(count, at::TensorOptions().dtype(at::kLong));
  return (type == at::kBool ? values.remainder(2) : values.remainder(100)).to(type).view(shape);
}

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())};
}

// A file of this header text, then `data_bytes` zeros.
std::string raw_file(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\0');
}

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Safetensors, RoundTripsEveryType) {
  const TempDir dir;
  NamedTensors tensors;
  for (at::ScalarType type : kTypes) {
    tensors.emplace_back(str("weight.", c10::toString(type)), counting({3, 7}, type));
    tensors.emplace_back(str("scalar.", c10::toString(type)), counting({}, type));
    tensors.emplace_back(str("empty.", c10::toString(type)), counting({0, 5}, type));
  }
  const WrittenFile written =
      write_safetensors(dir / "a.safetensors", tensors, {{"made by", "t\xc3\xa9st \"quoted\""}});
  EXPECT_EQ(written.size_bytes, std::filesystem::file_size(dir / "a.safetensors"));
  EXPECT_EQ(written.sha256, sha256_file(dir / "a.safetensors"));

  const SafetensorsFile file(dir / "a.safetensors");
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("made by"), "t\xc3\xa9st \"quoted\"");
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor read = file.read(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(read.sizes(), tensor.sizes()) << name;
    EXPECT_EQ(bytes_of(read), bytes_of(tensor)) << name;
    EXPECT_EQ(file.entries().at(name).begin % tensor.element_size(), 0) << name;
  }
}

TEST(Safetensors, DataBeginsAtAMultipleOf64) {
  const TempDir dir;
  for (size_t length = 1; length < 70; ++length) {
    write_safetensors(dir / "a", {{std::string(length, 'x'), counting({2}, at::kFloat)}});
    const std::string bytes = read_file(dir / "a");
    EXPECT_EQ((bytes.size() - 8) % 64, 0) << "name of " << length << " letters";
  }
}

TEST(Safetensors, KeepsBitsOfNanAndNegativeZero) {
  const TempDir dir;
  const at::Tensor values = at::empty({3}, at::TensorOptions().dtype(at::kInt));
  values.mutable_data_ptr<int>()[0] = 0x7fc12345;
  values.mutable_data_ptr<int>()[1] = static_cast<int>(0x80000000u);
  values.mutable_data_ptr<int>()[2] = 0x7f800000;
  write_safetensors(dir / "a", {{"x", values.view(at::kFloat)}});
  EXPECT_EQ(bytes_of(SafetensorsFile(dir / "a").read("x")), bytes_of(values));
}

TEST(Safetensors, WritesAnyStrides) {
  const TempDir dir;
  const at::Tensor base = counting({6, 8, 5}, at::kFloat);
  const at::Tensor large = counting({2100, 4100}, at::kFloat);  // several pieces
  const NamedTensors tensors = {
      {"transposed", base.transpose(0, 2)},
      {"strided", base.slice(1, 1, 8, 3)},
      {"expanded", base.select(0, 2).unsqueeze(0).expand({4, 8, 5})},
      {"large", large},
      {"large_transposed", large.t()},
  };
  write_safetensors(dir / "a", tensors);
  const SafetensorsFile file(dir / "a");
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(bytes_of(file.read(name)), bytes_of(tensor)) << name;
  }
  const at::Tensor target = at::zeros({4100, 2100}).t();
  file.read_into("large", target);
  EXPECT_TRUE(target.equal(large));
}

TEST(Safetensors, ReadsIntoOtherTypesAndLeavesThatNeedGradients) {
  const TempDir dir;
  write_safetensors(dir / "a", {{"x", counting({4, 3}, at::kFloat)}});
  const SafetensorsFile file(dir / "a");
  const at::Tensor wide = at::zeros({4, 3}, at::TensorOptions().dtype(at::kDouble));
  file.read_into("x", wide);
  EXPECT_TRUE(wide.equal(counting({4, 3}, at::kDouble)));
  const at::Tensor leaf = at::zeros({4, 3}).requires_grad_(true);
  file.read_into("x", leaf);
  EXPECT_TRUE(leaf.equal(counting({4, 3}, at::kFloat)));
  EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
}

TEST(Safetensors, ReadsTensorsThatTheFileDoesNotAlign) {
  const TempDir dir;
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("b":{"dtype":"F64","shape":[1],"data_offsets":[3,11]}} )";
  std::string bytes = raw_file(header, 11);
  const double value = -2.5;
  std::memcpy(bytes.data() + bytes.size() - 8, &value, sizeof value);
  EXPECT_EQ(SafetensorsFile(dir.write("a", bytes)).read("b").item<double>(), value);
}

TEST(Safetensors, ReadsTheGoldenFiles) {
  int64_t num_files = 0;
  for (const auto& item : std::filesystem::directory_iterator(
           std::filesystem::path(CPLM_SOURCE_DIR) / "tests/golden")) {
    if (item.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(item.path());
    ++num_files;
    for (const auto& [name, entry] : file.entries()) {
      EXPECT_EQ(static_cast<uint64_t>(file.read(name).nbytes()), entry.end - entry.begin) << name;
    }
  }
  EXPECT_GT(num_files, 0);
}

TEST(Safetensors, OffsetsPassTwoToThe32) {
  const TempDir dir;
  const uint64_t elements = (uint64_t{1} << 32) + 10;  // of one byte, in a file with a hole
  std::string header = str(R"({"big":{"dtype":"I8","shape":[)", elements, R"(],"data_offsets":[0,)",
                           elements, "]},", R"("last":{"dtype":"I32","shape":[2],"data_offsets":[)",
                           elements, ",", elements + 8, "]}}");
  const auto path = dir.write("a", raw_file(header, 0));
  const uint64_t data_begin = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, data_begin + elements + 8);
  const int value = 77;
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(data_begin + elements + 4));
  out.write(reinterpret_cast<const char*>(&value), sizeof value);
  out.close();
  const SafetensorsFile file(path);
  EXPECT_EQ(file.entries().at("big").end, elements);
  EXPECT_EQ(file.read("last").select(0, 1).item<int>(), value);
}

TEST(Safetensors, WritingRefusesWhatItCannotHold) {
  const TempDir dir;
  const at::Tensor x = counting({2}, at::kFloat);
  const auto error = [&](const NamedTensors& tensors) {
    return error_of([&] { write_safetensors(dir / "a", tensors); });
  };
  EXPECT_THAT(error({{"x", x}, {"x", x}}), HasSubstr("'x' twice"));
  EXPECT_THAT(error({{"__metadata__", x}}), HasSubstr("reserves the name"));
  EXPECT_THAT(error({{"\xff", x}}), HasSubstr("UTF-8"));
  EXPECT_THAT(error({{"x", at::Tensor()}}), HasSubstr("undefined"));
  EXPECT_THAT(error({{"x", x.to(at::kComplexFloat)}}), HasSubstr("not ComplexFloat"));
  EXPECT_THAT(error({{"x", x.to_sparse()}}), HasSubstr("no dense data"));
  EXPECT_FALSE(std::filesystem::exists(dir / "a"));
}

TEST(Safetensors, ReadingNamesWhatIsWrong) {
  const TempDir dir;
  write_safetensors(dir / "a", {{"model.weight", counting({2, 3}, at::kFloat)}});
  const SafetensorsFile file(dir / "a");
  EXPECT_THAT(error_of([&] { file.read("model.weigth"); }),
              HasSubstr("no tensor 'model.weigth' among its 1 (did you mean 'model.weight'?)"));
  EXPECT_THAT(error_of([&] {
                file.read_into("model.weight", at::zeros({3, 2}));
              }),
              HasSubstr("has the shape [2, 3], expected [3, 2]"));
  EXPECT_THAT(error_of([&] { SafetensorsFile missing(dir / "none"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { SafetensorsFile folder(dir.path()); }),
              HasSubstr("not a regular file"));
  const std::string header = R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  std::string bytes = raw_file(header, 2);
  bytes.back() = 7;
  const SafetensorsFile bools(dir.write("b", bytes));
  EXPECT_THAT(error_of([&] { bools.read("b"); }), HasSubstr("holds the byte 7 at index 1"));
}

struct HostileHeader {
  std::string header;
  size_t data_bytes;
  std::string expected;
};

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return str(R"({"x":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets,
             "}}");
}

TEST(Safetensors, HostileHeadersAreErrors) {
  const std::string f32 = R"("F32")";
  const std::string x4 = R"("x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::vector<HostileHeader> cases = {
      {"", 0, "does not begin with '{'"},
      {" {}", 0, "does not begin with '{'"},
      {"[]", 0, "does not begin with '{'"},
      {"{", 0, "is not JSON"},
      {"{}x", 0, "is not JSON"},
      {"{} {}", 0, "is not JSON"},
      {std::string("{\"\xff\":1}"), 0, "is not JSON"},
      {std::string(200000, '{'), 0, "is not JSON"},
      {"{\"a\":" + std::string(200000, '['), 0, "is not JSON"},
      {"{" + x4 + "," + x4 + "}", 4, "the key \"x\" twice"},
      {R"({"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "twice"},
      {R"({"x":4})", 0, "not described by a JSON object"},
      {R"({"x":{"dtype":"F32","shape":[1]}})", 4, "has no 'data_offsets'"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,4]}})", 4, "has no 'shape'"},
      {R"({"x":{"shape":[1],"data_offsets":[0,4]}})", 4, "has no 'dtype'"},
      {R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4, "has more than"},
      {R"({"__metadata__":[]})", 0, "not a map of strings"},
      {R"({"__metadata__":{"a":1}})", 0, "no string at 'a'"},
      {one(R"("F31")", "[1]", "[0,4]"), 4, "has dtype \"F31\", expected one of F64, F32"},
      {one("4", "[1]", "[0,4]"), 4, "has dtype 4"},
      {one(f32, "1", "[0,4]"), 4, "shape is not a list"},
      {one(f32, "[-1]", "[0,4]"), 4, "shape holds -1"},
      {one(f32, "[1.0]", "[0,4]"), 4, "shape holds 1.0"},
      {one(f32, "[null]", "[0,4]"), 4, "shape holds null"},
      {one(f32, "[9223372036854775808]", "[0,4]"), 4, "shape holds 9223372036854775808"},
      {one(f32, "[99999999999999999999999]", "[0,4]"), 4, "shape holds"},
      {one(f32, "[4611686018427387904,4]", "[0,0]"), 0, "more than memory can hold"},
      {one(f32, "[4294967296,4294967296]", "[0,0]"), 0, "more than memory can hold"},
      {one(f32, "[0,4611686018427387904,4]", "[0,0]"), 0, "more than memory can hold"},
      {one(f32, "[1]", "[0]"), 4, "two whole numbers"},
      {one(f32, "[1]", "[0,4,8]"), 4, "two whole numbers"},
      {one(f32, "[1]", "[0,4.0]"), 4, "two whole numbers"},
      {one(f32, "[1]", "[-4,0]"), 4, "two whole numbers"},
      {one(f32, "[1]", "[4,0]"), 4, "ends at 0 before it begins at 4"},
      {one(f32, "[2]", "[0,4]"), 4, "needs 8 bytes, data_offsets give 4"},
      {one(f32, "[1]", "[18446744073709551612,18446744073709551615]"), 4, "needs 4 bytes"},
      {one(f32, "[1]", "[18446744073709551611,18446744073709551615]"), 4, "belong to no tensor"},
      {one(f32, "[1]", "[4,8]"), 8, "4 bytes before tensor 'x'"},
      {one(f32, "[2]", "[0,8]"), 4, "need 8 bytes of data, the file has 4"},
      {one(f32, "[1]", "[0,4]"), 6, "2 bytes after the last tensor"},
      {"{" + x4 + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})", 6,
       "'y' begins at 2, inside the one that ends at 4"},
      {"{" + x4 + R"(,"y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4, "inside the one"},
  };
  const TempDir dir;
  for (const HostileHeader& test : cases) {
    const auto path = dir.write("hostile.safetensors", raw_file(test.header, test.data_bytes));
    const std::string found = error_of([&] { SafetensorsFile file(path); });
    EXPECT_THAT(found, HasSubstr(test.expected)) << test.header.substr(0, 200);
    EXPECT_THAT(found, HasSubstr("hostile.safetensors")) << test.header.substr(0, 200);
    EXPECT_LT(found.size(), 600) << test.header.substr(0, 200);
  }
}

TEST(Safetensors, HostileLengthsAreErrors) {
  const TempDir dir;
  const auto error = [&](const std::string& bytes) {
    return error_of([&] { SafetensorsFile file(dir.write("a", bytes)); });
  };
  EXPECT_THAT(error(""), HasSubstr("has 0 bytes, expected at least 8"));
  EXPECT_THAT(error("1234567"), HasSubstr("has 7 bytes"));
  EXPECT_THAT(error(std::string(8, '\xff') + "{}"), HasSubstr("header of 18446744073709551615"));
  std::string longer = raw_file("{}", 0);
  longer[0] = 3;
  EXPECT_THAT(error(longer), HasSubstr("its header has 3 bytes, but the file ends after 2"));
  EXPECT_EQ(error(raw_file("{}", 0)), "no error");
}

// Whatever a mutated file says, it is refused, or its header describes the bytes that are there.
TEST(Safetensors, RandomMutationsNeverCrash) {
  const TempDir dir;
  write_safetensors(dir / "good", {{"embed", counting({4, 3}, at::kFloat)},
                                   {"mask", counting({5}, at::kBool)},
                                   {"ids", counting({2, 2}, at::kLong)}});
  const std::string good = read_file(dir / "good");
  const size_t header_bytes = good.size() - (48 + 32 + 5);
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    const size_t mutations = 1 + random() % 3;
    for (size_t i = 0; i < mutations && !bytes.empty(); ++i) {
      const size_t at = random() % std::min(bytes.size(), header_bytes);
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 1:
          bytes[at] = static_cast<char>(random());
          break;
        case 2:
          bytes.erase(at, 1 + random() % 9);
          break;
        case 3:
          bytes.insert(at, good.substr(random() % good.size(), 1 + random() % 40));
          break;
        default:
          bytes[at] = "0123456789[]{},:\" "[random() % 18];
          break;
      }
    }
    if (random() % 10 == 0) bytes.resize(random() % (bytes.size() + 1));
    try {
      const SafetensorsFile file(dir.write("mutated", bytes));
      uint64_t total = 0;
      for (const auto& [name, entry] : file.entries()) {
        total += static_cast<uint64_t>(file.read(name).nbytes());
      }
      ASSERT_LE(total, bytes.size());
    } catch (const Error& error) {
      ++refused;
      ASSERT_THAT(error.what(), HasSubstr("mutated"));
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace cplm

// safetensors files: every type there and back, strides, the golden files, large offsets.
#include "support/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/checkpoints.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::counting;
using test::error_of;
using test::raw_file;
using test::TempDir;
using testing::HasSubstr;

const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                            at::kLong,   at::kInt,   at::kShort,    at::kChar,
                                            at::kByte,   at::kBool};

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), static_cast<size_t>(dense.nbytes())};
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

}  // namespace
}  // namespace cplm

// safetensors files that lie: each is refused by one line that names the file and what is wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cplm/base.h"
#include "cplm/checkpoint.h"
#include "support/checkpoints.h"
#include "support/safetensors.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

using test::counting;
using test::error_of;
using test::raw_file;
using test::TempDir;
using testing::HasSubstr;

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
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
      {one(f32, "[1" + repeated(",1", 64) + "]", "[0,4]"), 4,
       "has 65 dimensions, expected at most"},
      {"{\"" + std::string(5000000, 'n') + "\":4}", 0, "is not described by a JSON object"},
      {"{\"" + std::string(5000000, 'n'), 0, "is not JSON"},
      {R"({"a\nb":4})", 0, R"(tensor 'a\nb' is not described)"},
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

// Copy caches on disk: every dtype back bit for bit, and whatever is wrong with a file, one line.
#include "cplm/copy_cache_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cplm/base.h"
#include "data/hdf5_file.h"
#include "support/random.h"
#include "support/small_disk.h"
#include "support/temp_dir.h"
#include "support/tensors.h"

namespace cplm::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kWidth = 3;

CopyCacheOrigin origin_of(int64_t vocab_size = 11) {
  return {"hash of the model", "hash of the tokenizer", vocab_size, kWidth, 0};
}

CopyCache make_cache(const CopyCacheOrigin& origin, at::ScalarType dtype = at::kFloat) {
  Random random(9);
  CopyCache cache(origin, at::TensorOptions().dtype(dtype));
  for (const size_t length : {4, 1, 7}) {
    std::vector<int> ids = random.ids(length, static_cast<int>(origin.vocab_size));
    ids.back() = 0;
    const auto count = static_cast<int64_t>(length);
    cache.append(id_tensor(ids, {count}), tensor(random.normals(length * kWidth), {count, kWidth}));
  }
  return cache;
}

void expect_equal(const CopyCache& a, const CopyCache& b) {
  EXPECT_EQ(a.origin(), b.origin());
  EXPECT_EQ(a.document_offsets(), b.document_offsets());
  EXPECT_TRUE(equal_bits(a.ids(), b.ids()));
  EXPECT_EQ(a.keys().scalar_type(), b.keys().scalar_type());
  EXPECT_TRUE(equal_bits(a.keys(), b.keys()));
}

std::string problem_of(const fs::path& file, const CopyCacheOrigin& reader) {
  try {
    load_copy_cache(file, reader);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), AllOf(HasSubstr(file.string()), testing::Not(HasSubstr("\n"))));
    return error.what();
  }
  return "";
}

TEST(CopyCacheFile, IsReadAsItWasWritten) {
  const TempDir dir;
  for (const int64_t vocab_size : {int64_t{11}, int64_t{65536}, int64_t{65537}}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const CopyCache cache = make_cache(origin_of(vocab_size), dtype);
      save_copy_cache(cache, dir / "cache.h5");
      expect_equal(load_copy_cache(dir / "cache.h5", origin_of(vocab_size)), cache);
    }
  }
  const Hdf5File file = Hdf5File::open(dir / "cache.h5");
  EXPECT_EQ(file.open_dataset("ids").type(), Hdf5Type::kUint32);
  EXPECT_EQ(file.open_dataset("keys").type(), Hdf5Type::kUint16);
  EXPECT_EQ(file.read_string_attribute("key_type"), "bfloat16");
}

TEST(CopyCacheFile, MayHoldNothing) {
  const TempDir dir;
  CopyCacheOrigin origin = origin_of();
  origin.document_end.reset();
  const CopyCache cache(origin, at::TensorOptions().dtype(at::kFloat));
  save_copy_cache(cache, dir / "cache.h5");
  expect_equal(load_copy_cache(dir / "cache.h5", origin), cache);
}

TEST(CopyCacheFile, EqualCachesGiveEqualBytes) {
  const TempDir dir;
  save_copy_cache(make_cache(origin_of()), dir / "a.h5");
  save_copy_cache(make_cache(origin_of()), dir / "b.h5");
  EXPECT_EQ(read_file(dir / "a.h5"), read_file(dir / "b.h5"));
}

TEST(CopyCacheFile, AnothersIsRefused) {
  const TempDir dir;
  const fs::path file = dir / "cache.h5";
  save_copy_cache(make_cache(origin_of()), file);
  CopyCacheOrigin reader = origin_of();
  reader.model_hash = "another";
  EXPECT_THAT(problem_of(file, reader),
              AllOf(HasSubstr("weights of hash another"), HasSubstr("copy-cache make")));
  reader = origin_of(12);
  EXPECT_THAT(problem_of(file, reader), HasSubstr("a vocabulary of 12, found 11"));
  reader = origin_of();
  reader.width = 4;
  EXPECT_THAT(problem_of(file, reader), HasSubstr("keys of width 4, found 3"));
  reader = origin_of();
  reader.tokenizer_sha256 = "another";
  EXPECT_THAT(problem_of(file, reader), HasSubstr("a tokenizer.json of sha256 another"));
  reader.tokenizer_sha256.clear();
  EXPECT_EQ(problem_of(file, reader), "");
}

TEST(CopyCacheFile, DamageIsSeen) {
  const TempDir dir;
  save_copy_cache(make_cache(origin_of()), dir / "whole.h5");
  const CopyCache cache = make_cache(origin_of());
  const std::string whole = read_file(dir / "whole.h5");
  int damaged = 0;
  const size_t step = 1 + whole.size() / 300;
  for (size_t at = 0; at < whole.size(); at += step) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << (at % 8)));
    const fs::path file = dir.write("flipped.h5", bytes);
    try {
      expect_equal(load_copy_cache(file, origin_of()), cache);  // a byte that stands for nothing
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData) << "byte " << at << ": " << error.what();
      ++damaged;
    }
  }
  EXPECT_GT(damaged, 50);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{47}, size_t{500}, whole.size() / 2, whole.size() - 1}) {
    const fs::path file = dir.write("cut.h5", whole.substr(0, size));
    EXPECT_NE(problem_of(file, origin_of()), "") << size;
  }
}

TEST(CopyCacheFile, OtherFilesAreNamed) {
  const TempDir dir;
  EXPECT_THAT(problem_of(dir.write("text.h5", "some text"), origin_of()),
              HasSubstr("cannot be opened as HDF5"));
  {
    Hdf5File file = Hdf5File::create(dir / "foreign.h5");
    file.write_dataset("keys", std::vector<float>{1, 2});
    file.close();
  }
  EXPECT_THAT(problem_of(dir / "foreign.h5", origin_of()), HasSubstr("found another HDF5 file"));
  {
    Hdf5File file = Hdf5File::create(dir / "later.h5");
    file.write_string_attribute("format", "cplm-copy-cache");
    file.write_int_attribute("format_version", 2);
    file.close();
  }
  EXPECT_THAT(problem_of(dir / "later.h5", origin_of()),
              HasSubstr("expected format_version 1, found 2"));
  EXPECT_NE(problem_of(dir.path(), origin_of()), "");
}

// A header whose counts are far beyond what the file holds.
TEST(CopyCacheFile, CountsAreHeldAgainstTheFile) {
  const TempDir dir;
  for (const int64_t tokens : {int64_t{-1}, int64_t{1} << 62, int64_t{1000}}) {
    Hdf5File file = Hdf5File::create(dir / "counts.h5");
    file.write_string_attribute("format", "cplm-copy-cache");
    file.write_int_attribute("format_version", 1);
    for (const char* name : {"model_hash", "tokenizer_sha256", "content_sha256"}) {
      file.write_string_attribute(name,
                                  std::string(name) == "model_hash" ? "hash of the model" : "");
    }
    file.write_string_attribute("key_type", "float32");
    file.write_int_attribute("vocab_size", 11);
    file.write_int_attribute("width", kWidth);
    file.write_int_attribute("document_end", -1);
    file.write_int_attribute("token_count", tokens);
    file.write_int_attribute("document_count", 1);
    file.write_dataset("ids", std::vector<uint16_t>{1});
    file.write_dataset("document_offsets", std::vector<uint64_t>{0, 1});
    file.write_dataset("keys", std::vector<float>{1, 2, 3});
    file.close();
    EXPECT_THAT(problem_of(dir / "counts.h5", origin_of()), HasSubstr("expected ")) << tokens;
  }
}

TEST(CopyCacheFile, AWriteThatFailsLeavesNothing) {
  const TempDir dir;
  EXPECT_THROW(save_copy_cache(make_cache(origin_of()), dir / "none/cache.h5"), Error);
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "only some users may mount a file system";
  disk.fill_but(1000);
  EXPECT_THROW(save_copy_cache(make_cache(origin_of()), disk.path() / "cache.h5"), Error);
  EXPECT_FALSE(fs::exists(disk.path() / "cache.h5"));
  int files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(disk.path())) ++files;
  EXPECT_EQ(files, 1);  // the filler
}

}  // namespace
}  // namespace cplm::test

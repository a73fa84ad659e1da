// Files, locks and globs of src/base, and the test helper that runs programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "cplm/base.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace cplm {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "(no Error)";
}

size_t num_entries(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(Files, AtomicWriteReplacesAndLeavesNothingBeside) {
  const test::TempDir dir;
  const std::string bytes("a\0b\r\n", 5);
  write_file_atomic(dir / "a b", "first");
  write_file_atomic(dir / "a b", bytes);
  EXPECT_EQ(read_file(dir / "a b"), bytes);
  EXPECT_EQ(num_entries(dir.path()), 1U);
}

TEST(Files, AtomicWriteWorksInTheCurrentFolder) {
  const test::TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  write_file_atomic("plain", "x");
  EXPECT_EQ(read_file("plain"), "x");
  fs::current_path(before);
}

TEST(Files, FailedAtomicWriteLeavesTheOldContents) {
  const test::TempDir dir;
  dir.write("taken/inside", "old");
  const std::string message = error_of([&] { write_file_atomic(dir / "taken", "x"); });
  EXPECT_EQ(message, "cannot write " + (dir / "taken").string() + ": Is a directory");
  EXPECT_EQ(num_entries(dir.path()), 1U);
  EXPECT_EQ(read_file(dir / "taken/inside"), "old");
}

TEST(Files, MissingFilesAndFoldersAreNamedWithTheReason) {
  const test::TempDir dir;
  EXPECT_THAT(error_of([&] { read_file(dir / "no"); }),
              AllOf(HasSubstr("cannot read"), HasSubstr("/no: No such file")));
  EXPECT_THAT(error_of([&] { read_file(dir.path()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(error_of([&] { write_file_atomic(dir / "no/x", ""); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { fsync_path(dir / "no"); }), HasSubstr("No such file"));
  dir.write("file", "");
  EXPECT_THAT(error_of([&] { make_folders(dir / "file"); }), HasSubstr("Not a directory"));
  EXPECT_THAT(error_of([&] { make_folders(dir / "file/x"); }), HasSubstr("Not a directory"));
}

TEST(Files, FoldersAreMadeWithTheirParents) {
  const test::TempDir dir;
  make_folders(dir / "a/b/c");
  make_folders(dir / "a/b/c");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
}

TEST(Files, CheckedFileHashesAndCounts) {
  const test::TempDir dir;
  CheckedFile file(dir / "x");
  file.write("ab", 2);
  file.write("c", 1);
  EXPECT_EQ(file.size_bytes(), 3U);
  EXPECT_EQ(file.finish(), sha256_hex("abc"));
  EXPECT_EQ(read_file(dir / "x"), "abc");
  EXPECT_THAT(error_of([&] { file.write("d", 1); }), HasSubstr("already finished"));
  EXPECT_THAT(error_of([&] { file.finish(); }), HasSubstr("already finished"));
}

TEST(Files, UnfinishedCheckedFileIsRemoved) {
  const test::TempDir dir;
  { CheckedFile(dir / "x").write("ab", 2); }
  EXPECT_FALSE(fs::exists(dir / "x"));
}

TEST(Files, FullDiskSaysSo) {
  const test::TempDir dir;
  fs::create_symlink("/dev/full", dir / "x");
  CheckedFile file(dir / "x");
  EXPECT_THAT(error_of([&] { file.write("ab", 2); }),
              HasSubstr("/x: the disk is full (No space left on device)"));
}

TEST(Files, SizeLimitLeavesTheOldFile) {
  const test::TempDir dir;
  dir.write("x", "old");
  const auto write_too_much = [&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    setrlimit(RLIMIT_FSIZE, &limit);
    const std::string message =
        error_of([&] { write_file_atomic(dir / "x", std::string(5000, 'n')); });
    // Of the file itself, not of the one beside it.
    _exit(message == "cannot write " + (dir / "x").string() + ": File too large" ? 0 : 1);
  };
  EXPECT_EXIT(write_too_much(), testing::ExitedWithCode(0), "");
  EXPECT_EQ(read_file(dir / "x"), "old");
  EXPECT_EQ(num_entries(dir.path()), 1U);
}

TEST(Files, GlobSortsByBytesAndKnowsSpaces) {
  const test::TempDir dir;
  for (const char* name : {"s p/b.h5", "s p/a.h5", "s p/B.h5", "s p/a.txt", "s p/.hidden.h5"}) {
    dir.write(name, "");
  }
  EXPECT_THAT(glob_paths((dir / "s p/*.h5").string()),
              ElementsAre(dir / "s p/B.h5", dir / "s p/a.h5", dir / "s p/b.h5"));
  EXPECT_TRUE(glob_paths((dir / "none/*.h5").string()).empty());
  EXPECT_TRUE(glob_paths((dir / "s p/a.h5/*").string()).empty());
  EXPECT_TRUE(glob_paths("").empty());
}

TEST(Files, GlobTakesNamesThatAreThereAsTheyAreWritten) {
  const test::TempDir dir;
  for (const char* name :
       {"[x]/a.h5", "x/b.h5", "[x]/[y]*/c.h5", "x/y/d.h5", "q?\\/e.h5", "qz/f.h5"})
    dir.write(name, "");
  EXPECT_THAT(glob_paths((dir / "[x]/*.h5").string()), ElementsAre(dir / "[x]/a.h5"));
  EXPECT_THAT(glob_paths((dir / "[x]/[y]*/*.h5").string()), ElementsAre(dir / "[x]/[y]*/c.h5"));
  EXPECT_THAT(glob_paths((dir / "[x]").string()), ElementsAre(dir / "[x]"));
  EXPECT_THAT(glob_paths((dir / "q?\\/*.h5").string()), ElementsAre(dir / "q?\\/e.h5"));
  EXPECT_THAT(glob_paths((dir / "[xq]/*.h5").string()), ElementsAre(dir / "x/b.h5"));
  EXPECT_THAT(glob_paths((dir / "?").string()), ElementsAre(dir / "x"));
}

TEST(Files, GlobOverAnUnreadableFolderIsNoEmptyResult) {
  const test::TempDir dir;
  fs::create_symlink("loop", dir / "loop");
  EXPECT_THAT(error_of([&] { glob_paths((dir / "loop/*.h5").string()); }),
              AllOf(HasSubstr("cannot read folder"), HasSubstr("symbolic links")));
}

TEST(Files, HomeIsExpandedAsAShellDoes) {
  const char* before = std::getenv("HOME");
  const std::string home = before == nullptr ? "" : before;
  ::setenv("HOME", "/home/of me", 1);
  EXPECT_EQ(expand_tilde("~"), "/home/of me");
  EXPECT_EQ(expand_tilde("~/runs/a b"), "/home/of me/runs/a b");
  for (const char* path : {"", "runs/~", "~nobody of this name/runs", "a/~/b", "/~"}) {
    EXPECT_EQ(expand_tilde(path), path);
  }
  const std::string root = ::getpwuid(0)->pw_dir;
  const std::string name = ::getpwuid(0)->pw_name;
  EXPECT_EQ(expand_tilde("~" + name), root);
  EXPECT_EQ(expand_tilde("~" + name + "/runs"), root + "/runs");
  ::unsetenv("HOME");  // then the user's entry counts
  EXPECT_TRUE(expand_tilde("~/x").is_absolute());
  if (before != nullptr) ::setenv("HOME", home.c_str(), 1);
}

// A file that its holder removes must not give two processes a lock of the same name.
TEST(Lock, ARemovedFileIsNotTakenForTheLock) {
  const test::TempDir dir;
  auto holder = std::make_unique<FileLock>(dir / "lock");
  holder->remove_file();
  EXPECT_FALSE(fs::exists(dir / "lock"));
  const FileLock next(dir / "lock");
  holder.reset();
  EXPECT_THAT(error_of([&] { FileLock third(dir / "lock"); }), HasSubstr("holds it"));
}

TEST(Lock, ManyThatRemoveTheFileNeverHoldItTogether) {
  const test::TempDir dir;
  std::atomic<int> holders{0}, taken{0};
  std::vector<std::thread> threads;
  for (int n = 0; n < 4; ++n) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        try {
          FileLock lock(dir / "lock");
          EXPECT_EQ(++holders, 1);
          ++taken;
          --holders;
          lock.remove_file();
        } catch (const Error&) {  // another one holds it
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(taken, 0);
}

TEST(Lock, SecondHolderIsToldWhoHasIt) {
  const test::TempDir dir;
  {
    const FileLock lock(dir / "lock");
    EXPECT_THAT(error_of([&] { FileLock second(dir / "lock"); }),
                HasSubstr("process " + std::to_string(getpid()) + " holds it"));
  }
  EXPECT_NO_THROW(FileLock(dir / "lock"));
}

TEST(Lock, IsFreedWhenTheHolderIsKilled) {
  const test::TempDir dir;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(dir / "lock");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_THAT(error_of([&] { FileLock second(dir / "lock"); }),
              HasSubstr("process " + std::to_string(child) + " holds it"));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_NO_THROW(FileLock(dir / "lock"));
  close(ready[0]);
  close(ready[1]);
}

TEST(Process, CapturesBothOutputsAndTheExitCode) {
  const test::TempDir dir;
  const auto result = test::run_process("sh", {.arguments = {"-c", "echo $MARK; pwd >&2; exit 3"},
                                               .working_dir = dir.path(),
                                               .environment = {{"MARK", "out"}}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, fs::canonical(dir.path()).string() + "\n");
  EXPECT_THROW(test::run_process("no-such-program-here"), std::runtime_error);
}

TEST(Process, LargeOutputsDoNotBlock) {
  const auto result = test::run_process(
      "sh", {.arguments = {"-c", "yes | head -c 300000; yes | head -c 300000 >&2"}});
  EXPECT_EQ(result.out.size(), 300000U);
  EXPECT_EQ(result.err.size(), 300000U);
}

TEST(Process, SignalsAtAMarkerAfterADelayAndAtTheTimeout) {
  const auto marked = test::run_process(
      "sh", {.arguments = {"-c", "echo begin; exec sleep 60"}, .signal_at_marker = "begin"});
  EXPECT_EQ(marked.ended_by_signal, SIGKILL);
  EXPECT_EQ(marked.exit_code, 128 + SIGKILL);
  EXPECT_EQ(marked.out, "begin\n");
  const auto delayed =
      test::run_process("sleep", {.arguments = {"60"}, .signal_after_s = 0.05, .signal = SIGTERM});
  EXPECT_EQ(delayed.ended_by_signal, SIGTERM);
  EXPECT_FALSE(delayed.timed_out);
  const auto late =
      test::run_process("sh", {.arguments = {"-c", "sleep 60; true"}, .timeout_s = 0.1});
  EXPECT_TRUE(late.timed_out);
}

}  // namespace
}  // namespace cplm

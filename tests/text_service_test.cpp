// The child process behind the tokenizer when it dies, hangs or writes nonsense: one clear line
// each, at once, and no child left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "cplm/base.h"
#include "support/temp_dir.h"
#include "text/json_service.h"

namespace cplm {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr double kPatient = 60, kImpatient = 0.3;

class JsonServiceTest : public ::testing::Test {
 protected:
  std::unique_ptr<JsonService> run(const std::string& python, double patience_s = kPatient) {
    root_.write("scripts/child.py", "import json, os, signal, sys, time\n" + python);
    return std::make_unique<JsonService>(root_.path(), "child.py", std::vector<std::string>{},
                                         patience_s);
  }
  // What a request comes to; a second one must come to the same.
  static std::string failure(JsonService& service, const json& request = {{"op", "x"}}) {
    std::string message[2];
    for (std::string& text : message) {
      try {
        service.ask(request);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        text = error.what();
      }
    }
    EXPECT_EQ(message[0], message[1]);
    EXPECT_THAT(message[0], AllOf(StartsWith("scripts/child.py "), Not(HasSubstr("\n"))));
    return message[0];
  }
  // Runs a child that tells its process id, and returns whether that process is gone.
  static bool is_gone(pid_t child) { return ::kill(child, 0) != 0 && errno == ESRCH; }

  const test::TempDir root_;
};

constexpr const char* kEcho = "for line in sys.stdin: print(line, end='', flush=True)\n";

TEST_F(JsonServiceTest, AnswersComeBackExactly) {
  const auto service = run(kEcho);
  const std::string text = std::string("\0\n\r\"\\\x7F", 6) + "\u2028\U0001F600";
  for (const json& request : {json{{"a", text}}, json{{"b", std::string(5'000'000, 'x')}},
                              json{{"c", std::vector<int64_t>(100'000, INT64_MIN)}}}) {
    EXPECT_EQ(service->ask(request), request);
  }
}

TEST_F(JsonServiceTest, ErrorsOfTheScriptLeaveItAtWork) {
  const auto service = run(kEcho);
  try {
    service->ask({{"error", "the reason"}, {"exit_code", 3}});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the reason");
    EXPECT_EQ(error.code(), ExitCode::kBadData);
  }
  EXPECT_EQ(service->ask({{"a", 1}}), (json{{"a", 1}}));
}

TEST_F(JsonServiceTest, AChildThatDiesSaysWhy) {
  EXPECT_THAT(failure(*run("sys.stdin.readline(); raise ValueError('the reason')\n")),
              HasSubstr("failed with exit code 1: ValueError: the reason"));
  EXPECT_THAT(failure(*run("sys.stdin.readline(); os.kill(os.getpid(), 9)\n")),
              HasSubstr("was ended by signal 9: it printed nothing"));
  EXPECT_THAT(failure(*run("sys.stdin.readline()\n")), HasSubstr("ended before its work was done"));
  EXPECT_THAT(failure(*run("raise SystemExit('at once')\n"), {{"a", std::string(5'000'000, 'x')}}),
              HasSubstr("failed with exit code 1: at once"));
  EXPECT_THAT(failure(*run("sys.stdin.readline()\nprint('{\"a\"', end='', flush=True)\n")),
              HasSubstr("ended before its work was done"));
}

TEST_F(JsonServiceTest, AChildThatIsKilledBetweenRequests) {
  const auto service =
      run("print(json.dumps({'pid': os.getpid()}), flush=True)\n" + std::string(kEcho));
  const pid_t child = service->receive().at("pid").get<pid_t>();
  ::kill(child, SIGKILL);
  EXPECT_THAT(failure(*service), HasSubstr("was ended by signal 9"));
  EXPECT_TRUE(is_gone(child));
}

TEST_F(JsonServiceTest, AChildThatWritesNonsense) {
  EXPECT_THAT(failure(*run("sys.stdin.readline(); print('\\x1b[31mhello' + 'o' * 99, flush=True); "
                           "time.sleep(99)\n")),
              HasSubstr("answered with what is no JSON object: '?[31mhellooooo"));
  EXPECT_THAT(failure(*run("sys.stdin.readline(); print([1], flush=True); time.sleep(99)\n")),
              HasSubstr("no JSON object: '[1]'"));
  EXPECT_THAT(
      failure(*run("sys.stdin.readline(); print('{\"error\": 1}', flush=True); time.sleep(99)\n")),
      HasSubstr("answered with an error that is none"));
}

TEST_F(JsonServiceTest, AChildThatHangsIsEnded) {
  const auto service = run("print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(99)\n");
  const pid_t child = service->receive().at("pid").get<pid_t>();
  EXPECT_THAT(failure(*run("time.sleep(99)\n", kImpatient)), HasSubstr("gave no answer in 0.3 s"));
  // One that reads nothing, so that a long request cannot even be sent.
  const auto deaf = run("time.sleep(99)\n", kImpatient);
  EXPECT_THAT(failure(*deaf, {{"a", std::string(300'000, 'x')}}), HasSubstr("gave no answer"));
  EXPECT_FALSE(is_gone(child));
}

TEST_F(JsonServiceTest, AChildThatClosesItsOutputAndStays) {
  EXPECT_THAT(failure(*run("sys.stdin.readline(); os.close(0); os.close(1); time.sleep(99)\n")),
              HasSubstr("closed its output"));
}

TEST_F(JsonServiceTest, ItsErrorOutputMayBeLong) {
  const auto service = run("print('x' * 3_000_000, file=sys.stderr)\n" + std::string(kEcho));
  EXPECT_EQ(service->ask({{"a", 1}}), (json{{"a", 1}}));
}

TEST_F(JsonServiceTest, StopSignalsOfTheTerminalDoNotReachIt) {
  const auto service =
      run("print(json.dumps({'pid': os.getpid()}), flush=True)\n" + std::string(kEcho));
  const pid_t child = service->receive().at("pid").get<pid_t>();
  for (int signal_number : {SIGINT, SIGTERM, SIGHUP}) ::kill(child, signal_number);
  EXPECT_EQ(service->ask({{"a", 1}}), (json{{"a", 1}}));
}

TEST_F(JsonServiceTest, EndsWithItsOwnerEvenWhenItHangs) {
  auto service = run("print(json.dumps({'pid': os.getpid()}), flush=True); time.sleep(99)\n");
  const pid_t child = service->receive().at("pid").get<pid_t>();
  service.reset();
  EXPECT_TRUE(is_gone(child));
}

// What the kernel closes when a process is killed: the child must see the end of its input.
TEST_F(JsonServiceTest, EndsWhenItsOwnerIsKilled) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t owner = ::fork();
  if (owner == 0) {
    const auto service =
        run("print(json.dumps({'pid': os.getpid()}), flush=True)\n" + std::string(kEcho));
    const pid_t child = service->receive().at("pid").get<pid_t>();
    const bool written = ::write(ends[1], &child, sizeof child) == sizeof child;
    ::raise(written ? SIGKILL : SIGABRT);
  }
  pid_t child = 0;
  ASSERT_EQ(::read(ends[0], &child, sizeof child), static_cast<ssize_t>(sizeof child));
  ::waitpid(owner, nullptr, 0);
  for (int i = 0; i < 1000 && !is_gone(child); ++i) ::usleep(10'000);
  EXPECT_TRUE(is_gone(child));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(JsonServiceTest, WithoutItsScript) {
  EXPECT_THROW(JsonService(root_.path(), "absent.py", {}, kPatient), Error);
}

}  // namespace
}  // namespace cplm

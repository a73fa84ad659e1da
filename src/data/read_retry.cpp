// See read_retry.h.
#include "data/read_retry.h"

#include <cerrno>
#include <thread>
#include <utility>

namespace cplm {

bool may_pass(int error_number) {
  switch (error_number) {
    case EIO:
    case ESTALE:
    case ETIMEDOUT:
    case EAGAIN:
    case EINTR:
    case EBUSY:
    case ENFILE:
    case ENETDOWN:
    case ENETUNREACH:
    case ENETRESET:
    case ECONNABORTED:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNREFUSED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case EREMOTEIO:
    case ESHUTDOWN:
      return true;
    default:
      return false;
  }
}

void read_with_retry(const ReadRetry& retry, const std::function<void()>& read,
                     const std::function<void()>& reopen) {
  bool checksum_failed = false;
  std::chrono::milliseconds wait = retry.first_wait, waited{0};
  for (int attempt = 1;; ++attempt) {
    try {
      if (attempt > 1) reopen();
      return read();
    } catch (const ReadError& error) {
      if (error.cause() == ReadError::Cause::kChecksum) {
        if (std::exchange(checksum_failed, true)) throw;
        log::warn(str(error.what(), "; reading it once more"));
        continue;
      }
      if (attempt >= retry.attempts) {
        throw Error(str(error.what(), " (", attempt, " attempts over ",
                        static_cast<double>(waited.count()) / 1000,
                        " s); see to the file system and start again"),
                    ExitCode::kBadData);
      }
      log::warn(str(error.what(), "; attempt ", attempt + 1, " of ", retry.attempts, " in ",
                    static_cast<double>(wait.count()) / 1000, " s"));
      std::this_thread::sleep_for(wait);
      waited += wait;
      wait *= 2;
    }
  }
}

}  // namespace cplm

// See system_error.h.
#include "base/system_error.h"

#include <cerrno>
#include <system_error>

namespace cplm {
namespace {

// A path can be too long only because somebody asked for it.
ExitCode code_of(int error_number) {
  return error_number == ENAMETOOLONG ? ExitCode::kBadConfig : ExitCode::kFailed;
}

}  // namespace

std::string explain(int error_number) {
  std::string reason = std::generic_category().message(error_number);
  switch (error_number) {
    case ENOSPC:
      return str("the disk is full (", reason, ")");
    case EDQUOT:
      return str("the disk quota is used up (", reason, ")");
    case ENAMETOOLONG:
      return str(reason, "; shorten it: a name takes 255 bytes, a path 4,095");
    default:
      return reason;
  }
}

void throw_system_error(const std::string& action, const std::filesystem::path& path,
                        int error_number) {
  throw Error(str("cannot ", action, " ", path.string(), ": ", explain(error_number)),
              code_of(error_number));
}

Error as_error(const std::filesystem::filesystem_error& error) {
  const int number = error.code().value();
  const std::string& path = (error.path2().empty() ? error.path1() : error.path2()).string();
  return Error(str(path, ": ", explain(number),
                   number == ENAMETOOLONG ? "" : "; check that path, its rights and its disk"),
               code_of(number));
}

}  // namespace cplm

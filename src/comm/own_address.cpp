// See own_address.h. Connecting a datagram socket sends nothing: it asks for the route.
#include "comm/own_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

namespace cplm {
namespace {

std::string numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

std::string address_towards(const addrinfo& target) {
  const int descriptor = ::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return "";
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  std::string address;
  if (::connect(descriptor, target.ai_addr, target.ai_addrlen) == 0 &&
      ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
    address = numeric(reinterpret_cast<sockaddr*>(&own), length);
  }
  ::close(descriptor);
  return address;
}

}  // namespace

std::string own_address(const Launch& launch) {
  if (launch.local_size == launch.size) return "127.0.0.1";
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const std::string port = str(launch.port);
  if (::getaddrinfo(launch.address.c_str(), port.c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> targets(found, &::freeaddrinfo);
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    std::string address = address_towards(*target);
    if (address.empty() || address.starts_with("127.") || address == "::1") continue;
    return address;
  }
  return "";
}

}  // namespace cplm

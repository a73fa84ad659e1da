// SHA-256 (OpenSSL) for files' contents, and the 64-bit mixing that keyed randomness stands on.
#include <openssl/evp.h>

#include <cerrno>
#include <cstdio>

#include "base/system_error.h"
#include "cplm/base.h"

namespace cplm {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  CPLM_CHECK(context_ != nullptr, "cannot start a SHA-256: out of memory");
  if (EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) != 1) {
    EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_));
    throw Error("cannot start a SHA-256: this OpenSSL does not offer it");
  }
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::update(const void* data, size_t size_bytes) {
  CPLM_CHECK(context_ != nullptr, "SHA-256 cannot take more data: it was already ended");
  CPLM_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data, size_bytes) == 1,
             "SHA-256 failed in OpenSSL");
}

std::string Sha256::hex() {
  CPLM_CHECK(context_ != nullptr, "SHA-256 was already ended");
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  auto* context = static_cast<EVP_MD_CTX*>(context_);
  CPLM_CHECK(EVP_DigestFinal_ex(context, digest, &length) == 1, "SHA-256 failed in OpenSSL");
  EVP_MD_CTX_free(context);
  context_ = nullptr;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < length; ++i) {
    out += kDigits[digest[i] >> 4];
    out += kDigits[digest[i] & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                       &std::fclose);
  if (!file) throw_system_error("read", path, errno);
  std::vector<char> buffer(1 << 20);
  Sha256 hash;
  while (const size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    hash.update(buffer.data(), count);
  }
  if (std::ferror(file.get()) != 0) throw_system_error("read", path, errno);
  return hash.hex();
}

uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return mix64(hash);
}

}  // namespace cplm

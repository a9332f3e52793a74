#include "server/certificate.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <stdexcept>

namespace weft::test {
namespace {

template <typename T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

struct File {
  File(const std::string& path, const char* mode) : file(std::fopen(path.c_str(), mode)) {
    if (file == nullptr) throw std::runtime_error("cannot open " + path);
  }
  ~File() { std::fclose(file); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  FILE* file;
};

void add_extension(X509* certificate, int kind, const char* value) {
  const Owned<X509_EXTENSION> extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value), X509_EXTENSION_free);
  X509_add_ext(certificate, extension.get(), -1);
}

}  // namespace

Certificate write_certificate(const std::filesystem::path& folder, const std::string& name, const Certificate* issuer) {
  constexpr long kHour = 3600;
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  const Owned<X509> certificate(X509_new(), X509_free);
  X509* const raw = certificate.get();
  X509_set_version(raw, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(raw), issuer == nullptr ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(raw), -kHour);
  X509_gmtime_adj(X509_getm_notAfter(raw), kHour);
  X509_set_pubkey(raw, key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(raw), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  add_extension(raw, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  if (issuer == nullptr) {
    add_extension(raw, NID_basic_constraints, "critical,CA:TRUE");
    X509_set_issuer_name(raw, X509_get_subject_name(raw));
    X509_sign(raw, key.get(), EVP_sha256());
  } else {
    const File certificate_file(issuer->file, "r"), key_file(issuer->key_file, "r");
    const Owned<X509> parent(PEM_read_X509(certificate_file.file, nullptr, nullptr, nullptr), X509_free);
    const Owned<EVP_PKEY> parent_key(PEM_read_PrivateKey(key_file.file, nullptr, nullptr, nullptr), EVP_PKEY_free);
    X509_set_issuer_name(raw, X509_get_subject_name(parent.get()));
    X509_sign(raw, parent_key.get(), EVP_sha256());
  }
  Certificate out{.file = folder / (name + ".pem"), .key_file = folder / (name + ".key")};
  const File file(out.file, "w"), key_file(out.key_file, "w");
  if (PEM_write_X509(file.file, raw) != 1 ||
      PEM_write_PrivateKey(key_file.file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1)
    throw std::runtime_error("cannot write the certificate " + out.file);
  return out;
}

}  // namespace weft::test

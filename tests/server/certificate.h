#pragma once

#include <filesystem>
#include <string>

namespace weft::test {

/// Files in PEM.
struct Certificate {
  std::string file, key_file;
};
/// Writes NAME.pem and NAME.key into a folder: a certificate of an hour for 127.0.0.1 and localhost, signed by `issuer`, or by
/// itself.
Certificate write_certificate(const std::filesystem::path& folder, const std::string& name,
                              const Certificate* issuer = nullptr);

}  // namespace weft::test

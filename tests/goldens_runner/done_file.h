#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace weft::test {

/// One finished model of a long run.
struct DoneModel {
  int runs = 0, failed = 0;
  double seconds = 0;
  std::string row;  ///< as printed
};

/// Remembers finished models in a file, one line each, so that a run that was stopped can go on. Models with failures are not
/// remembered. Without a path it remembers nothing.
class DoneFile {
 public:
  explicit DoneFile(std::filesystem::path path);
  std::optional<DoneModel> find(const std::string& name) const;
  void add(const std::string& name, const DoneModel& model);

 private:
  std::filesystem::path path_;
  std::map<std::string, DoneModel> models_;
};

}  // namespace weft::test

#include "goldens_runner/done_file.h"

#include <fstream>
#include <utility>

#include "base/check.h"

namespace weft::test {

DoneFile::DoneFile(std::filesystem::path path) : path_(std::move(path)) {
  std::ifstream in(path_);
  std::string name;
  DoneModel model;
  // A line that was cut off by a stop does not end in a newline and is dropped.
  while (in >> name >> model.runs >> model.seconds && in.get() == ' ' && std::getline(in, model.row) && !in.eof()) {
    models_[name] = model;
  }
}

std::optional<DoneModel> DoneFile::find(const std::string& name) const {
  const auto found = models_.find(name);
  return found == models_.end() ? std::nullopt : std::optional(found->second);
}

void DoneFile::add(const std::string& name, const DoneModel& model) {
  if (path_.empty() || model.failed > 0) return;
  models_[name] = model;
  std::ofstream out(path_, std::ios::trunc);
  for (const auto& [key, value] : models_) out << key << " " << value.runs << " " << value.seconds << " " << value.row << "\n";
  if (!out.flush()) throw SystemError("cannot write {}", path_.string());
}

}  // namespace weft::test

// Who may include whom. The table is the architecture: a new arrow in the code is a new word here, and a reason to ask why.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// The modules that a module may include beside itself. Arrows only point down, siblings do not see each other.
const std::map<std::string, std::set<std::string>, std::less<>> kEdges = {
    {"base", {}},
    {"layout", {"base"}},
    {"cache", {"base", "layout"}},
    {"comm", {"base"}},
    {"ops", {"base", "layout"}},
    {"transfer", {"base", "layout"}},
    {"exchange", {"base", "layout", "ops", "comm"}},
    {"tier", {"base", "layout", "transfer"}},
    {"handoff", {"base", "layout", "transfer"}},
    {"model", {"base", "layout", "ops", "comm", "exchange"}},
    {"text", {"base"}},
    {"bench_client", {"base", "text"}},
    {"engine", {"base", "layout", "cache", "comm", "ops", "exchange", "model", "transfer", "tier", "handoff"}},
    {"server", {"base", "text", "engine"}},
    {"router", {"base", "server"}},
    {"tools",
     {"base", "layout", "cache", "comm", "ops", "transfer", "exchange", "tier", "handoff", "model", "text", "engine", "server",
      "router", "bench_client"}},
};

/// Third-party headers by the beginning of their name, and the beginnings of the files that may include them.
struct Pin {
  std::string header;
  std::vector<std::string> files;
};
const std::vector<Pin> kPins = {
    {"fmt/", {""}},
    {"spdlog/", {"base/"}},
    {"boost/beast", {"server/", "router/", "bench_client/"}},
    {"boost/asio", {"server/", "router/", "bench_client/"}},
    {"boost/intrusive", {"cache/"}},
    {"sodium", {"cache/"}},
    {"prometheus/", {"server/", "router/"}},
    {"nlohmann/",
     {"server/", "model/config.cc", "model/safetensors.cc", "model/strict_json", "text/", "tools/", "bench_client/"}},
    {"pcre2", {"text/"}},
    {"unicode/", {"text/"}},
    {"sentencepiece", {"text/"}},
    {"CLI/", {"tools/"}},
    {"yaml-cpp/", {"tools/"}},
    {"openssl/", {"server/", "handoff/"}},
    {"zmq", {"server/"}},
    {"msgpack", {"server/"}},
    {"zstd", {"tier/"}},
    {"hwy/", {"ops/cpu/"}},
    {"Random123/", {"ops/"}},
    {"oneapi/", {"ops/cpu/"}},
    {"dnnl", {"ops/cpu/"}},
    {"omp.h", {"ops/cpu/"}},
    {"cuda", {"ops/cuda/", "exchange/peer_"}},
    {"cublas", {"ops/cuda/", "exchange/peer_"}},
    {"cudnn", {"ops/cuda/", "exchange/peer_"}},
    {"cub/", {"ops/cuda/", "exchange/peer_"}},
    {"nccl", {"comm/nccl_group.cc"}},
    {"mpi", {"comm/mpi_group.cc"}},
    {"ucp/", {"transfer/ucx_transport.cc"}},
    {"ucs/", {"transfer/ucx_transport.cc"}},
};
/// The operating system, free to use.
const std::vector<std::string> kSystem = {"sys/",   "linux/",   "unistd.h", "fcntl.h",  "sched.h",     "pthread.h", "signal.h",
                                          "poll.h", "stdlib.h", "netdb.h",  "netinet/", "immintrin.h", "arpa/"};

/// The backends of ops: only they themselves, and what chooses between them, may know what is in there.
const std::vector<std::string> kBackends = {"ops/cpu/", "ops/cuda/"};

std::string module_of(std::string_view path) { return std::string(path.substr(0, path.find('/'))); }
bool starts_with_any(std::string_view text, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(), [&](const auto& b) { return text.starts_with(b); });
}

/// What is wrong with including `header` in `file`, or nothing. Names are relative to src/.
std::string objection(std::string_view file, std::string_view header) {
  for (const std::string& backend : kBackends)
    if (header.starts_with(backend) && !file.starts_with(backend)) return backend + " is not for this file";
  const std::string from = module_of(file), to = module_of(header);
  if (kEdges.contains(to) && header.find('/') != std::string_view::npos) {
    return from == to || kEdges.at(from).contains(to) ? "" : from + " may not include " + to;
  }
  const bool is_standard = header.find_first_of("./") == std::string_view::npos;
  if (is_standard || starts_with_any(header, kSystem)) return "";
  for (const Pin& pin : kPins) {
    if (!header.starts_with(pin.header)) continue;
    return starts_with_any(file, pin.files) ? "" : pin.header + " is not for this file";
  }
  return "unknown header: include our own as \"module/file.h\", and give a new library its place in kPins";
}

std::vector<std::string> objections(const std::string& file, const std::string& text) {
  static const std::regex include(R"re(^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"])re", std::regex::multiline);
  std::vector<std::string> found;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), include); it != std::sregex_iterator(); ++it) {
    const std::string header = (*it)[1], why = objection(file, header);
    if (!why.empty()) found.push_back(file + " includes " + header + ": " + why);
  }
  return found;
}

TEST(Layers, EverySourceFileKeepsToTheTable) {
  const fs::path root = fs::path(WEFT_SOURCE_DIR) / "src";
  std::vector<std::string> found;
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), root).generic_string();
    ASSERT_TRUE(kEdges.contains(module_of(name))) << "src/" << name << " belongs to no module of the table";
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const auto more = objections(name, text.str());
    found.insert(found.end(), more.begin(), more.end());
    ++files;
  }
  EXPECT_GT(files, 10);
  EXPECT_THAT(found, IsEmpty());
}

TEST(Layers, TheTableHasNoCycle) {
  std::set<std::string> placed;
  while (placed.size() < kEdges.size()) {
    const size_t before = placed.size();
    for (const auto& [module, uses] : kEdges)
      if (std::includes(placed.begin(), placed.end(), uses.begin(), uses.end())) placed.insert(module);
    ASSERT_GT(placed.size(), before) << "some modules need each other";
  }
}

TEST(Layers, AForbiddenEdgeIsFound) {
  EXPECT_THAT(objections("layout/fake.h", "#pragma once\n#include \"model/config.h\"\n"),
              ElementsAre(HasSubstr("layout may not include model")));
  EXPECT_THAT(objections("comm/fake.cc", "#include \"ops/ops.h\"\n"), ElementsAre(HasSubstr("comm may not include ops")));
  EXPECT_THAT(objections("ops/cpu/fake.cc", "  #  include <comm/communicator.h>\n"),
              ElementsAre(HasSubstr("ops may not include comm")));
  EXPECT_THAT(objections("server/fake.cc", "#include \"engine/engine.h\"\n#include \"model/model.h\"\n"),
              ElementsAre(HasSubstr("server may not include model")));
  EXPECT_THAT(objections("exchange/fake.cc", "#include \"ops/ops.h\"\n#include \"comm/communicator.h\"\n"), IsEmpty());
}

TEST(Layers, ABackendOfTheOperatorsIsItsOwnBusiness) {
  EXPECT_THAT(objections("model/fake.cc", "#include \"ops/cuda/cuda_ops.h\"\n"),
              ElementsAre(HasSubstr("ops/cuda/ is not for")));
  EXPECT_THAT(objections("ops/cuda/fake.cc", "#include \"ops/cpu/moe.h\"\n"), ElementsAre(HasSubstr("ops/cpu/ is not for")));
  EXPECT_THAT(objections("ops/cpu/fake.cc", "#include \"ops/cuda/params.h\"\n"),
              ElementsAre(HasSubstr("ops/cuda/ is not for")));
  EXPECT_THAT(objections("ops/fake.h", "#include \"ops/cpu/pool.h\"\n"), ElementsAre(HasSubstr("ops/cpu/ is not for")));
  EXPECT_THAT(objections("ops/cuda/fake.cu", "#include \"ops/checks.h\"\n#include <cublasLt.h>\n"), IsEmpty());
  EXPECT_THAT(objections("ops/cpu/fake.cc", "#include <cuda_runtime.h>\n"), ElementsAre(HasSubstr("cuda")));
}

TEST(Layers, ALibraryOutsideItsPlaceIsFound) {
  EXPECT_THAT(objections("engine/fake.cc", "#include <nlohmann/json.hpp>\n"), ElementsAre(HasSubstr("nlohmann/")));
  EXPECT_THAT(objections("model/families.cc", "#include <nlohmann/json.hpp>\n"), ElementsAre(HasSubstr("nlohmann/")));
  EXPECT_THAT(objections("model/config.cc", "#include <nlohmann/json.hpp>\n"), IsEmpty());
  EXPECT_THAT(objections("ops/ops.h", "#include <hwy/highway.h>\n"), ElementsAre(HasSubstr("hwy/")));
  EXPECT_THAT(objections("comm/thread_group.cc", "#include <nccl.h>\n"), ElementsAre(HasSubstr("nccl")));
  EXPECT_THAT(objections("base/fake.h", "#include <cuda_runtime.h>\n"), ElementsAre(HasSubstr("cuda")));
  EXPECT_THAT(objections("base/fake.h", "#include <surprise/api.hpp>\n"), ElementsAre(HasSubstr("unknown header")));
  EXPECT_THAT(objections("base/fake.h", "#include \"check.h\"\n"), ElementsAre(HasSubstr("unknown header")));
  EXPECT_THAT(objections("base/fake.h", "#include <vector>\n#include <sys/mman.h>\n// #include <nccl.h>\n"), IsEmpty());
}

}  // namespace
}  // namespace weft

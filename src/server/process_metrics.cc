#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "server/metric_families.h"

namespace weft {
namespace {

/// Field `number` of /proc/self/stat, counted from 1 as in proc(5); from 3 on, behind the name of the program.
std::optional<double> stat_field(int number) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  std::string word;
  for (int i = 3; i <= number; ++i)
    if (!(rest >> word)) return std::nullopt;
  return std::stod(word);
}

/// When the machine started, in seconds since 1970.
std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("btime ")) return std::stod(line.substr(6));
  return std::nullopt;
}

std::optional<double> open_files() {
  constexpr const char* kFolder = "/proc/self/fd";
  // Newer kernels say how many there are; counting ten thousand would take milliseconds.
  struct stat status {};
  if (::stat(kFolder, &status) == 0 && status.st_size > 0) return static_cast<double>(status.st_size);
  std::error_code error;
  const std::filesystem::directory_iterator folder(kFolder, error);
  if (error) return std::nullopt;
  return static_cast<double>(std::distance(begin(folder), end(folder)) - 1);  // without the one that is open to count them
}

double seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; }

}  // namespace

void add_process_metrics(MetricFamilies& out) {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0)
    out.counter("process_cpu_seconds_total", "Processor time of this process, in user and system.",
                seconds(usage.ru_utime) + seconds(usage.ru_stime));
  int64_t pages = 0, resident_pages = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> resident_pages) {
    const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
    out.gauge("process_resident_memory_bytes", "Memory of this process that is in RAM.",
              static_cast<double>(resident_pages) * page);
    out.gauge("process_virtual_memory_bytes", "Address space of this process.", static_cast<double>(pages) * page);
  }
  const auto started = stat_field(22), booted = boot_time();
  if (started && booted)
    out.gauge("process_start_time_seconds", "When this process started, in seconds since 1970.",
              *booted + *started / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  if (const auto files = open_files()) out.gauge("process_open_fds", "Open file descriptors, connections among them.", *files);
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out.gauge("process_max_fds", "Most of them that there may be.", static_cast<double>(limit.rlim_cur));
  if (const auto threads = stat_field(20)) out.gauge("process_threads", "Threads of this process.", *threads);
}

}  // namespace weft

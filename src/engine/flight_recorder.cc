#include "engine/flight_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace weft {
namespace {

constexpr std::array<char, 8> kMagic{'W', 'E', 'F', 'T', 'F', 'L', 'Y', '1'};
/// More than any field of a real file has, so that a damaged length is an error and not an allocation.
constexpr uint64_t kMostElements = uint64_t{1} << 36;

class Writer {
 public:
  /// A flight holds prompts: only its owner may read it, and nobody's file is followed or overwritten.
  explicit Writer(const std::filesystem::path& path) : path_(path) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file < 0)
      throw SystemError("cannot make the flight file {}: {}", path.string(), std::generic_category().message(errno));
    ::close(file);
    out_.open(path, std::ios::binary);
  }

  template <typename T>
  void array(std::span<const T> values) {
    number(values.size());
    out_.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size_bytes()));
  }
  void number(uint64_t value) { out_.write(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void magic() { out_.write(kMagic.data(), kMagic.size()); }
  void close() {
    out_.close();
    if (!out_) throw SystemError("cannot write the flight file {}", path_.string());
  }

 private:
  const std::filesystem::path path_;
  std::ofstream out_;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), in_(path, std::ios::binary) {
    if (!in_) throw UserError("cannot open the flight file {}", path.string());
    std::error_code error;
    bytes_ = std::filesystem::file_size(path, error);
    std::array<char, kMagic.size()> magic{};
    raw(magic.data(), magic.size());
    if (magic != kMagic) throw UserError("not a flight file of this version: {}", path_.string());
  }

  template <typename T>
  std::vector<T> array() {
    const uint64_t count = number();
    if (count > kMostElements || count * sizeof(T) > bytes_)
      throw UserError("flight file {} is damaged: a list of {} elements in {} bytes", path_.string(), count, bytes_);
    std::vector<T> values(count);
    raw(values.data(), count * sizeof(T));
    return values;
  }
  uint64_t number() {
    uint64_t value = 0;
    raw(&value, sizeof(value));
    return value;
  }

 private:
  void raw(void* to, size_t bytes) {
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    if (!in_) throw UserError("flight file {} ends too early", path_.string());
  }

  const std::filesystem::path path_;
  std::ifstream in_;
  uint64_t bytes_ = 0;
};

}  // namespace

// --- the shadow --------------------------------------------------------------------------------------------------------------

TokenShadow::TokenShadow(const Sizes& sizes)
    : sizes_(sizes),
      tables_(static_cast<size_t>(sizes.sequences * sizes.blocks_per_sequence), -1),
      rows_(static_cast<size_t>(sizes.blocks * sizes.virtual_tokens), -1) {}

std::vector<BlockId> TokenShadow::table(int32_t sequence) const {
  std::vector<BlockId> blocks;
  for (int64_t i = 0; i < sizes_.blocks_per_sequence; ++i)
    blocks.push_back(BlockId{tables_[static_cast<size_t>(sequence * sizes_.blocks_per_sequence + i)]});
  return blocks;
}

void TokenShadow::apply(const StepPlan& plan, std::span<const int32_t> samples) {
  apply_blocks(plan);
  apply_rows(plan, samples);
}

void TokenShadow::apply_blocks(const StepPlan& plan) {
  for (const TableUpdate& update : plan[plan->table_updates])
    tables_[static_cast<size_t>(update.sequence * sizes_.blocks_per_sequence + update.ordinal)] = update.block;
  for (const BlockCopy& copy : plan[plan->copies]) {
    const auto source = rows_.begin() + copy.source * sizes_.virtual_tokens;
    std::copy(source, source + copy.tokens, rows_.begin() + copy.target * sizes_.virtual_tokens);
  }
}

void TokenShadow::apply_rows(const StepPlan& plan, std::span<const int32_t> samples) {
  const std::span<const int32_t> tokens = plan[plan->token_src], slots = plan.slots_of(1, 0);
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (slots[t] < 0) continue;  // padding
    rows_[static_cast<size_t>(slots[t])] = tokens[t] >= 0 ? tokens[t] : samples[static_cast<size_t>(-1 - tokens[t])];
  }
}

std::vector<int32_t> TokenShadow::tokens(int32_t sequence, int64_t length) const {
  std::vector<int32_t> tokens;
  for (const int64_t row : rows_of(sequence, length)) tokens.push_back(rows_[static_cast<size_t>(row)]);
  return tokens;
}

std::vector<int64_t> TokenShadow::rows_of(int32_t sequence, int64_t length) const {
  const BlockLayout layout{.shard = {}, .block_tokens = static_cast<int>(sizes_.virtual_tokens)};
  const std::vector<BlockId> blocks = table(sequence);
  std::vector<int64_t> rows;
  for (int64_t pos = 0; pos < length; ++pos) rows.push_back(layout.local_slot(blocks, pos));
  return rows;
}

// --- the ring ----------------------------------------------------------------------------------------------------------------

FlightRecorder::FlightRecorder(const Options& options, StepRunner& runner)
    : runner_(runner),
      config_(options.config),
      ring_(options.bytes),
      index_(static_cast<size_t>(std::max<int64_t>(options.steps, 1))),
      before_(options.sizes) {
  scratch_.reserve(options.bytes);
  samples_.reserve(options.bytes / sizeof(int32_t));
}

const StepResult& FlightRecorder::run(const StepPlan& plan) {
  try {
    const StepResult& result = runner_.run(plan);
    keep(plan, &result);
    return result;
  } catch (...) {
    keep(plan, nullptr);
    throw;
  }
}

std::span<const int32_t> FlightRecorder::ids(const Kept& kept) const {
  const std::byte* at = ring_.data() + kept.offset + kept.plan_bytes + kept.checksums * sizeof(uint64_t);
  return {reinterpret_cast<const int32_t*>(at), kept.ids};
}

void FlightRecorder::keep(const StepPlan& plan, const StepResult* result) {
  Kept step{.plan_bytes = (plan.bytes().size() + 7) / 8 * 8, .completed = result != nullptr};
  if (result != nullptr) {
    step.ids = result->ids.size();
    step.checksums = result->rank_checksums.size();
  }
  if (step.bytes() > ring_.size()) {
    // Too large to keep. What comes after it can only be run again from the cache that it leaves.
    while (count_ > 0) drop_oldest();
    before_.apply(plan, samples_);
    if (result != nullptr) samples_.assign(result->ids.begin(), result->ids.end());
    return;
  }
  step.offset = (end_ + 7) / 8 * 8;
  if (step.offset + step.bytes() > ring_.size()) step.offset = 0;
  const size_t begin = step.offset, end = step.offset + step.bytes();
  // The ring is written in order, so whatever lies in the way is the oldest; and so is all before it at the end of the ring.
  const auto in_the_way = [&](const Kept& old) { return old.offset < end && begin < old.offset + old.bytes(); };
  while (count_ > 0 && (count_ == index_.size() || in_the_way(kept(0)) || (begin < end_ && kept(0).offset >= end_)))
    drop_oldest();
  std::memcpy(ring_.data() + begin, plan.bytes().data(), plan.bytes().size());
  if (result != nullptr) {
    std::byte* at = ring_.data() + begin + step.plan_bytes;
    std::memcpy(at, result->rank_checksums.data(), step.checksums * sizeof(uint64_t));
    std::memcpy(at + step.checksums * sizeof(uint64_t), result->ids.data(), step.ids * sizeof(int32_t));
  }
  end_ = end;
  ++count_;
  kept(count_ - 1) = step;
}

void FlightRecorder::drop_oldest() {
  const Kept& oldest = kept(0);
  scratch_.assign({ring_.data() + oldest.offset, oldest.plan_bytes});
  before_.apply(scratch_, samples_);
  const std::span<const int32_t> sampled = ids(oldest);
  samples_.assign(sampled.begin(), sampled.end());
  first_ = (first_ + 1) % index_.size();
  --count_;
}

// --- files -------------------------------------------------------------------------------------------------------------------

void FlightRecorder::write(const std::filesystem::path& path) const {
  Writer out(path);
  out.magic();
  out.array(std::span<const char>(config_));
  const TokenShadow::Sizes& sizes = before_.sizes();
  for (const int64_t size : {sizes.virtual_tokens, sizes.blocks, sizes.sequences, sizes.blocks_per_sequence})
    out.number(static_cast<uint64_t>(size));
  out.array(before_.tables());
  out.array(before_.rows());
  out.number(count_);
  for (size_t i = 0; i < count_; ++i) {
    const Kept& step = kept(i);
    const auto* header = reinterpret_cast<const PlanHeader*>(ring_.data() + step.offset);
    out.array(std::span<const std::byte>(ring_).subspan(step.offset, header->bytes));
    out.number(step.completed ? 1 : 0);
    out.array(ids(step));
    out.array(std::span(reinterpret_cast<const uint64_t*>(ring_.data() + step.offset + step.plan_bytes), step.checksums));
  }
  out.close();
}

Flight Flight::read(const std::filesystem::path& path) {
  Reader in(path);
  Flight flight;
  const std::vector<char> config = in.array<char>();
  flight.config.assign(config.begin(), config.end());
  TokenShadow::Sizes sizes;
  for (int64_t* size : {&sizes.virtual_tokens, &sizes.blocks, &sizes.sequences, &sizes.blocks_per_sequence}) {
    *size = static_cast<int64_t>(in.number());
    if (*size < 0 || *size > int64_t{INT32_MAX})
      throw UserError("flight file {} is damaged: a size of {}", path.string(), *size);
  }
  const std::vector<int32_t> tables = in.array<int32_t>(), rows = in.array<int32_t>();
  if (static_cast<int64_t>(tables.size()) != sizes.sequences * sizes.blocks_per_sequence ||
      static_cast<int64_t>(rows.size()) != sizes.blocks * sizes.virtual_tokens)
    throw UserError("flight file {} is damaged: {} table entries and {} rows", path.string(), tables.size(), rows.size());
  flight.before = TokenShadow(sizes);
  std::copy(tables.begin(), tables.end(), flight.before.tables().begin());
  std::copy(rows.begin(), rows.end(), flight.before.rows().begin());
  for (uint64_t left = in.number(); left > 0; --left) {
    FlightStep& step = flight.steps.emplace_back();
    step.plan = in.array<std::byte>();
    step.completed = in.number() != 0;
    step.ids = in.array<int32_t>();
    step.rank_checksums = in.array<uint64_t>();
  }
  return flight;
}

}  // namespace weft

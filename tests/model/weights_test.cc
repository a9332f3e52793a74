#include "model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <sstream>

#include "support/checkpoint_writer.h"
#include "support/golden_files.h"
#include "support/golden_grid.h"
#include "support/prop.h"
#include "support/synthetic_models.h"
#include "support/user_error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::StoredBytes;
using test::StoredTensor;
using test::StoredTensors;
using test::TemporaryFolder;
using test::user_error;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const fs::path kGoldens = WEFT_SOURCE_DIR "/tests/goldens";

/// A packed matrix that is still its rows.
class Rows final : public Matrix {
 public:
  Rows(int64_t out, int64_t in, DType dtype, std::vector<float> rows) : Matrix(out, in, dtype), values(std::move(rows)) {}
  size_t bytes() const override { return static_cast<size_t>(out() * in()) * size_of(dtype()); }
  std::vector<float> values;
};

/// Host memory and packing: all that loading needs of Ops.
class PackOnlyOps final : public Ops {
 public:
  Buffer allocate(size_t bytes) override { return Buffer::host(bytes); }
  void upload(const void* host, View device) override { std::memcpy(device.data(), host, device.bytes()); }
  std::unique_ptr<Matrix> pack(ConstView matrix, DType dtype) override {
    EXPECT_EQ(matrix.dtype(), dtype);
    EXPECT_TRUE(matrix.is_contiguous());
    std::vector<float> rows(static_cast<size_t>(matrix.count()));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = dtype == DType::f32 ? matrix.as<float>()[i] : static_cast<float>(matrix.as<bf16>()[i]);
    }
    return std::make_unique<Rows>(matrix.size(0), matrix.size(1), dtype, std::move(rows));
  }
  size_t packed_bytes(int64_t out, int64_t in, DType dtype) const override {
    return static_cast<size_t>(out * in) * size_of(dtype);
  }

  void download(ConstView, void*) override { unused(); }
  void synchronize() override { unused(); }
  void copy(std::span<const CopyRun>) override { unused(); }
  void copy(ConstView, View) override { unused(); }
  void run_recorded(uint64_t, const std::function<void()>&) override { unused(); }
  void linear(const Matrix&, ConstView, const float*, View) override { unused(); }
  void head_linear(std::span<const std::unique_ptr<Matrix>>, ConstView, View) override { unused(); }
  void expert_linear(std::span<const std::unique_ptr<Matrix>>, ConstView, const ExpertRows&, bool, View) override { unused(); }
  void embed(const int32_t*, ConstView, int64_t, View) override { unused(); }
  void rms_norm(ConstView, const float*, float, View) override { unused(); }
  void add_rms_norm(ConstView, View, const float*, float, View) override { unused(); }
  void add(ConstView, View) override { unused(); }
  void silu_mul(ConstView, View) override { unused(); }
  void route(ConstView, const Routing&, View, View) override { unused(); }
  void group_by_expert(ConstView, int, const ExpertRows&) override { unused(); }
  void combine_experts(ConstView, const ExpertRows&, ConstView, ConstView, View) override { unused(); }
  void rope_table(const int32_t*, std::span<const double>, double, View, View) override { unused(); }
  void rope_append(const RopeAppend&) override { unused(); }
  void gather_rows(const KvView&, const int32_t*, View, View) override { unused(); }
  void attend(const Attention&) override { unused(); }
  void reserve(const AttentionLimits&) override { unused(); }
  size_t reserved_bytes(const AttentionLimits&) const override { return unused(), 0; }
  void merge(std::span<const Partial>, View, View) override { unused(); }
  size_t sampling_workspace_bytes(int64_t, int64_t) const override { return 0; }
  void sample(const SampledLogits&, View, int32_t*) override { unused(); }
  void log_probs(const SampledLogits&, View, const int32_t*, const LogProbs&) override { unused(); }

 private:
  static void unused() { ADD_FAILURE() << "loading needs no arithmetic"; }
};

ModelConfig parse(const json& config, int num_layers = 0) { return parse_config(config.dump(), "config.json", num_layers); }
RankGrid grid_of(const ModelConfig& config, int tp) {
  return RankGrid({.tp = tp, .q_heads = config.q_heads, .kv_heads = config.grid_kv_heads()});
}

Weights load(const fs::path& dir, const ModelConfig& config, int tp, int rank, DType dtype = DType::f32) {
  PackOnlyOps ops;
  return load_weights(config, grid_of(config, tp), Checkpoint(dir), {.dtype = dtype, .tp_rank = rank}, ops);
}

// --- plain tables, to compare with ------------------------------------------------------------------------------------------

struct Table {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;
  float at(int64_t row, int64_t col) const { return values.at(static_cast<size_t>(row * cols + col)); }
  friend bool operator==(const Table&, const Table&) = default;
};
void PrintTo(const Table& t, std::ostream* out) { *out << "[" << t.rows << ", " << t.cols << "]"; }

Table table_of(const MatrixPtr& matrix) {
  if (!matrix) return {};
  return {matrix->out(), matrix->in(), dynamic_cast<const Rows&>(*matrix).values};
}
Table column(const std::vector<float>& values) { return {static_cast<int64_t>(values.size()), 1, values}; }
Table rows_of(const Table& t, int64_t begin, int64_t end) {
  return {end - begin, t.cols, {t.values.begin() + begin * t.cols, t.values.begin() + end * t.cols}};
}
Table transposed(const Table& t) {
  Table out{t.cols, t.rows, std::vector<float>(t.values.size())};
  for (int64_t row = 0; row < t.rows; ++row) {
    for (int64_t col = 0; col < t.cols; ++col) out.values[static_cast<size_t>(col * t.rows + row)] = t.at(row, col);
  }
  return out;
}
Table stacked(const std::vector<Table>& parts) {
  Table out{0, parts.front().cols, {}};
  for (const Table& part : parts) {
    if (part.values.empty()) continue;
    EXPECT_EQ(part.cols, out.cols);
    out.rows += part.rows;
    out.values.insert(out.values.end(), part.values.begin(), part.values.end());
  }
  return out;
}
Table side_by_side(const std::vector<Table>& parts) {
  std::vector<Table> turned;
  for (const Table& part : parts) turned.push_back(transposed(part));
  return transposed(stacked(turned));
}

/// A checkpoint's tensors as loaded by someone else, fp8 multiplied by the scales of its tiles.
std::map<std::string, Table> stored_tables(const fs::path& dir) {
  const StoredTensors tensors = test::read_stored_checkpoint(dir);
  std::map<std::string, Table> out;
  for (const auto& [name, tensor] : tensors) {
    Table table{tensor.shape[0], tensor.shape.size() > 1 ? tensor.shape[1] : 1, {}};
    const auto scale = tensors.find(name + "_scale_inv");
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      double value = tensor.values[i];
      const int64_t row = static_cast<int64_t>(i) / table.cols, col = static_cast<int64_t>(i) % table.cols;
      if (scale != tensors.end()) {
        value *= scale->second.values.at(static_cast<size_t>(row / 128 * scale->second.shape.at(1) + col / 128));
      }
      table.values.push_back(static_cast<float>(value));
    }
    out.emplace(name, std::move(table));
  }
  return out;
}

Table embedding_of(const Weights& weights, const ModelConfig& config) {
  Table out{static_cast<int64_t>(weights.embedding.bytes() / sizeof(float)) / config.hidden, config.hidden, {}};
  out.values.resize(static_cast<size_t>(out.rows * out.cols));
  if (out.rows > 0) std::memcpy(out.values.data(), weights.embedding.data(), weights.embedding.bytes());  // null when empty
  return out;
}

// --- what one rank alone must hold
// --------------------------------------------------------------------------------------------

void expect_is_stored(const Weights& w, const ModelConfig& c, std::map<std::string, Table> stored) {
  const auto take = [&](const std::string& name) {
    EXPECT_TRUE(stored.contains(name)) << name;
    return stored[name];
  };
  EXPECT_EQ(embedding_of(w, c), take("model.embed_tokens.weight"));
  EXPECT_EQ(table_of(w.head), take(c.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight"));
  EXPECT_EQ(column(w.final_norm), take("model.norm.weight"));
  ASSERT_EQ(w.layers.size(), static_cast<size_t>(c.layers));
  for (int i = 0; i < c.layers; ++i) {
    SCOPED_TRACE("layer " + std::to_string(i));
    const LayerWeights& layer = w.layers[static_cast<size_t>(i)];
    const std::string p = "model.layers." + std::to_string(i) + ".", a = p + "self_attn.", m = p + "mlp.";
    EXPECT_EQ(column(layer.input_norm), take(p + "input_layernorm.weight"));
    EXPECT_EQ(column(layer.post_norm), take(p + "post_attention_layernorm.weight"));
    EXPECT_EQ(table_of(layer.o), take(a + "o_proj.weight"));
    if (c.mla) {
      const bool compressed = c.mla->q_lora_rank > 0;
      EXPECT_EQ(table_of(layer.a),
                stacked({take(a + (compressed ? "q_a_proj.weight" : "q_proj.weight")), take(a + "kv_a_proj_with_mqa.weight")}));
      EXPECT_EQ(column(layer.kv_a_norm), take(a + "kv_a_layernorm.weight"));
      if (compressed) {
        EXPECT_EQ(column(layer.q_a_norm), take(a + "q_a_layernorm.weight"));
        EXPECT_EQ(table_of(layer.q_b), take(a + "q_b_proj.weight"));
      }
      const Table kv_b = take(a + "kv_b_proj.weight");
      EXPECT_EQ(table_of(layer.kv_b), kv_b);
      ASSERT_EQ(layer.w_uk.size(), static_cast<size_t>(c.q_heads));
      ASSERT_EQ(layer.w_uv.size(), static_cast<size_t>(c.q_heads));
      const int64_t nope = c.mla->qk_nope_head_dim, up = nope + c.mla->v_head_dim;
      for (int head = 0; head < c.q_heads; ++head) {
        EXPECT_EQ(table_of(layer.w_uk[head]), transposed(rows_of(kv_b, head * up, head * up + nope)));
        EXPECT_EQ(table_of(layer.w_uv[head]), rows_of(kv_b, head * up + nope, head * up + up));
      }
    } else {
      EXPECT_EQ(table_of(layer.qkv),
                stacked({take(a + "q_proj.weight"), take(a + "k_proj.weight"), take(a + "v_proj.weight")}));
      if (c.qkv_bias) {
        EXPECT_EQ(column(layer.qkv_bias), stacked({take(a + "q_proj.bias"), take(a + "k_proj.bias"), take(a + "v_proj.bias")}));
      }
      if (c.o_bias) {
        EXPECT_EQ(column(layer.o_bias), take(a + "o_proj.bias"));
      }
      if (c.qk_norm) {
        EXPECT_EQ(column(layer.q_norm), take(a + "q_norm.weight"));
        EXPECT_EQ(column(layer.k_norm), take(a + "k_norm.weight"));
      }
    }
    if (!c.is_sparse(i)) {
      EXPECT_EQ(table_of(layer.gate_up), stacked({take(m + "gate_proj.weight"), take(m + "up_proj.weight")}));
      EXPECT_EQ(table_of(layer.down), take(m + "down_proj.weight"));
      if (c.mlp_bias) {
        EXPECT_EQ(column(layer.gate_up_bias), stacked({take(m + "gate_proj.bias"), take(m + "up_proj.bias")}));
        EXPECT_EQ(column(layer.down_bias), take(m + "down_proj.bias"));
      }
      continue;
    }
    EXPECT_EQ(table_of(layer.router), take(m + "gate.weight"));
    if (c.moe.has_choice_bias) {
      EXPECT_EQ(column(layer.choice_bias), take(m + "gate.e_score_correction_bias"));
    }
    ASSERT_EQ(layer.expert_down.size(), static_cast<size_t>(c.moe.num_experts));
    for (int e = 0; e < c.moe.num_experts; ++e) {
      const std::string x = m + "experts." + std::to_string(e) + ".";
      EXPECT_EQ(table_of(layer.expert_gate_up[e]), stacked({take(x + "gate_proj.weight"), take(x + "up_proj.weight")}));
      EXPECT_EQ(table_of(layer.expert_down[e]), take(x + "down_proj.weight"));
    }
    if (c.moe.shared_intermediate > 0) {
      const std::string x = m + "shared_experts.";
      EXPECT_EQ(table_of(layer.shared_gate_up), stacked({take(x + "gate_proj.weight"), take(x + "up_proj.weight")}));
      EXPECT_EQ(table_of(layer.shared_down), take(x + "down_proj.weight"));
    }
  }
}

// --- what all ranks together must hold
// ------------------------------------------------------------------------------------------

/// Row slices put back together. `pieces` says how many rows of each part a rank holds: [q, k, v], or twice half for gate and
/// up.
Table rejoined(const std::vector<Table>& ranks, int part, int parts) {
  std::vector<Table> pieces;
  int64_t most = 0, least = INT64_MAX;
  for (const Table& t : ranks) {
    EXPECT_EQ(t.rows % parts, 0);
    const int64_t n = t.rows / parts;
    pieces.push_back(rows_of(t, part * n, (part + 1) * n));
    most = std::max(most, n);
    least = std::min(least, n);
  }
  EXPECT_LE(most - least, 1) << "cut as evenly as possible";
  return stacked(pieces);
}

using Pick = std::function<Table(const LayerWeights&)>;
std::vector<Table> of_ranks(const std::vector<Weights>& ranks, size_t layer, const Pick& pick) {
  std::vector<Table> out;
  for (const Weights& w : ranks) out.push_back(pick(w.layers[layer]));
  return out;
}
Pick matrix(MatrixPtr LayerWeights::*member) {
  return [member](const LayerWeights& w) { return table_of(w.*member); };
}
Pick values(std::vector<float> LayerWeights::*member) {
  return [member](const LayerWeights& w) { return column(w.*member); };
}
Pick of_list(MatrixList LayerWeights::*member, size_t index) {
  return [member, index](const LayerWeights& w) { return table_of((w.*member).at(index)); };
}

void expect_gated(const std::vector<Weights>& ranks, const LayerWeights& whole, size_t layer, const Pick& gate_up,
                  const Pick& down) {
  const Table t = gate_up(whole);
  EXPECT_EQ(rejoined(of_ranks(ranks, layer, gate_up), 0, 2), rows_of(t, 0, t.rows / 2));
  EXPECT_EQ(rejoined(of_ranks(ranks, layer, gate_up), 1, 2), rows_of(t, t.rows / 2, t.rows));
  if (down) {
    EXPECT_EQ(side_by_side(of_ranks(ranks, layer, down)), down(whole));
  }
}

void expect_whole_everywhere(const std::vector<Weights>& ranks, const LayerWeights& whole, size_t layer, const Pick& pick) {
  for (const Table& t : of_ranks(ranks, layer, pick)) {
    EXPECT_EQ(t, pick(whole));
  }
}
void expect_on_first_rank(const std::vector<Weights>& ranks, const LayerWeights& whole, size_t layer, const Pick& pick) {
  const std::vector<Table> tables = of_ranks(ranks, layer, pick);
  EXPECT_EQ(tables[0], pick(whole));
  for (size_t r = 1; r < tables.size(); ++r) EXPECT_EQ(tables[r].rows, 0) << "a bias is added once";
}

/// Query rows follow one another over the ranks; a rank's key and value rows are those of its KV heads.
void expect_qkv(const std::vector<Weights>& ranks, const LayerWeights& whole, size_t layer, const ModelConfig& c,
                const Pick& pick) {
  const int64_t tp = static_cast<int64_t>(ranks.size()), d = c.head_dim, q = c.q_heads * d, kv = c.kv_heads * d;
  const Table t = pick(whole);
  std::vector<Table> queries;
  for (int64_t r = 0; r < tp; ++r) {
    const Table mine = pick(ranks[static_cast<size_t>(r)].layers[layer]);
    queries.push_back(rows_of(mine, 0, q / tp));
    const int64_t first = r * c.kv_heads / tp, count = std::max<int64_t>(1, c.kv_heads / tp);
    const int64_t begin = q + first * d, end = begin + count * d;
    EXPECT_EQ(rows_of(mine, q / tp, mine.rows), stacked({rows_of(t, begin, end), rows_of(t, begin + kv, end + kv)}))
        << "rank " << r;
  }
  EXPECT_EQ(stacked(queries), rows_of(t, 0, q));
}

void expect_latent_attention(const std::vector<Weights>& ranks, const LayerWeights& whole, size_t layer, const ModelConfig& c) {
  const int64_t tp = static_cast<int64_t>(ranks.size()), heads = c.q_heads / tp;
  const Table a = table_of(whole.a);
  if (c.mla->q_lora_rank > 0) {
    expect_whole_everywhere(ranks, whole, layer, matrix(&LayerWeights::a));
    expect_whole_everywhere(ranks, whole, layer, values(&LayerWeights::q_a_norm));
    EXPECT_EQ(stacked(of_ranks(ranks, layer, matrix(&LayerWeights::q_b))), table_of(whole.q_b));
  } else {
    std::vector<Table> queries;
    const int64_t latent = c.mla->latent_row();
    for (const Table& t : of_ranks(ranks, layer, matrix(&LayerWeights::a))) {
      queries.push_back(rows_of(t, 0, t.rows - latent));
      EXPECT_EQ(rows_of(t, t.rows - latent, t.rows), rows_of(a, a.rows - latent, a.rows));
    }
    EXPECT_EQ(stacked(queries), rows_of(a, 0, a.rows - latent));
  }
  expect_whole_everywhere(ranks, whole, layer, values(&LayerWeights::kv_a_norm));
  EXPECT_EQ(stacked(of_ranks(ranks, layer, matrix(&LayerWeights::kv_b))), table_of(whole.kv_b));
  for (int64_t head = 0; head < c.q_heads; ++head) {
    const LayerWeights& owner = ranks[static_cast<size_t>(head / heads)].layers[layer];
    EXPECT_EQ(table_of(owner.w_uk[static_cast<size_t>(head % heads)]), table_of(whole.w_uk[static_cast<size_t>(head)]));
    EXPECT_EQ(table_of(owner.w_uv[static_cast<size_t>(head % heads)]), table_of(whole.w_uv[static_cast<size_t>(head)]));
  }
}

void expect_ranks_make_up(const std::vector<Weights>& ranks, const Weights& whole, const ModelConfig& c) {
  std::vector<Table> embedding, head;
  for (const Weights& w : ranks) {
    embedding.push_back(embedding_of(w, c));
    head.push_back(table_of(w.head));
    EXPECT_EQ(w.final_norm, whole.final_norm);
  }
  EXPECT_EQ(rejoined(embedding, 0, 1), embedding_of(whole, c));
  EXPECT_EQ(rejoined(head, 0, 1), table_of(whole.head));
  for (size_t i = 0; i < whole.layers.size(); ++i) {
    SCOPED_TRACE("layer " + std::to_string(i));
    const LayerWeights& w = whole.layers[i];
    for (const auto member : {&LayerWeights::input_norm, &LayerWeights::post_norm, &LayerWeights::q_norm, &LayerWeights::k_norm,
                              &LayerWeights::choice_bias}) {
      expect_whole_everywhere(ranks, w, i, values(member));
    }
    expect_on_first_rank(ranks, w, i, values(&LayerWeights::o_bias));
    expect_on_first_rank(ranks, w, i, values(&LayerWeights::down_bias));
    EXPECT_EQ(side_by_side(of_ranks(ranks, i, matrix(&LayerWeights::o))), table_of(w.o));
    if (c.mla) {
      expect_latent_attention(ranks, w, i, c);
    } else {
      expect_qkv(ranks, w, i, c, matrix(&LayerWeights::qkv));
      if (c.qkv_bias) expect_qkv(ranks, w, i, c, values(&LayerWeights::qkv_bias));
    }
    if (!c.is_sparse(static_cast<int>(i))) {
      expect_gated(ranks, w, i, matrix(&LayerWeights::gate_up), matrix(&LayerWeights::down));
      if (c.mlp_bias) expect_gated(ranks, w, i, values(&LayerWeights::gate_up_bias), nullptr);
      continue;
    }
    expect_whole_everywhere(ranks, w, i, matrix(&LayerWeights::router));
    for (size_t e = 0; e < w.expert_down.size(); ++e) {
      expect_gated(ranks, w, i, of_list(&LayerWeights::expert_gate_up, e), of_list(&LayerWeights::expert_down, e));
    }
    if (c.moe.shared_intermediate > 0) {
      expect_gated(ranks, w, i, matrix(&LayerWeights::shared_gate_up), matrix(&LayerWeights::shared_down));
    }
  }
}

// --- laws -------------------------------------------------------------------------------------------------------------------

TEST(Weights, OneRankHoldsTheWholeGolden) {
  for (const char* name :
       {"llama_tied", "llama_bias", "qwen3_f32", "qwen3_moe", "deepseek_v2_lite", "deepseek_v3_fp8", "deepseek_v3_mtp"}) {
    SCOPED_TRACE(name);
    const ModelConfig config = load_config(kGoldens / name);
    expect_is_stored(load(kGoldens / name, config, 1, 0), config, stored_tables(kGoldens / name));
  }
}

TEST(Weights, SlicesOfEveryCutMakeUpTheCheckpoint) {
  int cuts = 0;
  for (const auto& model : test::synthetic_models()) {
    SCOPED_TRACE(model.name);
    const TemporaryFolder dir;
    test::write_checkpoint(dir.path(), model.config, test::CheckpointOptions{.dtype = cuts % 2 == 0 ? DType::f32 : DType::bf16},
                           1 + cuts % 3);
    const ModelConfig config = parse(model.config);
    const Weights whole = load(dir.path(), config, 1, 0);
    expect_is_stored(whole, config, stored_tables(dir.path()));
    for (const int tp : RankGrid::legal_tp(config.q_heads, config.grid_kv_heads(), 8)) {
      SCOPED_TRACE("tp " + std::to_string(tp));
      std::vector<Weights> ranks;
      for (int rank = 0; rank < tp; ++rank) ranks.push_back(load(dir.path(), config, tp, rank));
      expect_ranks_make_up(ranks, whole, config);
      ++cuts;
    }
  }
  EXPECT_GE(cuts, 60);
}

TEST(Weights, AShardedCheckpointOfHalvesLoadsLikeASingleOne) {
  const TemporaryFolder one, three;
  const json config = test::synthetic_models().front().config;
  test::write_checkpoint(one.path(), config, test::CheckpointOptions{.dtype = DType::f16});
  test::write_checkpoint(three.path(), config, test::CheckpointOptions{.dtype = DType::f16}, 3);
  expect_is_stored(load(three.path(), parse(config), 1, 0), parse(config), stored_tables(one.path()));
}

TEST(Weights, MoreRanksThanRowsLeavesSomeEmpty) {
  json config = test::synthetic_models().front().config;
  config["intermediate_size"] = 5;
  config["vocab_size"] = 3;
  const TemporaryFolder dir;
  test::write_checkpoint(dir.path(), config);
  std::vector<Weights> ranks;
  for (int rank = 0; rank < 8; ++rank) ranks.push_back(load(dir.path(), parse(config), 8, rank));
  EXPECT_EQ(ranks[7].layers[0].down->in(), 0);
  EXPECT_EQ(ranks[7].head->out(), 0);
  EXPECT_EQ(ranks[7].embedding.bytes(), 0u);
  expect_ranks_make_up(ranks, load(dir.path(), parse(config), 1, 0), parse(config));
}

TEST(Weights, BytesAreThoseThatLoadingTakes) {
  const auto sum_list = [](const MatrixList& list) {
    size_t sum = 0;
    for (const MatrixPtr& m : list) sum += m->bytes();
    return sum;
  };
  const auto sum_layer = [&](const LayerWeights& w) {
    size_t sum = sum_list(w.w_uk) + sum_list(w.w_uv) + sum_list(w.expert_gate_up) + sum_list(w.expert_down);
    for (const MatrixPtr* m :
         {&w.qkv, &w.a, &w.q_b, &w.kv_b, &w.o, &w.gate_up, &w.down, &w.router, &w.shared_gate_up, &w.shared_down}) {
      sum += *m ? (*m)->bytes() : 0;
    }
    for (const auto* v : {&w.input_norm, &w.post_norm, &w.qkv_bias, &w.q_norm, &w.k_norm, &w.q_a_norm, &w.kv_a_norm, &w.o_bias,
                          &w.gate_up_bias, &w.down_bias, &w.choice_bias}) {
      sum += v->size() * sizeof(float);
    }
    return sum;
  };
  PackOnlyOps ops;
  for (const auto& model : test::synthetic_models()) {
    SCOPED_TRACE(model.name);
    const ModelConfig config = parse(model.config);
    const RankGrid grid = grid_of(config, 4);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int rank : {0, 3}) {
        const LoadOptions options{.dtype = dtype, .tp_rank = rank};
        const Weights w = dummy_weights(config, grid, 1, options, ops);
        size_t sum = w.embedding.bytes() + w.head->bytes() + w.final_norm.size() * sizeof(float);
        for (const LayerWeights& layer : w.layers) sum += sum_layer(layer);
        EXPECT_EQ(weight_bytes(config, grid, options, ops), sum);
      }
    }
  }
}

TEST(Weights, AStageHoldsItsLayersAndBothEnds) {
  const json config = test::synthetic_models().front().config;
  const ModelConfig c = parse(config);
  PackOnlyOps ops;
  const Weights all = dummy_weights(c, grid_of(c, 1), 3, {.dtype = DType::f32}, ops);
  const Weights last = dummy_weights(c, grid_of(c, 1), 3, {.dtype = DType::f32, .first_layer = 1}, ops);
  const Weights none = dummy_weights(c, grid_of(c, 1), 3, {.dtype = DType::f32, .first_layer = 1, .last_layer = 1}, ops);
  ASSERT_EQ(last.layers.size(), 1u);
  EXPECT_EQ(last.first_layer, 1);
  EXPECT_EQ(table_of(last.layers[0].qkv), table_of(all.layers[1].qkv));
  EXPECT_EQ(table_of(last.head), table_of(all.head));
  EXPECT_EQ(embedding_of(last, c), embedding_of(all, c));
  EXPECT_TRUE(none.layers.empty());
}

TEST(Weights, NumLayersLeavesTheRestUnread) {
  const fs::path dir = kGoldens / "llama_tied";
  const ModelConfig cut = load_config(dir, 1), all = load_config(dir);
  const Weights w = load(dir, cut, 1, 0);
  ASSERT_EQ(w.layers.size(), 1u);
  EXPECT_EQ(table_of(w.layers[0].qkv), table_of(load(dir, all, 1, 0).layers[0].qkv));
}

// --- dummy weights -----------------------------------------------------------------------------------------------------------

TEST(DummyWeights, EveryCutIsTheSameModel) {
  PackOnlyOps ops;
  for (const auto& model : test::synthetic_models()) {
    SCOPED_TRACE(model.name);
    const ModelConfig c = parse(model.config);
    const Weights whole = dummy_weights(c, grid_of(c, 1), 7, {.dtype = DType::f32}, ops);
    std::vector<Weights> ranks;
    for (int rank = 0; rank < 4; ++rank)
      ranks.push_back(dummy_weights(c, grid_of(c, 4), 7, {.dtype = DType::f32, .tp_rank = rank}, ops));
    expect_ranks_make_up(ranks, whole, c);
  }
}

TEST(DummyWeights, SeedsAndTensorsDiffer) {
  const ModelConfig c = parse(test::synthetic_models().front().config);
  PackOnlyOps ops;
  const auto make = [&](uint64_t seed, DType dtype) { return dummy_weights(c, grid_of(c, 1), seed, {.dtype = dtype}, ops); };
  const Weights a = make(1, DType::f32), b = make(1, DType::f32), other = make(2, DType::f32), rounded = make(1, DType::bf16);
  EXPECT_EQ(table_of(a.head), table_of(b.head));
  EXPECT_NE(table_of(a.head), table_of(other.head));
  EXPECT_EQ(table_of(a.head), table_of(rounded.head)) << "the same model in every dtype";
  EXPECT_NE(table_of(a.layers[0].qkv), table_of(a.layers[1].qkv));
  double sum = 0, squares = 0;
  const Table head = table_of(a.head);
  for (const float x : head.values) {
    sum += x;
    squares += double{x} * x;
  }
  const double n = static_cast<double>(head.values.size());
  EXPECT_NEAR(sum / n, 0, 0.01);
  EXPECT_NEAR(squares / n * c.hidden, 1, 0.05) << "a row keeps the length of a vector";
  for (const float x : a.final_norm) EXPECT_NEAR(x, 1, 0.2);
}

// --- fp8
// ----------------------------------------------------------------------------------------------------------------------

json fp8_config(int q_heads) {
  json config = test::synthetic_models().front().config;
  config.erase("rope_scaling");
  config.update(
      {{"hidden_size", 130},
       {"intermediate_size", 130},
       {"num_attention_heads", q_heads},
       {"head_dim", 10},
       {"num_hidden_layers", 1},
       {"quantization_config",
        {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}}}});
  return config;
}

/// The float or bfloat16 nearest to an exact product, by comparison with its neighbours.
float nearest(double exact, DType dtype) {
  if (dtype == DType::f32) return static_cast<float>(exact);
  const bf16 guess(static_cast<float>(exact));
  float best = static_cast<float>(guess);
  for (const int step : {-1, 1}) {
    bf16 neighbour;
    neighbour.bits = static_cast<uint16_t>(guess.bits + step);
    const auto value = static_cast<float>(neighbour);
    const double gain = std::fabs(best - exact) - std::fabs(value - exact);
    if (gain > 0 || (gain == 0 && neighbour.bits % 2 == 0)) best = value;
  }
  return best;
}

TEST(Fp8Weights, EveryElementKeepsTheScaleOfItsTileAtEveryCut) {
  for (int tp = 1; tp <= 8; ++tp) {
    for (const DType scale_dtype : {DType::f32, DType::bf16}) {
      const TemporaryFolder dir;
      const json config = fp8_config(tp);
      test::write_checkpoint(dir.path(), config,
                             test::CheckpointOptions{.seed = static_cast<uint64_t>(tp), .scale_dtype = scale_dtype});
      const StoredTensors stored = test::read_stored_checkpoint(dir.path());
      const auto exact = [&](const std::string& name, int64_t row, int64_t col) {
        const StoredTensor& codes = stored.at(name);
        const StoredTensor& scales = stored.at(name + "_scale_inv");
        EXPECT_EQ(scales.shape, (std::vector<int64_t>{2, 2}));
        return codes.values.at(static_cast<size_t>(row * 130 + col)) *
               scales.values.at(static_cast<size_t>(row / 128 * 2 + col / 128));
      };
      for (const DType dtype : {DType::f32, DType::bf16}) {
        int64_t row = 0, col = 0;
        for (int rank = 0; rank < tp; ++rank) {
          const Weights w = load(dir.path(), parse(config), tp, rank, dtype);
          const Table gate_up = table_of(w.layers[0].gate_up), down = table_of(w.layers[0].down);
          for (int64_t i = 0; i < gate_up.rows / 2; ++i, ++row) {
            for (int64_t j = 0; j < 130; ++j) {
              ASSERT_EQ(gate_up.at(i, j), nearest(exact("model.layers.0.mlp.gate_proj.weight", row, j), dtype));
              ASSERT_EQ(gate_up.at(i + gate_up.rows / 2, j),
                        nearest(exact("model.layers.0.mlp.up_proj.weight", row, j), dtype));
            }
          }
          for (int64_t j = 0; j < down.cols; ++j, ++col) {
            for (int64_t i = 0; i < 130; ++i) {
              ASSERT_EQ(down.at(i, j), nearest(exact("model.layers.0.mlp.down_proj.weight", i, col), dtype));
            }
          }
        }
        EXPECT_EQ(row, 130);
        EXPECT_EQ(col, 130);
      }
    }
  }
}

// --- refusals
// -----------------------------------------------------------------------------------------------------------------

class BrokenCheckpoint : public ::testing::Test {
 protected:
  /// The message of loading what `change` makes of a good checkpoint.
  std::string error_after(const json& config, const std::function<void(std::vector<StoredBytes>&)>& change) {
    std::vector<StoredBytes> tensors = test::random_tensors(config);
    change(tensors);
    return error_of(config, tensors);
  }
  std::string error_of(const json& config, const std::vector<StoredBytes>& tensors) {
    const TemporaryFolder dir;
    test::write_checkpoint(dir.path(), config, tensors);
    return user_error([&] { load(dir.path(), parse(config), 1, 0); });
  }
  static StoredBytes& find(std::vector<StoredBytes>& tensors, const std::string& name) {
    for (StoredBytes& t : tensors) {
      if (t.name == name) return t;
    }
    ADD_FAILURE() << name;
    return tensors.front();
  }
  static void remove(std::vector<StoredBytes>& tensors, const std::string& name) {
    std::erase_if(tensors, [&](const StoredBytes& t) { return t.name == name; });
  }
  static StoredBytes zeros(const std::string& name, DType dtype, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return {name, dtype, std::move(shape), std::vector<std::byte>(static_cast<size_t>(count) * size_of(dtype))};
  }
  json llama_ = test::synthetic_models().front().config;
};

TEST_F(BrokenCheckpoint, MissingTensorsAreNamedAndCounted) {
  EXPECT_THAT(error_after(llama_, [](auto& t) { remove(t, "lm_head.weight"); }), HasSubstr("1 missing (lm_head.weight)"));
  const std::string many = error_after(
      llama_, [](auto& t) { std::erase_if(t, [](const auto& x) { return x.name.find("layers.1.") != std::string::npos; }); });
  EXPECT_THAT(many, AllOf(HasSubstr("9 missing (model.layers.1."), HasSubstr(", ...)")));
}

TEST_F(BrokenCheckpoint, UnknownTensorsAreNamedAndCounted) {
  const std::string message = error_after(llama_, [](auto& t) {
    for (int i = 0; i < 7; ++i) t.push_back(zeros("adapter." + std::to_string(i), DType::f32, {2}));
    remove(t, "model.norm.weight");
  });
  EXPECT_THAT(message, AllOf(HasSubstr("7 unknown (adapter.0, adapter.1, adapter.2, adapter.3, ...)"),
                             HasSubstr("1 missing (model.norm.weight)")));
  EXPECT_THAT(error_after(llama_, [](auto& t) { t.push_back(zeros("model.layers.2.mlp.up_proj.weight", DType::f32, {2})); }),
              HasSubstr("1 unknown (model.layers.2.mlp.up_proj.weight)"))
      << "a layer beyond num_hidden_layers";
}

TEST_F(BrokenCheckpoint, AVocabularyThatIsNotTheEmbeddingsIsCaught) {
  const TemporaryFolder dir;
  test::write_checkpoint(dir.path(), llama_);
  llama_["vocab_size"] = 130;
  const std::string message = user_error([&] { load(dir.path(), parse(llama_), 1, 0); });
  EXPECT_THAT(message,
              HasSubstr("2 of the wrong shape (model.embed_tokens.weight is [131, 72], must be [130, 72], lm_head.weight"));
}

TEST_F(BrokenCheckpoint, AnyOneTensorOfAnotherShapeOrTypeOrAbsentIsNamed) {
  for (const auto& model : test::synthetic_models()) {
    const std::vector<StoredBytes> good = test::random_tensors(model.config);
    test::for_each_case(
        [&](test::Gen& gen) {
          const auto index = static_cast<size_t>(gen.in(0, static_cast<int64_t>(good.size()) - 1));
          const std::string name = good[index].name;
          const int how = static_cast<int>(gen.in(0, 3));
          std::vector<StoredBytes> t = good;
          std::vector<int64_t> shape = good[index].shape;
          if (how == 0) t.erase(t.begin() + static_cast<int64_t>(index));
          if (how == 1) t[index] = zeros(name, good[index].dtype, (shape.back() += 1, shape));
          if (how == 2) t[index] = zeros(name, DType::i32, shape);
          if (how == 3) t[index] = zeros(name, good[index].dtype, (shape.push_back(1), shape));
          const std::string message = error_of(model.config, t);
          EXPECT_THAT(message, AllOf(HasSubstr("does not fit"), HasSubstr(name)));
        },
        4);
  }
}

TEST_F(BrokenCheckpoint, Fp8NeedsItsScalesAndTheConfigsConsent) {
  const json fp8 = fp8_config(2);
  const std::string name = "model.layers.0.mlp.up_proj.weight", scale = name + "_scale_inv";
  EXPECT_THAT(error_after(fp8, [&](auto& t) { remove(t, scale); }), HasSubstr("1 missing (" + scale + ")"));
  EXPECT_THAT(error_after(fp8,
                          [&](auto& t) {
                            find(t, scale) = zeros(scale, DType::f32, {1, 2});
                          }),
              HasSubstr(scale + " is [1, 2], must be [2, 2]"));
  EXPECT_THAT(error_after(fp8,
                          [&](auto& t) {
                            find(t, scale) = zeros(scale, DType::u8, {2, 2});
                          }),
              HasSubstr(scale + " is U8, must be F32 or BF16"));
  EXPECT_THAT(error_after(fp8,
                          [&](auto& t) {
                            find(t, name) = zeros(name, DType::bf16, {130, 130});
                          }),
              HasSubstr("1 unknown (" + scale + ")"))
      << "a scale beside a weight that has none";
  EXPECT_THAT(error_after(llama_, [&](auto& t) { find(t, name) = zeros(name, DType::f8_e4m3, find(t, name).shape); }),
              HasSubstr(name + " is F8_E4M3, must be F32, BF16 or F16"));
  EXPECT_THAT(error_after(fp8,
                          [&](auto& t) {
                            find(t, "lm_head.weight") = zeros("lm_head.weight", DType::f8_e4m3, {131, 130});
                          }),
              HasSubstr("lm_head.weight is F8_E4M3"));
}

TEST_F(BrokenCheckpoint, Fp8CheckpointsMayKeepSomeProjectionsWide) {
  const TemporaryFolder dir;
  const json config = fp8_config(2);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  std::vector<StoredBytes> tensors = test::random_tensors(config);
  find(tensors, name) = zeros(name, DType::bf16, {130, 130});
  remove(tensors, name + "_scale_inv");
  test::write_checkpoint(dir.path(), config, tensors);
  expect_is_stored(load(dir.path(), parse(config), 1, 0), parse(config), stored_tables(dir.path()));
}

// --- known extras
// ---------------------------------------------------------------------------------------------------------------

/// What is logged while it lives.
class LogCapture {
 public:
  LogCapture() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~LogCapture() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_;
};

TEST(KnownExtras, AreSkippedWithOneLineThatCountsThem) {
  const ModelConfig config = load_config(kGoldens / "deepseek_v3_mtp");
  const Checkpoint checkpoint(kGoldens / "deepseek_v3_mtp");
  const auto drafts = std::count_if(checkpoint.tensors().begin(), checkpoint.tensors().end(),
                                    [](const auto& item) { return item.first.find("layers.2.") != std::string::npos; });
  EXPECT_GT(drafts, 40);
  PackOnlyOps ops;
  const LogCapture log;
  load_weights(config, grid_of(config, 2), checkpoint, {}, ops);
  EXPECT_THAT(log.text(), HasSubstr("skipping " + std::to_string(drafts) + " tensors"));
  const LogCapture other;
  load_weights(config, grid_of(config, 2), checkpoint, {.tp_rank = 1}, ops);
  EXPECT_EQ(other.text(), "") << "rank 0 speaks for all";
}

TEST(KnownExtras, AStoredHeadOfATiedModelIsNotUsed) {
  json config = test::synthetic_models().front().config;
  config["tie_word_embeddings"] = true;
  const TemporaryFolder dir;
  std::vector<StoredBytes> tensors = test::random_tensors(config);
  StoredBytes head = tensors.front();
  ASSERT_EQ(head.name, "model.embed_tokens.weight");
  head.name = "lm_head.weight";
  std::fill(head.bytes.begin(), head.bytes.end(), std::byte{0});
  tensors.push_back(head);
  test::write_checkpoint(dir.path(), config, tensors);
  const ModelConfig c = parse(config);
  const Weights w = load(dir.path(), c, 1, 0);
  EXPECT_EQ(table_of(w.head), embedding_of(w, c));
}

}  // namespace
}  // namespace weft

#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

namespace weft::test {

/// The models of this project once more: float64, one sequence, dense causal attention, plain loops, written from the published
/// model definitions and sharing no code with src/. Slow and obvious; the judge of everything that the engine computes.
class ReferenceModel {
 public:
  /// Reads config.json and the weights. Throws std::runtime_error for what it does not know.
  explicit ReferenceModel(const std::filesystem::path& model_dir);
  ~ReferenceModel();

  struct Router {
    int layer = 0, top_k = 0;
    std::vector<int32_t> experts;  ///< [T, top_k] ascending
    std::vector<double> weights;   ///< their final weights, scaling factor included
  };
  struct Output {
    std::vector<double> logits;               ///< [T, V]
    std::vector<std::vector<double>> hidden;  ///< [layers + 1][T, H]: embeddings, then the stream after each layer
    std::vector<Router> router;               ///< sparse layers in order
  };
  /// Runs all positions of one sequence.
  Output forward(std::span<const int32_t> ids) const;

  int64_t vocab() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace weft::test

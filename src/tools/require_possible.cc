#include "tools/commands.h"

namespace weft {

void require_possible(const EngineConfig& config, const std::vector<Request>& requests) {
  const ModelConfig model = load_config(config.model_dir, config.num_layers);
  const EngineSizes sizes = engine_sizes(model, config);
  for (const Request& request : requests) check_request(request, model, sizes);
}

}  // namespace weft

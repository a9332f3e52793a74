// Log probabilities of every position by the float64 reference model.
//
//   weft_reference_logits MODEL_DIR OUT < token ids      writes OUT: float64 [T, vocab]
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iostream>
#include <vector>

#include "support/reference_model.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: weft_reference_logits MODEL_DIR OUT < token ids\n");
    return 2;
  }
  try {
    std::vector<int32_t> ids;
    for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
    const weft::test::ReferenceModel model(argv[1]);
    std::vector<double> logits = model.forward(ids).logits;
    const size_t vocab = static_cast<size_t>(model.vocab());
    for (size_t row = 0; row < ids.size(); ++row) {
      double* values = logits.data() + row * vocab;
      double largest = values[0], sum = 0;
      for (size_t i = 0; i < vocab; ++i) largest = std::max(largest, values[i]);
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(values[i] - largest);
      for (size_t i = 0; i < vocab; ++i) values[i] -= largest + std::log(sum);
    }
    std::ofstream out(argv[2], std::ios::binary);
    out.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(double)));
    if (!out.flush()) throw std::runtime_error(std::string("cannot write ") + argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft_reference_logits: %s\n", error.what());
    return 1;
  }
  return 0;
}

// golden_generate OUT: writes the golden recordings that hold what no recorded kernel holds. Inputs
// come from a counter-based generator, outputs from the reference.
#include <cstdio>
#include <exception>

#include "generator.hpp"

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: golden_generate OUT\n");
    return 2;
  }
  using namespace dsakit::golden;
  for (const Encoding& encoding : {kFn, kFnuz}) {
    index_file(argv[1], encoding);
    attention_file(argv[1], encoding);
  }
  topk_file(argv[1]);
  context_parallel_file(argv[1]);
  dense_file(argv[1]);
  mxfp4_file(argv[1]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "golden_generate: %s\n", error.what());
  return 2;
}

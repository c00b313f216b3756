// What the reference selects of a row, from installed headers.
#include <cstdint>
#include <cstdio>

#include <dsakit/reference/topk.hpp>

int main() {
  const float logits[] = {1.0F, 4.0F, 4.0F, 2.0F};
  const std::int32_t length = 4;
  std::int32_t chosen[2] = {-1, -1};
  const dsakit::Status status =
      dsakit::reference::topk(logits, 1, 4, nullptr, &length, 2, dsakit::TopkOrder::rank, chosen);
  std::printf("%s: %d %d, want 1 2\n", status ? "ok" : status.what().c_str(), chosen[0], chosen[1]);
  return status && chosen[0] == 1 && chosen[1] == 2 ? 0 : 1;
}

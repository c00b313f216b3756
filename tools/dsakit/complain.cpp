#include "complain.hpp"

#include <cstdio>

#include "dsakit/harness/text.hpp"

void complain(const std::string& what, std::string_view verb) {
  const std::string name = verb.empty() ? "dsakit" : "dsakit " + std::string(verb);
  std::fprintf(stderr, "%s: %s\n", name.c_str(), dsakit::harness::escaped(what).c_str());
}

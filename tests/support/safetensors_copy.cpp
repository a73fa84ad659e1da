// safetensors_copy IN OUT: reads every tensor of IN and writes it to OUT, by our reader and writer.
// tests/python/test_safetensors.py holds both files against the Python package.
#include <cstdio>

#include "cplm/base.h"
#include "cplm/checkpoint.h"

int main(int argc, char** argv) try {
  if (argc != 3) throw cplm::Error("usage: safetensors_copy IN OUT", cplm::ExitCode::kBadConfig);
  const cplm::SafetensorsFile in(argv[1]);
  cplm::NamedTensors tensors;
  for (const auto& item : in.entries()) tensors.emplace_back(item.first, in.read(item.first));
  cplm::write_safetensors(argv[2], tensors, in.metadata());
  return 0;
} catch (const cplm::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.code());
}

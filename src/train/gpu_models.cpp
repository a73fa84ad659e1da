// Known GPUs: the one table of peaks, memory and links.
#include <algorithm>
#include <cctype>
#include <sstream>

#include "cplm/base.h"
#include "cplm/plan.h"

namespace cplm {
namespace {

// Peaks are NVIDIA's for dense operands: its data sheets print twice as much, "with sparsity", for
// tensor cores of data centre GPUs since Hopper. Per GPU, at the boost clock. Sources:
//   H100 SXM, PCIe, NVL: H100 Tensor Core GPU data sheet; H200 SXM, NVL: H200 data sheet;
//   GH200: GH200 Grace Hopper data sheet (96 GB); B200: HGX B200 (an eighth of its totals);
//   GB200: GB200 NVL72 (half of a superchip's); A100: A100 data sheet (SXM4; 80 GB PCIe);
//   L40S, L4, A10, RTX A6000: their data sheets; RTX 6000 Ada, 4090: Ada architecture white paper;
//   RTX 3090: GA102 white paper; RTX 5090: RTX Blackwell white paper. For GeForce the rate with
//   float32 sums, which is half of that with float16 sums.
// Links: NVLink's total divided by two; without NVLink PCIe 4.0 or 5.0 x16. Networks: as NVIDIA's
// DGX of that generation is built (one 400 or 200 Gb/s adapter a GPU), 100 Gb/s for L40S and
// workstation cards in servers, 25 Gb/s for consumer cards.
// clang-format off
const std::vector<GpuModel> kModels = {
  // name          words          bf16    fp32   GB   TB/s  node link  network
  {"h100-pcie",   "H100 PCIe",    756.0,  51.0,  80, 2.000,  8,  64,  25.0},
  {"h100-nvl",    "H100 NVL",     835.0,  60.0,  94, 3.900,  8,  64,  25.0},
  {"h100",        "H100",         989.0,  67.0,  80, 3.350,  8, 450,  50.0},
  {"h200-nvl",    "H200 NVL",     835.0,  60.0, 141, 4.800,  4, 450,  50.0},
  {"h200",        "H200",         989.0,  67.0, 141, 4.800,  8, 450,  50.0},
  {"gh200",       "GH200",        989.0,  67.0,  96, 4.000,  1, 450,  50.0},
  {"b200",        "B200",        2250.0,  75.0, 180, 7.700,  8, 900,  50.0},
  {"gb200",       "GB200",       2500.0,  80.0, 186, 8.000, 72, 900,  50.0},
  {"a100-pcie",   "A100 PCIe",    312.0,  19.5,  80, 1.935,  8,  32,  12.5},
  {"a100-40gb",   "A100 40GB",    312.0,  19.5,  40, 1.555,  8, 300,  25.0},
  {"a100",        "A100",         312.0,  19.5,  80, 2.039,  8, 300,  25.0},
  {"l40s",        "L40S",         362.0,  91.6,  48, 0.864,  8,  32,  12.5},
  {"l4",          "L4",           121.0,  30.3,  24, 0.300,  8,  32,  12.5},
  {"a10",         "A10",          125.0,  31.2,  24, 0.600,  8,  32,  12.5},
  {"rtx6000ada",  "RTX 6000 Ada", 364.2,  91.1,  48, 0.960,  8,  32,  12.5},
  {"rtxa6000",    "RTX A6000",    154.8,  38.7,  48, 0.768,  8,  32,  12.5},
  {"rtx5090",     "RTX 5090",     209.5, 104.8,  32, 1.792,  8,  64,   3.1},
  {"rtx4090",     "RTX 4090",     165.2,  82.6,  24, 1.008,  8,  32,   3.1},
  {"rtx3090",     "RTX 3090",      71.0,  35.6,  24, 0.936,  8,  32,   3.1},
};
// clang-format on

// "NVIDIA A100-SXM4-80GB" -> nvidia, a100, sxm4, 80gb
std::vector<std::string> words_of(const std::string& text) {
  std::string spaced;
  for (const char c : text) {
    spaced += c == '-' ? ' ' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  std::istringstream stream(spaced);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Names of other chips that have a known one's words: parts of a GPU, and slower variants.
bool is_variant(const std::vector<std::string>& words) {
  for (const char* other : {"mig", "laptop", "d", "max", "ti"}) {
    if (contains(words, other)) return true;
  }
  return false;
}

}  // namespace

const std::vector<GpuModel>& gpu_models() { return kModels; }

const GpuModel& gpu_model(const std::string& name) {
  std::vector<std::string> names;
  for (const GpuModel& model : kModels) {
    if (name == model.name) return model;
    names.push_back(model.name);
  }
  throw Error(str("--gpu: expected one of ", join(names, ", "), ", found \"", name, "\""),
              ExitCode::kBadConfig);
}

std::optional<double> known_peak_tflops(const std::string& device_name, Precision precision) {
  const std::vector<std::string> words = words_of(device_name);
  if (precision == Precision::kFloat64 || is_variant(words)) return std::nullopt;
  for (const GpuModel& model : kModels) {
    const std::vector<std::string> wanted = words_of(model.driver_words);
    if (std::all_of(wanted.begin(), wanted.end(),
                    [&](const std::string& word) { return contains(words, word); })) {
      return precision == Precision::kBFloat16 ? model.bf16_tflops : model.fp32_tflops;
    }
  }
  return std::nullopt;
}

double model_flops_utilisation(double flops_per_token, double tokens_per_s, int64_t ranks,
                               double peak_tflops) {
  return flops_per_token * tokens_per_s / (static_cast<double>(ranks) * peak_tflops * 1e12);
}

}  // namespace cplm

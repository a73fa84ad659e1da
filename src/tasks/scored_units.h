// What losses are measured on: windows as in training, or documents by themselves.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cplm/model.h"
#include "tasks/task_data.h"

namespace cplm {

class ScoredUnits {
 public:
  virtual ~ScoredUnits() = default;
  virtual int64_t size() const = 0;
  virtual const std::vector<ShardInfo>& shards() const = 0;
  virtual ModelInput input(int64_t begin, int64_t end, const Subject& subject,
                           at::Device device) const = 0;
  // Bytes of text that the counted targets of a unit stand for.
  virtual int64_t target_bytes(int64_t unit, TextBytes& bytes) const = 0;
};

// Windows of `context` targets, each shard's short last one too; documents cut to context + 1
// tokens. The first `count` of them; 0: all.
std::unique_ptr<ScoredUnits> packed_windows(const std::vector<std::string>& patterns,
                                            int64_t context, int64_t count);
std::unique_ptr<ScoredUnits> single_documents(const std::vector<std::string>& patterns,
                                              int64_t context, int64_t count);
// The same without short ones: every unit has `length` targets. Error(kBadData) where there are
// fewer than `count`, or none.
std::unique_ptr<ScoredUnits> full_windows(const std::vector<std::string>& patterns, int64_t length,
                                          int64_t count);
std::unique_ptr<ScoredUnits> long_documents(const std::vector<std::string>& patterns,
                                            int64_t length, int64_t count);

}  // namespace cplm

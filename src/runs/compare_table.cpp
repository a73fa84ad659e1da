// The console face of a comparison.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cplm/base.h"
#include "cplm/runs.h"
#include "runs/compare_output.h"
#include "runs/text_table.h"

namespace cplm {
namespace {

std::string fixed(double value, int digits) {
  char buffer[512];  // the largest double has 309 digits
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

std::string whole(double value) { return with_commas(std::llround(value)); }

std::string perplexity_of(double loss) {
  const double perplexity = std::exp(loss);
  return perplexity < 1e6 ? fixed(perplexity, 2) : str("exp(", fixed(loss, 2), ")");
}

std::string loss_cell(const Arm& arm) {
  const Spread& loss = arm.last().loss;
  if (arm.runs.size() == 1) return fixed(loss.mean, 4);
  return str(fixed(loss.mean, 4), " +- ", fixed(loss.sd, 4));
}

std::string difference_cell(const Comparison& comparison, const Arm& arm) {
  if (&arm == &comparison.arms.front()) return "baseline";
  if (!arm.difference) return "-";
  const auto signed_loss = [](double value) { return (value < 0 ? "" : "+") + fixed(value, 4); };
  const auto& interval = arm.difference->interval;
  if (!interval) return signed_loss(arm.difference->mean);
  return str(signed_loss(arm.difference->mean), " [", signed_loss(interval->low), ", ",
             signed_loss(interval->high), "]");
}

std::string final_table(const Comparison& comparison) {
  TextTable table({{"run", Align::kLeft},
                   {"head", Align::kLeft},
                   {"seeds"},
                   {"tokens"},
                   {"loss"},
                   {"perplexity"},
                   {"no-copy loss"},
                   {"minus baseline [95 %]"}});
  for (const Arm& arm : comparison.arms) {
    const ArmPoint& last = arm.last();
    table.add_row({arm.name, name_of(arm.head), str(arm.runs.size()), whole(last.tokens),
                   loss_cell(arm), perplexity_of(last.loss.mean),
                   last.copy ? fixed(last.copy->loss_no_copy, 4) : "-",
                   difference_cell(comparison, arm)});
  }
  return "Final validation\n" + table.text();
}

std::string tokens_cell(const std::optional<Reach>& reach) {
  if (!reach) return "-";
  if (!reach->mean) return "not reached";
  return (reach->mean->at_most ? "<= " : "") + whole(reach->mean->tokens);
}

std::string share_text(const std::optional<Crossing>& crossing, const Target& target) {
  return crossing ? fixed(100 * crossing->tokens / target.tokens, 1) + " %" : "not reached";
}

// Of the mean curve; with several seeds also the least and the most of them.
std::string share_cell(const std::optional<Reach>& reach, const std::optional<Target>& target) {
  if (!reach || !target || target->tokens <= 0) return "-";
  std::string cell = reach->mean ? share_text(reach->mean, *target) : "-";
  if (reach->by_run.size() < 2) return cell;
  std::optional<Crossing> least, most = reach->by_run.front();
  for (const auto& crossing : reach->by_run) {
    if (crossing && (!least || crossing->tokens < least->tokens)) least = crossing;
    if (!crossing || (most && crossing->tokens > most->tokens)) most = crossing;
  }
  if (!least) return cell;
  return str(cell, " (", share_text(least, *target), " to ", share_text(most, *target), ")");
}

std::string target_line(const char* phase, const std::optional<Target>& target) {
  if (!target) return "";
  return str("  ", phase, " loss ", fixed(target->loss, 4), ", which took the baseline ",
             whole(target->tokens), " tokens\n");
}

std::string reach_table(const Comparison& comparison) {
  if (comparison.arms.size() < 2) return "";
  TextTable table(
      {{"run", Align::kLeft}, {"before the cooldown"}, {"share"}, {"at the end"}, {"share"}});
  for (auto arm = comparison.arms.begin() + 1; arm != comparison.arms.end(); ++arm) {
    table.add_row({arm->name, tokens_cell(arm->before_cooldown),
                   share_cell(arm->before_cooldown, comparison.before_cooldown),
                   tokens_cell(arm->at_end), share_cell(arm->at_end, comparison.at_end)});
  }
  return str("\nTokens needed to reach the loss of ", comparison.arms.front().name, "\n",
             target_line("before the cooldown:", comparison.before_cooldown),
             target_line("at the end:         ", comparison.at_end), table.text());
}

std::string number_cell(const Arm& arm, const std::string& task, const std::string& number) {
  for (const TaskCurve& curve : arm.tasks) {
    if (curve.task != task || curve.number != number) continue;
    const Spread& value = curve.points.back().value;
    return arm.runs.size() == 1 ? fixed(value.mean, 4)
                                : str(fixed(value.mean, 4), " +- ", fixed(value.sd, 4));
  }
  return "-";
}

// The last of each.
std::string task_table(const Comparison& comparison) {
  std::vector<TextTable::Column> columns = {{"evaluation", Align::kLeft}, {"number", Align::kLeft}};
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Arm& arm : comparison.arms) {
    columns.push_back({arm.name});
    for (const TaskCurve& curve : arm.tasks) {
      const std::pair row{curve.task, curve.number};
      if (std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
    }
  }
  if (rows.empty()) return "";
  TextTable table(columns);
  for (const auto& [task, number] : rows) {
    std::vector<std::string> cells = {task, number};
    for (const Arm& arm : comparison.arms) cells.push_back(number_cell(arm, task, number));
    table.add_row(cells);
  }
  return "\nEvaluations during training, the last of each\n" + table.text();
}

std::string notes_text(const Comparison& comparison) {
  std::vector<std::string> notes = comparison.notes;
  for (const Arm& arm : comparison.arms) {
    if (!arm.difference) continue;
    notes.push_back(
        str("[95 %]: normal approximation over ", with_commas(arm.difference->num_windows),
            " validation windows, each one cluster; the spread between seeds is not in it"));
    break;
  }
  std::string text;
  for (const std::string& note : notes) text += str("- ", note, "\n");
  return text.empty() ? "" : "\nNotes\n" + text;
}

}  // namespace

std::string compare_rules() {
  return R"(How the figures are made
  Arms      Runs whose configs differ in run.* alone, with the same settings changed at the same
            steps if any were (lines of kind "settings" in metrics.jsonl), are seeds of one arm:
            its curve is their mean, +- their standard deviation. The first run's arm is the
            baseline.
  Windows   Only losses over the same validation windows meet: validations from before a run's set
            was changed are left out with a note, runs of different sets are refused.
  Targets   The baseline's validation loss before the cooldown (its last validation before any
            step of decay) and at the end (its last validation). Of S steps the last
            N = round(decay_fraction S) are steps of decay, with the settings in force at the
            step: a run that decayed and was then made longer has its cooldown where it first
            decayed. Constant and cosine schedules have no cooldown: the last validation counts.
  Tokens    The first validation at or below the target decides; between it and the one before,
            tokens are interpolated linearly in the loss. "<=" marks an upper bound: reached by
            the first validation already. Before the cooldown only validations before the run's
            own cooldown count. The share is of the baseline's tokens at the target.
  Paired    The difference of the last validation losses over the same windows: mean =
            sum d_w / sum n_w, with d_w the difference of window w's summed losses and n_w its
            counted targets; interval mean -+ 1.96 se, se^2 = W/(W-1) sum (d_w - mean n_w)^2 /
            (sum n_w)^2, each of the W windows one cluster. With several seeds, of their means.
)";
}

std::string comparison_table(const Comparison& comparison) {
  return final_table(comparison) + reach_table(comparison) + task_table(comparison) +
         notes_text(comparison);
}

}  // namespace cplm

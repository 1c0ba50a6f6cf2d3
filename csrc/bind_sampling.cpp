#include "bind_sampling.h"

#include <nanobind/ndarray.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "executor.h"
#include "sampling.h"

namespace nb = nanobind;

namespace {

using octavo::Choice;
using octavo::Draw;
using octavo::Executor;
using octavo::LogitChanges;
using octavo::TokenChooser;

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
T attribute(nb::handle object, const char* name) {
  return nb::cast<T>(object.attr(name));
}

// Token ids from any Python sequence.
std::vector<int32_t> token_ids(nb::handle sequence, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (const nb::handle item : sequence) {
    ids.push_back(nb::cast<int32_t>(item));
    if (ids.back() >= 0 && ids.back() < vocab_size) continue;
    throw std::invalid_argument("token id " + std::to_string(ids.back()) + " is outside the vocabulary");
  }
  return ids;
}

std::optional<LogitChanges> changes_from(nb::handle sample, nb::handle masked, int64_t vocab_size) {
  const nb::object params = sample.attr("params");
  LogitChanges changes;
  changes.masked = token_ids(masked, vocab_size);
  changes.repetition = attribute<double>(params, "repetition_penalty");
  changes.frequency = attribute<double>(params, "frequency_penalty");
  changes.presence = attribute<double>(params, "presence_penalty");
  for (const auto [id, bias] : attribute<nb::dict>(params, "logit_bias")) {
    changes.biases.emplace_back(token_ids(nb::make_tuple(id), vocab_size)[0], nb::cast<double>(bias));
  }
  const bool scales = changes.repetition != 1.0, subtracts = changes.frequency != 0.0 || changes.presence != 0.0;
  if (!scales && !subtracts && changes.masked.empty() && changes.biases.empty()) return std::nullopt;
  if (scales) changes.prompt_ids = token_ids(sample.attr("prompt_token_ids"), vocab_size);
  if (scales || subtracts) changes.output_ids = token_ids(sample.attr("output_token_ids"), vocab_size);
  return changes;
}

Draw draw_from(nb::handle sample, double uniform, nb::handle masked, const Logits& logits) {
  const nb::object params = sample.attr("params"), num_logprobs = params.attr("logprobs");
  Draw draw{attribute<int64_t>(sample, "row"),
            attribute<double>(params, "temperature"),
            attribute<int64_t>(params, "top_k"),
            attribute<double>(params, "top_p"),
            attribute<double>(params, "min_p"),
            uniform,
            std::nullopt,
            changes_from(sample, masked, static_cast<int64_t>(logits.shape(1)))};
  if (!num_logprobs.is_none()) draw.num_logprobs = nb::cast<int32_t>(num_logprobs);
  if (draw.row < 0 || draw.row >= static_cast<int64_t>(logits.shape(0))) {
    throw std::invalid_argument("row " + std::to_string(draw.row) + " is outside the logits");
  }
  return draw;
}

nb::object logprobs_to(const Choice& choice) {
  if (choice.logprobs.empty()) return nb::none();
  nb::list entries;
  for (const auto& entry : choice.logprobs) {
    entries.append(nb::make_tuple(entry.token_id, entry.logprob, entry.rank));
  }
  return std::move(entries);
}

// Chooses on the threads of an executor, whose memory for it is kept from step to step.
class TokenSampler {
 public:
  TokenSampler(Executor& executor, int64_t vocab_size)
      : executor_(executor), vocab_size_(vocab_size), choosers_(executor.num_threads()) {}
  TokenSampler(const TokenSampler&) = delete;
  TokenSampler& operator=(const TokenSampler&) = delete;

  nb::list choose(const Logits& logits, const nb::sequence& samples, const nb::sequence& uniforms,
                  const nb::sequence& masked) {
    if (static_cast<int64_t>(logits.shape(1)) != vocab_size_) {
      throw std::invalid_argument("logits must have a column for each token");
    }
    const size_t num_samples = nb::len(samples);
    if (nb::len(uniforms) != num_samples || nb::len(masked) != num_samples) {
      throw std::invalid_argument("each sample needs a number and a mask");
    }
    std::vector<Draw> draws;
    for (size_t i = 0; i < num_samples; ++i) {
      draws.push_back(draw_from(samples[i], nb::cast<double>(uniforms[i]), masked[i], logits));
    }
    const std::vector<Choice> choices = run(logits, draws);
    nb::list result;
    for (size_t i = 0; i < draws.size(); ++i) {
      result.append(nb::make_tuple(choices[i].token_id, choices[i].best, logprobs_to(choices[i])));
    }
    return result;
  }

 private:
  std::vector<Choice> run(const Logits& logits, const std::vector<Draw>& draws) {
    const nb::gil_scoped_release unlocked;
    std::vector<Choice> choices(draws.size());
    executor_.for_each(static_cast<int64_t>(draws.size()), [&](int64_t i, int thread) {
      std::unique_ptr<TokenChooser>& chooser = choosers_[thread];
      if (!chooser) chooser = std::make_unique<TokenChooser>(vocab_size_, executor_.kernels());
      choices[i] = chooser->choose(logits.data() + draws[i].row * vocab_size_, draws[i]);
    });
    return choices;
  }

  Executor& executor_;
  const int64_t vocab_size_;
  std::vector<std::unique_ptr<TokenChooser>> choosers_;  // one a thread, made when it is first needed
};

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<TokenSampler>(module, "TokenSampler")
      .def(nb::init<Executor&, int64_t>(), nb::keep_alive<1, 2>(), nb::arg("executor"), nb::arg("vocab_size"))
      .def("choose", &TokenSampler::choose, nb::arg("logits"), nb::arg("samples"), nb::arg("uniforms"),
           nb::arg("masked"));
}

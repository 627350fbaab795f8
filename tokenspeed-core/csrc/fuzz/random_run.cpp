// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "fuzz/random_run.h"

#include <algorithm>
#include <iterator>

namespace tokenspeed::fuzz {

RandomRun::RandomRun(std::uint64_t seed, bool verbose)
    : random_(seed),
      config_(random_config(random_)),
      world_(config_, random_.next(), 2, verbose),
      depth_(random_.below(3)),
      failing_percent_(random_.pick({0, 3, 30})),
      deadline_percent_(random_.pick({0, 10, 70})),
      slow_load_percent_(random_.pick({0, 50, 95})),
      drafting_percent_(config_.max_row_tokens > 1 ? random_.pick({0, 70, 100}) : 0),
      longest_answer_(random_.pick({6, 12, 26})) {
  // Short prompts with long answers outgrow their pool; long prompts have much to share.
  for (int i = longest_answer_ > 12 ? 8 : 24; i > 0; --i) {
    base_.push_back(random_.below(kVocabulary));
  }
}

void RandomRun::send() {
  const int kind = random_.below(100);
  if (kind < 18) {
    submit();
  } else if (kind < 20) {
    submit_again();
  } else if (kind < 26) {
    abort();
  } else if (kind < 27) {
    world_.abort_unknown();
  } else if (kind < 70) {
    plan();
  } else if (kind < 84) {
    if (world_.in_flight() > 0) world_.commit();
  } else if (kind < 85) {
    commit_wrongly();
  } else if (kind < 95) {
    ack();
  } else if (kind < 97) {
    ack_late_or_unknown();
  } else if (kind < 99) {
    if (world_.num_plans() > 0) world_.exchange_digests();
  } else {
    world_.reset();
  }
}

std::vector<TokenId> RandomRun::random_prompt() {
  const int shared = random_.chance(3) ? 0 : random_.between(0, static_cast<int>(base_.size()));
  std::vector<TokenId> prompt(base_.begin(), base_.begin() + shared);
  for (int i = random_.between(0, 6); i > 0; --i) {
    prompt.push_back(random_.below(kVocabulary));
  }
  return prompt;
}

// A conversation goes on: an earlier prompt with a part of its answer, and something new.
std::vector<TokenId> RandomRun::next_turn(Namespace& ns) {
  Truth& before = world_.truth(random_client());
  ns = before.question().ns;
  std::vector<TokenId> prompt;
  for (int i = 0; i < before.prompt_size() + random_.between(0, 5); ++i) {
    prompt.push_back(before.token(i));
  }
  for (int i = random_.between(0, 2); i > 0; --i) {
    prompt.push_back(random_.below(kVocabulary));
  }
  return prompt;
}

void RandomRun::submit() {
  Question question;
  question.id = static_cast<RequestId>(world_.num_clients() + 1);
  question.ns = random_.chance(15) ? 1 : 0;
  question.prompt =
      world_.num_clients() > 0 && random_.chance(30) ? next_turn(question.ns) : random_prompt();
  question.max_new_tokens = random_.between(1, longest_answer_);
  if (random_.chance(30)) {
    question.stop_ids = {random_.below(kVocabulary)};
  }
  question.priority = random_.chance(30) ? random_.between(-3, 3) : 0;
  question.draft_tokens = random_.below(config_.max_row_tokens);
  question.deadline_ms =
      random_.chance(deadline_percent_) ? world_.now_ms() + random_.between(1, 30) : 0;
  world_.submit(question);
}

void RandomRun::submit_again() {
  if (world_.num_open() == 0) {
    return;
  }
  RequestId id = static_cast<RequestId>(world_.num_clients());
  while (!world_.is_open(id)) {
    --id;
  }
  world_.submit_again(id);
}

void RandomRun::abort() {
  if (world_.num_clients() == 0) {
    return;
  }
  const int back = random_.below(std::min(6, world_.num_clients()));
  world_.abort(static_cast<RequestId>(world_.num_clients() - back));
}

// Of everybody who is open: guesses at what comes next, from the first on right, and then not.
void RandomRun::give_drafts() {
  for (int id = world_.num_clients(); id > 0; --id) {
    const auto request = static_cast<RequestId>(id);
    if (!world_.is_open(request)) continue;
    Truth& truth = world_.truth(request);
    const int known = truth.prompt_size() + world_.received(request);
    std::vector<TokenId> drafts;
    for (int i = random_.below(config_.max_row_tokens); i > 0; --i) {
      const TokenId right = truth.token(known + static_cast<int>(drafts.size()));
      drafts.push_back(random_.chance(70) ? right : random_.below(kVocabulary));
    }
    world_.give_drafts(request, drafts);
  }
  if (random_.chance(5)) {
    world_.give_drafts(random_client(), {});  // or over
    world_.give_drafts(static_cast<RequestId>(world_.num_clients() + 1000), {});
    world_.give_drafts_wrongly(random_client());
  }
}

void RandomRun::plan() {
  while (world_.in_flight() > depth_) {
    world_.commit();
  }
  if (world_.num_clients() > 0 && random_.chance(drafting_percent_)) {
    while (world_.in_flight() > 0 && random_.chance(80)) {
      world_.commit();  // so that what is given can be verified
    }
    give_drafts();
  }
  Fate fate;
  if (random_.chance(failing_percent_)) {
    fate.unlucky_row = random_.below(config_.max_seqs);
    fate.luck = random_.pick({Luck::FAILS, Luck::BAD_TOKEN});
  }
  const std::int64_t before = world_.counters().retractions;
  world_.plan(random_.below(3), fate);
  // A request that leaves with a step in flight is rare: something else happens to it at times.
  if (world_.counters().retractions > before) {
    if (random_.chance(30)) abort();
    if (random_.chance(30)) world_.plan(30, Fate{});
  }
}

void RandomRun::commit_wrongly() {
  if (world_.in_flight() > 0 && random_.chance(50)) {
    world_.commit_wrong_shape();
  } else {
    world_.commit_wrong_step();
  }
}

// In any order, and not always with success. Where loads are slow, stores overtake them.
void RandomRun::ack() {
  for (int tries = 2; tries > 0 && !world_.transfers().empty(); --tries) {
    const auto& begun = world_.transfers();
    const auto one = std::next(begun.begin(), random_.below(static_cast<int>(begun.size())));
    if (!world_.is_load(one->first) || !random_.chance(slow_load_percent_)) {
      world_.ack(one->first, !random_.chance(12));
    }
  }
}

void RandomRun::ack_late_or_unknown() {
  const auto& ended = world_.ended_transfers();
  const bool unknown = ended.empty() || random_.chance(20);
  world_.ack_without_effect(
      unknown ? TransferId{1} << 60
              : ended[static_cast<std::size_t>(random_.below(static_cast<int>(ended.size())))]);
}

}  // namespace tokenspeed::fuzz

// Fetches spans of K and V ahead of the attention kernel. Blocks lie anywhere, and no hardware prefetcher follows a
// block table.
#pragma once

#include "avx2_math.h"

namespace octavo::avx2 {

// Brings what follows the span at work into the second-level cache: the item's later spans, then the first one of the
// item after it. A span is read as kLanes lanes side by side, a line of each in turn: a core that follows one address
// has too few requests under way. The kernel has an instruction to spare for each line, hardly more, so a line is
// an address that is there already and an offset that all lanes share.
class SpanFetcher {
 public:
  SpanFetcher(const KVView& kv, const AttentionItem& item) : kv_(&kv), own_(&item), item_(&item), begin_(item.begin) {
    if (item.is_cold) {
      lay_lanes();
      fetch_rest();
    }
    go_on();
  }

  // Turns to the next span once all of this one is under way: after a short one there may be time for more. False where
  // nothing is left to fetch.
  bool goes_on() {
    if (offset_ == lane_bytes_) go_on();
    return offset_ < lane_bytes_;
  }

  // The next `Lines` lines of the span: at most kLanes or a multiple of it.
  template <int Lines>
  void fetch() {
    if (offset_ == lane_bytes_) return;
    constexpr int kAtOnce = Lines < kLanes ? Lines : kLanes;
    static_assert(Lines % kAtOnce == 0);
    OCTAVO_UNROLL for (int i = 0; i < Lines; i += kAtOnce) fetch_lanes<kAtOnce>();
  }

  // What is left of the span that comes next: the item's at `begin`, or the first of the item after it.
  void end_span(int32_t begin) {
    const bool is_beyond = begin < own_->end && (item_ != own_ || begin_ > begin);
    if (!is_beyond) fetch_rest();
  }

 private:
  static constexpr int kLine = 64;
  static constexpr int kLanes = 8;

  template <int N>
  void fetch_lanes() {
    static_assert(N <= kLanes);
    OCTAVO_UNROLL for (int i = 0; i < N; ++i) _mm_prefetch(lanes_[lane_ + i] + offset_, _MM_HINT_T1);
    lane_ += N;
    if (lane_ < kLanes) return;
    lane_ -= kLanes;
    offset_ += kLine;
  }

  void fetch_rest() {
    while (offset_ < lane_bytes_) fetch<kLanes>();
  }

  // Turns to the next span, if there is one.
  __attribute__((noinline)) void go_on() {
    if (item_ == nullptr) return;
    begin_ += kSpan;
    if (item_ != own_ || begin_ >= item_->end) {
      item_ = item_ == own_ ? own_->next : nullptr;
      if (item_ == nullptr) return;
      begin_ = item_->begin;
    }
    lay_lanes();
  }

  // Cuts the runs of memory in which the span lies into pieces of equal length, a lane each. Runs beyond kLanes, which
  // only large blocks of many heads have, are left out, and lanes beyond the pieces repeat the first one.
  void lay_lanes() {
    // A block that holds more than the span has a run in each panel, others are one run with all their panels.
    const bool is_part = kv_->block_size > kSpan;
    const int32_t count = item_->end - begin_ < kSpan ? item_->end - begin_ : kSpan;
    const int32_t all_runs = is_part ? 2 * item_->num_heads : (count + kv_->block_size - 1) / kv_->block_size;
    const int32_t num_runs = all_runs < kLanes ? all_runs : kLanes;
    const int32_t panel_bytes = (is_part ? kSpan : kv_->block_size) * kv_->head_dim * (kv_->is_half ? 2 : 4);
    const int32_t run_bytes = is_part ? panel_bytes : 2 * panel_bytes * item_->num_heads;
    const int32_t pieces = kLanes / num_runs;  // of a run
    lane_ = offset_ = 0;
    lane_bytes_ = (run_bytes / pieces + kLine - 1) / kLine * kLine;
    for (int32_t i = 0; i < num_runs; ++i) {
      const char* run = is_part ? panel_at(i) : block_at(begin_ + i * kv_->block_size);
      touch_pages(run, run_bytes);
      for (int32_t piece = 0; piece < pieces; ++piece) lanes_[piece * num_runs + i] = run + piece * lane_bytes_;
    }
    for (int32_t i = pieces * num_runs; i < kLanes; ++i) lanes_[i] = lanes_[0];
    for (int32_t i = 0; i < kLanes; ++i) lanes_[kLanes + i] = lanes_[i] + kLine;
  }

  const char* address(int64_t element) const {
    return static_cast<const char*>(kv_->data) + element * (kv_->is_half ? 2 : 4);
  }
  const char* block_at(int32_t position) const {
    return address(k_panel(*kv_, item_->block_table[position / kv_->block_size], item_->first_head));
  }
  const char* panel_at(int32_t panel) const {
    const int64_t first = k_panel(*kv_, item_->block_table[begin_ / kv_->block_size], item_->first_head);
    return address(first + (int64_t{panel} * kv_->block_size + begin_ % kv_->block_size) * kv_->head_dim);
  }

  // Looking up addresses is slow, so it starts for all pages at once, well before their lines are fetched.
  static void touch_pages(const char* run, int32_t run_bytes) {
    for (int32_t i = 0; i < run_bytes; i += 4096) _mm_prefetch(run + i, _MM_HINT_T1);
  }

  const KVView* kv_;
  const AttentionItem* own_;
  const AttentionItem* item_;  // whose span is fetched: its own, the next one, or nothing more
  int32_t begin_;              // of that span
  const char* lanes_[2 * kLanes];  // and the same a line further, for steps beyond the last lane
  int32_t lane_bytes_ = 0;
  int32_t lane_ = 0, offset_ = 0;  // of the next line
};

// What a kernel has ahead that fetches nothing.
struct NothingAhead {
  template <int Lines>
  void fetch() {}
  bool goes_on() const { return false; }
};

}  // namespace octavo::avx2

// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// What the kernels take. The border (border/) makes these of the calls that come in, whose tensors
// it has checked.
//
// Strides count elements. Last strides are 1. Tensors are float32 unless their type says otherwise.
// Ids out of range are clamped (pages to the null page 0), so that no index of a batch can fault.

#include <cstdint>

namespace tokenspeed::cpu {

enum Status : int { kOk = 0, kUnsupported = -1, kNoMemory = -2 };

constexpr int kPanel = 16;  // outputs that lie side by side in a packed weight
constexpr int kGroup = 32;  // features that share a scale in a weight of eight-bit codes

struct LinearArgs {
  const float* x;       // [rows, k]
  const float* packed;  // [ceil(n / 16), k, 16]
  const float* bias;    // [n] or null
  float* out;           // [rows, n]
  int64_t x_stride, out_stride;
  int64_t rows, n, k;
};

struct PackArgs {
  const float* weight;  // [n, k]
  float* packed;        // [ceil(n / 16), k, 16]
  int64_t weight_row, weight_column;  // strides
  int64_t n, k;
};

struct LinearInt8Args {
  const float* x;         // [rows, k]
  const uint8_t* packed;  // [ceil(n / 16), ceil(k / 32), 8, 16, 4], codes plus 128
  const float* scale;     // [ceil(k / 32), n]
  const float* bias;      // [n] or null
  float* out;             // [rows, n]
  int64_t x_stride, scale_stride, out_stride;
  int64_t rows, n, k;
};

struct PackInt8Args {
  const int8_t* weight;               // [n, k]
  uint8_t* packed;                    // [ceil(n / 16), ceil(k / 32), 8, 16, 4]
  int64_t weight_row, weight_column;  // strides
  int64_t n, k;
};

struct EmbeddingArgs {
  const int64_t* ids;     // [tokens]
  const float* weight;    // [vocab, hidden], or packed as for linear
  float* out;             // [tokens, hidden]
  int64_t weight_stride;  // 0: packed
  int64_t tokens, vocab, hidden;
};

struct GatherArgs {
  const float* x;        // [rows, hidden]
  const int64_t* index;  // [count]
  float* out;            // [count, hidden]
  int64_t x_stride;
  int64_t rows, count, hidden;
};

struct NormArgs {
  const float* x;       // [rows, hidden]; row r is at x_outer * (r / inner) + x_inner * (r % inner)
  float* residual;      // [rows, hidden], x is added to it in place; or null
  const float* weight;  // [hidden]
  float* out;           // [rows, hidden], contiguous
  int64_t x_outer, x_inner, inner, residual_stride;
  int64_t rows, hidden;
  double eps;
};

struct RopeArgs {
  float* q;                  // [tokens, heads, head_dim], in place
  float* k;                  // [tokens, kv_heads, head_dim], in place
  const int32_t* positions;  // [tokens]
  const float* cos_sin;      // [max_positions, rotary]
  int64_t q_token, q_head, k_token, k_head, cos_sin_stride;  // strides
  int64_t tokens, heads, kv_heads, max_positions, rotary, interleaved;
};

struct Pages {
  float* keys;           // [pages, kv_heads, page_size, head_dim]
  float* values;         // same shape
  const int32_t* table;  // [slots, max_pages]
  int64_t k_page, k_head, k_token, v_page, v_head, v_token, table_stride;  // strides
  int64_t pages, slots, max_pages, kv_heads, page_size, head_dim;
};

struct KvWriteArgs {
  Pages cache;
  const float* k;                            // [tokens, kv_heads, head_dim]
  const float* v;                            // same shape
  const int32_t* token_slot;                 // [tokens]
  const int32_t* positions;                  // [tokens]
  int64_t k_token, k_head, v_token, v_head;  // strides
  int64_t tokens;
};

struct AttentionArgs {
  Pages cache;
  const float* q;              // [tokens, heads, head_dim]
  float* out;                  // [tokens, heads, head_dim], contiguous
  const int32_t* row_slot;     // [rows]
  const int32_t* query_start;  // [rows + 1], or null: one query per row
  const int32_t* kv_len;       // [rows]
  int64_t q_token, q_head;     // strides
  int64_t tokens, rows, heads;
  double scale;
};

struct SiluArgs {
  const float* x;  // [rows, 2 * inter]
  float* out;      // [rows, inter]
  int64_t x_stride;
  int64_t rows, inter;
};

struct AdjustArgs {
  float* logits;            // [rows, vocab], in place
  float* kept;              // [rows, vocab]
  const int64_t* slot;      // [rows]
  const int64_t* position;  // [rows]
  const int32_t* guess;     // [rows], or null: no row stands behind guesses
  const int32_t* wanted;    // [slots, 1]
  const float* penalties;   // [slots, 3]
  const int32_t* counts;    // [slots, vocab]
  const int32_t* bias_id;   // [slots, biases]
  const float* bias_value;
  const int32_t* bias_until;
  int64_t logits_stride, kept_stride, wanted_stride, penalties_stride, counts_stride;
  int64_t id_stride, value_stride, until_stride;
  int64_t rows, vocab, slots, biases;
};

struct RecordArgs {
  int64_t* last_token;     // [slots]
  int32_t* counts;         // [slots, vocab]
  const float* penalties;  // [slots, 3]
  const int64_t* slot;     // [rows]
  const int64_t* token;    // [rows]
  int64_t counts_stride, penalties_stride;
  int64_t rows, vocab, slots;
};

struct LogprobsArgs {
  const float* logits;    // [rows, vocab]
  const int64_t* token;   // [rows]
  const int64_t* slot;    // [rows]
  const int32_t* wanted;  // [slots, 1]
  int32_t* top_id;        // [slots, most]
  float* top_value;       // [slots, most]
  int64_t logits_stride, wanted_stride, id_stride, value_stride;
  int64_t rows, vocab, slots, most;
};

struct MaskLogitsArgs {
  float* logits;        // [rows, vocab]
  const int32_t* mask;  // [masks, ceil(vocab / 32)]
  const int32_t* row;   // [masks]
  int64_t logits_stride, mask_stride;
  int64_t rows, vocab, masks;
};

struct SampleArgs {
  const float* logits;       // [rows, vocab]
  const float* temperature;  // [rows], contiguous as all parameters
  const int32_t* top_k;
  const float* top_p;
  const float* min_p;
  const int64_t* seed;
  const int64_t* position;
  int64_t* out;  // [rows]
  int64_t logits_stride;
  int64_t rows, vocab;
};

// A residual's sum and its norm, in front of a product.
struct AddNormArgs {
  const float* x;         // [rows, hidden]
  const float* residual;  // same shape
  float* summed;          // same shape
  const float* weight;    // [hidden]
  int64_t x_stride, residual_stride, summed_stride;
  int64_t rows, hidden;
  double eps;
};

// The product has no x: the norm comes there. `gated`: its out is [rows, n / 2].
struct AddNormLinearArgs {
  AddNormArgs before;
  LinearArgs product;
  bool gated;
};

struct AddNormLinearInt8Args {
  AddNormArgs before;
  LinearInt8Args product;
  bool gated;
};

struct RopeKvWriteArgs {
  RopeArgs rope;          // its k is read only
  KvWriteArgs write;      // its k is that of rope
  const float* q_weight;  // [head_dim], or null: no norms of heads
  const float* k_weight;  // same
  double eps;
};

// One set of kernels per instruction set.
struct Kernels {
  int (*linear)(const LinearArgs&);
  int (*pack)(const PackArgs&);
  int (*linear_int8)(const LinearInt8Args&);
  int (*pack_int8)(const PackInt8Args&);
  int (*embedding)(const EmbeddingArgs&);
  int (*gather)(const GatherArgs&);
  int (*norm)(const NormArgs&);
  int (*rope)(const RopeArgs&);
  int (*kv_write)(const KvWriteArgs&);
  int (*attention_prefill)(const AttentionArgs&);
  int (*attention_decode)(const AttentionArgs&);
  int (*silu_and_mul)(const SiluArgs&);
  int (*sample)(const SampleArgs&);
  int (*adjust_logits)(const AdjustArgs&);
  int (*record_tokens)(const RecordArgs&);
  int (*logprobs)(const LogprobsArgs&);
  int (*mask_logits)(const MaskLogitsArgs&);
  int (*add_norm_linear)(const AddNormLinearArgs&);
  int (*add_norm_linear_int8)(const AddNormLinearInt8Args&);
  int (*rope_kv_write)(const RopeKvWriteArgs&);
};

}  // namespace tokenspeed::cpu

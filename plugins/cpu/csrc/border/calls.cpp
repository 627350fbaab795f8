// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "calls.h"

#include "../library.h"
#include "../pool.h"
#include "arguments.h"

namespace tokenspeed::cpu {
namespace {

template <class Args>
int compute(const ts_call* call, int (*Kernels::*kernel)(const Args&), const Args& args) {
  const ThreadLimit limit(call->threads);
  const int status = (kernels()->*kernel)(args);
  if (status == kOk) return TS_OK;
  if (status == kNoMemory) return ts_fail(&call->error, TS_NO_MEMORY, "no memory for scratch");
  return ts_fail(&call->error, TS_INVALID, "the kernel does not serve these sizes");
}

// Caches [pages, kv_heads, page_size, head_dim] and the table [slots, max_pages] behind `first`.
Pages take_pages(Arguments& in, int first) {
  Pages c{};
  c.pages = c.kv_heads = c.page_size = c.head_dim = c.slots = c.max_pages = kAny;
  const auto shape = {&c.pages, &c.kv_heads, &c.page_size, &c.head_dim};
  const auto keys = in.tensor<float>(first, "k_cache", shape);
  const auto values = in.tensor<float>(first + 1, "v_cache", shape);
  const auto table = in.tensor<int32_t>(first + 2, "page_table", {&c.slots, &c.max_pages});
  if (in.status() != TS_OK) return c;
  c.keys = keys.data, c.values = values.data, c.table = table.data;
  c.k_page = keys.strides[0], c.k_head = keys.strides[1], c.k_token = keys.strides[2];
  c.v_page = values.strides[0], c.v_head = values.strides[1], c.v_token = values.strides[2];
  c.table_stride = table.strides[0];
  return c;
}

// The packed weight from tensor `first` on, with its scales and bias; n and k are bound.
void take_weight(Arguments& in, int first, LinearArgs& a) {
  int64_t panels = kAny, panel = kPanel;
  a.packed = in.tensor<float>(first, "packed weight", {&panels, &a.k, &panel}).data;
  a.bias = in.optional<float>(first + 1, "bias", {&a.n}).data;
}

void take_weight(Arguments& in, int first, LinearInt8Args& a) {
  int64_t panels = kAny, groups = kAny, codes = kGroup * kPanel;
  a.packed = in.tensor<uint8_t>(first, "packed weight", {&panels, &groups, &codes}).data;
  const auto scale = in.tensor<float>(first + 1, "weight_scale", {&groups, &a.n});
  a.bias = in.optional<float>(first + 2, "bias", {&a.n}).data;
  if (in.status() != TS_OK) return;
  a.scale = scale.data, a.scale_stride = scale.strides[0];
}

// Whether a packed weight has the panels, and the groups, of n outputs and k inputs.
bool has_panels(const LinearArgs& a, const ts_tensor* weight) {
  return a.k > 0 && weight->shape[0] == (a.n + kPanel - 1) / kPanel;
}

bool has_panels(const LinearInt8Args& a, const ts_tensor* weight) {
  return weight->shape[0] == (a.n + kPanel - 1) / kPanel &&
         weight->shape[1] == (a.k + kGroup - 1) / kGroup;
}

int strange_weight(const ts_call* call) {
  return ts_fail(&call->error, TS_INVALID, "the packed weight is not that of this site");
}

// The sum, the norm and the product behind them; `eps` is the one scalar in front of `gated`.
template <class Args>
int run_chain(const ts_call* call, int (*Kernels::*kernel)(const Args&)) {
  Arguments in(call);
  Args a{};
  AddNormArgs& b = a.before;
  auto& p = a.product;
  const int result = call->num_tensors - 1;
  b.rows = b.hidden = p.n = kAny;
  const auto x = in.tensor<float>(0, "x", {&b.rows, &b.hidden});
  const auto residual = in.tensor<float>(1, "residual", {&b.rows, &b.hidden});
  const auto summed = in.tensor<float>(2, "summed", {&b.rows, &b.hidden});
  b.weight = in.tensor<float>(3, "norm_weight", {&b.hidden}).data;
  a.gated = ts_int_trait(call->site, "gated", 0);
  p.rows = b.rows, p.k = b.hidden, p.n = ts_int_trait(call->site, "n", 0);
  take_weight(in, 4, p);
  int64_t width = a.gated ? p.n / 2 : p.n;
  p.out = in.tensor<float>(result, "result", {&b.rows, &width}).data;
  if (in.status() != TS_OK) return in.status();
  if (!has_panels(p, call->tensors[4])) return strange_weight(call);
  if (a.gated && p.n % 2) return ts_fail(&call->error, TS_INVALID, "gate and up have one width");
  b.x = x.data, b.residual = residual.data, b.summed = summed.data;
  b.x_stride = x.strides[0], b.residual_stride = residual.strides[0];
  b.summed_stride = summed.strides[0];
  b.eps = in.real(0);
  return compute(call, kernel, a);
}

// q and k, which come first, then positions and cos_sin from `behind` on.
RopeArgs take_rope(const ts_call* call, Arguments& in, int behind, int64_t& head_dim) {
  RopeArgs a{};
  a.tokens = a.heads = a.kv_heads = a.max_positions = a.rotary = kAny;
  const auto q = in.tensor<float>(0, "q", {&a.tokens, &a.heads, &head_dim});
  const auto k = in.tensor<float>(1, "k", {&a.tokens, &a.kv_heads, &head_dim});
  a.positions = in.tensor<int32_t>(behind, "positions", {&a.tokens}).data;
  const auto cos_sin = in.tensor<float>(behind + 1, "cos_sin", {&a.max_positions, &a.rotary});
  if (in.status() != TS_OK) return a;
  a.q = q.data, a.k = k.data, a.cos_sin = cos_sin.data;
  a.q_token = q.strides[0], a.q_head = q.strides[1];
  a.k_token = k.strides[0], a.k_head = k.strides[1];
  a.cos_sin_stride = cos_sin.strides[0];
  a.interleaved = ts_int_trait(call->site, "interleaved", 0);
  return a;
}

bool has_angles(const RopeArgs& a, int64_t head_dim) {
  return a.rotary <= head_dim && a.max_positions > 0;
}

int strange_angles(const ts_call* call) {
  return ts_fail(&call->error, TS_INVALID, "cos_sin is empty, or wider than a head");
}

int attend(const ts_call* call, int (*Kernels::*kernel)(const AttentionArgs&), bool decode) {
  Arguments in(call);
  AttentionArgs a{};
  a.cache = take_pages(in, 1);
  a.tokens = a.rows = a.heads = kAny;
  int64_t starts = kAny;
  const auto shape = {&a.tokens, &a.heads, &a.cache.head_dim};
  const auto q = in.tensor<float>(0, "q", shape);
  a.row_slot = in.tensor<int32_t>(4, "row_slot", {&a.rows}).data;
  if (!decode) a.query_start = in.tensor<int32_t>(5, "query_start", {&starts}).data;
  a.kv_len = in.tensor<int32_t>(decode ? 5 : 6, "kv_len", {&a.rows}).data;
  a.out = in.tensor<float>(decode ? 6 : 7, "result", shape).data;
  if (in.status() != TS_OK) return in.status();
  if (decode ? a.rows != a.tokens : starts != a.rows + 1) {
    return ts_fail(&call->error, TS_INVALID, "q, row_slot and query_start disagree in their rows");
  }
  if (a.heads % a.cache.kv_heads) {
    return ts_fail(&call->error, TS_INVALID, "the KV heads do not divide the heads of q");
  }
  a.q_token = q.strides[0], a.q_head = q.strides[1];
  a.q = q.data;
  a.scale = in.real(0);
  return compute(call, kernel, a);
}

// One block [rows, hidden], or [outer, inner, hidden] whose rows lie evenly in each outer one.
void describe_rows(const ts_tensor& x, NormArgs& a) {
  const int last = x.ndim - 1;
  a.hidden = x.shape[last];
  a.inner = x.ndim > 1 ? x.shape[last - 1] : 1;
  a.x_inner = x.strides[last - 1];
  a.x_outer = x.ndim > 2 ? x.strides[last - 2] : a.x_inner;
  if (x.ndim == 2) a.inner = 1;  // each row is an outer one
  a.rows = a.inner * (x.ndim > 2 ? x.shape[last - 2] : x.shape[0]);
}

// Normalises the blocks of x's last three dimensions one by one.
int norm_blocks(const ts_call* call, const ts_tensor& x, NormArgs a, int dimension) {
  if (dimension >= x.ndim - 3) return a.rows ? compute(call, &Kernels::norm, a) : TS_OK;
  int64_t step = a.rows * a.hidden;
  for (int d = dimension + 1; d < x.ndim - 3; ++d) step *= x.shape[d];
  for (int64_t i = 0; i < x.shape[dimension]; ++i) {
    if (const int status = norm_blocks(call, x, a, dimension + 1)) return status;
    a.x += x.strides[dimension];
    a.out += step;
  }
  return TS_OK;
}

// Of rows that stand behind guesses, or of none; those have one argument more.
int run_adjusting(const ts_call* call, bool behind_guesses) {
  Arguments in(call);
  AdjustArgs a{};
  const int first = behind_guesses ? 5 : 4;
  a.rows = a.vocab = a.slots = a.biases = kAny;
  int64_t one = 1, three = 3;
  const auto logits = in.tensor<float>(0, "logits", {&a.rows, &a.vocab});
  const auto kept = in.tensor<float>(1, "kept", {&a.rows, &a.vocab});
  a.slot = in.tensor<int64_t>(2, "slot", {&a.rows}).data;
  a.position = in.tensor<int64_t>(3, "position", {&a.rows}).data;
  if (behind_guesses) a.guess = in.tensor<int32_t>(4, "guess", {&a.rows}).data;
  const auto wanted = in.tensor<int32_t>(first, "wanted", {&a.slots, &one});
  const auto penalties = in.tensor<float>(first + 1, "penalties", {&a.slots, &three});
  const auto counts = in.tensor<int32_t>(first + 2, "counts", {&a.slots, &a.vocab});
  const auto id = in.tensor<int32_t>(first + 3, "bias_id", {&a.slots, &a.biases});
  const auto value = in.tensor<float>(first + 4, "bias_value", {&a.slots, &a.biases});
  const auto until = in.tensor<int32_t>(first + 5, "bias_until", {&a.slots, &a.biases});
  if (in.status() != TS_OK) return in.status();
  a.logits = logits.data, a.logits_stride = logits.strides[0];
  a.kept = kept.data, a.kept_stride = kept.strides[0];
  a.wanted = wanted.data, a.wanted_stride = wanted.strides[0];
  a.penalties = penalties.data, a.penalties_stride = penalties.strides[0];
  a.counts = counts.data, a.counts_stride = counts.strides[0];
  a.bias_id = id.data, a.id_stride = id.strides[0];
  a.bias_value = value.data, a.value_stride = value.strides[0];
  a.bias_until = until.data, a.until_stride = until.strides[0];
  return compute(call, &Kernels::adjust_logits, a);
}

}  // namespace

int run_embedding(const ts_call* call) {
  Arguments in(call);
  EmbeddingArgs a{};
  a.tokens = a.hidden = kAny;
  a.vocab = ts_int_trait(call->site, "vocab", 0);
  int64_t panels = (a.vocab + kPanel - 1) / kPanel, panel = kPanel;
  const bool packed = call->tensors[1] && call->tensors[1]->ndim == 3;
  const auto weight = packed ? in.tensor<float>(1, "weight", {&panels, &a.hidden, &panel})
                             : in.tensor<float>(1, "weight", {&a.vocab, &a.hidden});
  a.ids = in.tensor<int64_t>(0, "ids", {&a.tokens}).data;
  a.out = in.tensor<float>(2, "result", {&a.tokens, &a.hidden}).data;
  if (in.status() != TS_OK) return in.status();
  a.weight = weight.data;
  a.weight_stride = packed ? 0 : weight.strides[0];
  return compute(call, &Kernels::embedding, a);
}

int run_linear(const ts_call* call) {
  Arguments in(call);
  LinearArgs a{};
  a.rows = a.n = a.k = kAny;
  take_weight(in, 1, a);
  const auto x = in.tensor<float>(0, "x", {&a.rows, &a.k});
  a.out = in.tensor<float>(3, "result", {&a.rows, &a.n}).data;
  if (in.status() != TS_OK) return in.status();
  if (!has_panels(a, call->tensors[1])) return strange_weight(call);
  a.x = x.data;
  a.x_stride = x.strides[0];
  a.out_stride = a.n;
  return compute(call, &Kernels::linear, a);
}

int run_linear_int8(const ts_call* call) {
  Arguments in(call);
  LinearInt8Args a{};
  a.rows = a.n = a.k = kAny;
  const auto x = in.tensor<float>(0, "x", {&a.rows, &a.k});
  a.out = in.tensor<float>(4, "result", {&a.rows, &a.n}).data;
  take_weight(in, 1, a);
  if (in.status() != TS_OK) return in.status();
  if (!has_panels(a, call->tensors[1])) return strange_weight(call);
  a.x = x.data;
  a.x_stride = x.strides[0];
  a.out_stride = a.n;
  return compute(call, &Kernels::linear_int8, a);
}

int run_add_norm_linear(const ts_call* call) {
  return run_chain(call, &Kernels::add_norm_linear);
}

int run_add_norm_linear_int8(const ts_call* call) {
  return run_chain(call, &Kernels::add_norm_linear_int8);
}

int run_rms_norm(const ts_call* call) {
  Arguments in(call);
  NormArgs a{};
  const ts_tensor* x = in.any_shape(0, "x", 2);
  const ts_tensor* out = in.any_shape(2, "result", 2);
  if (!x || !out) return in.status();
  describe_rows(*x, a);
  a.weight = in.tensor<float>(1, "weight", {&a.hidden}).data;
  if (in.status() != TS_OK) return in.status();
  if (elements_of(x) != elements_of(out)) {
    return ts_fail(&call->error, TS_INVALID, "the result must have the shape of x");
  }
  a.x = static_cast<const float*>(ts_data(x));
  a.out = static_cast<float*>(ts_data(out));
  a.eps = in.real(0);
  return norm_blocks(call, *x, a, 0);
}

int run_add_rms_norm(const ts_call* call) {
  Arguments in(call);
  NormArgs a{};
  a.rows = a.hidden = kAny;
  const auto x = in.tensor<float>(0, "x", {&a.rows, &a.hidden});
  const auto residual = in.tensor<float>(1, "residual", {&a.rows, &a.hidden});
  a.weight = in.tensor<float>(2, "weight", {&a.hidden}).data;
  a.out = in.tensor<float>(3, "result", {&a.rows, &a.hidden}).data;
  if (in.status() != TS_OK) return in.status();
  a.x = x.data, a.residual = residual.data;
  a.inner = 1, a.x_outer = x.strides[0], a.residual_stride = residual.strides[0];
  a.eps = in.real(0);
  return compute(call, &Kernels::norm, a);
}

int run_rope(const ts_call* call) {
  Arguments in(call);
  int64_t head_dim = kAny;
  const RopeArgs a = take_rope(call, in, 2, head_dim);
  if (in.status() != TS_OK) return in.status();
  if (!has_angles(a, head_dim)) return strange_angles(call);
  return compute(call, &Kernels::rope, a);
}

int run_rope_kv_write(const ts_call* call) {
  Arguments in(call);
  RopeKvWriteArgs a{};
  KvWriteArgs& w = a.write;
  w.cache = take_pages(in, 5);
  a.rope = take_rope(call, in, 3, w.cache.head_dim);
  w.tokens = a.rope.tokens;
  const auto v = in.tensor<float>(2, "v", {&w.tokens, &w.cache.kv_heads, &w.cache.head_dim});
  w.token_slot = in.tensor<int32_t>(8, "token_slot", {&w.tokens}).data;
  a.q_weight = in.optional<float>(9, "q_weight", {&w.cache.head_dim}).data;
  a.k_weight = in.optional<float>(10, "k_weight", {&w.cache.head_dim}).data;
  if (in.status() != TS_OK) return in.status();
  if (a.rope.kv_heads != w.cache.kv_heads || !a.q_weight != !a.k_weight) {
    return ts_fail(&call->error, TS_INVALID, "k and its cache, or the weights, disagree");
  }
  if (!has_angles(a.rope, w.cache.head_dim)) return strange_angles(call);
  w.positions = a.rope.positions;
  w.v = v.data, w.v_token = v.strides[0], w.v_head = v.strides[1];
  a.eps = in.real(0);
  return compute(call, &Kernels::rope_kv_write, a);
}

int run_kv_write(const ts_call* call) {
  Arguments in(call);
  KvWriteArgs a{};
  a.cache = take_pages(in, 2);
  a.tokens = kAny;
  const auto shape = {&a.tokens, &a.cache.kv_heads, &a.cache.head_dim};
  const auto k = in.tensor<float>(0, "k", shape);
  const auto v = in.tensor<float>(1, "v", shape);
  a.token_slot = in.tensor<int32_t>(5, "token_slot", {&a.tokens}).data;
  a.positions = in.tensor<int32_t>(6, "positions", {&a.tokens}).data;
  if (in.status() != TS_OK) return in.status();
  a.k = k.data, a.k_token = k.strides[0], a.k_head = k.strides[1];
  a.v = v.data, a.v_token = v.strides[0], a.v_head = v.strides[1];
  return compute(call, &Kernels::kv_write, a);
}

int run_attention_prefill(const ts_call* call) {
  return attend(call, &Kernels::attention_prefill, false);
}

int run_attention_decode(const ts_call* call) {
  return attend(call, &Kernels::attention_decode, true);
}

int run_silu_and_mul(const ts_call* call) {
  Arguments in(call);
  SiluArgs a{};
  a.rows = a.inter = kAny;
  a.out = in.tensor<float>(1, "result", {&a.rows, &a.inter}).data;
  int64_t width = 2 * a.inter;
  const auto x = in.tensor<float>(0, "x", {&a.rows, &width});
  if (in.status() != TS_OK) return in.status();
  a.x = x.data;
  a.x_stride = x.strides[0];
  return compute(call, &Kernels::silu_and_mul, a);
}

int run_gather_rows(const ts_call* call) {
  Arguments in(call);
  GatherArgs a{};
  a.rows = a.count = a.hidden = kAny;
  const auto x = in.tensor<float>(0, "x", {&a.rows, &a.hidden});
  a.index = in.tensor<int64_t>(1, "index", {&a.count}).data;
  a.out = in.tensor<float>(2, "result", {&a.count, &a.hidden}).data;
  if (in.status() != TS_OK) return in.status();
  a.x = x.data;
  a.x_stride = x.strides[0];
  return compute(call, &Kernels::gather, a);
}

int run_sample(const ts_call* call) {
  Arguments in(call);
  SampleArgs a{};
  a.rows = a.vocab = kAny;
  const auto logits = in.tensor<float>(0, "logits", {&a.rows, &a.vocab});
  a.temperature = in.tensor<float>(1, "temperature", {&a.rows}).data;
  a.top_k = in.tensor<int32_t>(2, "top_k", {&a.rows}).data;
  a.top_p = in.tensor<float>(3, "top_p", {&a.rows}).data;
  a.min_p = in.tensor<float>(4, "min_p", {&a.rows}).data;
  a.seed = in.tensor<int64_t>(5, "seed", {&a.rows}).data;
  a.position = in.tensor<int64_t>(6, "position", {&a.rows}).data;
  a.out = in.tensor<int64_t>(7, "result", {&a.rows}).data;
  if (in.status() != TS_OK) return in.status();
  a.logits = logits.data;
  a.logits_stride = logits.strides[0];
  return compute(call, &Kernels::sample, a);
}

int run_adjust_logits(const ts_call* call) { return run_adjusting(call, false); }

int run_adjust_logits_verify(const ts_call* call) { return run_adjusting(call, true); }

int run_record_tokens(const ts_call* call) {
  Arguments in(call);
  RecordArgs a{};
  a.rows = a.vocab = a.slots = kAny;
  int64_t three = 3;
  a.last_token = in.tensor<int64_t>(0, "last_token", {&a.slots}).data;
  const auto counts = in.tensor<int32_t>(1, "counts", {&a.slots, &a.vocab});
  const auto penalties = in.tensor<float>(2, "penalties", {&a.slots, &three});
  a.slot = in.tensor<int64_t>(3, "slot", {&a.rows}).data;
  a.token = in.tensor<int64_t>(4, "token", {&a.rows}).data;
  if (in.status() != TS_OK) return in.status();
  a.counts = counts.data, a.counts_stride = counts.strides[0];
  a.penalties = penalties.data, a.penalties_stride = penalties.strides[0];
  return compute(call, &Kernels::record_tokens, a);
}

int run_logprobs(const ts_call* call) {
  Arguments in(call);
  LogprobsArgs a{};
  a.rows = a.vocab = a.slots = a.most = kAny;
  int64_t one = 1;
  const auto logits = in.tensor<float>(0, "logits", {&a.rows, &a.vocab});
  a.token = in.tensor<int64_t>(1, "token", {&a.rows}).data;
  a.slot = in.tensor<int64_t>(2, "slot", {&a.rows}).data;
  const auto wanted = in.tensor<int32_t>(3, "wanted", {&a.slots, &one});
  const auto id = in.tensor<int32_t>(4, "top_id", {&a.slots, &a.most});
  const auto value = in.tensor<float>(5, "top_value", {&a.slots, &a.most});
  if (in.status() != TS_OK) return in.status();
  a.logits = logits.data, a.logits_stride = logits.strides[0];
  a.wanted = wanted.data, a.wanted_stride = wanted.strides[0];
  a.top_id = id.data, a.id_stride = id.strides[0];
  a.top_value = value.data, a.value_stride = value.strides[0];
  return compute(call, &Kernels::logprobs, a);
}

int run_mask_logits(const ts_call* call) {
  Arguments in(call);
  MaskLogitsArgs a{};
  a.rows = a.vocab = a.masks = kAny;
  const auto logits = in.tensor<float>(0, "logits", {&a.rows, &a.vocab});
  int64_t words = (a.vocab + 31) / 32;
  const auto mask = in.tensor<int32_t>(1, "mask", {&a.masks, &words});
  a.row = in.tensor<int32_t>(2, "row", {&a.masks}).data;
  if (in.status() != TS_OK) return in.status();
  a.logits = logits.data, a.logits_stride = logits.strides[0];
  a.mask = mask.data, a.mask_stride = mask.strides[0];
  return compute(call, &Kernels::mask_logits, a);
}

int pack_panels(ts_pack* pack) {
  const ts_tensor& weight = *pack->weight;
  if (weight.ndim != 2 || !ts_is_dtype(&weight, TS_FLOAT, 32)) {
    return ts_fail(&pack->error, TS_INVALID, "a weight must be a matrix of float32");
  }
  const int64_t n = weight.shape[0], k = weight.shape[1];
  if (!pack->packed) {
    pack->ndim = 3;
    pack->shape[0] = (n + kPanel - 1) / kPanel, pack->shape[1] = k, pack->shape[2] = kPanel;
    pack->dtype = weight.dtype;
    return TS_OK;
  }
  const ThreadLimit limit(pack->threads);
  PackArgs a{};
  a.weight = static_cast<const float*>(ts_data(&weight));
  a.packed = static_cast<float*>(ts_data(pack->packed));
  a.weight_row = weight.strides[0], a.weight_column = weight.strides[1];
  a.n = n, a.k = k;
  kernels()->pack(a);
  return TS_OK;
}

int pack_int8_panels(ts_pack* pack) {
  const ts_tensor& weight = *pack->weight;
  if (weight.ndim != 2 || !ts_is_dtype(&weight, TS_SIGNED, 8)) {
    return ts_fail(&pack->error, TS_INVALID, "a weight of codes must be a matrix of int8");
  }
  const int64_t n = weight.shape[0], k = weight.shape[1];
  if (!pack->packed) {
    pack->ndim = 3;
    pack->shape[0] = (n + kPanel - 1) / kPanel, pack->shape[1] = (k + kGroup - 1) / kGroup;
    pack->shape[2] = kGroup * kPanel;
    pack->dtype = {TS_UNSIGNED, 8, 1};
    return TS_OK;
  }
  const ThreadLimit limit(pack->threads);
  PackInt8Args a{};
  a.weight = static_cast<const int8_t*>(ts_data(&weight));
  a.packed = static_cast<uint8_t*>(ts_data(pack->packed));
  a.weight_row = weight.strides[0], a.weight_column = weight.strides[1];
  a.n = n, a.k = k;
  kernels()->pack_int8(a);
  return TS_OK;
}

}  // namespace tokenspeed::cpu

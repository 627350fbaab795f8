// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// What the kernel table points to.

#include <tokenspeed/kernel.h>

namespace tokenspeed::cpu {

// The order of a call's tensors and scalars is that of the op's page, results last.
int run_embedding(const ts_call* call);
int run_linear(const ts_call* call);
int run_linear_int8(const ts_call* call);
int run_rms_norm(const ts_call* call);
int run_add_rms_norm(const ts_call* call);
int run_rope(const ts_call* call);
int run_kv_write(const ts_call* call);
int run_attention_prefill(const ts_call* call);
int run_attention_decode(const ts_call* call);
int run_silu_and_mul(const ts_call* call);
int run_gather_rows(const ts_call* call);
int run_sample(const ts_call* call);
int run_adjust_logits(const ts_call* call);
int run_adjust_logits_verify(const ts_call* call);
int run_record_tokens(const ts_call* call);
int run_logprobs(const ts_call* call);
int run_mask_logits(const ts_call* call);
int run_add_norm_linear(const ts_call* call);
int run_add_norm_linear_int8(const ts_call* call);
int run_rope_kv_write(const ts_call* call);

// Lays a weight [n, k] out in panels [ceil(n / 16), k, 16].
int pack_panels(ts_pack* pack);
// Lays codes [n, k] out in panels of groups [ceil(n / 16), ceil(k / 32), 512].
int pack_int8_panels(ts_pack* pack);

}  // namespace tokenspeed::cpu

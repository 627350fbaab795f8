// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The kernels of one instruction set.

#include "../args.h"

namespace tokenspeed::cpu::TS_ISA {

int linear(const LinearArgs& a);
int pack(const PackArgs& a);
int linear_int8(const LinearInt8Args& a);
int pack_int8(const PackInt8Args& a);
int embedding(const EmbeddingArgs& a);
int gather(const GatherArgs& a);
int norm(const NormArgs& a);
int rope(const RopeArgs& a);
int kv_write(const KvWriteArgs& a);
int attention_prefill(const AttentionArgs& a);
int attention_decode(const AttentionArgs& a);
int silu_and_mul(const SiluArgs& a);
int sample(const SampleArgs& a);
int adjust_logits(const AdjustArgs& a);
int record_tokens(const RecordArgs& a);
int logprobs(const LogprobsArgs& a);
int mask_logits(const MaskLogitsArgs& a);
int add_norm_linear(const AddNormLinearArgs& a);
int add_norm_linear_int8(const AddNormLinearInt8Args& a);
int rope_kv_write(const RopeKvWriteArgs& a);

}  // namespace tokenspeed::cpu::TS_ISA

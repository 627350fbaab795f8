// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#include "kernels.h"

namespace tokenspeed::cpu::TS_ISA {

Kernels kernels() {
  return {linear,
          pack,
          linear_int8,
          pack_int8,
          embedding,
          gather,
          norm,
          rope,
          kv_write,
          attention_prefill,
          attention_decode,
          silu_and_mul,
          sample,
          adjust_logits,
          record_tokens,
          logprobs,
          mask_logits,
          add_norm_linear,
          add_norm_linear_int8,
          rope_kv_write};
}

}  // namespace tokenspeed::cpu::TS_ISA

// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once
// The kernels of the instruction set in use.

#include "args.h"

namespace tokenspeed::cpu {

// Null when this CPU runs none of those that were built.
const Kernels* kernels();

// Name of the instruction set in use, such as "v4"; "" when there is none.
const char* isa();

}  // namespace tokenspeed::cpu

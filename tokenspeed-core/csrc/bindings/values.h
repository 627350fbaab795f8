// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <nanobind/nanobind.h>

namespace tokenspeed::bindings {

// Enumerations and flat result types.
void bind_values(nanobind::module_& m);

}  // namespace tokenspeed::bindings

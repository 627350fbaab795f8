// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
#pragma once

#include <stdexcept>
#include <string>

namespace tokenspeed::fuzz {

// The control plane did something that it must not do.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* what) {
  if (!holds) {
    throw Failure(what);
  }
}
inline void require(bool holds, const char* what, const std::string& detail) {
  if (!holds) {
    throw Failure(std::string(what) + ": " + detail);
  }
}

}  // namespace tokenspeed::fuzz

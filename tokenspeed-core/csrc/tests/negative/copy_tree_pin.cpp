// SPDX-License-Identifier: MIT
// SPDX-FileCopyrightText: The TokenSpeed authors
// expect: deleted

#include <utility>

#include "cache/prefix_tree.h"

using namespace tokenspeed;

TreePin second(TreePin& pin) {
#ifdef BREAK
  return TreePin(pin);
#else
  return TreePin(std::move(pin));
#endif
}

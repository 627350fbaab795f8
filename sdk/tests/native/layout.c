/* SPDX-License-Identifier: MIT
 * SPDX-FileCopyrightText: The TokenSpeed authors
 *
 * Sizes and offsets as the compiler sees them, one text for each: "struct.field size offset". */
#include <tokenspeed/kernel.h>

#define FIELD(type, field) \
  printf(#type "." #field " %zu %zu\n", sizeof(((type*)0)->field), offsetof(type, field))

int main(void) {
  LAYOUT
  printf("ABI %u\n", (unsigned)TS_ABI);
  return 0;
}

// How a page of cells holds one layer's and KV head's keys and values; kv_pool.h has the layout of the whole.
//
// Included where the instruction set differs: nothing of the standard library in here (kernel_table.h tells why).

#pragma once

#include <stdint.h>

namespace tokenloom {

constexpr int kPageSize = 64;  // positions

// How cells hold a number: float16, or int8 with a float16 scale for each position, head, and of key and value.
enum class KvType { f16, int8 };
constexpr int kKvTypes = 2;
constexpr const char* kKvTypeNames[kKvTypes] = {"f16", "int8"};

// Where one page's cells of one layer and KV head lie (kv_pool.h has the layout).
struct PageView {
    const void* keys;              // [key_size][kPageSize]
    const void* values;            // [kPageSize][value_size]
    const uint16_t* key_scales;    // [kPageSize], int8 only
    const uint16_t* value_scales;  // likewise
};

}  // namespace tokenloom

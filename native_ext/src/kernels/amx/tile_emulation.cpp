#include "kernels/amx/tile_emulation.h"

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace tokenloom::emulated {

namespace {

constexpr int kTiles = 8;
constexpr int kRows = 16;
constexpr int kRowBytes = 64;

struct Tile {
    int rows = 0;
    int row_bytes = 0;  // of what is used, as is rows
    alignas(64) uint8_t data[kRows][kRowBytes] = {};
};

struct State {
    bool configured = false;
    Tile tiles[kTiles];
};

thread_local State state;
std::atomic<uint64_t> all_products{0};

void require(bool condition, const char* what) {
    if (!condition) {
        throw std::logic_error(std::string("tiles: ") + what);
    }
}

Tile& tile_of(int number) {
    require(state.configured, "used without a configuration");
    require(number >= 0 && number < kTiles, "there are eight");
    Tile& tile = state.tiles[number];
    require(tile.rows != 0, "one that is not configured was used");
    return tile;
}

bool all_zero(const uint8_t* bytes, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (bytes[i] != 0) {
            return false;
        }
    }
    return true;
}

}  // namespace

void load_configuration(const void* memory) {
    TileConfiguration c;
    std::memcpy(&c, memory, sizeof(c));
    require(c.palette <= 1, "no such palette");
    if (c.palette == 0) {
        release();
        return;
    }
    require(all_zero(c.reserved, sizeof(c.reserved)) && all_zero(c.more_reserved, sizeof(c.more_reserved)) &&
                all_zero(c.last_reserved, sizeof(c.last_reserved)),
            "reserved bytes of the configuration are not zero");
    for (int t = 0; t < kTiles; ++t) {
        require(c.rows[t] <= kRows, "more than 16 rows");
        require(c.row_bytes[t] <= kRowBytes, "rows of more than 64 bytes");
        require((c.rows[t] == 0) == (c.row_bytes[t] == 0), "rows without bytes, or bytes without rows");
    }
    require(c.start_row == 0, "starting at a row is not emulated");
    state.configured = true;
    for (int t = 0; t < kTiles; ++t) {
        state.tiles[t] = {c.rows[t], c.row_bytes[t], {}};
    }
}

void release() { state = {}; }

void clear(int number) {
    Tile& tile = tile_of(number);
    std::memset(tile.data, 0, sizeof(tile.data));
}

void load(int number, const void* from, size_t stride) {
    Tile& tile = tile_of(number);
    std::memset(tile.data, 0, sizeof(tile.data));  // what lies beyond its rows and their bytes, too
    for (int row = 0; row < tile.rows; ++row) {
        std::memcpy(tile.data[row], static_cast<const uint8_t*>(from) + row * stride, static_cast<size_t>(tile.row_bytes));
    }
}

void store(int number, void* to, size_t stride) {
    const Tile& tile = tile_of(number);
    for (int row = 0; row < tile.rows; ++row) {
        std::memcpy(static_cast<uint8_t*>(to) + row * stride, tile.data[row], static_cast<size_t>(tile.row_bytes));
    }
}

void add_products(int sums_number, int left_number, int right_number) {
    require(sums_number != left_number && left_number != right_number && sums_number != right_number, "operands are the same tile");
    Tile& sums = tile_of(sums_number);
    const Tile& left = tile_of(left_number);
    const Tile& right = tile_of(right_number);
    require(sums.row_bytes % 4 == 0 && left.row_bytes % 4 == 0 && right.row_bytes % 4 == 0, "rows that are not whole groups of four bytes");
    require(sums.rows == left.rows, "sums and left operand differ in rows");
    require(left.row_bytes / 4 == right.rows, "the left operand's k-groups are not the right one's rows");
    require(sums.row_bytes == right.row_bytes, "sums and right operand differ in columns");
    // Columns apart, in loops that compilers make vectors of. Beyond the rows' bytes all is zero.
    constexpr int kColumns = kRowBytes / 4;
    int32_t columns[kRowBytes][kColumns];
    for (int k = 0; k < right.rows; ++k) {
        for (int i = 0; i < 4; ++i) {
            for (int n = 0; n < kColumns; ++n) {
                columns[4 * k + i][n] = static_cast<int8_t>(right.data[k][4 * n + i]);
            }
        }
    }
    for (int m = 0; m < sums.rows; ++m) {
        uint32_t row[kColumns];  // wraps, as int32 does there
        std::memcpy(row, sums.data[m], sizeof(row));
        for (int k = 0; k < left.row_bytes; ++k) {
            const int32_t number = static_cast<int8_t>(left.data[m][k]);
            for (int n = 0; n < kColumns; ++n) {
                row[n] += static_cast<uint32_t>(number * columns[k][n]);
            }
        }
        std::memcpy(sums.data[m], row, sizeof(row));
    }
    all_products.fetch_add(1, std::memory_order_relaxed);
}

uint64_t products() { return all_products.load(std::memory_order_relaxed); }

}  // namespace tokenloom::emulated

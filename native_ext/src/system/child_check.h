// A check that may die, in a child process.
//
// CPUID can promise what a hypervisor then traps, and a compiler or a CPU can have a fault. So before code for an instruction
// set is chosen, it computes something small where an illegal instruction ends nothing else.

#pragma once

#include <map>
#include <mutex>

namespace tokenloom {

// What check(context) says in a child process; false when that dies or hangs. It must take no memory: another thread might
// have held the allocator's lock when the child began. Where no child can be had, true: then CPUID's word has to do; and
// where somebody else waits for this process's children, what it says here.
bool holds_in_child(bool (*check)(void* context), void* context);

// What find_out(table) says, asked once for each table.
template <typename Table>
bool found_once(const Table& table, bool (*find_out)(const Table&)) {
    static std::mutex mutex;
    static std::map<const Table*, bool> known;
    const std::lock_guard lock(mutex);
    const auto found = known.find(&table);
    return found != known.end() ? found->second : known[&table] = find_out(table);
}

// Numbers for such checks that differ, the same each time.
class CheckNumbers {
public:
    unsigned next() { return state_ = state_ * 1664525u + 1013904223u; }
    unsigned char byte() { return static_cast<unsigned char>(next() >> 24); }
    float real() { return static_cast<float>(static_cast<int>(next())) * 0x1p-31f; }  // from -1 to 1

private:
    unsigned state_ = 1;
};

}  // namespace tokenloom

// The kernels for AMX as they are built for the CPU's own tiles, on a CPU that has none: each of their tile instructions is an illegal
// one, which a handler decodes, as the Intel SDM has them encoded, and does on emulated tiles. So what is tried is the object code that
// would run on AMX, and not the emulated set that is built from the same source. See kernels_trapped.sh.

#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/activations.h"
#include "kernels/arranged_tiles.h"
#include "system/child_check.h"
#include "kernels/kernel_table.h"
#include "kernels/amx/tile_emulation.h"

using namespace tokenloom;

namespace {

[[noreturn]] void give_up(const uint8_t* code) {
    std::fprintf(stderr, "not an instruction of tiles: %02x %02x %02x %02x %02x\n", code[0], code[1], code[2], code[3], code[4]);
    _exit(2);
}

// One instruction, whose bytes are VEX (3), opcode, ModRM, and where memory is named SIB and displacement.
struct Instruction {
    const uint8_t* code;
    const greg_t* registers;
    int length = 5;
    uint64_t address = 0;  // without the index, which is the stride
    uint64_t stride = 0;

    uint64_t of_register(int number) const {
        constexpr int kPlaces[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                     REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
        return static_cast<uint64_t>(registers[kPlaces[number]]);
    }
    int prefix() const { return code[2] & 3; }  // 0: none, 1: 66, 2: F3, 3: F2
    int third() const { return ~code[2] >> 3 & 15; }
    int mode() const { return code[4] >> 6; }
    int middle() const { return code[4] >> 3 & 7; }
    int low() const { return code[4] & 7; }

    void read_address() {
        int base = low();
        if (base == 4) {
            const uint8_t sib = code[length++];
            const int index = (sib >> 3 & 7) | ((code[1] & 0x40) == 0 ? 8 : 0);
            stride = index == 4 ? 0 : of_register(index) << (sib >> 6);
            base = sib & 7;
        }
        if (mode() == 0 && base == 5) {
            give_up(code);  // relative to the instruction, or without a base: not what compilers make of these
        }
        address = of_register(base | ((code[1] & 0x20) == 0 ? 8 : 0));
        if (mode() == 1) {
            address += static_cast<uint64_t>(static_cast<int8_t>(code[length++]));
        } else if (mode() == 2) {
            int32_t displacement;
            std::memcpy(&displacement, code + length, sizeof(displacement));
            address += static_cast<uint64_t>(displacement);
            length += 4;
        }
    }
};

int done[6];  // instructions, by kind

void do_tile_instruction(int, siginfo_t*, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    const auto* code = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
    Instruction i{code, registers};
    if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) {  // VEX.128.0F38.W0
        give_up(code);
    }
    if (i.mode() != 3) {
        i.read_address();
    }
    auto* const memory = reinterpret_cast<uint8_t*>(i.address);
    if (code[3] == 0x49 && i.prefix() == 0 && i.mode() != 3 && i.middle() == 0) {  // LDTILECFG
        emulated::load_configuration(memory);
        ++done[0];
    } else if (code[3] == 0x49 && i.prefix() == 0 && code[4] == 0xc0) {  // TILERELEASE
        emulated::release();
        ++done[1];
    } else if (code[3] == 0x49 && i.prefix() == 3 && i.mode() == 3 && i.low() == 0) {  // TILEZERO
        emulated::clear(i.middle());
        ++done[2];
    } else if (code[3] == 0x4b && i.prefix() == 3 && i.mode() != 3 && i.low() == 4) {  // TILELOADD
        emulated::load(i.middle(), memory, i.stride);
        ++done[3];
    } else if (code[3] == 0x4b && i.prefix() == 2 && i.mode() != 3 && i.low() == 4) {  // TILESTORED
        emulated::store(i.middle(), memory, i.stride);
        ++done[4];
    } else if (code[3] == 0x5e && i.prefix() == 3 && i.mode() == 3) {  // TDPBSSD
        emulated::add_products(i.middle(), i.low(), i.third());
        ++done[5];
    } else {
        give_up(code);
    }
    registers[REG_RIP] += i.length;
}

std::vector<uint8_t> weights_of(const FormatTraits& traits, int blocks) {
    CheckNumbers numbers;
    std::vector<uint8_t> out(static_cast<size_t>(blocks) * traits.block_bytes());
    for (uint8_t& byte : out) {
        byte = numbers.byte();
    }
    for (int b = 0; b < blocks; ++b) {
        for (int at = traits.scales_at(); at < traits.block_bytes(); at += 2) {
            const auto scale = static_cast<uint16_t>(0x2000 | (numbers.next() >> 16 & 0x8fff));
            std::memcpy(out.data() + static_cast<size_t>(b) * traits.block_bytes() + at, &scale, sizeof(scale));
        }
    }
    return out;
}

// Whether a group's products with so many tokens are those of the portable kernels.
bool same_bits(int format, int blocks, int tokens) {
    const int columns = blocks * kBlock;
    const std::vector<uint8_t> weights = weights_of(kFormats[format], blocks);
    const PackedGroup group{weights.data(), blocks};
    CheckNumbers numbers;
    std::vector<float> x(static_cast<size_t>(tokens) * columns);
    for (float& number : x) {
        number = numbers.real();
    }
    std::vector<uint8_t> tiles(activation_bytes(ActivationForm::rounded, tokens, columns));
    write_tiles(kPortableRows, {ActivationSource::plain, x.data(), static_cast<size_t>(columns), columns}, ActivationForm::rounded, tokens,
                tiles.data());
    std::vector<float> expected(static_cast<size_t>(tokens) * kGroupRows), got(expected.size());
    for (int tile = 0; tile < tile_count(tokens); ++tile) {
        const int row = tile_first_row(tokens, tile);
        kPortableKernels.multiply[format](group, tiles.data() + activation_bytes(ActivationForm::rounded, row, columns),
                                          tile_first_row(tokens, tile + 1) - row, expected.data() + row * kGroupRows, kGroupRows, {});
    }
    ArrangedTiles arranged;
    arranged.reserve(kAmxKernels.many->bytes(tokens, blocks));
    kAmxKernels.many->multiply[format](group, arranged.arrange(*kAmxKernels.many, tiles.data(), tokens, 0, tile_count(tokens), blocks),
                                       tokens, got.data(), kGroupRows, {weights.data(), weights.data() + weights.size()});
    return std::memcmp(expected.data(), got.data(), got.size() * sizeof(float)) == 0;
}

}  // namespace

int main() {
    struct sigaction action = {};
    action.sa_sigaction = do_tile_instruction;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGILL, &action, nullptr);
    int failures = 0;
    for (int format = 0; format < kPackedFormats; ++format) {
        for (const int blocks : {1, 2, 5, 16, 17, 34}) {
            for (int tokens = kManyTokens; kAmxKernels.many->multiply[format] != nullptr && tokens <= 49; ++tokens) {
                if (!same_bits(format, blocks, tokens)) {
                    std::fprintf(stderr, "format %d, %d blocks, %d tokens differ\n", format, blocks, tokens);
                    ++failures;
                }
            }
        }
    }
    std::printf("%d LDTILECFG, %d TILERELEASE, %d TILEZERO, %d TILELOADD, %d TILESTORED, %d TDPBSSD\n", done[0], done[1], done[2], done[3],
                done[4], done[5]);
    return failures == 0 && done[5] > 0 ? 0 : 1;
}

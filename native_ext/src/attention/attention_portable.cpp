// The reference: plain loops over lanes that a compiler may turn into vectors of any width. Built for what ggml itself
// requires of the CPU, so that a fused multiply-add is an instruction wherever the CPU has one.

#include <cmath>
#include <cstring>

#include "attention/attention_kernel.h"
#include "kernels/power_of_two.h"
#include "kernels/vector8.h"

namespace tokenloom {

namespace {

struct Vector {
    static constexpr int lanes = 8;
    static constexpr int together = 3;
    static constexpr int across = 4;

    Float8 v;

    static Vector zero() { return {splat8(0.0f)}; }
    static Vector all(float x) { return {splat8(x)}; }
    static Vector load(const float* p) {
        Vector out;
        load8(out.v, p);
        return out;
    }
    static Vector load(const uint16_t* p) {
        Vector out;
        load8(out.v, p);
        return out;
    }
    static Vector load(const int8_t* p) {
        Vector out;
        for (int i = 0; i < lanes; ++i) {
            out.v[i] = p[i];
        }
        return out;
    }
    static void ahead(const char*) {}
    void store(float* p) const { store8(p, v); }

    Vector first(int n, Vector other) const {
        for (int i = 0; i < lanes && i < n; ++i) {
            other.v[i] = v[i];
        }
        return other;
    }
    Vector size() const { return {v < 0 ? -v : v}; }
    Vector signed_as(Vector other) const { return {other.v < 0 ? -v : v}; }  // of what size() gave
    Vector power_of_two() const;
    float largest() const {
        float most = v[0];
        for (int i = 1; i < lanes; ++i) {
            most = v[i] > most ? v[i] : most;
        }
        return most;
    }
    static float tree(const Vector (&w)[8]) {
        return sum8(((w[0].v + w[2].v) + (w[4].v + w[6].v)) + ((w[1].v + w[3].v) + (w[5].v + w[7].v)));
    }
};

inline Vector operator+(Vector a, Vector b) { return {a.v + b.v}; }
inline Vector operator-(Vector a, Vector b) { return {a.v - b.v}; }
inline Vector operator*(Vector a, Vector b) { return {a.v * b.v}; }
inline Vector operator/(Vector a, Vector b) { return {a.v / b.v}; }
inline Vector greater(Vector a, Vector b) { return {a.v > b.v ? a.v : b.v}; }
inline Vector fused(Vector a, Vector b, Vector c) {
    float x[8], y[8], z[8];
    a.store(x);
    b.store(y);
    c.store(z);
    for (int i = 0; i < Vector::lanes; ++i) {
        z[i] = std::fma(x[i], y[i], z[i]);
    }
    return Vector::load(z);
}

inline Vector Vector::power_of_two() const {
    const Vector shifted = *this + all(kRoundingShift);
    const Vector rest = *this - (shifted - all(kRoundingShift));
    Vector p = all(kPowerPolynomial[5]);
    for (int i = 4; i >= 0; --i) {
        p = fused(p, rest, all(kPowerPolynomial[i]));
    }
    Unsigned8 exponent, bits;  // unsigned: far below 0 they wrap
    std::memcpy(&exponent, &shifted.v, sizeof(exponent));
    std::memcpy(&bits, &p.v, sizeof(bits));
    bits += exponent << 23;
    std::memcpy(&p.v, &bits, sizeof(bits));
    return {v < splat8(kLowestPower) ? splat8(0.0f) : p.v};
}

}  // namespace

}  // namespace tokenloom

#include "attention/attention_body.h"

namespace tokenloom {

const AttentionKernels kPortableAttention = {"portable", {attend_page<uint16_t>, attend_page<int8_t>}, [] { return true; }};

}  // namespace tokenloom

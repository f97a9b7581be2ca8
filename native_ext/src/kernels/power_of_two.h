// 2^x for x <= 0 with the same bits on every machine, in steps that each instruction set has: the nearest integer n by
// adding and taking away 1.5 * 2^23, a polynomial for 2^(x - n), and n added to the exponent. Relative error below 2e-7;
// 1 at 0; 0 below -100. The polynomial (degree 5, 1 at 0) minimizes the largest relative error over [-1/2, 1/2].

#pragma once

namespace tokenloom {

constexpr float kLowestPower = -100.0f;
constexpr float kRoundingShift = 12582912.0f;
constexpr float kPowerPolynomial[] = {1.0f, 0.6931470036506653f, 0.24022242426872253f, 0.05550733581185341f, 0.009671512991189957f,
                                      0.001326472731307149f};

}  // namespace tokenloom

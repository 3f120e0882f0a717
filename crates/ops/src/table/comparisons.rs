//! Rows of comparisons and predicates.

use super::scalar::truth;
use crate::row::OpOracle::Each;
use crate::row::{OpRow, op};

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    op!(Comparison "eq" ("x", "y") All {} "x == y", Each(|x, _| truth(x[0] == x[1])), "x = y"),
    op!(Comparison "ne" ("x", "y") All {} "x != y", Each(|x, _| truth(x[0] != x[1])), "x ≠ y"),
    op!(Comparison "lt" ("x", "y") Numbers {} "x < y", Each(|x, _| truth(x[0] < x[1])), "x < y"),
    op!(Comparison "le" ("x", "y") Numbers {} "x <= y", Each(|x, _| truth(x[0] <= x[1])), "x ≤ y"),
    op!(Comparison "gt" ("x", "y") Numbers {} "x > y", Each(|x, _| truth(x[0] > x[1])), "x > y"),
    op!(Comparison "ge" ("x", "y") Numbers {} "x >= y", Each(|x, _| truth(x[0] >= x[1])), "x ≥ y"),
    op!(Comparison "is_close" ("x", "y") Floats { "rtol": 0.00001, "atol": 0.00000001 }
        "(x == y) | ((abs(x - y) <= fma(abs(y), {rtol}, {atol} * 1)) & (abs(y) < inf))",
        Each(|x, n| truth(x[0] == x[1]
            || ((x[0] - x[1]).abs() <= n[1] + n[0] * x[1].abs() && x[1].is_finite()))),
        "|x - y| ≤ atol + rtol |y|"),
    op!(Comparison "is_nan" ("x") Floats {} "isnan(x)", Each(|x, _| truth(x[0].is_nan())),
        "whether it is NaN"),
    op!(Comparison "is_inf" ("x") Floats {} "abs(x) == inf", Each(|x, _| truth(x[0].is_infinite())),
        "whether it is an infinity"),
    op!(Comparison "is_finite" ("x") Floats {} "abs(x) < inf",
        Each(|x, _| truth(x[0].is_finite())), "whether it is neither NaN nor an infinity"),
    op!(Comparison "is_pos_inf" ("x") Floats {} "x == inf",
        Each(|x, _| truth(x[0] == f64::INFINITY)), "whether it is the positive infinity"),
    op!(Comparison "is_neg_inf" ("x") Floats {} "x == -inf",
        Each(|x, _| truth(x[0] == f64::NEG_INFINITY)), "whether it is the negative infinity"),
    op!(Comparison "logical_not" ("x") All {} "!bool(x)", Each(|x, _| truth(x[0] == 0.0)),
        "whether it is 0"),
    op!(Comparison "logical_and" ("x", "y") All {} "bool(x) & bool(y)",
        Each(|x, _| truth(x[0] != 0.0 && x[1] != 0.0)), "whether neither is 0"),
    op!(Comparison "logical_or" ("x", "y") All {} "bool(x) | bool(y)",
        Each(|x, _| truth(x[0] != 0.0 || x[1] != 0.0)), "whether one is not 0"),
    op!(Comparison "logical_xor" ("x", "y") All {} "bool(x) ^ bool(y)",
        Each(|x, _| truth((x[0] != 0.0) != (x[1] != 0.0))), "whether exactly one is 0"),
];

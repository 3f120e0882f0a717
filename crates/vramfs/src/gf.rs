//! Arithmetic of GF(256) modulo x^8 + x^4 + x^3 + x^2 + 1, with the generator 2.
//!
//! Invariant: all tables are computed at compile time; none is typed in. Elsewhere: the code
//! generated from it for the device (`network`, `source`).

/// The modulus, with x^8.
pub(crate) const MODULUS: u16 = 0x11D;
/// The number of nonzero elements, which is the generator's order.
pub const ORDER: i32 = 255;

const EXP: [u8; 255] = {
    let mut table = [0; 255];
    let (mut at, mut power) = (0, 1u16);
    while at < 255 {
        table[at] = power as u8;
        power <<= 1;
        if power & 0x100 != 0 {
            power ^= MODULUS;
        }
        at += 1;
    }
    table
};

const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 255 {
        table[EXP[at] as usize] = at as u8;
        at += 1;
    }
    table
};

/// The generator to the power `exponent`, which may be negative.
pub const fn alpha(exponent: i32) -> u8 {
    EXP[exponent.rem_euclid(ORDER) as usize]
}

/// The discrete logarithm of `x`; `None` for zero.
pub const fn log(x: u8) -> Option<u8> {
    match x {
        0 => None,
        _ => Some(LOG[x as usize]),
    }
}

/// `x` times `y`.
pub const fn mul(x: u8, y: u8) -> u8 {
    match (x, y) {
        (0, _) | (_, 0) => 0,
        _ => alpha(LOG[x as usize] as i32 + LOG[y as usize] as i32),
    }
}

/// The multiplicative inverse of `x`; `None` for zero.
pub const fn inverse(x: u8) -> Option<u8> {
    match x {
        0 => None,
        _ => Some(alpha(-(LOG[x as usize] as i32))),
    }
}

/// Multiplication by `x` as a bit matrix: bit `i` of row `o` is set if bit `i` of the factor
/// contributes to bit `o` of the product.
pub const fn matrix(x: u8) -> [u8; 8] {
    let mut rows = [0; 8];
    let mut input = 0;
    while input < 8 {
        let product = mul(x, 1 << input);
        let mut output = 0;
        while output < 8 {
            rows[output] |= (product >> output & 1) << input;
            output += 1;
        }
        input += 1;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Textbook multiplication: shifts, then reduction by the modulus.
    fn by_shifts(x: u8, y: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if y >> bit & 1 != 0 {
                product ^= u16::from(x) << bit;
            }
        }
        for bit in (8..15).rev() {
            if product >> bit & 1 != 0 {
                product ^= MODULUS << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn every_product_is_that_of_shifts_and_every_matrix_gives_it() {
        for x in 0..=255 {
            let rows = matrix(x);
            for y in 0..=255 {
                let product = by_shifts(x, y);
                assert_eq!(mul(x, y), product, "{x} * {y}");
                let bits = rows.map(|row| (row & y).count_ones() as u8 & 1);
                let folded = (0..8).fold(0, |sum, bit| sum | bits[bit] << bit);
                assert_eq!(folded, product, "{x} * {y} by its matrix");
            }
            match inverse(x) {
                Some(inverse) => assert_eq!(by_shifts(x, inverse), 1),
                None => assert_eq!(x, 0),
            }
        }
    }

    #[test]
    fn the_generator_generates_every_element_once() {
        let met: std::collections::BTreeSet<u8> = (-100..155).map(alpha).collect();
        assert_eq!(met.len(), 255);
        assert!((1..=255).all(|x| log(x).map(|log| alpha(i32::from(log))) == Some(x)));
    }
}

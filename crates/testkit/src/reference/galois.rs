//! The field of 256 elements modulo x^8 + x^4 + x^3 + x^2 + 1.

use super::entry::Reference;
use crate::data::{Expected, LaunchInputs};

pub(super) const TABLE: &[Reference] = &[
    Reference::new("gf_products", gf_products),
    Reference::new("gf_powers", gf_powers),
    Reference::new("rs_parity", rs_parity),
    Reference::new("rs_syndromes", rs_syndromes),
];

/// Carry-less product, then the remainder by long division.
fn times(a: u8, b: u8) -> u8 {
    let mut product = (0..8)
        .filter(|i| b >> i & 1 == 1)
        .fold(0u32, |p, i| p ^ u32::from(a) << i);
    for i in (8..16).rev() {
        if product >> i & 1 == 1 {
            product ^= 0x11d << (i - 8);
        }
    }
    product as u8
}

fn gf_products(_: &LaunchInputs, e: &mut Expected) {
    let table: Vec<u8> = (0..65536u32)
        .map(|i| times((i >> 8) as u8, i as u8))
        .collect();
    e.exact("shifted", &table);
    e.exact("tabled", &table);
}

fn gf_powers(_: &LaunchInputs, e: &mut Expected) {
    // Found by trying: the only b with a b = 1; zero has none and is left zero.
    let inverse = |a: u8| (0..=255u8).find(|b| times(a, *b) == 1).unwrap_or(0);
    e.exact("inverse", &(0..=255).map(inverse).collect::<Vec<u8>>());
    e.exact(
        "cube",
        &(0..=255)
            .map(|a| times(times(a, a), a))
            .collect::<Vec<u8>>(),
    );
}

fn rs_parity(c: &LaunchInputs, e: &mut Expected) {
    let (data, matrix): (Vec<u8>, Vec<u8>) = (c.get("data"), c.get("matrix"));
    let parity: Vec<u8> = (0..4 * 256)
        .map(|i| {
            (0..10).fold(0, |s, d| {
                s ^ times(data[d * 256 + i % 256], matrix[i / 256 * 10 + d])
            })
        })
        .collect();
    e.exact("parity", &parity);
}

fn rs_syndromes(c: &LaunchInputs, e: &mut Expected) {
    let words: Vec<u8> = c.get("words");
    let mut out = Vec::new();
    for word in words.chunks(255) {
        let mut point = 1;
        for _ in 0..32 {
            // The polynomial term by term, leading coefficient first.
            let mut power = 1;
            out.push(word.iter().rev().fold(0, |s, coefficient| {
                let term = times(*coefficient, power);
                power = times(power, point);
                s ^ term
            }));
            point = times(point, 2);
        }
    }
    e.exact("syndromes", &out);
}

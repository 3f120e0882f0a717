//! Linear maps over GF(2) as straight-line sequences of XORs, written as CUDA C++.
//!
//! A word of 32 bits holds one bit of 32 symbols, so a multiplication by a constant is a number of
//! XORs of such words. Common subexpressions are computed once: the pair of terms that most outputs
//! share is replaced by a new term, repeatedly (C. Paar, "Optimized arithmetic for Reed-Solomon
//! encoders", 1997). The assembler combines each two remaining XORs into one instruction.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A linear map: for each output, the inputs that it is the XOR of.
#[derive(Clone, Debug)]
pub(crate) struct XorNetwork {
    inputs: usize,
    outputs: Vec<Vec<usize>>,
}

/// A sequence of XORs of two terms each, and the terms that remain for each output. Terms below the
/// number of inputs are inputs; step `n` makes term `inputs + n`.
#[derive(Debug)]
struct XorSequence {
    pairs: Vec<(usize, usize)>,
    outputs: Vec<Vec<usize>>,
}

impl XorNetwork {
    /// The multiplication of one symbol by each of `constants`. With several constants there is an
    /// input symbol for each, and the output is the sum of the products.
    pub(crate) fn products(constants: &[u8]) -> Self {
        let matrices: Vec<[u8; 8]> = constants.iter().map(|x| crate::gf::matrix(*x)).collect();
        let terms = |output: usize| {
            let of = |(at, rows): (usize, &[u8; 8])| {
                let row = rows[output];
                (0..8)
                    .filter(move |bit| row >> bit & 1 != 0)
                    .map(move |bit| 8 * at + bit)
            };
            matrices.iter().enumerate().flat_map(of).collect()
        };
        Self {
            inputs: 8 * constants.len(),
            outputs: (0..8).map(terms).collect(),
        }
    }

    fn steps(&self) -> XorSequence {
        let mut outputs = self.outputs.clone();
        let mut pairs = Vec::new();
        loop {
            let mut counts = BTreeMap::new();
            for terms in &outputs {
                for (at, x) in terms.iter().enumerate() {
                    for y in &terms[at + 1..] {
                        *counts.entry((*x, *y)).or_insert(0) += 1;
                    }
                }
            }
            // Of the most frequent pairs the smallest, so that the result is deterministic.
            let best = counts
                .iter()
                .max_by_key(|(pair, n)| (**n, std::cmp::Reverse(**pair)));
            let Some((&(x, y), _)) = best.filter(|(_, n)| **n > 1) else {
                return XorSequence { pairs, outputs };
            };
            let made = self.inputs + pairs.len();
            pairs.push((x, y));
            for terms in &mut outputs {
                if terms.contains(&x) && terms.contains(&y) {
                    terms.retain(|term| *term != x && *term != y);
                    terms.push(made);
                }
            }
        }
    }

    /// C++ statements that set `output(o)` from `input(i)`. All inputs are read before any output
    /// is set.
    pub(crate) fn statements(
        &self,
        input: impl Fn(usize) -> String,
        output: impl Fn(usize) -> String,
    ) -> String {
        let steps = self.steps();
        let name = |term: usize| match term.checked_sub(self.inputs) {
            None => input(term),
            Some(step) => format!("t{step}"),
        };
        let mut text = String::new();
        for (step, (x, y)) in steps.pairs.iter().enumerate() {
            line(
                &mut text,
                format_args!("const unsigned t{step} = {} ^ {};", name(*x), name(*y)),
            );
        }
        for (at, terms) in steps.outputs.iter().enumerate() {
            let terms: Vec<String> = terms.iter().map(|term| name(*term)).collect();
            let sum = match terms.is_empty() {
                true => "0".to_owned(),
                false => terms.join(" ^ "),
            };
            line(&mut text, format_args!("const unsigned o{at} = {sum};"));
        }
        for at in 0..steps.outputs.len() {
            line(&mut text, format_args!("{} = o{at};", output(at)));
        }
        text
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    match writeln!(text, "        {what}") {
        Ok(()) => {}
        Err(_) => unreachable!("a string takes everything"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gf;

    /// Evaluates the sequence for these inputs.
    fn run(network: &XorNetwork, inputs: &[bool]) -> Vec<bool> {
        let steps = network.steps();
        let mut terms = inputs.to_vec();
        for (x, y) in steps.pairs {
            terms.push(terms[x] ^ terms[y]);
        }
        let sum = |of: &Vec<usize>| of.iter().fold(false, |sum, term| sum ^ terms[*term]);
        steps.outputs.iter().map(sum).collect()
    }

    #[test]
    fn steps_come_to_the_products_with_fewer_of_them() {
        let mut random = fastrand::Rng::new();
        let seed = random.get_seed();
        for count in [1, 1, 1, 2, 8] {
            let constants: Vec<u8> = (0..count).map(|_| random.u8(..)).collect();
            let network = XorNetwork::products(&constants);
            for _ in 0..20 {
                let symbols: Vec<u8> = (0..count).map(|_| random.u8(..)).collect();
                let bits: Vec<bool> = symbols
                    .iter()
                    .flat_map(|symbol| (0..8).map(move |bit| symbol >> bit & 1 != 0))
                    .collect();
                let product = constants
                    .iter()
                    .zip(&symbols)
                    .fold(0, |sum, (x, y)| sum ^ gf::mul(*x, *y));
                let got = run(&network, &bits);
                let got = (0..8).fold(0, |sum, bit| sum | u8::from(got[bit]) << bit);
                assert_eq!(got, product, "seed {seed}");
            }
            let plain: usize = network
                .outputs
                .iter()
                .map(|terms| terms.len().max(1) - 1)
                .sum();
            let steps = network.steps();
            let left: usize = steps
                .outputs
                .iter()
                .map(|terms| terms.len().max(1) - 1)
                .sum();
            assert!(steps.pairs.len() + left <= plain);
        }
    }
}

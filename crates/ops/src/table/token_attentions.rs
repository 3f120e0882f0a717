//! Row of attention of tokens of which each is the last one of its sequence, for decoding: one
//! launch for what `attention_inputs` and `paged_attention` do.

use fercuda_jit::TypeClass;
use fercuda_kernels::NativeProgram;
use fercuda_kernels::head_inputs::{HeadNumbers, HeadViews};
use fercuda_kernels::token_attention::{TokenAttention, has_token_attention, token_attention};
use fercuda_tensor::{Dtype, Layout};

use super::attention::{
    attended, inputs_expected, inputs_results, of_tokens, pairs_of, scale_of, window_of,
};
use crate::arrays::HostArray;
use crate::parameters::{Misfit, OpParameters};
use crate::row::{ExpectedElement, OpRow, RowLowering, RowResults, native};

/// Number of the first operand that may be left out: a norm's weights.
const NORMS: usize = 9;

/// The operands of `attention_inputs`.
fn of_inputs<T: Clone>(all: &[T]) -> Vec<T> {
    let norms = all.get(NORMS..).unwrap_or_default();
    all[..6].iter().chain(norms).cloned().collect()
}

fn results(op: &OpParameters, operands: &[Layout]) -> RowResults {
    let own = inputs_results(op, &of_inputs(operands))?;
    let [(dtype, q), (cached, k), (_, v)] = own.as_slice() else {
        return Ok(own);
    };
    let (&[tokens, heads, length], &[_, places, shared, _]) = (q.as_slice(), k.as_slice()) else {
        return Ok(own);
    };
    if shared == 0 || heads == 0 || heads % shared != 0 || places == 0 {
        let what = format!("{heads} heads over {shared} of blocks of {places} places");
        return Err(Misfit::new(
            what,
            "a multiple of the cache's heads, and places",
        ));
    }
    if k != v || !has_token_attention(*cached, length) {
        let what = format!("keys {cached}{k:?} and values {v:?}");
        let wanted = "one length of both, of whole 16 bytes, 32 of them at most";
        return Err(Misfit::new(what, wanted));
    }
    let [table, sequence, arrived] = [6, 7, 8].map(|at| &operands[at]);
    if table.shape().len() != 2 {
        let what = format!("table is {:?}", table.shape());
        return Err(Misfit::new(what, "table[sequences, blocks of one]"));
    }
    of_tokens(sequence, "sequence", tokens)?;
    let needed = tokens.saturating_mul(heads);
    let is_enough = matches!(arrived.shape(), [count] if *count >= needed);
    if !is_enough || !matches!(arrived.dtype(), Dtype::U32 | Dtype::I32) {
        let what = format!("arrived is {arrived}");
        let wanted = format!("{needed} zeros of u32 or i32, or more");
        return Err(Misfit::new(what, wanted));
    }
    window_of(op)?;
    Ok(vec![
        (*dtype, q.clone()),
        (*cached, k.clone()),
        (*cached, v.clone()),
        (arrived.dtype(), arrived.shape().to_vec()),
    ])
}

fn lower(op: &OpParameters, program: &mut NativeProgram) -> RowLowering {
    let [x, position, frequency, slot, k, v] = [0, 1, 2, 3, 4, 5].map(|at| program.input(at));
    let has_norms = program.operands() > NORMS;
    let all = TokenAttention {
        heads: HeadViews {
            x,
            position,
            frequency,
            slot,
            cache: [k, v],
            norms: has_norms.then(|| [program.input(NORMS), program.input(NORMS + 1)]),
            q: program.output(0),
            to: [program.output(1), program.output(2)],
        },
        numbers: HeadNumbers {
            pairs: pairs_of(op),
            epsilon: op.number_of("eps"),
            magnitude: op.number_of("magnitude"),
        },
        table: program.input(6),
        sequence: program.input(7),
        arrived: program.input(8),
        arrived_to: program.output(3),
        scale: scale_of(op, k.shape()[3]),
        limit: op.number_of("limit"),
        // The results' rule has accepted it.
        window: window_of(op).unwrap_or_default(),
        has_constant_cache: op.choice_of("cache") == "constant",
    };
    token_attention(program, &all)
}

fn expected(op: &OpParameters, x: &[HostArray], results: &[Layout]) -> Vec<Vec<ExpectedElement>> {
    let mut all = inputs_expected(op, &of_inputs(x), &results[..3]);
    let as_array = |at: usize, all: &[Vec<ExpectedElement>]| HostArray {
        dtype: results[at].dtype(),
        shape: results[at].shape().to_vec(),
        values: all[at].iter().map(|it| it.0).collect(),
    };
    let mut operands: Vec<HostArray> = [0, 1, 2].map(|at| as_array(at, &all)).to_vec();
    operands.extend([6, 7, 1].map(|at: usize| x[at].clone()));
    let errors = [0, 1, 2].map(|at: usize| all[at].iter().map(|it| it.1).collect());
    all[0] = attended(op, &operands, &errors, 0.0, false, results[0].dtype());
    all.push(vec![(0.0, 0.0); x[8].values.len()]);
    all
}

const TYPED: &[(&str, TypeClass)] = &[
    ("position", TypeClass::Integers),
    ("frequency", TypeClass::Floats),
    ("index", TypeClass::Integers),
    ("k", TypeClass::Floats),
    ("v", TypeClass::Floats),
    ("table", TypeClass::Integers),
    ("sequence", TypeClass::Integers),
    ("arrived", TypeClass::Integers),
];

#[rustfmt::skip]
pub(super) const ROWS: &[OpRow] = &[
    native!(Attention "token_attention"
        ("x", "position", "frequency", "index", "k", "v", "table", "sequence", "arrived", "q_norm", "k_norm") NotF64
        { "eps": 1e-6, "magnitude": 1.0, "scale": 0.0, "limit": 0.0, "window": 0.0 } []
        { optional: 2, typed: TYPED, choices: &[("pairs", &["halves", "adjacent"]), ("cache", &["any", "constant"])],
          results: &["out", "k", "v", "arrived"] }
        "cuda.attention", results, lower, expected,
        "attention_inputs and paged_attention of tokens of which each is the last one of its sequence, in one launch; the index is the place of its position by the table, which no other token's keys have; arrived is zeros of u32 or i32, as many as tokens and heads of queries or more, in place and zeros again; with cache=constant all but x may be read while the kernel before still runs, which must not write it"),
];

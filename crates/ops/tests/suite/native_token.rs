//! Random operands of products of few tokens, by weights of floats and of blocks.

use fercuda_ops::{OpDescriptor, registry};
use fercuda_tensor::{BlockFormat, Dtype, Layout};
use fercuda_trials::{Budget, Work};

use crate::bench::Operand;
use crate::native_quant::weight;
use crate::parity::{Compared, check_drawn};

/// The ops.
pub(crate) const OPS: [&str; 3] = ["token_linear", "normed_linear", "normed_swiglu"];

/// What the weights are made of.
#[derive(Clone, Copy)]
enum Rows {
    Plain(Dtype),
    Blocks(BlockFormat),
}

impl Rows {
    fn any(random: &mut fastrand::Rng) -> Self {
        let plain = [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::F8E4m3];
        match random.u32(..3) {
            0 => Self::Plain(plain[random.usize(..plain.len())]),
            _ => Self::Blocks(BlockFormat::ALL[random.usize(..BlockFormat::ALL.len())]),
        }
    }

    fn matrix(self, random: &mut fastrand::Rng, outputs: u64, inputs: u64) -> Operand {
        match self {
            Self::Plain(dtype) => {
                let own = Operand::random(random, dtype, &[outputs, inputs], true);
                match random.u32(..3) {
                    0 => own,
                    _ => dense(own),
                }
            }
            Self::Blocks(format) => {
                weight(random, format, outputs, inputs / format.elements() as u64)
            }
        }
    }
}

/// The same elements in order at an aligned place.
fn dense(operand: Operand) -> Operand {
    let (dtype, shape) = (operand.layout.dtype(), operand.layout.shape().to_vec());
    Operand {
        layout: Layout::contiguous(dtype, &shape).unwrap(),
        first: 0,
        ..operand
    }
}

/// Random parameters and operands of an op with such weights.
fn drawn(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
    rows: Rows,
) -> (OpDescriptor, Vec<Operand>) {
    let (name, depth) = match rows {
        Rows::Plain(_) => (
            "plain".to_owned(),
            [0, 3, 8, 40, 64, 264][random.usize(..6)],
        ),
        Rows::Blocks(format) => {
            let most = if format.elements() < 256 { 12 } else { 3 };
            let blocks = random.u64(1..=most);
            (
                format.name().to_lowercase(),
                blocks * format.elements() as u64,
            )
        }
    };
    let is_constant = ["any", "constant"][random.usize(..2)];
    let op = op.choice("format", &name).unwrap();
    let op = op.choice("weights", is_constant).unwrap();
    let tokens = [1, 1, 2, 3, 5, 8][random.usize(..6)];
    let of_x = match random.u32(..4) {
        0 if tokens == 1 => vec![depth],
        1 if tokens == 8 => vec![2, 4, depth],
        _ => vec![tokens, depth],
    };
    let is_dense = random.u32(..3) > 0;
    let is_tame = random.u32(..8) > 0;
    let mut all = vec![Operand::random(random, dtype, &of_x, is_tame)];
    if op.name() != "token_linear" {
        all.push(Operand::random(random, dtype, &[depth], true));
    }
    let matrices = match op.name() {
        "token_linear" => 1,
        "normed_swiglu" => 2,
        _ => random.usize(1..4),
    };
    let mut columns = random.u64(1..60);
    let mut result = 0;
    for _ in 0..matrices {
        all.push(rows.matrix(random, columns, depth));
        result += columns;
        if op.name() == "normed_linear" {
            columns = random.u64(1..40);
        }
    }
    if op.name() == "token_linear" && random.bool() {
        let mut shape = of_x;
        *shape.last_mut().unwrap() = result;
        all.push(Operand::random(random, dtype, &shape, true));
    }
    if is_dense {
        let floats = all.iter_mut().filter(|it| it.layout.dtype() == dtype);
        for operand in floats {
            let bits = std::mem::take(&mut operand.bits);
            *operand = dense(Operand {
                layout: operand.layout,
                bits,
                first: 0,
            });
        }
    }
    match op.name() {
        "token_linear" => (op, all),
        _ => (op.number("eps", 1e-5).unwrap(), all),
    }
}

/// Random parameters and operands of one of the ops.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let rows = Rows::any(random);
    drawn(random, op, dtype, rows)
}

const WORK: Work = Work {
    name: "op-tokens",
    least: 30,
    ci_seconds: 5,
    soak: 3_000,
};

#[test]
fn products_of_few_tokens_by_every_format_are_those_of_their_reference() {
    for (name, seed) in fercuda_trials::seeds(env!("CARGO_MANIFEST_DIR"), WORK) {
        println!("{name}: {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let budget = Budget::begin(WORK);
        let (mut compared, mut done, mut all) = (Compared::default(), 0, Vec::new());
        while budget.has_left(done) {
            if all.is_empty() {
                let plain = [Dtype::F32, Dtype::F16, Dtype::Bf16].map(Rows::Plain);
                all.extend(plain);
                all.extend(BlockFormat::ALL.map(Rows::Blocks));
                random.shuffle(&mut all);
            }
            let Some(rows) = all.pop() else {
                break;
            };
            let row = registry::find(OPS[random.usize(..OPS.len())]).unwrap();
            let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.usize(..3)];
            let op = OpDescriptor::new(row.name).unwrap();
            let drawn = drawn(&mut random, op, dtype, rows);
            check_drawn(&mut random, drawn, &mut compared);
            done += 1;
        }
        println!("{done} plans");
        let (bounded, plans) = (compared.bounded, compared.plans);
        assert!(bounded * 4 > plans * 3, "{bounded} of {plans}");
    }
}

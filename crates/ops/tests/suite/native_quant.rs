//! Random blocks of quantised elements: products, embeddings and conversions of all formats.

use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan, OpRow, registry};
use fercuda_tensor::{BlockFormat, Dtype, Layout};
use fercuda_trials::{Budget, Work};

use crate::bench::{Bench, ONE, Operand, layout};
use crate::native::index_operand;
use crate::native_expert;
use crate::parity::{Compared, check_drawn, shape};

/// Places of the f16 numbers of a block, but for IQ1_M and the formats without.
fn halves(format: BlockFormat) -> &'static [usize] {
    match format {
        BlockFormat::Q4_1 | BlockFormat::Q5_1 | BlockFormat::Q8_1 => &[0, 2],
        BlockFormat::Q4_K | BlockFormat::Q5_K => &[0, 2],
        BlockFormat::Q2_K => &[80, 82],
        BlockFormat::Q3_K => &[108],
        BlockFormat::Q6_K => &[208],
        BlockFormat::TQ1_0 => &[52],
        BlockFormat::TQ2_0 => &[64],
        BlockFormat::IQ1_M | BlockFormat::Q8_K | BlockFormat::MXFP4 | BlockFormat::NVFP4 => &[],
        _ => &[0],
    }
}

/// Blocks of any codes, with scales of ordinary size.
pub(crate) fn blocks(random: &mut fastrand::Rng, format: BlockFormat, count: u64) -> Vec<u8> {
    let mut all: Vec<u8> = (0..count as usize * format.bytes())
        .map(|_| random.u8(..))
        .collect();
    for block in all.chunks_mut(format.bytes()) {
        let scale = |random: &mut fastrand::Rng| {
            let value = (random.f64() - 0.5) * f64::from(random.i32(-8..2)).exp2();
            Dtype::F16.encode(value) as u16
        };
        for at in halves(format) {
            block[*at..at + 2].copy_from_slice(&scale(random).to_le_bytes());
        }
        match format {
            BlockFormat::IQ1_M => {
                let bits = scale(random);
                for group in 0..4 {
                    let nibble = (bits >> (4 * group) & 15) as u8;
                    let byte = &mut block[49 + 2 * group];
                    *byte = *byte & 15 | nibble << 4;
                }
            }
            BlockFormat::Q8_K => {
                let value = random.f32() - 0.5;
                block[..4].copy_from_slice(&value.to_le_bytes());
            }
            BlockFormat::MXFP4 => block[0] = random.u8(110..130),
            _ => {}
        }
    }
    all
}

/// Rows of blocks, contiguous or in any layout.
pub(crate) fn weight(
    random: &mut fastrand::Rng,
    format: BlockFormat,
    rows: u64,
    across: u64,
) -> Operand {
    let bytes = blocks(random, format, rows * across);
    let own = [rows, across * format.bytes() as u64];
    let layout = match random.u32(..4) {
        0 => layout(random, Dtype::U8, &own, true),
        // Gaps between rows.
        1 => {
            let pitch = own[1] as i64 + random.i64(0..5) * random.i64(1..9);
            Layout::strided(Dtype::U8, &own, &[pitch.max(1), 1]).unwrap()
        }
        _ => Layout::contiguous(Dtype::U8, &own).unwrap(),
    };
    Operand::of(random, layout, bytes.into_iter().map(u64::from).collect())
}

/// An op of a format.
fn of_format(row: &OpRow, format: BlockFormat) -> OpDescriptor {
    let op = OpDescriptor::new(row.name).unwrap();
    op.choice("format", &format.name().to_lowercase()).unwrap()
}

pub(crate) fn some_type(random: &mut fastrand::Rng, op: OpDescriptor) -> OpDescriptor {
    let all = [Dtype::F32, Dtype::F16, Dtype::Bf16];
    match random.u32(..3) {
        0 => op.to(all[random.usize(..3)]).unwrap(),
        _ => op,
    }
}

/// Operands of a product of so many rows, outputs and blocks of a row.
fn of_product(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    format: BlockFormat,
    dtype: Dtype,
    [rows, columns, across]: [u64; 3],
) -> (OpDescriptor, Vec<Operand>) {
    let depth = across * format.elements() as u64;
    let of_x = match random.u32(..4) {
        0 if rows == 1 => vec![depth],
        1 if rows.is_multiple_of(2) => vec![rows / 2, 2, depth],
        _ => vec![rows, depth],
    };
    let tame = random.u32(..8) > 0;
    let mut all = vec![Operand::random(random, dtype, &of_x, tame)];
    all.push(weight(random, format, columns, across));
    if op.name() == "quantised_swiglu" {
        all.push(weight(random, format, columns, across));
        return (some_type(random, op), all);
    }
    let mut result = of_x;
    *result.last_mut().unwrap() = columns;
    let given = random.usize(..3);
    if given > 0 {
        all.push(Operand::random(random, dtype, &[columns], true));
    }
    if given > 1 {
        all.push(Operand::random(random, dtype, &result, true));
    }
    (some_type(random, op), all)
}

/// Random operands of an op of a format.
fn drawn(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    format: BlockFormat,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    if row.name == "quantise_blocks" {
        let formats = [BlockFormat::Q8_0, BlockFormat::Q8_1, BlockFormat::Q8_K];
        let format = formats[random.usize(..3)];
        let mut own = shape(random, 1);
        own.truncate(2);
        *own.last_mut().unwrap() = random.u64(..4) * format.elements() as u64;
        let x = Operand::random(random, dtype, &own, true);
        return (of_format(row, format), vec![x]);
    }
    let op = of_format(row, format);
    if row.name.contains("expert") {
        return native_expert::of_blocks(random, op, format, dtype);
    }
    let across = random.u64(1..3)
        * if format.elements() < 256 {
            random.u64(1..3)
        } else {
            1
        };
    match row.name {
        "dequantise_blocks" => {
            let rows = random.u64(1..9);
            (
                some_type(random, op),
                vec![weight(random, format, rows, across)],
            )
        }
        "quantised_embedding" => {
            let rows = random.u64(1..20);
            let of = shape(random, 0);
            let index = index_operand(random, &of, 0, rows, false);
            let all = vec![weight(random, format, rows, across), index];
            (some_type(random, op), all)
        }
        _ => {
            let rows = match random.u32(..4) {
                0 => 1,
                1 => random.u64(17..41),
                _ => random.u64(1..17),
            };
            let sizes = [rows, random.u64(1..30), across];
            of_product(random, op, format, dtype, sizes)
        }
    }
}

/// Whether an op is of blocks of quantised elements.
pub(crate) fn is_of_blocks(row: &OpRow) -> bool {
    row.choices.iter().any(|(name, _)| *name == "format") && row.name.contains("quantise")
}

/// Random parameters and operands of an op of blocks.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    row: &'static OpRow,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let format = BlockFormat::ALL[random.usize(..BlockFormat::ALL.len())];
    drawn(random, row, format, dtype)
}

const WORK: Work = Work {
    name: "op-blocks",
    least: 36,
    ci_seconds: 6,
    soak: 5_000,
};

/// What is tried of each format.
#[derive(Clone, Copy)]
enum BlockTrial {
    Decode,
    Embed,
    /// A product of few rows; of one row, output and block.
    Few(bool),
    /// Of more rows than are multiplied without tensor cores.
    Many,
    Gated,
    /// By experts.
    Chosen,
    GatedChosen,
}

impl BlockTrial {
    const ALL: [Self; 8] = [
        Self::Decode,
        Self::Embed,
        Self::Few(true),
        Self::Few(false),
        Self::Many,
        Self::Gated,
        Self::Chosen,
        Self::GatedChosen,
    ];

    fn drawn(
        self,
        random: &mut fastrand::Rng,
        format: BlockFormat,
    ) -> (OpDescriptor, Vec<Operand>) {
        let dtype = [Dtype::F32, Dtype::F16, Dtype::Bf16][random.usize(..3)];
        let (name, sizes) = match self {
            Self::Decode => ("dequantise_blocks", [0; 3]),
            Self::Embed => ("quantised_embedding", [0; 3]),
            Self::Chosen => ("quantised_expert_linear", [0; 3]),
            Self::GatedChosen => ("quantised_expert_swiglu", [0; 3]),
            Self::Few(true) => ("quantised_linear", [1, 1, 1]),
            Self::Few(false) => {
                let across = random.u64(1..4);
                (
                    "quantised_linear",
                    [random.u64(1..17), random.u64(1..150), across],
                )
            }
            Self::Many => (
                "quantised_linear",
                [random.u64(17..75), random.u64(1..90), 2],
            ),
            Self::Gated => (
                "quantised_swiglu",
                [random.u64(1..30), random.u64(1..50), 1],
            ),
        };
        let row = registry::find(name).unwrap();
        match self {
            Self::Decode | Self::Embed => drawn(random, row, format, Dtype::U8),
            Self::Chosen | Self::GatedChosen => drawn(random, row, format, dtype),
            _ => of_product(random, of_format(row, format), format, dtype, sizes),
        }
    }
}

#[test]
fn products_and_rows_of_every_format_are_those_of_their_reference() {
    for (name, seed) in fercuda_trials::seeds(env!("CARGO_MANIFEST_DIR"), WORK) {
        println!("{name}: {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let budget = Budget::begin(WORK);
        let (mut compared, mut done, mut all) = (Compared::default(), 0, Vec::new());
        while budget.has_left(done) {
            if all.is_empty() {
                let formats = BlockFormat::ALL.into_iter();
                all.extend(formats.flat_map(|it| BlockTrial::ALL.map(|trial| (it, trial))));
                random.shuffle(&mut all);
            }
            let Some((format, trial)) = all.pop() else {
                break;
            };
            let drawn = trial.drawn(&mut random, format);
            check_drawn(&mut random, drawn, &mut compared);
            done += 1;
        }
        println!("{done} plans");
        assert!(
            compared.bounded * 4 > compared.plans * 3,
            "{}",
            compared.bounded
        );
    }
}

#[test]
fn a_product_is_added_to_its_residual_in_place() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let (bench, seed) = (Bench::shared(), fercuda_trials::seed());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let of = |shape: &[u64]| Layout::contiguous(Dtype::F32, shape).unwrap();
    for rows in [random.u64(1..17), random.u64(17..40)] {
        let (x, bias, residual) = (of(&[rows, 64]), of(&[5]), of(&[rows, 5]));
        let w = Layout::contiguous(Dtype::U8, &[5, 36]).unwrap();
        let row = registry::find("quantised_linear").unwrap();
        let op = of_format(row, BlockFormat::Q4_0);
        let operands = [x, w, bias, residual];
        let plan = OpPlan::new(&bench.device, &op, &operands, &[], KernelPolicy::Auto).unwrap();
        let mut floats = |layout: &Layout| -> Vec<u8> {
            let values = (0..layout.len()).map(|_| random.f32() - 0.5);
            values.flat_map(f32::to_le_bytes).collect()
        };
        let [x, bias, residual] = [x, bias, residual].map(|layout| bench.upload(&floats(&layout)));
        let w = bench.upload(&blocks(&mut random, BlockFormat::Q4_0, 10));
        let apart = bench.upload(&vec![0; rows as usize * 20]);
        let workspace = bench.upload(&vec![0; plan.workspace_bytes() as usize]);
        let operands = [&x, &w, &bias, &residual].map(BoundArg::of);
        let workspace = Some(BoundArg::of(&workspace));
        for to in [&apart, &residual] {
            let to = BoundArg::of(to);
            plan.run(&bench.stream, &operands, &[to], workspace)
                .unwrap();
        }
        let bytes = [&apart, &residual].map(|it| it.to_vec(&bench.stream).unwrap());
        assert_eq!(bytes[0], bytes[1], "{rows} rows");
        // Over x, it would be read after it is written.
        let over_x = plan.run(&bench.stream, &operands, &[BoundArg::of(&x)], workspace);
        assert!(over_x.is_err());
    }
    bench.assert_sound();
}

#[test]
fn a_checked_embedding_reports_the_index_that_is_outside() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let bench = Bench::shared();
    let row = registry::find("quantised_embedding").unwrap();
    let op = of_format(row, BlockFormat::Q8_0).checked().unwrap();
    let w = Layout::contiguous(Dtype::U8, &[2, 68]).unwrap();
    let index = Layout::contiguous(Dtype::I32, &[3]).unwrap();
    let plan = OpPlan::new(&bench.device, &op, &[w, index], &[], KernelPolicy::Auto).unwrap();
    let w = bench.upload(&blocks(
        &mut fastrand::Rng::with_seed(1),
        BlockFormat::Q8_0,
        4,
    ));
    let to = bench.upload(&[0xa5; 3 * 64 * 4]);
    let workspace = bench.upload(&vec![0x5a; plan.workspace_bytes() as usize]);
    let workspace = BoundArg::of(&workspace);
    for (indices, said) in [([1, -7, 0], Some("-7")), ([1, 0, 1], None)] {
        let index = bench.upload(&indices.map(i32::to_le_bytes).concat());
        let operands = [&w, &index].map(BoundArg::of);
        let run = plan.run(
            &bench.stream,
            &operands,
            &[BoundArg::of(&to)],
            Some(workspace),
        );
        run.unwrap();
        let checked = plan.check(&bench.stream, &workspace);
        let checked = checked.map_err(|error| error.to_string());
        let bytes = to.to_vec(&bench.stream).unwrap();
        let is_zero = bytes[256..512].iter().all(|byte| *byte == 0);
        assert_eq!(is_zero, said.is_some());
        match said {
            Some(said) => assert!(checked.is_err_and(|error| error.contains(said))),
            None => assert_eq!(checked, Ok(())),
        }
    }
    bench.assert_sound();
}

#[test]
fn blocks_that_do_not_fit_are_refused_with_what_would() {
    let bench = Bench::shared();
    let of = |dtype, shape: &[u64]| Layout::contiguous(dtype, shape).unwrap();
    let (x, w) = (of(Dtype::F32, &[2, 64]), of(Dtype::U8, &[3, 36]));
    let linear = |format: &str| {
        let op = OpDescriptor::new("quantised_linear").unwrap();
        op.choice("format", format).unwrap()
    };
    let op = |name: &str| OpDescriptor::new(name).unwrap();
    let short = of(Dtype::F32, &[2, 32]);
    let cases: Vec<(OpDescriptor, Vec<Layout>, &str)> = vec![
        (
            linear("q4_1"),
            vec![x, w],
            "36 bytes of a row are no whole blocks of Q4_1",
        ),
        (linear("q8_1"), vec![x, w], "x has 64 inputs, w 32 as Q8_1"),
        (
            linear("q4_0"),
            vec![short, w],
            "x has 32 inputs, w 64 as Q4_0",
        ),
        (
            linear("q4_0"),
            vec![x, of(Dtype::U8, &[36])],
            "1 dimensions",
        ),
        (linear("q4_0"), vec![x, of(Dtype::I8, &[3, 36])], "u8"),
        (
            linear("q4_0"),
            vec![x, w, of(Dtype::F32, &[2])],
            "[3], one for each output",
        ),
        (
            linear("q4_0").to(Dtype::I32).unwrap(),
            vec![x, w],
            "it gives no i32",
        ),
        (
            op("quantised_swiglu"),
            vec![x, w, of(Dtype::U8, &[4, 36])],
            "as many rows",
        ),
        (
            op("quantise_blocks"),
            vec![of(Dtype::F32, &[2, 40])],
            "a multiple of 32",
        ),
        (
            op("dequantise_blocks"),
            vec![of(Dtype::U8, &[])],
            "no dimensions",
        ),
    ];
    for (op, operands, wanted) in cases {
        let made = OpPlan::new(&bench.device, &op, &operands, &[], KernelPolicy::Auto);
        let said = made.map(|plan| plan.sku().clone()).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}\nshould contain {wanted}");
    }
    assert!(
        OpDescriptor::new("quantised_linear")
            .unwrap()
            .choice("format", "q4_2")
            .is_err()
    );
}

//! Ops whose state goes from token to token: random operands, states in place, and bad operands.

use fercuda_jit::BoundArg;
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, ONE, Operand, layout};
use crate::native::random_choice;

/// Runs in the order of tokens, with tokens of none between them; no slot that is written is
/// another one that is read or written.
fn runs_operand(random: &mut fastrand::Rng, tokens: u64, slots: u64) -> Operand {
    let dtype = [Dtype::I32, Dtype::I64][random.usize(..2)];
    let count = random.u64(..5);
    let mut free: Vec<u64> = (0..slots).collect();
    random.shuffle(&mut free);
    // Those that are read alone may be read by many.
    let shared = free.split_off(free.len().min(3 * slots as usize / 4));
    let none = |random: &mut fastrand::Rng| [u64::MAX, slots, slots + 70][random.usize(..3)];
    let (mut rows, mut next) = (Vec::new(), random.u64(..3).min(tokens));
    for _ in 0..count {
        let left = tokens - next;
        let own = match random.u32(..6) {
            0 => 0,
            1 => left,
            _ => random.u64(..=left.min(9)),
        };
        let mut own_slot = || free.pop();
        let to = own_slot();
        let kept = own_slot();
        let from = match random.u32(..4) {
            0 => none(random),
            1 if !shared.is_empty() => shared[random.usize(..shared.len())],
            _ => to.unwrap_or_else(|| none(random)),
        };
        let to = to.filter(|_| random.u32(..6) > 0);
        let to = to.unwrap_or_else(|| none(random));
        let kept = kept.unwrap_or_else(|| none(random));
        // Also behind the run, which is never.
        let mark = random.u64(..own + 2);
        rows.extend([next, own, from, to, mark, kept]);
        next = (next + own + random.u64(..2)).min(tokens);
    }
    let mask = u64::MAX >> (64 - 8 * dtype.bytes());
    let own: Layout = layout(random, dtype, &[count, 6], true);
    let bits = rows.into_iter().map(|it| it & mask).collect();
    Operand::of(random, own, bits)
}

fn floats(random: &mut fastrand::Rng, dtype: Dtype, shape: &[u64]) -> Operand {
    Operand::random(random, dtype, shape, true)
}

/// Random parameters of the op, and random operands.
pub(crate) fn operands_of(
    random: &mut fastrand::Rng,
    op: OpDescriptor,
    dtype: Dtype,
) -> (OpDescriptor, Vec<Operand>) {
    let kept = match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let (tokens, slots) = ([0, 1, 5, 14, 70][random.usize(..5)], random.u64(..8));
    if op.name() == "causal_convolution" {
        let (channels, taps) = ([1, 7, 150][random.usize(..3)], random.u64(1..6));
        let x = floats(random, dtype, &[tokens, channels]);
        let weight = floats(random, dtype, &[channels, taps]);
        let state = floats(random, kept, &[slots, taps - 1, channels]);
        let bias = floats(random, dtype, &[channels]);
        let runs = runs_operand(random, tokens, slots);
        let mut operands = vec![x, weight, state, runs];
        operands.extend(random.bool().then_some(bias));
        return (random_choice(random, op), operands);
    }
    let tokens = tokens.min(14);
    let (keys, times) = (random.u64(1..4), random.u64(1..4));
    let heads = keys * times;
    let lengths = [1, 3, 8, 16, 20, 33];
    let length = lengths[random.usize(..lengths.len())];
    let values = [1, 5, 16, 19][random.usize(..4)];
    let columns = 2 * keys * length + heads * values;
    let x = floats(random, dtype, &[tokens, columns]);
    let step = floats(random, dtype, &[tokens, heads]);
    let beta = floats(random, dtype, &[tokens, heads]);
    let [mut rate, bias, skip] = [0; 3].map(|_| floats(random, dtype, &[heads]));
    // States fall.
    for bits in &mut rate.bits {
        *bits = dtype.encode(-dtype.value(*bits).abs().min(4.0));
    }
    let state = floats(random, kept, &[slots, heads, values, length]);
    let runs = runs_operand(random, tokens, slots);
    let mut operands = match op.name() {
        "gated_delta_rule" => vec![x, step, beta, rate, bias, state, runs],
        _ => vec![x, step, rate, bias, state, runs],
    };
    if op.name() == "selective_scan" && random.bool() {
        operands.push(skip);
    }
    let op = match op.name() {
        // Of short vectors the bound is finite.
        "gated_delta_rule" => op.number("eps", 0.25).unwrap(),
        _ if random.bool() => op.number("most", 0.5).unwrap(),
        _ => op,
    };
    (random_choice(random, op), operands)
}

/// Layouts of an op's operands, of so many tokens and slots, and where its state and its runs are.
fn layouts_of(name: &str, tokens: u64, slots: u64) -> (Vec<Layout>, [usize; 2]) {
    let f32 = |shape: &[u64]| Layout::contiguous(Dtype::F32, shape).unwrap();
    let runs = Layout::contiguous(Dtype::I32, &[1, 6]).unwrap();
    let (heads, state) = (f32(&[4]), f32(&[slots, 4, 5, 11]));
    let of_heads = f32(&[tokens, 4]);
    let x = f32(&[tokens, 2 * 2 * 11 + 4 * 5]);
    match name {
        "causal_convolution" => {
            let state = f32(&[slots, 3, 7]);
            (vec![f32(&[tokens, 7]), f32(&[7, 4]), state, runs], [2, 3])
        }
        "gated_delta_rule" => (
            vec![x, of_heads, of_heads, heads, heads, state, runs],
            [5, 6],
        ),
        _ => (vec![x, of_heads, heads, heads, state, runs], [4, 5]),
    }
}

#[test]
fn a_sequence_in_parts_with_its_state_in_place_is_the_whole_one() {
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let (bench, seed) = (Bench::shared(), fercuda_trials::seed());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for name in ["causal_convolution", "gated_delta_rule", "selective_scan"] {
        let tokens = 50;
        let first = random.i32(1..tokens);
        let (layouts, [state, runs]) = layouts_of(name, tokens as u64, 4);
        let op = OpDescriptor::new(name).unwrap();
        let plan = OpPlan::new(&bench.device, &op, &layouts, &[], KernelPolicy::Auto).unwrap();
        let mut buffers: Vec<_> = layouts
            .iter()
            .map(|layout| {
                let values = (0..layout.len()).map(|_| random.f32() - 0.75);
                bench.upload(&values.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
            })
            .collect();
        let y = bench.upload(&vec![0; 4 * plan.outputs()[0].len() as usize]);
        let row = 4 * (plan.outputs()[0].len() / tokens as u64) as usize;
        // Results of a run, and what slots have then.
        let mut run = |numbers: [i32; 6]| {
            let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
            buffers[runs] = bench.upload(&bytes);
            let operands: Vec<BoundArg<'_>> = buffers.iter().map(BoundArg::of).collect();
            let outputs = [BoundArg::of(&y), operands[state]];
            plan.run(&bench.stream, &operands, &outputs, None).unwrap();
            let own = y.to_vec(&bench.stream).unwrap();
            let states = buffers[state].to_vec(&bench.stream).unwrap();
            let slots: Vec<Vec<u8>> = states
                .chunks(states.len() / 4)
                .map(<[u8]>::to_vec)
                .collect();
            (own, slots)
        };
        let (whole, after) = run([0, tokens, -1, 0, first, 2]);
        let (begins, between) = run([0, first, -1, 1, 0, -1]);
        let (ends, behind) = run([first, tokens - first, 1, 1, 0, -1]);
        let at = first as usize * row;
        assert!(
            begins[..at] == whole[..at] && ends[at..] == whole[at..],
            "{name}"
        );
        // Tokens of no run.
        assert!(
            begins[at..].iter().chain(&ends[..at]).all(|it| *it == 0),
            "{name}"
        );
        assert!(between[1] == after[2] && behind[1] == after[0], "{name}");
        assert!(after[0] != after[2], "{name}");
        // No run has named it.
        assert!(after[3] == behind[3] && between[3] == behind[3], "{name}");
        assert!(plan.workspace_bytes() == 0 && plan.sku().id == "cuda.recurrence");
    }
    bench.assert_sound();
}

#[test]
fn misfits_of_states_say_what_to_try() {
    let bench = Bench::shared();
    let refused = |op: &OpDescriptor, layouts: &[Layout], wanted: &str| {
        let plan = OpPlan::new(&bench.device, op, layouts, &[], KernelPolicy::Auto);
        let shown = plan.map(|_| ()).unwrap_err().to_string();
        assert!(
            shown.contains(wanted) && shown.contains("try: "),
            "{shown}\nwanted: {wanted}"
        );
    };
    let of = |dtype, shape: &[u64]| Layout::contiguous(dtype, shape).unwrap();
    for name in ["causal_convolution", "gated_delta_rule", "selective_scan"] {
        let op = OpDescriptor::new(name).unwrap();
        let (layouts, [state, runs]) = layouts_of(name, 9, 4);
        let with = |at: usize, layout: Layout| {
            let mut all = layouts.clone();
            all[at] = layout;
            all
        };
        refused(&op, &with(runs, of(Dtype::I32, &[6])), "runs[count, 6]");
        refused(&op, &with(runs, of(Dtype::I64, &[2, 5])), "runs[count, 6]");
        let narrow = of(Dtype::F16, layouts[state].shape());
        refused(&op, &with(state, narrow), "a state of f32");
        refused(&op, &with(0, of(Dtype::F32, &[9])), "x[tokens");
        refused(&op, &with(1, of(Dtype::F32, &[9, 99])), "try: ");
        if name != "causal_convolution" {
            refused(
                &op,
                &with(state, of(Dtype::F32, &[4, 4, 5, 257])),
                "1 to 256",
            );
            refused(
                &op,
                &with(state, of(Dtype::F32, &[4, 4, 5, 12])),
                "two of each",
            );
            refused(
                &op,
                &with(state, of(Dtype::F32, &[4, u64::MAX / 1024, 1, 1])),
                "try: ",
            );
        }
    }
    let (layouts, _) = layouts_of("gated_delta_rule", 9, 4);
    let op = OpDescriptor::new("gated_delta_rule").unwrap();
    refused(&op.number("eps", 0.0).unwrap(), &layouts, "above 0");
    let (layouts, _) = layouts_of("selective_scan", 9, 4);
    let op = OpDescriptor::new("selective_scan").unwrap();
    let op = op.number("least", 2.0).unwrap().number("most", 1.0);
    refused(&op.unwrap(), &layouts, "from 2 to 1");
    let (mut layouts, _) = layouts_of("causal_convolution", 9, 4);
    layouts[1] = of(Dtype::F32, &[7, 17]);
    let op = OpDescriptor::new("causal_convolution").unwrap();
    refused(&op, &layouts, "1 to 16 taps");
}

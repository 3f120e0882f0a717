//! Products and attention by warpgroups: every form of tiles, layout and epilogue, against f64.

use fercuda_cuda::DeviceBuffer;
use fercuda_jit::{BoundArg, BoundNames};
use fercuda_kernels::multiply::{self, Activation, ProductEpilogue, ProductKernel};
use fercuda_kernels::sequence_attention::{
    SequenceKernel, SequenceNumbers, SequenceViews, attend_sequences,
};
use fercuda_kernels::{KernelError, NativeProgram, ProgramForm};
use fercuda_ops::{KernelPolicy, OpDescriptor, OpPlan, oracle};
use fercuda_tensor::{Dtype, Layout};

use crate::bench::{Bench, ONE};

struct Unnamed;

impl BoundNames for Unnamed {
    fn input(&self, at: usize) -> String {
        format!("input {at}")
    }

    fn output(&self, at: usize) -> String {
        format!("output {at}")
    }
}

/// A product to try.
#[derive(Clone, Copy, Debug)]
struct Trial {
    dtype: Dtype,
    result: Dtype,
    batches: u64,
    rows: u64,
    columns: u64,
    depth: u64,
    /// Of each factor whether its neighbours are along the rows instead.
    is_transposed: [bool; 2],
    /// Whether one left factor is multiplied with every right one.
    repeats_left: bool,
    /// Scale, bias, activation and residual.
    has_epilogue: bool,
    /// As which the device counts its multiprocessors, which decides on the tiles.
    multiprocessors: u32,
}

fn value(dtype: Dtype, bits: u16) -> f64 {
    dtype.value(u64::from(bits))
}

fn matrix(dtype: Dtype, [batches, rows, columns]: [u64; 3], is_transposed: bool) -> Layout {
    let strides = match is_transposed {
        true => [rows * columns, 1, rows],
        false => [rows * columns, columns, 1],
    };
    let strides = strides.map(u64::cast_signed);
    Layout::strided(dtype, &[batches, rows, columns], &strides).unwrap()
}

fn random_elements(random: &mut fastrand::Rng, dtype: Dtype, count: u64) -> Vec<u16> {
    (0..count)
        .map(|_| dtype.encode(random.f64() * 4.0 - 2.0) as u16)
        .collect()
}

/// Element of a matrix in memory as its layout says.
fn at(layout: &Layout, bits: &[u16], [batch, row, column]: [u64; 3]) -> f64 {
    let [of_batch, down, across] = layout.strides() else {
        panic!("{layout} is no batch of matrices")
    };
    let place =
        batch.cast_signed() * of_batch + row.cast_signed() * down + column.cast_signed() * across;
    value(layout.dtype(), bits[place as usize])
}

/// Runs a trial, and compares each element with a sum in f64.
fn check(random: &mut fastrand::Rng, trial: Trial) {
    let Trial {
        dtype,
        result,
        batches,
        rows,
        columns,
        depth,
        ..
    } = trial;
    let bench = Bench::shared();
    let lefts = if trial.repeats_left { 1 } else { batches };
    let [left_t, right_t] = trial.is_transposed;
    let left = matrix(dtype, [lefts, rows, depth], left_t);
    let right = matrix(dtype, [batches, depth, columns], right_t);
    let bias = Layout::contiguous(dtype, &[columns]).unwrap();
    let to = matrix(result, [batches, rows, columns], false);
    let load = |form: ProgramForm| {
        let form = ProgramForm {
            multiprocessors: trial.multiprocessors,
            ..form
        };
        let mut p = NativeProgram::new(&[left, right, bias, to], &[to], form);
        let (x, y, bias) = (p.input(0), p.input(1), p.input(2));
        let (residual, out) = (p.input(3), p.output(0));
        let epilogue = match trial.has_epilogue {
            true => ProductEpilogue {
                scale: Some(0.5),
                bias: Some(&bias),
                activation: Activation::Relu,
                residual: Some(&residual),
            },
            false => ProductEpilogue::default(),
        };
        multiply::matrices(&mut p, ProductKernel::Warpgroups, [&x, &y, &out], epilogue)?;
        Ok(p)
    };
    let program = bench.device.kernels().load(load).unwrap();
    let count = batches * rows * columns;
    let x = random_elements(random, dtype, lefts * rows * depth);
    let y = random_elements(random, dtype, batches * depth * columns);
    let added = random_elements(random, dtype, columns);
    let residual: Vec<f64> = (0..count)
        .map(|_| result.nearest(random.f64() - 0.5))
        .collect();
    let bytes_of = |values: &[f64]| -> Vec<u8> {
        let size = result.bytes() as usize;
        let encoded = values
            .iter()
            .map(|value| result.encode(*value).to_le_bytes());
        encoded.flat_map(|bytes| bytes[..size].to_vec()).collect()
    };
    let stream = &bench.stream;
    let [dx, dy, db] = [&x, &y, &added].map(|it| DeviceBuffer::from_host(it, stream).unwrap());
    let dr = bench.upload(&bytes_of(&residual));
    let got = bench.upload(&bytes_of(&vec![f64::NAN; count as usize]));
    let inputs = [&dx, &dy, &db].map(BoundArg::of);
    let inputs = [inputs[0], inputs[1], inputs[2], BoundArg::of(&dr)];
    let one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    program
        .run(&Unnamed, stream, &inputs, &[BoundArg::of(&got)], None)
        .unwrap();
    let got = got.to_vec(stream).unwrap();
    bench.assert_sound();
    drop(one);
    let size = result.bytes() as usize;
    let unit = (2f64).powi(-24);
    let last_place = match result {
        Dtype::F32 => unit,
        Dtype::F16 => (2f64).powi(-11),
        _ => (2f64).powi(-8),
    };
    for place in 0..count {
        let (batch, row, column) = (
            place / (rows * columns),
            place / columns % rows,
            place % columns,
        );
        let of_left = if trial.repeats_left { 0 } else { batch };
        let products = (0..depth)
            .map(|k| at(&left, &x, [of_left, row, k]) * at(&right, &y, [batch, k, column]));
        let (mut sum, mut magnitude) = (0.0, 0.0);
        products.for_each(|product| {
            sum += product;
            magnitude += product.abs();
        });
        if trial.has_epilogue {
            let bias = value(dtype, added[column as usize]);
            sum = (0.5 * sum + bias).max(0.0) + residual[place as usize];
            magnitude += 4.0;
        }
        // Tensor cores cut off bits of sums, so that each of the depth's steps may lose a unit.
        let error = 2.0 * (depth as f64 + 4.0) * unit * magnitude + last_place * sum.abs();
        let bytes = &got[place as usize * size..][..size];
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(bytes);
        let own = result.value(u64::from_le_bytes(bits));
        assert!(
            (own - sum).abs() <= error + 1e-7,
            "[{batch}, {row}, {column}] is {own}, should be {sum} within {error:e}: {trial:?}"
        );
    }
}

#[test]
fn products_of_warpgroups_have_no_error_beyond_their_bound() {
    let seed = fercuda_trials::seed();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut trial = |rows, columns, depth, multiprocessors, change: &dyn Fn(&mut Trial)| {
        let mut trial = Trial {
            dtype: Dtype::Bf16,
            result: Dtype::Bf16,
            batches: 1,
            rows,
            columns,
            depth,
            is_transposed: [false, true],
            repeats_left: false,
            has_epilogue: false,
            multiprocessors,
        };
        change(&mut trial);
        check(&mut random, trial);
    };
    // One of each form of `warpgroup`: few multiprocessors have many tiles each, as large products
    // have on a GPU.
    for (rows, columns, depth, multiprocessors) in [
        (24, 200, 72, 1),
        (24, 200, 264, 1),
        (24, 168, 72, 1),
        (24, 104, 72, 1),
        (24, 200, 520, 2),
        (264, 200, 72, 1),
        (24, 24, 72, 1),
        (24, 168, 72, 2),
        (24, 520, 264, 1),
        (24, 392, 1032, 4),
        (72, 200, 2056, 4),
        (24, 168, 520, 3),
        (72, 200, 4104, 4),
        (72, 136, 2056, 4),
        (136, 24, 1032, 4),
        (24, 24, 6152, 4),
        (24, 24, 4104, 132),
        (24, 24, 1032, 1),
    ] {
        trial(rows, columns, depth, multiprocessors, &|_| ());
    }
    trial(392, 520, 136, 4, &|_| ());
    trial(72, 136, 520, 132, &|_| ());
    for is_transposed in [[false, false], [true, false], [true, true]] {
        trial(136, 200, 72, 2, &|it| it.is_transposed = is_transposed);
        trial(136, 200, 328, 132, &|it| it.is_transposed = is_transposed);
    }
    trial(72, 72, 40, 4, &|it| {
        (it.dtype, it.result, it.batches) = (Dtype::F16, Dtype::F16, 3);
    });
    trial(72, 72, 40, 4, &|it| {
        (it.batches, it.repeats_left) = (3, true)
    });
    trial(40, 99, 72, 4, &|it| it.result = Dtype::F32);
    trial(136, 264, 72, 1, &|it| {
        (it.result, it.has_epilogue) = (Dtype::F32, true)
    });
    trial(136, 264, 72, 1, &|it| it.has_epilogue = true);
    trial(17, 8, 8, 132, &|it| it.has_epilogue = true);
}

/// Attention of whole sequences: lengths of queries and values, extents, and the mask.
#[derive(Clone, Copy, Debug)]
struct SequenceTrial {
    dtype: Dtype,
    lengths: [u64; 2],
    batches: u64,
    tokens: u64,
    keys: u64,
    heads: [u64; 2],
    is_causal: bool,
    window: u32,
    limit: f64,
    has_sinks: bool,
    /// As which the device counts its multiprocessors: of few each has several tiles.
    multiprocessors: u32,
}

fn check_sequences(random: &mut fastrand::Rng, trial: SequenceTrial) {
    let bench = Bench::shared();
    let ([heads, shared], [length, value_length]) = (trial.heads, trial.lengths);
    let mut op = OpDescriptor::new("attention").unwrap();
    op = op.number("limit", trial.limit).unwrap();
    op = op.number("window", f64::from(trial.window)).unwrap();
    if trial.is_causal {
        op = op.choice("mask", "causal").unwrap();
    }
    let of = |shape: &[u64]| Layout::contiguous(trial.dtype, shape).unwrap();
    let mut layouts = vec![
        of(&[trial.batches, trial.tokens, heads, length]),
        of(&[trial.batches, trial.keys, shared, length]),
        of(&[trial.batches, trial.keys, shared, value_length]),
    ];
    if trial.has_sinks {
        layouts.push(Layout::contiguous(Dtype::F32, &[heads]).unwrap());
    }
    let bits: Vec<Vec<u64>> = layouts
        .iter()
        .map(|layout| {
            let one = |_| layout.dtype().encode(random.f64() * 2.0 - 1.0);
            (0..layout.len()).map(one).collect()
        })
        .collect();
    let wanted = oracle::evaluate(&op, &layouts, &bits).unwrap();
    let to = of(&[trial.batches, trial.tokens, heads, value_length]);
    let load = |form: ProgramForm| {
        let form = ProgramForm {
            multiprocessors: trial.multiprocessors,
            ..form
        };
        let mut p = NativeProgram::new(&layouts, &[to], form);
        let views = SequenceViews {
            q: p.input(0),
            k: p.input(1),
            v: p.input(2),
            sinks: trial.has_sinks.then(|| p.input(3)),
            to: p.output(0),
        };
        let numbers = SequenceNumbers {
            scale: 1.0 / (length as f64).sqrt(),
            limit: trial.limit,
            window: trial.window.into(),
            is_causal: trial.is_causal,
        };
        attend_sequences(&mut p, SequenceKernel::Warpgroups, &views, numbers)?;
        Ok(p)
    };
    let program = bench.device.kernels().load(load).unwrap();
    let bytes_of = |(layout, bits): (&Layout, &Vec<u64>)| {
        let size = layout.dtype().bytes() as usize;
        let bytes = bits.iter().map(|bits| bits.to_le_bytes());
        bench.upload(
            &bytes
                .flat_map(|it| it[..size].to_vec())
                .collect::<Vec<u8>>(),
        )
    };
    let buffers: Vec<_> = layouts.iter().zip(&bits).map(bytes_of).collect();
    let inputs: Vec<_> = buffers.iter().map(BoundArg::of).collect();
    let out = bench.upload(&vec![0xff; to.bytes() as usize]);
    let one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    program
        .run(
            &Unnamed,
            &bench.stream,
            &inputs,
            &[BoundArg::of(&out)],
            None,
        )
        .unwrap();
    let out = out.to_vec(&bench.stream).unwrap();
    bench.assert_sound();
    drop(one);
    let got: Vec<u64> = out
        .chunks_exact(2)
        .map(|two| u64::from(u16::from_le_bytes([two[0], two[1]])))
        .collect();
    let mut bounded = 0;
    for (at, (got, near)) in got.iter().zip(&wanted[0]).enumerate() {
        let own = trial.dtype.value(*got);
        assert!(
            near.allows(trial.dtype, *got),
            "[{at}] is {own}, should be {:?} within {:e}: {trial:?}",
            near.value,
            near.error
        );
        bounded += usize::from(near.error < 0.1);
    }
    assert!(
        bounded * 2 > got.len(),
        "{bounded} of {} have a bound: {trial:?}",
        got.len()
    );
}

#[test]
fn attention_by_warpgroups_has_no_error_beyond_its_bound() {
    let seed = fercuda_trials::seed();
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut trial = |lengths, tokens, keys, change: &dyn Fn(&mut SequenceTrial)| {
        let mut trial = SequenceTrial {
            dtype: Dtype::Bf16,
            lengths,
            batches: 1,
            tokens,
            keys,
            heads: [1, 1],
            is_causal: false,
            window: 0,
            limit: 0.0,
            has_sinks: false,
            multiprocessors: 2,
        };
        change(&mut trial);
        check_sequences(&mut random, trial);
    };
    trial([64, 64], 140, 300, &|_| ());
    trial([64, 64], 140, 300, &|it| it.multiprocessors = 132);
    trial([128, 128], 70, 270, &|it| it.heads = [2, 1]);
    trial([72, 40], 70, 200, &|it| {
        (it.dtype, it.heads, it.batches) = (Dtype::F16, [2, 2], 2);
    });
    trial([192, 192], 20, 130, &|it| it.is_causal = true);
    trial([256, 256], 20, 130, &|it| it.is_causal = true);
    trial([64, 192], 20, 130, &|it| it.is_causal = true);
    // More queries than keys: the first ones attend to none.
    trial([64, 64], 200, 70, &|it| it.is_causal = true);
    // So long that results leave through the memory of queries, which the next ones enter.
    trial([256, 256], 140, 10, &|it| it.is_causal = true);
    trial([64, 64], 300, 300, &|it| {
        (it.is_causal, it.window, it.has_sinks) = (true, 50, true);
    });
    trial([64, 64], 60, 200, &|it| {
        (it.limit, it.has_sinks) = (2.0, true)
    });
    trial([8, 8], 1, 1, &|it| it.is_causal = true);
}

#[test]
fn products_that_no_tensor_map_describes_have_other_kernels() {
    let bench = Bench::shared();
    let plan = |left: Layout, right: Layout| {
        let op = OpDescriptor::new("matmul").unwrap();
        let policy = KernelPolicy::Force("cuda.warpgroup");
        let plan = OpPlan::new(&bench.device, &op, &[left, right], &[], policy);
        plan.map(|_| ()).map_err(|error| error.to_string())
    };
    let of = |dtype, shape: &[u64]| Layout::contiguous(dtype, shape).unwrap();
    let bf16 = |shape: &[u64]| of(Dtype::Bf16, shape);
    plan(bf16(&[64, 64]), bf16(&[64, 64])).unwrap();
    for (left, right, wanted) in [
        (bf16(&[16, 64]), bf16(&[64, 64]), "for more than 16"),
        (bf16(&[64, 63]), bf16(&[63, 64]), "multiples of 16 bytes"),
        (
            of(Dtype::F32, &[64, 64]),
            of(Dtype::F32, &[64, 64]),
            "f16 and bf16",
        ),
        (
            Layout::strided(Dtype::Bf16, &[64, 64], &[128, 2]).unwrap(),
            bf16(&[64, 64]),
            "no neighbours",
        ),
        (
            // Lines of 64 elements, 8 apart.
            Layout::strided(Dtype::Bf16, &[64, 64], &[8, 1]).unwrap(),
            bf16(&[64, 64]),
            "one after another",
        ),
        (
            Layout::strided(Dtype::Bf16, &[2, 3, 64, 64], &[4096, 16384, 64, 1]).unwrap(),
            bf16(&[64, 64]),
            "matrices of",
        ),
    ] {
        let shown = plan(left, right).unwrap_err();
        assert!(shown.contains(wanted), "{shown}\nwanted: {wanted}");
    }
}

#[test]
fn attention_that_warpgroups_do_not_compute_is_refused_with_the_reason() {
    let bench = Bench::shared();
    let plan = |op: OpDescriptor, dtype, shape: &[u64]| {
        let layout = Layout::contiguous(dtype, shape).unwrap();
        let policy = KernelPolicy::Force("cuda.warpgroup_attention");
        let plan = OpPlan::new(&bench.device, &op, &[layout; 3], &[], policy);
        plan.map(|_| ()).map_err(|error| error.to_string())
    };
    let op = || OpDescriptor::new("attention").unwrap();
    let own = [1, 4, 2, 64];
    plan(op(), Dtype::Bf16, &own).unwrap();
    for (op, dtype, shape, wanted) in [
        (op(), Dtype::F32, own, "f16 and bf16"),
        (op(), Dtype::F16, [1, 4, 2, 264], "more than 256"),
        (op(), Dtype::F16, [1, 4, 2, 7], "multiples of 16 bytes"),
        (
            op().number("scale", -1.0).unwrap(),
            Dtype::F16,
            own,
            "a scale of -1",
        ),
        (
            op().number("window", 4.0).unwrap(),
            Dtype::F16,
            own,
            "mask=causal",
        ),
        (
            op().number("limit", -4.0).unwrap(),
            Dtype::F16,
            own,
            "limit is -4",
        ),
    ] {
        let shown = plan(op, dtype, &shape).unwrap_err();
        assert!(shown.contains(wanted), "{shown}\nwanted: {wanted}");
    }
}

#[test]
fn memory_at_any_address_is_multiplied_by_another_text() {
    let bench = Bench::shared();
    let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
    let op = OpDescriptor::new("matmul").unwrap();
    let layout = Layout::contiguous(Dtype::F16, &[24, 24]).unwrap();
    let policy = KernelPolicy::Force("cuda.warpgroup");
    let plan = OpPlan::new(&bench.device, &op, &[layout, layout], &[], policy).unwrap();
    let ones = vec![Dtype::F16.encode(1.0) as u16; 24 * 24 + 1];
    let [x, y] = [&ones, &ones].map(|it| DeviceBuffer::from_host(it, &bench.stream).unwrap());
    let out = DeviceBuffer::from_host(&ones, &bench.stream).unwrap();
    let [x, y, to] = [&x, &y, &out].map(|it| BoundArg::of(it).first_at(2));
    plan.run(&bench.stream, &[x, y], &[to], None).unwrap();
    let got = out.to_vec(&bench.stream).unwrap();
    assert!(got[1..].iter().all(|bits| value(Dtype::F16, *bits) == 24.0));
    bench.assert_sound();
}

#[test]
fn a_program_of_warpgroups_says_what_it_cannot_describe() {
    let layout = Layout::contiguous(Dtype::Bf16, &[64, 64]).unwrap();
    let form = ProgramForm {
        is_aligned: true,
        shared_bytes: 16 << 10,
        multiprocessors: 132,
    };
    let mut p = NativeProgram::new(&[layout, layout], &[layout], form);
    let (x, y, out) = (p.input(0), p.input(1), p.output(0));
    let plain = ProductEpilogue::default();
    let refused = multiply::matrices(&mut p, ProductKernel::Warpgroups, [&x, &y, &out], plain);
    let Err(KernelError::Views { what }) = refused else {
        panic!("{refused:?}")
    };
    assert!(what.contains("shared memory"), "{what}");
}

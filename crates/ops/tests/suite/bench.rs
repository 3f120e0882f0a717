//! Device on which plans run, and operands with random elements and layouts.

use std::sync::{Mutex, OnceLock};

use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
use fercuda_jit::{BoundArg, Compiler};
use fercuda_ops::{OpDevice, OpError, OpPlan};
use fercuda_tensor::{Dtype, Layout};

pub(crate) struct Bench {
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    pub(crate) device: OpDevice,
}

/// Findings of the software device are process-wide, so plans run one after the other.
pub(crate) static ONE: Mutex<()> = Mutex::new(());

/// Elements of an operand, in order, in memory as its layout says.
pub(crate) struct Operand {
    pub(crate) layout: Layout,
    pub(crate) bits: Vec<u64>,
    /// Offset of the first element, in bytes.
    pub(crate) first: u64,
}

impl Bench {
    pub(crate) fn shared() -> &'static Self {
        static BENCH: OnceLock<Bench> = OnceLock::new();
        BENCH.get_or_init(|| {
            let device = Cuda::from_env().unwrap().device(0).unwrap();
            let context = Context::primary(device).unwrap();
            let compiler = Compiler::with_cache(&context, None).unwrap();
            Self {
                stream: Stream::new(&context).unwrap(),
                device: OpDevice::with_compiler(&context, compiler).unwrap(),
                context,
            }
        })
    }

    pub(crate) fn upload(&self, bytes: &[u8]) -> DeviceBuffer<u8> {
        DeviceBuffer::from_host(bytes, &self.stream).unwrap()
    }

    /// Runs a plan twice, and returns the bits of each output's elements. Bytes of the outputs'
    /// memory that are not elements must stay as they were.
    pub(crate) fn run(
        &self,
        plan: &OpPlan,
        operands: &[Operand],
        firsts: &[u64],
    ) -> Result<Vec<Vec<u64>>, OpError> {
        let _one = ONE.lock().unwrap_or_else(|error| error.into_inner());
        let buffers: Vec<_> = operands
            .iter()
            .map(|it| self.upload(&it.scattered()))
            .collect();
        let args: Vec<_> = buffers
            .iter()
            .zip(operands)
            .map(|(buffer, it)| BoundArg::of(buffer).first_at(it.first))
            .collect();
        let outputs: Vec<_> = plan
            .outputs()
            .iter()
            .zip(firsts)
            .map(|(layout, first)| {
                let size = first + layout.reach_bytes().end.unsigned_abs();
                self.upload(&vec![0xa5; size as usize])
            })
            .collect();
        let bound: Vec<_> = outputs
            .iter()
            .zip(firsts)
            .map(|(output, first)| BoundArg::of(output).first_at(*first))
            .collect();
        let workspace = vec![0x5a; plan.workspace_bytes() as usize];
        let workspace = (!workspace.is_empty()).then(|| self.upload(&workspace));
        for _ in 0..2 {
            plan.run(
                &self.stream,
                &args,
                &bound,
                workspace.as_ref().map(BoundArg::of),
            )?;
        }
        let read_all = |((output, layout), first): ((&DeviceBuffer<u8>, &Layout), &u64)| {
            let mut bytes = output.to_vec(&self.stream).unwrap();
            let places = places(layout, *first);
            let bits = places
                .iter()
                .map(|at| read(&bytes, *at, layout.dtype()))
                .collect();
            for at in places {
                bytes[at..at + layout.dtype().bytes() as usize].fill(0xa5);
            }
            assert!(
                bytes.iter().all(|byte| *byte == 0xa5),
                "bytes beside {layout} were written"
            );
            bits
        };
        let all = outputs.iter().zip(plan.outputs()).zip(firsts).map(read_all);
        let all = all.collect();
        self.assert_sound();
        Ok(all)
    }

    /// Checks that the software device has found nothing.
    pub(crate) fn assert_sound(&self) {
        if self.context.device().cuda().is_software() {
            let findings = fercuda_softgpu::control::take_findings();
            assert!(findings.is_empty(), "{}", findings[0]);
        }
    }
}

impl Operand {
    /// Random elements, in a random layout at a random place.
    pub(crate) fn random(
        random: &mut fastrand::Rng,
        dtype: Dtype,
        shape: &[u64],
        tame: bool,
    ) -> Self {
        let layout = layout(random, dtype, shape, true);
        let bits = (0..layout.len())
            .map(|_| element(random, dtype, tame))
            .collect();
        Self::of(random, layout, bits)
    }

    /// These elements, in that layout at a random place.
    pub(crate) fn of(random: &mut fastrand::Rng, layout: Layout, bits: Vec<u64>) -> Self {
        let first = first(random, &layout);
        Self {
            layout,
            bits,
            first,
        }
    }

    fn scattered(&self) -> Vec<u8> {
        let until = self.first + self.layout.reach_bytes().end.unsigned_abs();
        let mut bytes = vec![0; until as usize];
        let size = self.layout.dtype().bytes() as usize;
        for (at, bits) in places(&self.layout, self.first).into_iter().zip(&self.bits) {
            bytes[at..at + size].copy_from_slice(&bits.to_le_bytes()[..size]);
        }
        bytes
    }
}

fn read(bytes: &[u8], at: usize, dtype: Dtype) -> u64 {
    let size = dtype.bytes() as usize;
    let mut bits = [0; 8];
    bits[..size].copy_from_slice(&bytes[at..at + size]);
    u64::from_le_bytes(bits)
}

fn places(layout: &Layout, first: u64) -> Vec<usize> {
    if layout.is_empty() {
        return Vec::new();
    }
    let mut all = vec![first as i64];
    for (len, stride) in layout.shape().iter().zip(layout.strides()) {
        let apart = stride * layout.dtype().bytes() as i64;
        let along = |first: i64| (0..*len as i64).map(move |n| first + n * apart);
        all = all.into_iter().flat_map(along).collect();
    }
    all.into_iter().map(|place| place as usize).collect()
}

/// A place for the first element: half are aligned to 16 bytes, the others to the element.
pub(crate) fn first(random: &mut fastrand::Rng, layout: &Layout) -> u64 {
    let least = layout.reach_bytes().start.unsigned_abs();
    match random.bool() {
        true => least.next_multiple_of(16),
        false => least + layout.dtype().bytes() * random.u64(..5),
    }
}

/// A random layout of a shape: dimensions in any order in memory, gaps, reversed dimensions.
pub(crate) fn layout(
    random: &mut fastrand::Rng,
    dtype: Dtype,
    shape: &[u64],
    may_be_reversed: bool,
) -> Layout {
    if random.bool() {
        return Layout::contiguous(dtype, shape).unwrap();
    }
    let mut order: Vec<usize> = (0..shape.len()).collect();
    random.shuffle(&mut order);
    let mut strides = vec![0; shape.len()];
    let mut step = random.i64(1..3);
    for axis in order {
        let is_back = may_be_reversed && random.u32(..4) == 0;
        strides[axis] = if is_back { -step } else { step };
        step = step * (shape[axis].max(1) as i64) + random.i64(0..3);
    }
    Layout::strided(dtype, shape, &strides).unwrap()
}

/// Bits of an element. Floats are mostly of ordinary size, some special unless `tame`. Integers
/// are small enough for products and sums of them to be exact in f64, which the references need.
fn element(random: &mut fastrand::Rng, dtype: Dtype, tame: bool) -> u64 {
    if dtype == Dtype::Bool {
        return random.u64(..2);
    }
    if dtype.is_float() {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        return dtype.encode(match random.u32(..100) {
            0..5 if !tame => special[random.usize(..special.len())],
            0..5 => special[random.usize(..4)],
            5..50 => random.f64(),
            _ => (random.f64() - 0.5) * f64::from(random.i32(-4..5)).exp2(),
        });
    }
    let size = 8 * dtype.bytes() as u32;
    let value = match random.u32(..4) {
        0 if size <= 16 => return random.u64(..) & (u64::MAX >> (64 - size)),
        0 => random.i64(-(1 << 25)..1 << 25),
        _ => random.i64(-4..9),
    };
    let value = if dtype.is_signed() {
        value
    } else {
        value.abs()
    };
    value.cast_unsigned() & (u64::MAX >> (64 - size))
}

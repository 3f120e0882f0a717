//! A step with the structure of decoding with a language model, from small kernels: its results
//! mean nothing, but each kernel reads the results of earlier ones, a cache that grows, and
//! arguments that change from step to step.
//!
//! Every sum has a fixed order, so that two runs of a step have the same bits.

pub(crate) mod run;

use std::error::Error;

use fercuda_cuda::{
    Context, DeviceBuffer, DeviceSliceMut, Function, Image, Launch, Module, Stream,
};
use fercuda_ptx::build::{Arch, ModuleBuilder};
use fercuda_runtime::{ArgumentBlock, BlockLayout, Field, Key, Recording, Scratch};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Capacity of the cache, in positions.
pub(crate) const POSITIONS: u32 = 64;
/// Kernels of a layer, besides the first and the last of a step.
const LAYER: usize = 6;

/// Size of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Kernels of a step, at least 8.
    pub kernels: usize,
    /// Values of a row: threads of a block, a multiple of 32.
    pub width: u32,
    /// Maximum number of rows of a step.
    pub rows: u32,
}

/// The fields of a step that decodes one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecodeFields {
    /// The last token.
    pub token: Field<u32>,
    /// Its position.
    pub position: Field<u32>,
    /// Number of positions in the cache, including this one.
    pub kv_len: Field<u32>,
}

impl DecodeFields {
    /// Adds them to a layout.
    pub(crate) fn add_to(layout: &mut BlockLayout) -> Self {
        Self {
            token: layout.field("token"),
            position: layout.field("position"),
            kv_len: layout.field("kv_len"),
        }
    }
}

/// Kernels, weights and cache.
pub(crate) struct Model {
    pub shape: Shape,
    pub fields: DecodeFields,
    pub layout: BlockLayout,
    kernels: Kernels,
    table: DeviceBuffer<f32>,
    weights: Vec<DeviceBuffer<f32>>,
    /// A row of values for each layer, row and position.
    pub cache: DeviceBuffer<f32>,
}

struct Kernels {
    embed: Function,
    norm: Function,
    mix: Function,
    append: Function,
    attend: Function,
    gate: Function,
    add: Function,
    finish: Function,
}

fn build() -> Result<String> {
    let mut module = ModuleBuilder::new(Arch::SM_80);
    // out[row, i] = table[(token + row) % 16, i]
    module.kernel("embed", |k| {
        let arguments = k.param_ptr::<u32>("arguments");
        let table = k.param_ptr::<f32>("table");
        let out = k.param_ptr::<f32>("out");
        let token = arguments.load();
        let from = ((token + k.ctaid_x()) & 15).mul_add(k.ntid_x(), k.tid_x());
        out.index(k.global_id()).store(table.index(from).load());
    });
    // out[row] = x[row] scaled to a mean square of one
    module.kernel("norm", |k| {
        let x = k.param_ptr::<f32>("x");
        let out = k.param_ptr::<f32>("out");
        let scratch = k.shared::<f32>("scratch", 32);
        let value = x.index(k.global_id()).load();
        let sum = k.block_reduce(scratch, value * value, 0.0, |a, b| a + b);
        let mean = sum / k.ntid_x().to::<f32>() + 1e-6;
        out.index(k.global_id()).store(value / mean.sqrt());
    });
    // out[row, i] = the sum over j < 4 of x[row, (i + 17 j) % width] weights[j, i]
    module.kernel("mix", |k| {
        let x = k.param_ptr::<f32>("x");
        let weights = k.param_ptr::<f32>("weights");
        let out = k.param_ptr::<f32>("out");
        let row = x.index(k.ctaid_x() * k.ntid_x());
        let sum = k.var("sum", 0.0);
        for tap in 0..4 {
            let at = k.var("at", k.tid_x() + 17 * tap);
            k.while_("beyond", || at.ge(k.ntid_x()), || at.set(*at - k.ntid_x()));
            let weight = weights.index((k.ntid_x() * tap) + k.tid_x());
            sum.accumulate(row.index(at).load(), weight.load());
        }
        out.index(k.global_id()).store(sum);
    });
    // cache[row, position] = x[row]
    module.kernel("append", |k| {
        let arguments = k.param_ptr::<u32>("arguments");
        let x = k.param_ptr::<f32>("x");
        let cache = k.param_ptr::<f32>("cache");
        let position = arguments.offset(1).load();
        let row = k.ctaid_x().mul_add(POSITIONS, position);
        let to = row.mul_add(k.ntid_x(), k.tid_x());
        cache.index(to).store(x.index(k.global_id()).load());
    });
    // out[row] = x[row] and half the sum of the last cached rows, at most `context`
    module.kernel("attend", |k| {
        let arguments = k.param_ptr::<u32>("arguments");
        let x = k.param_ptr::<f32>("x");
        let cache = k.param_ptr::<f32>("cache");
        let context = k.param::<u32>("context");
        let out = k.param_ptr::<f32>("out");
        let kv_len = arguments.offset(2).load();
        let first = kv_len - kv_len.min(context);
        let sum = k.var("sum", 0.0);
        k.for_range("at", first, kv_len, 1u32, |at| {
            let row = k.ctaid_x().mul_add(POSITIONS, at);
            let from = row.mul_add(k.ntid_x(), k.tid_x());
            sum.set(cache.index(from).load() + *sum);
        });
        let value = x.index(k.global_id()).load();
        out.index(k.global_id()).store(sum.mul_add(0.5, value));
    });
    // out = a b / (1 + |b|)
    module.kernel("gate", |k| {
        let a = k.param_ptr::<f32>("a");
        let b = k.param_ptr::<f32>("b");
        let out = k.param_ptr::<f32>("out");
        let (a, b) = (a.index(k.global_id()).load(), b.index(k.global_id()).load());
        out.index(k.global_id()).store(a * b / (b.abs() + 1.0));
    });
    // x += a
    module.kernel("accumulate", |k| {
        let x = k.param_ptr::<f32>("x");
        let a = k.param_ptr::<f32>("a");
        let here = x.index(k.global_id());
        here.store(here.load() + a.index(k.global_id()).load());
    });
    // out = x; steps += 1
    module.kernel("finish", |k| {
        let x = k.param_ptr::<f32>("x");
        let out = k.param_ptr::<f32>("out");
        let steps = k.param_ptr::<u32>("steps");
        out.index(k.global_id())
            .store(x.index(k.global_id()).load());
        let first = k.global_id().equals(0u32);
        k.if_(first, || steps.store(steps.load() + 1));
    });
    Ok(fercuda_ptx::print(&module.finish()?))
}

/// Memory of a step: from the graph's arena, or its own.
enum Memory {
    Arena(Scratch<f32>),
    Own(DeviceBuffer<f32>),
}

impl Memory {
    fn slice(&mut self) -> DeviceSliceMut<'_, f32> {
        match self {
            Self::Arena(scratch) => scratch.as_slice_mut(),
            Self::Own(buffer) => buffer.as_slice_mut(),
        }
    }
}

/// Results of a step.
pub(crate) struct Output {
    pub values: DeviceBuffer<f32>,
    /// Number of times it was done.
    pub steps: DeviceBuffer<u32>,
}

impl Output {
    pub(crate) fn new(stream: &Stream, shape: Shape) -> Result<Self> {
        Ok(Self {
            values: DeviceBuffer::zeroed(stream, (shape.rows * shape.width) as usize)?,
            steps: DeviceBuffer::zeroed(stream, 1)?,
        })
    }
}

impl Model {
    pub(crate) fn new(stream: &Stream, shape: Shape, random: &mut fastrand::Rng) -> Result<Self> {
        let context: &Context = stream.context();
        let text = build()?;
        let module = Module::load(context, &Image::ptx(&text))?;
        let kernel = |name| module.function(name);
        let kernels = Kernels {
            embed: kernel("embed")?,
            norm: kernel("norm")?,
            mix: kernel("mix")?,
            append: kernel("append")?,
            attend: kernel("attend")?,
            gate: kernel("gate")?,
            add: kernel("accumulate")?,
            finish: kernel("finish")?,
        };
        let mut values = |len: u32| {
            let values: Vec<f32> = (0..len).map(|_| random.f32() - 0.5).collect();
            DeviceBuffer::from_host(&values, stream)
        };
        let layers = (shape.kernels.saturating_sub(2) / LAYER).max(1);
        let weights: fercuda_cuda::Result<_> =
            (0..layers).map(|_| values(4 * shape.width)).collect();
        let mut layout = BlockLayout::new();
        let fields = DecodeFields::add_to(&mut layout);
        let rows = layers * (shape.rows * POSITIONS) as usize;
        Ok(Self {
            shape,
            fields,
            layout,
            kernels,
            table: values(16 * shape.width)?,
            weights: weights?,
            cache: DeviceBuffer::zeroed(stream, rows * shape.width as usize)?,
        })
    }

    /// Queues a step of `rows` rows that looks back at most `context` positions: into the arena of
    /// `recording`, or with memory of its own.
    pub(crate) fn step<K: Key>(
        &self,
        stream: &Stream,
        recording: Option<&Recording<'_, K>>,
        block: &ArgumentBlock,
        cache: &DeviceBuffer<f32>,
        (rows, context): (u32, u32),
        out: &Output,
    ) -> Result<()> {
        let Shape { kernels, width, .. } = self.shape;
        let launch = Launch::new(rows, width);
        let len = (rows * width) as usize;
        let alloc = || -> Result<Memory> {
            Ok(match recording {
                Some(recording) => Memory::Arena(recording.alloc(len)?),
                // Into a graph outside any cache.
                None if stream.is_capturing() => {
                    Memory::Own(DeviceBuffer::alloc(stream.context(), len)?)
                }
                None => Memory::Own(DeviceBuffer::alloc_ordered(stream, len)?),
            })
        };
        let its = &self.kernels;
        let arguments = block.memory();
        let mut x = alloc()?;
        let mut count = 2;
        // SAFETY: each kernel accesses at most `rows` rows of `width` values of its arguments, and
        // in the cache rows below `POSITIONS`, since position and length are; all of that exists.
        // All is in one stream. The same below.
        unsafe { launch.run(&its.embed, stream, (arguments, &self.table, x.slice()))? };
        let in_layer = cache.len() / self.weights.len();
        for (layer, weights) in self.weights.iter().enumerate() {
            let cache = cache.slice(layer * in_layer..(layer + 1) * in_layer)?;
            let (mut y, mut mixed) = (alloc()?, alloc()?);
            // SAFETY: as above.
            unsafe {
                launch.run(&its.norm, stream, (x.slice(), y.slice()))?;
                launch.run(&its.mix, stream, (y.slice(), weights, mixed.slice()))?;
                launch.run(&its.append, stream, (arguments, mixed.slice(), cache))?;
            }
            drop(y);
            let mut z = alloc()?;
            // SAFETY: as above.
            unsafe {
                let all = (arguments, mixed.slice(), cache, context, z.slice());
                launch.run(&its.attend, stream, all)?;
            }
            let mut gated = alloc()?;
            // SAFETY: as above.
            unsafe {
                launch.run(&its.gate, stream, (z.slice(), mixed.slice(), gated.slice()))?;
                launch.run(&its.add, stream, (x.slice(), gated.slice()))?;
            }
            count += LAYER;
        }
        while count < kernels {
            let mut y = alloc()?;
            // SAFETY: as above.
            unsafe { launch.run(&its.norm, stream, (x.slice(), y.slice()))? };
            x = y;
            count += 1;
        }
        // SAFETY: as above.
        unsafe { launch.run(&its.finish, stream, (x.slice(), &out.values, &out.steps))? };
        Ok(())
    }
}

//! Random numbers by counter, with Philox4x32-10 (Salmon and others, 2011), and dropout.
//!
//! `random.cu` writes each element of its output once, and of an operand reads the element at the
//! same place.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::loops::Loops;
use crate::program::{NativeProgram, NativeStep};
use crate::text::{KernelText, c_type};
use crate::view::MemoryView;

/// Distribution of random numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// From `low` to `high`; narrow floats may round to it.
    Uniform {
        /// The least.
        low: f64,
        /// The end.
        high: f64,
    },
    /// Normal.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        deviation: f64,
    },
    /// Normal, of which only what is from `low` to `high` is drawn.
    TruncatedNormal {
        /// The mean of the whole distribution.
        mean: f64,
        /// Its standard deviation.
        deviation: f64,
        /// The least.
        low: f64,
        /// The largest.
        high: f64,
    },
    /// Exponential.
    Exponential {
        /// One by the mean.
        rate: f64,
    },
    /// 1 with a chance, else 0.
    Bernoulli {
        /// The chance.
        chance: f64,
    },
    /// Whole numbers from `low` on; a range of 0 stands for 2^64.
    Integers {
        /// The least.
        low: i64,
        /// How many there are.
        range: u64,
    },
}

/// Seed of random numbers, and which of its 2^64 streams of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RandomSeed {
    /// The key.
    pub seed: u64,
    /// The stream.
    pub stream: u64,
}

fn text() -> KernelText {
    KernelText::new("random.cu", include_str!("../cuda/random.cu"))
}

/// Adds random elements of `to`.
pub fn elements(
    program: &mut NativeProgram,
    to: &MemoryView,
    distribution: Distribution,
    seed: RandomSeed,
) {
    if to.layout.is_empty() {
        return;
    }
    // Elements are counted in row-major order: merging keeps it.
    let loops = Loops::over(&[to]).merge();
    let is_wide = to.dtype() == Dtype::F64 || matches!(distribution, Distribution::Integers { .. });
    let is_wide = is_wide && !matches!(distribution, Distribution::Bernoulli { .. });
    let (kind, first, second, low, range) = match distribution {
        Distribution::Uniform { low, high } => (0, low, high, 0, 0),
        Distribution::Normal { mean, deviation } => (1, mean, deviation, 0, 0),
        Distribution::TruncatedNormal {
            mean,
            deviation,
            low,
            high,
        } => {
            let [low, high] = [low, high].map(f64::to_bits);
            (5, mean, deviation, low.cast_signed(), high)
        }
        Distribution::Exponential { rate } => (2, rate, 0.0, 0, 0),
        Distribution::Bernoulli { chance } => (3, chance, 0.0, 0, 0),
        Distribution::Integers { low, range } => (4, 0.0, 0.0, low, range),
    };
    let text = text()
        .with("DISTRIBUTION", kind)
        .with("IS_WIDE", u8::from(is_wide))
        .with(
            "IS_DENSE",
            u8::from(program.is_aligned && loops.is_dense(&[to])),
        )
        .with("REAL", if is_wide { "double" } else { "float" })
        .with("ELEMENT", c_type(to.dtype()))
        .with("DIMS", loops.dims())
        .with("COUNTED", loops.index());
    let step = NativeStep::new(text, "random_elements")
        .looped(to, &loops, 0)
        .writes()
        .f64(first)
        .f64(second)
        .u64(low.cast_unsigned())
        .u64(range)
        .u64(seed.seed)
        .u64(seed.stream)
        .u64(loops.count())
        .over(loops.count().div_ceil(if is_wide { 2 } else { 4 }));
    program.push(step);
}

/// Adds dropout: `to = from * scale` where an element stays, else 0; `mask` is whether it does.
/// All have one shape.
///
/// # Errors
/// [`KernelError::Views`] otherwise.
pub fn dropout(
    program: &mut NativeProgram,
    [from, to, mask]: [&MemoryView; 3],
    chance: f64,
    seed: RandomSeed,
) -> Result<(), KernelError> {
    from.check("the operand", to.shape(), to.dtype())?;
    mask.check("the mask", to.shape(), Dtype::Bool)?;
    if to.layout.is_empty() {
        return Ok(());
    }
    program.allow_same(to, from);
    let loops = Loops::over(&[to, from, mask]).merge();
    let text = text()
        .with("DROPPED", c_type(to.dtype()))
        .with(
            "IS_DENSE",
            u8::from(program.is_aligned && loops.is_dense(&[to, from, mask])),
        )
        .with("DIMS", loops.dims())
        .with("COUNTED", loops.index());
    let step = NativeStep::new(text, "drop_elements")
        .looped(to, &loops, 0)
        .writes()
        .looped(mask, &loops, 2)
        .writes()
        .looped(from, &loops, 1)
        .f64(chance)
        .f64(1.0 / (1.0 - chance))
        .u64(seed.seed)
        .u64(seed.stream)
        .u64(loops.count())
        .over(loops.count().div_ceil(4));
    program.push(step);
    Ok(())
}

//! Ops whose state goes from token to token: causal convolutions, the gated delta rule, selective
//! scans.
//!
//! `causal_convolution.cu` and `recurrence.cu` read and write elements by numbers below the extents
//! of their views. What comes from memory is compared first (`runs.cuh`): tokens of a run with
//! those of x, slots with those of the state.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Numbers of a run: its first token, how many there are, the slots in which the state is read and
/// written, a number of tokens, and the slot in which the state behind these is kept.
pub const RUN_NUMBERS: u64 = 6;
/// Most elements of a convolution's window.
pub const MOST_TAPS: u64 = 16;
/// Most elements of a key or a value of a head.
pub const MOST_STATE_LENGTH: u64 = 256;

/// Tokens of a block of a convolution.
const CHUNK: u64 = 32;
/// Threads of a block.
const THREADS: u32 = 128;
/// Columns of a state that a block has.
const COLUMNS: u64 = 16;

/// The type that states have, of which what goes through has that type.
pub fn kept_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// What every recurrence has: what goes through and comes out, its states before and after, and
/// its runs.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentViews {
    /// A row of each token.
    pub x: MemoryView,
    /// Results of each token.
    pub y: MemoryView,
    /// States in slots.
    pub state: MemoryView,
    /// The same, with those that were written.
    pub to: MemoryView,
    /// Rows of [`RUN_NUMBERS`], in the order of tokens.
    pub runs: MemoryView,
}

impl RecurrentViews {
    fn check(&self) -> Result<()> {
        let Self { x, y, state, .. } = self;
        let kept = kept_type(x.dtype());
        state.check("the state", state.shape(), kept)?;
        self.to.check("the new state", state.shape(), kept)?;
        let has_rows = matches!(self.runs.shape(), [_, RUN_NUMBERS]);
        let fits = x.dtype().is_float()
            && x.dtype() == y.dtype()
            && x.shape().len() == 2
            && x.shape()[0] == y.shape()[0]
            && has_rows
            && self.runs.is_index();
        check(fits, || {
            let runs = self.runs.layout;
            format!("x {}, y {}, runs {runs}", x.layout, y.layout)
        })
    }

    /// Copies the state, unless it is changed in place.
    fn copy_state(&self, program: &mut NativeProgram) -> Result<()> {
        program.allow_same(&self.to, &self.state);
        let before = program.launches();
        copy::elements(program, &self.state, &self.to)?;
        program.skip_if_same(before, &self.to, &self.state);
        Ok(())
    }

    /// The text with its types.
    fn text(&self, text: KernelText) -> KernelText {
        text.with_type("ELEMENT", self.x.dtype())
            .with_type("KEPT", self.state.dtype())
            .with_type("RUN", self.runs.dtype())
    }
}

/// A view with its shape, or a null address with that of another one.
fn optional(step: NativeStep, view: Option<&MemoryView>, other: &MemoryView) -> NativeStep {
    match view {
        Some(view) => step.view(view),
        None => step.u64(0).shape(ShapeParameter::of(&other.layout)),
    }
}

/// The address and the stride of a vector, or a null address.
fn vector(step: NativeStep, view: Option<&MemoryView>) -> NativeStep {
    match view {
        Some(view) => step.address(view).u64(view.first_stride()),
        None => step.u64(0).u64(0),
    }
}

/// Adds a causal convolution of each channel alone: `y[t, c] = sum of weight[c, j] x[t - taps + 1 +
/// j, c]`, plus the bias, through SiLU if that is wanted. Before the first token of a run stands
/// what the state has, which is `[slots, taps - 1, channels]`; without a slot to read, zeros.
/// Tokens of no run give 0.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, [`KernelError::TooMany`].
pub fn causal_convolution(
    program: &mut NativeProgram,
    views: &RecurrentViews,
    weight: &MemoryView,
    bias: Option<&MemoryView>,
    is_silu: bool,
) -> Result<()> {
    views.check()?;
    let RecurrentViews { x, y, runs, .. } = views;
    let (tokens, channels, dtype) = (x.shape()[0], x.shape()[1], x.dtype());
    let taps = weight.shape().get(1).copied().unwrap_or_default();
    check((1..=MOST_TAPS).contains(&taps), || {
        format!("weights {}", weight.layout)
    })?;
    weight.check("the weight", &[channels, taps], dtype)?;
    if let Some(bias) = bias {
        bias.check("the bias", &[channels], dtype)?;
    }
    y.check("the result", x.shape(), dtype)?;
    let slots = views.state.shape().first().copied().unwrap_or_default();
    let kept = kept_type(dtype);
    views
        .state
        .check("the state", &[slots, taps - 1, channels], kept)?;
    views.copy_state(program)?;
    if tokens == 0 || channels == 0 {
        return Ok(());
    }
    let source = include_str!("../cuda/causal_convolution.cu");
    let text = views
        .text(KernelText::new("causal_convolution.cu", source))
        .with("TAPS", taps)
        .with("IS_SILU", u32::from(is_silu));
    if runs.shape()[0] == 0 {
        copy::fill(program, y, 0);
        return Ok(());
    }
    let step = NativeStep::new(text, "causal_convolution");
    let step = step.view(y).writes().view(&views.to).writes();
    let step = step.view(x).view(weight).view(runs);
    let step = vector(step, bias).threads(THREADS).blocks([
        channels.div_ceil(u64::from(THREADS)),
        tokens.div_ceil(CHUNK),
        runs.shape()[0],
    ])?;
    program.push(step);
    Ok(())
}

/// What is special in a recurrence of heads.
#[derive(Clone, Copy, Debug)]
pub enum RecurrentRule {
    /// The gated delta rule ("Gated Delta Networks", Yang and others, 2024), with queries and keys
    /// by their lengths.
    Delta {
        /// Rates of each token by head, before their sigmoid.
        beta: MemoryView,
        /// Added to squares of lengths.
        epsilon: f64,
    },
    /// The scan of Mamba-2 ("Transformers are SSMs", Dao and Gu, 2024).
    Scan {
        /// Factor of values that go around the state, by head.
        skip: Option<MemoryView>,
        /// Least and largest step.
        limits: [f64; 2],
    },
}

/// Operands and numbers of a recurrence of heads.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentHeads {
    /// Steps of each token by head, before their softplus.
    pub step: MemoryView,
    /// Factor of the step, by head: the logarithm of what is kept of the state.
    pub rate: MemoryView,
    /// Added to steps, by head.
    pub bias: MemoryView,
    /// Heads of keys.
    pub keys: u64,
    /// Whether head h has the keys h modulo their number, and not neighbours the same.
    pub is_tiled: bool,
    /// What is special.
    pub rule: RecurrentRule,
}

/// Adds a recurrence of heads. Their state is `[slots, heads, value length, key length]`; `y` is
/// `[tokens, heads, value length]`. Rows of x have queries, keys and values of the delta rule, or
/// values, what is written and what is read of a scan. Tokens of no run give 0.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, [`KernelError::TooMany`].
pub fn heads(
    program: &mut NativeProgram,
    views: &RecurrentViews,
    numbers: &RecurrentHeads,
) -> Result<()> {
    views.check()?;
    let RecurrentViews { x, y, runs, .. } = views;
    let what = || format!("x {}, state {}", x.layout, views.state.layout);
    let &[_, heads, value_length, key_length] = views.state.shape() else {
        return check(false, what);
    };
    let (tokens, dtype, keys) = (x.shape()[0], x.dtype(), numbers.keys);
    let lengths = [value_length, key_length];
    let is_length = |it: &u64| (1..=MOST_STATE_LENGTH).contains(it);
    let of_keys = keys.checked_mul(key_length.saturating_mul(2));
    let columns = of_keys.and_then(|it| it.checked_add(heads.checked_mul(value_length)?));
    let fits = lengths.iter().all(is_length)
        && keys > 0
        && heads.is_multiple_of(keys)
        && columns == Some(x.shape()[1]);
    check(fits, what)?;
    y.check("the result", &[tokens, heads, value_length], dtype)?;
    numbers.step.check("the step", &[tokens, heads], dtype)?;
    numbers.rate.check("the rate", &[heads], dtype)?;
    numbers.bias.check("the bias", &[heads], dtype)?;
    let (beta, skip, limits) = match &numbers.rule {
        RecurrentRule::Delta { beta, epsilon } => (Some(beta), None, [*epsilon, 0.0]),
        RecurrentRule::Scan { skip, limits } => (None, skip.as_ref(), *limits),
    };
    if let Some(beta) = beta {
        beta.check("beta", &[tokens, heads], dtype)?;
    }
    if let Some(skip) = skip {
        skip.check("the factor of values", &[heads], dtype)?;
    }
    views.copy_state(program)?;
    if tokens == 0 || heads == 0 {
        return Ok(());
    }
    if runs.shape()[0] == 0 {
        copy::fill(program, y, 0);
        return Ok(());
    }
    let text = KernelText::new("recurrence.cu", include_str!("../cuda/recurrence.cu"));
    let text = views
        .text(text)
        .with("KEY_LENGTH", key_length)
        .with("VALUE_LENGTH", value_length)
        .with("IS_DELTA", u32::from(beta.is_some()))
        .with("IS_TILED", u32::from(numbers.is_tiled));
    let tiles = value_length.div_ceil(COLUMNS);
    let step = NativeStep::new(text, "recurrence");
    let step = step.view(y).writes().view(&views.to).writes().view(x);
    let step = optional(step.view(&numbers.step), beta, &numbers.step);
    let step = vector(step, Some(&numbers.rate));
    let step = vector(vector(step, Some(&numbers.bias)), skip).view(runs);
    let step = step
        .u64(keys)
        .u64(tiles)
        .f64(limits[0])
        .f64(limits[1])
        .threads(THREADS)
        .blocks([heads * tiles, runs.shape()[0], 1])?;
    program.push(step);
    Ok(())
}

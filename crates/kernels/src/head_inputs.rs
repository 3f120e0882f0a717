//! Queries, keys and values on their way to attention, in one launch.
//!
//! `head_inputs.cu` reads and writes elements by numbers below the extents of their views; the
//! place of a token in the cache, which comes from memory, is compared with all places first.

use fercuda_tensor::Dtype;

use crate::attention::{MOST_HEAD_LENGTH, RotaryPairs, check_index};
use crate::copy;
use crate::error::KernelError;
use crate::index::with_fault;
use crate::program::{NativeProgram, NativeStep};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Threads of a block, of which each warp has one head.
const THREADS: u32 = 128;

/// Operands and results of the way to attention.
#[derive(Clone, Copy, Debug)]
pub struct HeadViews {
    /// Heads of queries, of keys and of values, `[tokens, all their elements]`.
    pub x: MemoryView,
    /// Position of each token.
    pub position: MemoryView,
    /// Angle of each pair of elements for a position.
    pub frequency: MemoryView,
    /// Place of each token through all blocks.
    pub slot: MemoryView,
    /// Keys and values, `[blocks, places, shared heads, length]`.
    pub cache: [MemoryView; 2],
    /// Weights of the norms of queries and of keys.
    pub norms: Option<[MemoryView; 2]>,
    /// Queries, `[tokens, heads, length]`.
    pub q: MemoryView,
    /// The cache with the tokens.
    pub to: [MemoryView; 2],
}

/// Numbers of the way to attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadNumbers {
    /// Which elements are turned together.
    pub pairs: RotaryPairs,
    /// Added to the mean of a head's squares.
    pub epsilon: f64,
    /// Factor of what is turned.
    pub magnitude: f64,
}

impl HeadViews {
    pub(crate) fn check(&self) -> Result<()> {
        let what = || {
            let Self { x, q, cache, .. } = self;
            let [k, v] = cache.map(|it| it.layout);
            format!("x {}, q {}, k {k}, v {v}", x.layout, q.layout)
        };
        let (&[tokens, all], &[own_tokens, heads, length]) = (self.x.shape(), self.q.shape())
        else {
            return check(false, what);
        };
        let [k, v] = &self.cache;
        let (&[blocks, places, shared, own_length], &[.., value_length]) = (k.shape(), v.shape())
        else {
            return check(false, what);
        };
        let lengths = [length, value_length];
        check(
            lengths.iter().all(|it| (1..=MOST_HEAD_LENGTH).contains(it)),
            what,
        )?;
        let columns = shared.checked_mul(length + value_length);
        let columns = columns.and_then(|it| it.checked_add(heads.checked_mul(length)?));
        let fits = tokens == own_tokens
            && columns == Some(all)
            && own_length == length
            && v.shape() == [blocks, places, shared, value_length]
            && k.dtype() == v.dtype();
        let has_types = [&self.x, k].into_iter().all(|it| it.dtype().is_float());
        check(fits && has_types, what)?;
        self.q
            .check("the queries", self.q.shape(), self.x.dtype())?;
        for (to, from) in self.to.iter().zip(&self.cache) {
            to.check("the cache", from.shape(), from.dtype())?;
        }
        for (name, index) in [("the position", &self.position), ("the place", &self.slot)] {
            check_index(name, index, tokens)?;
        }
        let turned = match self.frequency.shape() {
            [turned] => turned.checked_mul(2).is_some_and(|it| it <= length),
            _ => false,
        };
        check(turned && self.frequency.dtype() == Dtype::F32, || {
            format!("{} turned by {}", self.q.layout, self.frequency.layout)
        })?;
        for norm in self.norms.iter().flatten() {
            norm.check("the norm", &[length], self.x.dtype())?;
        }
        Ok(())
    }
}

/// Adds the norms of heads, if there are weights of them, the rotation of queries and keys by their
/// positions, and the storing of keys and values. If a result is the cache itself, nothing else of
/// it is copied. Of tokens with one place, one is stored.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, [`KernelError::TooMany`].
pub fn head_inputs(
    program: &mut NativeProgram,
    views: &HeadViews,
    numbers: HeadNumbers,
) -> Result<()> {
    views.check()?;
    for (to, from) in views.to.iter().zip(&views.cache) {
        program.allow_same(to, from);
        let before = program.launches();
        copy::elements(program, from, to)?;
        program.skip_if_same(before, to, from);
    }
    let HeadViews { x, q, to, .. } = views;
    let [k, v] = to;
    let heads = q.shape()[1] + 2 * k.shape()[2];
    let rows = x.shape()[0] * heads;
    if rows == 0 {
        return Ok(());
    }
    let text = KernelText::new("head_inputs.cu", include_str!("../cuda/head_inputs.cu"))
        .with_type("ELEMENT", x.dtype())
        .with_type("CACHED", k.dtype())
        .with_type("POSITION", views.position.dtype())
        .with_type("SLOT", views.slot.dtype())
        .with("LENGTH", q.shape()[2])
        .with("VALUE_LENGTH", v.shape()[3])
        .with(
            "IS_ADJACENT",
            u32::from(numbers.pairs == RotaryPairs::Adjacent),
        );
    let mut step = NativeStep::new(text, "head_inputs");
    for view in [q, k, v] {
        step = step.view(view).writes();
    }
    step = step.view(x);
    for view in [&views.position, &views.frequency, &views.slot] {
        step = step.address(view).u64(view.first_stride());
    }
    for at in 0..2 {
        step = match &views.norms {
            Some(norms) => step.address(&norms[at]).u64(norms[at].first_stride()),
            None => step.u64(0).u64(0),
        };
    }
    let step = step
        .f64(numbers.epsilon)
        .f64(numbers.magnitude)
        .u64(views.frequency.shape()[0])
        .u64(rows)
        .threads(THREADS)
        .overlapping()
        .blocks([rows.div_ceil(u64::from(THREADS / 32)), 1, 1])?;
    program.push(with_fault(step, program));
    Ok(())
}

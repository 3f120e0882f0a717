//! Norms of groups of elements, and their gradients.
//!
//! `norm.cu` reads and writes views at the offset of a group's number, or a channel's, plus that of
//! an element's number there, which it compares with the extents that numbered them. Sums have a
//! fixed order: by the threads of one block.

use fercuda_tensor::Dtype;

use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter};
use crate::rows::{merged, sizes};
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Which elements of a shape are normalised together, and which have a weight together.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Dimensions that number the groups; elements along the others are normalised together.
    pub groups: Vec<usize>,
    /// Dimensions that number the channels, which have a weight each.
    pub channels: Vec<usize>,
    /// Whether the mean is subtracted.
    pub is_centred: bool,
    /// Whether elements are divided by the root of the variance.
    pub is_scaled: bool,
    /// What is added to the variance, or to the mean of squares.
    pub eps: f64,
}

/// Statistics of groups, one element of the operand's type for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormStatistics<'a> {
    /// Computed, and used only.
    Computed,
    /// Computed, and written: the mean, the variance.
    Written([&'a MemoryView; 2]),
    /// Operands: the mean, the variance.
    Given([&'a MemoryView; 2]),
}

/// Views with the dimensions that number something first: two shapes each.
struct Numbered {
    order: Vec<usize>,
    outer: usize,
}

impl Numbered {
    fn by(dimensions: &[usize], rank: usize) -> Self {
        let others = (0..rank).filter(|at| !dimensions.contains(at));
        Self {
            order: dimensions.iter().copied().chain(others).collect(),
            outer: dimensions.len(),
        }
    }

    fn sizes(&self, shape: &[u64]) -> (u64, u64) {
        let product = |part: &[usize]| part.iter().map(|at| shape[*at]).product();
        (
            product(&self.order[..self.outer]),
            product(&self.order[self.outer..]),
        )
    }

    fn shapes(&self, step: NativeStep, view: &MemoryView) -> Result<NativeStep> {
        let layout = view.layout.permute(&self.order)?;
        let part = |dimensions| ShapeParameter::new(merged(&layout, dimensions).into_iter());
        let rank = self.order.len();
        Ok(step
            .shape(part(0..self.outer))
            .shape(part(self.outer..rank)))
    }

    fn add(&self, step: NativeStep, view: &MemoryView) -> Result<NativeStep> {
        self.shapes(step.address(view), view)
    }

    /// A weight of one element for each channel, as the operand's elements have it.
    fn weight(
        &self,
        step: NativeStep,
        weight: Option<&MemoryView>,
        like: &MemoryView,
    ) -> Result<NativeStep> {
        match weight {
            Some(weight) => self.add(step, weight),
            None => self.shapes(step.u64(0), like),
        }
    }
}

impl NormSpec {
    fn text(&self, dtype: Dtype, is_given: bool) -> KernelText {
        KernelText::new("norm.cu", include_str!("../cuda/norm.cu"))
            .with_type("ELEMENT", dtype)
            .with("CENTRED", u8::from(self.is_centred))
            .with("SCALED", u8::from(self.is_scaled))
            .with("GIVEN", u8::from(is_given))
            .with("COLUMNS", 1)
    }

    fn extents(&self, dimensions: &[usize], shape: &[u64]) -> Vec<u64> {
        dimensions.iter().map(|at| shape[*at]).collect()
    }

    /// One element for each channel as a view of the operand's shape.
    fn spread(&self, weight: &MemoryView, x: &MemoryView) -> Result<MemoryView> {
        let of_channels = |at: usize| match self.channels.contains(&at) {
            true => x.shape()[at],
            false => 1,
        };
        let shape: Vec<u64> = (0..x.shape().len()).map(of_channels).collect();
        Ok(weight.reshape(&shape)?.broadcast(x.shape())?)
    }

    fn check(&self, x: &MemoryView, weights: &[Option<&MemoryView>]) -> Result<()> {
        let rank = x.shape().len();
        let mut dimensions = self.groups.iter().chain(&self.channels);
        check(dimensions.all(|at| *at < rank), || {
            format!("groups {:?} of {rank} dimensions", self.groups)
        })?;
        let channels = self.extents(&self.channels, x.shape());
        let count: u64 = channels.iter().product();
        for weight in weights.iter().flatten() {
            check(
                weight.layout.len() == count && weight.dtype() == x.dtype(),
                || format!("the weight is {}, of {count} channels", weight.layout),
            )?;
        }
        Ok(())
    }

    fn check_statistics(&self, x: &MemoryView, statistics: NormStatistics<'_>) -> Result<()> {
        let (NormStatistics::Written(views) | NormStatistics::Given(views)) = statistics else {
            return Ok(());
        };
        let groups: u64 = self.extents(&self.groups, x.shape()).iter().product();
        for view in views {
            view.check("statistics", &[groups], x.dtype())?;
        }
        Ok(())
    }
}

/// The views of statistics: two addresses with a shape each.
fn with_statistics(step: NativeStep, statistics: NormStatistics<'_>) -> NativeStep {
    let none = || ShapeParameter::new(std::iter::empty());
    match statistics {
        NormStatistics::Computed => step.u64(0).shape(none()).u64(0).shape(none()),
        NormStatistics::Written([mean, variance]) => {
            step.flat(mean).writes().flat(variance).writes()
        }
        NormStatistics::Given([mean, variance]) => step.flat(mean).flat(variance),
    }
}

/// Adds `to = (x - mean) / root(variance + eps) gamma + beta`, of the statistics of each group.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn normalise(
    program: &mut NativeProgram,
    spec: &NormSpec,
    [x, to]: [&MemoryView; 2],
    weights: [Option<&MemoryView>; 2],
    statistics: NormStatistics<'_>,
) -> Result<()> {
    to.check("the result", x.shape(), x.dtype())?;
    spec.check(x, &weights)?;
    spec.check_statistics(x, statistics)?;
    let numbered = Numbered::by(&spec.groups, x.shape().len());
    let (groups, count) = numbered.sizes(x.shape());
    let is_given = matches!(statistics, NormStatistics::Given(_));
    let step = NativeStep::new(spec.text(x.dtype(), is_given), "normalise");
    let step = numbered.shapes(step.address(to).writes(), to)?;
    let mut step = numbered.add(step, x)?;
    for weight in weights {
        let spread = weight.map(|weight| spec.spread(weight, x)).transpose()?;
        step = numbered.weight(step, spread.as_ref(), x)?;
    }
    let step = with_statistics(step, statistics)
        .f64(spec.eps)
        .u64(groups)
        .u64(count)
        .over_blocks(groups);
    program.push(step);
    Ok(())
}

/// Results of a norm's gradient.
#[derive(Clone, Copy, Debug)]
pub struct NormGradients<'a> {
    /// By the operand.
    pub x: &'a MemoryView,
    /// By gamma, of one element for each channel.
    pub gamma: &'a MemoryView,
    /// By beta.
    pub beta: Option<&'a MemoryView>,
}

/// Adds the gradients of `normalise`, of the result's gradient and the operand.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn normalise_backward(
    program: &mut NativeProgram,
    spec: &NormSpec,
    [gradient, x]: [&MemoryView; 2],
    gamma: Option<&MemoryView>,
    statistics: NormStatistics<'_>,
    to: NormGradients<'_>,
) -> Result<()> {
    gradient.check("the gradient", x.shape(), x.dtype())?;
    to.x.check("the result", x.shape(), x.dtype())?;
    spec.check(x, &[gamma, Some(to.gamma), to.beta])?;
    spec.check_statistics(x, statistics)?;
    check(!matches!(statistics, NormStatistics::Written(_)), || {
        "a gradient writes no statistics".to_owned()
    })?;
    let rank = x.shape().len();
    let is_given = matches!(statistics, NormStatistics::Given(_));
    let text = spec.text(x.dtype(), is_given);
    let numbered = Numbered::by(&spec.groups, rank);
    let (groups, count) = numbered.sizes(x.shape());
    let real = match x.dtype() {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    };
    let [means, factors] = [
        program.reserve(real, &[groups])?,
        program.reserve(real, &[groups])?,
    ];
    let step = NativeStep::new(text.clone(), "gradients_of_groups");
    let step = numbered.shapes(step.address(to.x).writes(), to.x)?;
    let step = numbered.add(numbered.add(step, gradient)?, x)?;
    let spread = gamma.map(|gamma| spec.spread(gamma, x)).transpose()?;
    let step = numbered.weight(step, spread.as_ref(), x)?;
    let step = with_statistics(step, statistics)
        .address(&means)
        .writes()
        .address(&factors)
        .writes()
        .f64(spec.eps)
        .u64(groups)
        .u64(count)
        .over_blocks(groups);
    program.push(step);
    // The statistics of an element's group, as a view of the operand's shape.
    let of_groups = |at: usize| match spec.groups.contains(&at) {
        true => x.shape()[at],
        false => 1,
    };
    let shape: Vec<u64> = (0..rank).map(of_groups).collect();
    let means = means.reshape(&shape)?.broadcast(x.shape())?;
    let numbered = Numbered::by(&spec.channels, rank);
    let (channels, count) = numbered.sizes(x.shape());
    // Neighbours in memory are of different channels, or of one.
    let is_across = spec.channels.last() == Some(&(rank - 1));
    let columns = if is_across { 32 } else { 1 };
    let mut text = text;
    text.macros.retain(|(name, _)| *name != "COLUMNS");
    let step = NativeStep::new(text.with("COLUMNS", columns), "gradients_of_weights")
        .flat(to.gamma)
        .writes();
    let step = match to.beta {
        Some(beta) => step.flat(beta).writes(),
        None => step.u64(0).shape(ShapeParameter::new(std::iter::empty())),
    };
    let step = numbered.add(numbered.add(step, gradient)?, x)?;
    let step = numbered
        .add(step, &means)?
        .address(&factors)
        .u64(channels)
        .u64(count)
        .over_blocks(channels.div_ceil(columns));
    program.push(step);
    Ok(())
}

/// Adds the nearest points to the rows of `x` along its last dimension whose elements are not
/// negative and have the sum 1.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn sparsemax(program: &mut NativeProgram, x: &MemoryView, to: &MemoryView) -> Result<()> {
    to.check("the result", x.shape(), x.dtype())?;
    let (rows, length) = sizes(x);
    if x.layout.is_empty() {
        return Ok(());
    }
    let text = KernelText::new("norm.cu", include_str!("../cuda/norm.cu"))
        .with_type("ELEMENT", x.dtype())
        .with("CENTRED", 1)
        .with("SCALED", 1)
        .with("GIVEN", 0)
        .with("COLUMNS", 1);
    let step = NativeStep::new(text, "sparsemax")
        .rows(to)
        .writes()
        .rows(x)
        .u64(length)
        .u64(rows)
        .over_blocks(rows);
    program.push(step);
    Ok(())
}

//! Updates of parameters by their gradients, norms of gradients, and scales of losses.
//!
//! `optimise.cu` goes over views of one shape by their elements' numbers, and writes each element
//! of its results once, after it has read the one at the same place. Sums are made by each block of
//! a grid that the number of elements gives, and then by one block, so their order is fixed.

use fercuda_tensor::Dtype;

use crate::copy;
use crate::error::KernelError;
use crate::program::{NativeProgram, NativeStep, ShapeParameter, THREADS};
use crate::rows::merged;
use crate::text::KernelText;
use crate::view::{MemoryView, check};

type Result<T> = std::result::Result<T, KernelError>;

/// Blocks that sum the squares of one view.
const SUMMING: u64 = 1024;
/// Tensors of one launch of `update_many`.
const TOGETHER: usize = 8;

/// How parameters are updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdateRule {
    /// By the gradient.
    Sgd,
    /// By a velocity.
    Momentum,
    /// By means of gradients and of their squares; decay is added to the gradient.
    Adam,
    /// As Adam; decay is of the parameters.
    AdamDecoupled,
    /// By the sign of a mean.
    Lion,
    /// As Adam, by the ratio of the norms of parameters and change.
    Lamb,
}

impl UpdateRule {
    /// Number of tensors of state.
    pub fn states(self) -> usize {
        match self {
            Self::Sgd => 0,
            Self::Momentum | Self::Lion => 1,
            Self::Adam | Self::AdamDecoupled | Self::Lamb => 2,
        }
    }

    /// Whether it depends on the number of the step.
    pub fn has_step(self) -> bool {
        self.states() == 2
    }
}

/// Numbers of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateNumbers {
    /// Share of the earlier first state.
    pub beta1: f64,
    /// Share of the earlier second state.
    pub beta2: f64,
    /// What is added to a root.
    pub eps: f64,
    /// Decay of the parameters.
    pub decay: f64,
    /// Share of the gradient that a velocity does not get.
    pub dampening: f64,
    /// Whether the velocity of the next step is used.
    pub is_nesterov: bool,
}

/// Views of an update: parameters and gradient of one type and shape; each state before and after.
#[derive(Clone, Debug)]
pub struct UpdateViews {
    /// Parameters.
    pub x: MemoryView,
    /// Their gradient.
    pub gradient: MemoryView,
    /// State before.
    pub states: Vec<MemoryView>,
    /// The learning rate, one number.
    pub rate: MemoryView,
    /// The number of the step from 1 on, if the rule depends on it.
    pub step: Option<MemoryView>,
    /// Parameters after.
    pub to: MemoryView,
    /// State after.
    pub states_to: Vec<MemoryView>,
}

impl UpdateViews {
    /// All views with the parameters' shape.
    fn all(&self) -> Vec<&MemoryView> {
        let single = [&self.to, &self.x, &self.gradient].into_iter();
        single.chain(&self.states).chain(&self.states_to).collect()
    }
}

/// The type of state, rates and sums of parameters of a type.
pub fn state_type(dtype: Dtype) -> Dtype {
    match dtype {
        Dtype::F64 => Dtype::F64,
        _ => Dtype::F32,
    }
}

/// Whether the elements of all views are neighbours, in order.
fn is_dense(views: &[&MemoryView]) -> bool {
    views.iter().all(|view| {
        let dimensions = merged(view.layout(), 0..view.shape().len());
        matches!(dimensions[..], [] | [(_, 1)])
    })
}

fn text(views: &[&MemoryView], step: Dtype, part: &'static str) -> KernelText {
    let dtype = views.first().map_or(Dtype::F32, |view| view.dtype());
    KernelText::new("optimise.cu", include_str!("../cuda/optimise.cu"))
        .with_type("ELEMENT", dtype)
        .with_type("STEP", step)
        .with("IS_DENSE", u8::from(is_dense(views)))
        .with(part, 1)
}

fn check_single(view: &MemoryView, what: &str, dtype: Dtype) -> Result<()> {
    view.check(what, &[], dtype)
}

fn check_step(step: &MemoryView) -> Result<()> {
    let dtype = step.dtype();
    check(
        step.shape().is_empty() && !dtype.is_float() && dtype != Dtype::Bool,
        || format!("a step of {}", step.layout),
    )
}

/// Adds the numbers of an update as parameters.
fn with_numbers(step: NativeStep, numbers: UpdateNumbers) -> NativeStep {
    step.f64(numbers.beta1)
        .f64(numbers.beta2)
        .f64(numbers.eps)
        .f64(numbers.decay)
        .f64(numbers.dampening)
        .u64(u64::from(numbers.is_nesterov))
}

/// Number of blocks that `NativeStep::over` gives.
fn blocks_of(step: &NativeStep) -> u64 {
    u64::from(step.grid[0])
}

/// Checks the views of an update, and allows results to be where operands are.
fn check_update(program: &mut NativeProgram, rule: UpdateRule, views: &UpdateViews) -> Result<()> {
    let UpdateViews {
        x, gradient, to, ..
    } = views;
    let state = state_type(x.dtype());
    gradient.check("the gradient", x.shape(), x.dtype())?;
    to.check("the result", x.shape(), x.dtype())?;
    for view in views.states.iter().chain(&views.states_to) {
        view.check("a state", x.shape(), state)?;
    }
    let states = [views.states.len(), views.states_to.len()];
    check(states == [rule.states(); 2], || {
        format!("{states:?} states")
    })?;
    check_single(&views.rate, "the rate", state)?;
    check(views.step.is_some() == rule.has_step(), || {
        "a step".to_owned()
    })?;
    views.step.as_ref().map_or(Ok(()), check_step)?;
    program.allow_same(to, x);
    for (before, after) in views.states.iter().zip(&views.states_to) {
        program.allow_same(after, before);
    }
    Ok(())
}

/// Adds an update.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn update(
    program: &mut NativeProgram,
    rule: UpdateRule,
    views: &UpdateViews,
    numbers: UpdateNumbers,
) -> Result<()> {
    check_update(program, rule, views)?;
    let UpdateViews {
        x, gradient, to, ..
    } = views;
    let state = state_type(x.dtype());
    let count = x.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step_type = views.step.map_or(Dtype::I64, |step| step.dtype());
    let text = text(&views.all(), step_type, "HAS_UPDATE").with("UPDATE", rule as u32);
    let optional = |step: NativeStep, view: Option<&MemoryView>, is_written: bool| match view {
        Some(view) if is_written => step.flat(view).writes(),
        Some(view) => step.flat(view),
        None => step.u64(0).shape(ShapeParameter::new([].into_iter())),
    };
    let step = NativeStep::new(text, "update").over(count);
    let blocks = blocks_of(&step);
    let lamb = match rule {
        UpdateRule::Lamb => Some((
            program.reserve(state, &[count])?,
            program.reserve(state, &[2 * blocks])?,
        )),
        _ => None,
    };
    let step = step.flat(to).writes();
    let step = optional(step, views.states_to.first(), true);
    let step = optional(step, views.states_to.get(1), true);
    let step = step.flat(x).flat(gradient);
    let step = optional(step, views.states.first(), false);
    let step = optional(step, views.states.get(1), false);
    let step = step.address(&views.rate);
    let step = match &views.step {
        Some(view) => step.address(view),
        None => step.u64(0),
    };
    let step = match &lamb {
        Some((change, sums)) => step.address(change).writes().address(sums).writes(),
        None => step.u64(0).u64(0),
    };
    let step = with_numbers(step, numbers).u64(count);
    program.push(step);
    match lamb {
        Some((change, sums)) => scaled_change(program, views, &change, (&sums, blocks)),
        None => Ok(()),
    }
}

/// Adds updates of many tensors of one type, with one rate and step: of eight by one launch, if
/// elements are neighbours in order in all of a tensor's views, and of others by one each.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together, or of a rule that needs norms.
pub fn update_many(
    program: &mut NativeProgram,
    rule: UpdateRule,
    tensors: &[UpdateViews],
    numbers: UpdateNumbers,
) -> Result<()> {
    check(rule != UpdateRule::Lamb, || {
        "norms of many tensors".to_owned()
    })?;
    let Some(first) = tensors.first() else {
        return Ok(());
    };
    let mut dense = Vec::new();
    for tensor in tensors {
        let is_same = tensor.x.dtype() == first.x.dtype()
            && (tensor.rate, tensor.step) == (first.rate, first.step);
        check(is_same, || {
            format!("another type or rate of {}", tensor.x.layout)
        })?;
        if tensor.x.layout.is_empty() || !is_dense(&tensor.all()) {
            update(program, rule, tensor, numbers)?;
            continue;
        }
        check_update(program, rule, tensor)?;
        dense.push(tensor);
    }
    let number_type = first.step.map_or(Dtype::I64, |step| step.dtype());
    let text = text(&[&first.x], number_type, "MANY").with("UPDATE", rule as u32);
    for some in dense.chunks(TOGETHER) {
        let longest = some.iter().map(|it| it.x.layout.len()).max().unwrap_or(1);
        let mut step = NativeStep::new(text.clone(), "update_many").over(longest);
        step.grid[1] = some.len() as u32;
        for at in 0..TOGETHER {
            step = with_tensor(step, some.get(at).copied());
        }
        let step = step.address(&first.rate);
        let step = match &first.step {
            Some(number) => step.address(number),
            None => step.u64(0),
        };
        program.push(with_numbers(step, numbers));
    }
    Ok(())
}

/// A tensor of `update_many`, or none in its place.
fn with_tensor(step: NativeStep, tensor: Option<&UpdateViews>) -> NativeStep {
    let Some(tensor) = tensor else {
        return (0..8).fold(step, |step, _| step.u64(0));
    };
    let mut step = step.address(&tensor.to).writes();
    for at in 0..2 {
        step = match tensor.states_to.get(at) {
            Some(state) => step.address(state).writes(),
            None => step.u64(0),
        };
    }
    step = step.address(&tensor.x).address(&tensor.gradient);
    for at in 0..2 {
        step = match tensor.states.get(at) {
            Some(state) => step.address(state),
            None => step.u64(0),
        };
    }
    step.u64(tensor.x.layout.len())
}

/// Adds the change by the ratio of norms.
fn scaled_change(
    program: &mut NativeProgram,
    UpdateViews { x, to, rate, .. }: &UpdateViews,
    change: &MemoryView,
    (sums, blocks): (&MemoryView, u64),
) -> Result<()> {
    let ratio = program.reserve(state_type(x.dtype()), &[1])?;
    let text = text(&[to, x], Dtype::I64, "CHANGE");
    let step = NativeStep::new(text.clone(), "trust_ratio")
        .address(&ratio)
        .writes()
        .address(sums)
        .u64(blocks);
    program.push(step);
    let count = x.layout.len();
    let step = NativeStep::new(text, "change_scaled")
        .flat(to)
        .writes()
        .flat(x)
        .address(change)
        .address(&ratio)
        .address(rate)
        .u64(count)
        .over(count);
    program.push(step);
    Ok(())
}

/// Numbers of an update by factored squares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FactoredNumbers {
    /// The share of earlier means is 1 - step^-power.
    pub power: f64,
    /// What is added to squares.
    pub least_square: f64,
    /// The least scale of parameters.
    pub least_scale: f64,
    /// From this root mean square on, changes are divided by theirs.
    pub threshold: f64,
    /// Decay of the parameters.
    pub decay: f64,
}

/// Adds an update of a matrix by Adafactor (Shazeer and Stern, 2018): squares of gradients are
/// kept as means of rows and columns, the states.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn update_factored(
    program: &mut NativeProgram,
    views: &UpdateViews,
    numbers: FactoredNumbers,
) -> Result<()> {
    let UpdateViews {
        x, gradient, to, ..
    } = views;
    let state = state_type(x.dtype());
    gradient.check("the gradient", x.shape(), x.dtype())?;
    to.check("the result", x.shape(), x.dtype())?;
    let (&[height, width], [rows, columns], [rows_to, columns_to], Some(step_number)) = (
        x.shape(),
        &views.states[..],
        &views.states_to[..],
        &views.step,
    ) else {
        return check(false, || "a matrix with two states and a step".to_owned());
    };
    for (view, extent) in [
        (rows, height),
        (rows_to, height),
        (columns, width),
        (columns_to, width),
    ] {
        view.check("a state", &[extent], state)?;
    }
    check_single(&views.rate, "the rate", state)?;
    check_step(step_number)?;
    program.allow_same(to, x);
    program.allow_same(rows_to, rows);
    program.allow_same(columns_to, columns);
    let count = x.layout.len();
    if count == 0 {
        copy::elements(program, rows, rows_to)?;
        return copy::elements(program, columns, columns_to);
    }
    let text = text(&[to, x, gradient], step_number.dtype(), "FACTORS");
    let turned = gradient.permute(&[1, 0])?;
    for (gradient, before, after) in [(gradient, rows, rows_to), (&turned, columns, columns_to)] {
        let [outer, inner] = [gradient.shape()[0], gradient.shape()[1]];
        let step = NativeStep::new(text.clone(), "mean_squares")
            .view(after)
            .writes()
            .view(before)
            .view(gradient)
            .address(step_number)
            .f64(numbers.power)
            .f64(numbers.least_square)
            .u64(outer)
            .u64(inner);
        program.push(step.over_blocks(outer));
    }
    let mean = program.reserve(state, &[1])?;
    let step = NativeStep::new(text.clone(), "mean_of")
        .address(&mean)
        .writes();
    program.push(step.view(rows_to).u64(height));
    let step = NativeStep::new(text.clone(), "factored_sums").over(count);
    let blocks = blocks_of(&step);
    let sums = program.reserve(state, &[2 * blocks])?;
    let factors = |step: NativeStep| step.view(rows_to).view(columns_to).address(&mean);
    let step = step.address(&sums).writes().flat(x).flat(gradient);
    program.push(factors(step).u64(width).u64(count));
    let size = program.reserve(state, &[1])?;
    let step = NativeStep::new(text.clone(), "factored_size")
        .address(&size)
        .writes()
        .address(&sums)
        .address(&views.rate)
        .f64(numbers.least_scale)
        .f64(numbers.threshold)
        .u64(blocks)
        .u64(count);
    program.push(step);
    let step = NativeStep::new(text, "factored_update")
        .flat(to)
        .writes()
        .flat(x)
        .flat(gradient);
    let step = factors(step).address(&size).address(&views.rate);
    program.push(step.f64(numbers.decay).u64(width).u64(count).over(count));
    Ok(())
}

/// Adds the norm of all elements of views of one type, to a single element.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn norm(program: &mut NativeProgram, all: &[MemoryView], to: &MemoryView) -> Result<()> {
    let dtype = all.first().map_or(Dtype::F32, MemoryView::dtype);
    check_single(to, "the norm", state_type(dtype))?;
    let blocks = |view: &MemoryView| view.layout.len().div_ceil(THREADS.into()).min(SUMMING);
    let total: u64 = all.iter().map(blocks).sum();
    let sums = program.reserve(state_type(dtype), &[total])?;
    let mut first = 0;
    for view in all {
        check(view.dtype() == dtype, || {
            format!("{} and {dtype}", view.dtype())
        })?;
        let own = blocks(view);
        if own == 0 {
            continue;
        }
        let step = NativeStep::new(text(&[view], Dtype::I64, "NORM"), "sum_squares")
            .address(&sums)
            .writes()
            .flat(view)
            .u64(first)
            .u64(view.layout.len());
        program.push(step.blocks([own, 1, 1])?);
        first += own;
    }
    let views: Vec<&MemoryView> = all.iter().take(1).collect();
    let step = NativeStep::new(text(&views, Dtype::I64, "NORM"), "norm_of")
        .address(to)
        .writes()
        .address(&sums)
        .u64(total);
    program.push(step);
    Ok(())
}

/// Adds `to = x min(1, most / (norm + eps))`.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn clip_norm(
    program: &mut NativeProgram,
    [x, norm, to]: [&MemoryView; 3],
    most: f64,
    eps: f64,
) -> Result<()> {
    to.check("the result", x.shape(), x.dtype())?;
    check_single(norm, "the norm", state_type(x.dtype()))?;
    program.allow_same(to, x);
    let count = x.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(&[to, x], Dtype::I64, "NORM"), "clip_norm")
        .flat(to)
        .writes()
        .flat(x)
        .address(norm)
        .f64(most)
        .f64(eps)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds `to = x / scale`, and whether an element of `x` is not finite.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn unscale(program: &mut NativeProgram, [x, scale, to, found]: [&MemoryView; 4]) -> Result<()> {
    to.check("the result", x.shape(), x.dtype())?;
    check_single(scale, "the scale", state_type(x.dtype()))?;
    check_single(found, "the flag", Dtype::Bool)?;
    program.allow_same(to, x);
    copy::fill(program, found, 0);
    let count = x.layout.len();
    if count == 0 {
        return Ok(());
    }
    let step = NativeStep::new(text(&[to, x], Dtype::I64, "NORM"), "unscale")
        .flat(to)
        .writes()
        .address(found)
        .writes()
        .flat(x)
        .address(scale)
        .u64(count);
    program.push(step.over(count));
    Ok(())
}

/// Adds the next scale of a loss, and the number of finite steps since it changed.
///
/// # Errors
/// [`KernelError::Views`] of views that do not go together.
pub fn next_scale(
    program: &mut NativeProgram,
    [scale, streak, found]: [&MemoryView; 3],
    [scale_to, streak_to]: [&MemoryView; 2],
    [growth, backoff]: [f64; 2],
    interval: u64,
) -> Result<()> {
    check_step(streak)?;
    check(state_type(scale.dtype()) == scale.dtype(), || {
        format!("a scale of {}", scale.dtype())
    })?;
    for view in [scale, scale_to] {
        check_single(view, "the scale", scale.dtype())?;
    }
    check_single(streak_to, "the number", streak.dtype())?;
    check_single(found, "the flag", Dtype::Bool)?;
    program.allow_same(scale_to, scale);
    program.allow_same(streak_to, streak);
    let step = NativeStep::new(text(&[scale], streak.dtype(), "NORM"), "next_scale")
        .threads(32)
        .address(scale_to)
        .writes()
        .address(streak_to)
        .writes()
        .address(scale)
        .address(streak)
        .address(found)
        .f64(growth)
        .f64(backoff)
        .u64(interval);
    program.push(step);
    Ok(())
}

//! Parameters of ops on the command line, and look-up of an op by its name.

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fercuda_ops::{OpDescriptor, OpFamily, OpRow, registry};
use fercuda_tensor::Dtype;

use super::plan::refusal;
use crate::arrays::input::list;
use crate::status::{UsageError, bail_usage};
use crate::terminal::closest;

/// Parameters of an op.
#[derive(clap::Args)]
pub(super) struct ParameterArgs {
    /// Axes that it reduces, the one that it goes along, or the order of dimensions: 0,-1.
    #[arg(long, value_name = "AXES", allow_hyphen_values = true)]
    axes: Option<String>,
    /// Keep reduced axes, with extent 1.
    #[arg(long)]
    keep: bool,
    /// Type that it converts to.
    #[arg(long, value_name = "TYPE", value_parser = dtype_parser(), hide_possible_values = true)]
    to: Option<Dtype>,
    /// Shape that it broadcasts to: 8,128 or 8x128.
    #[arg(long, value_name = "SHAPE")]
    shape: Option<String>,
    /// Set one of its numbers, lists or choices: eps=1e-6, pads=1,1, mode=reflect (may be
    /// repeated).
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl ParameterArgs {
    /// The op with these parameters, for operands of at most `rank` dimensions.
    ///
    /// # Errors
    /// A usage error if the op lacks one of them, or needs another one.
    pub(super) fn describe(&self, row: &OpRow, rank: usize) -> Result<OpDescriptor> {
        let name = row.name;
        if row.has("to") && row.is_expression() && self.to.is_none() {
            bail_usage!("{name} has no type to convert to\ntry: --to f16");
        }
        if row.has("shape") && self.shape.is_none() {
            bail_usage!("{name} has no shape\ntry: --shape 8,128");
        }
        let has_axes = ["axes", "axis", "order"].iter().any(|it| row.has(it));
        if self.axes.is_some() && !has_axes {
            bail_usage!("{name} has no axes\ntry: without --axes");
        }
        let mut op = OpDescriptor::new(name).map_err(refusal)?;
        for text in &self.set {
            op = set(op, row, text)?;
        }
        if let Some(text) = &self.axes {
            op = op.axes(&axes(text, rank)?).map_err(refusal)?;
        }
        if let Some(to) = self.to {
            op = op.to(to).map_err(refusal)?;
        }
        if let Some(text) = &self.shape {
            op = op.shape(&shape(text)?).map_err(refusal)?;
        }
        op.keep(self.keep).map_err(refusal)
    }
}

/// The op with a number, a list or a choice given as `NAME=VALUE`.
fn set(op: OpDescriptor, row: &OpRow, text: &str) -> Result<OpDescriptor> {
    let known = row.numbers.first().map_or("alpha", |(known, _)| *known);
    let Some((name, value)) = text.split_once('=') else {
        bail_usage!("--set {text} has no value\ntry: --set {known}=0.5");
    };
    let (name, value) = (name.trim(), value.trim());
    if row.lists.iter().any(|(known, _)| *known == name) {
        let example = format!("--set {name}=1,2");
        let values: Vec<i64> = list(value, &example).map_err(usage)?;
        return op.list(name, &values).map_err(refusal);
    }
    if row.choices.iter().any(|(known, _)| *known == name) {
        return op.choice(name, value).map_err(refusal);
    }
    let Ok(value) = value.parse() else {
        bail_usage!("--set {text}: {value:?} is not a number\ntry: --set {known}=0.5");
    };
    op.number(name, value).map_err(refusal)
}

/// Axes by their numbers, negative ones from the last axis on.
fn axes(text: &str, rank: usize) -> Result<Vec<usize>> {
    let given: Vec<i64> = list(text, "--axes 0,-1").map_err(usage)?;
    let mut axes = Vec::new();
    for axis in given {
        let counted = match axis < 0 {
            true => axis + rank as i64,
            false => axis,
        };
        match usize::try_from(counted) {
            Ok(axis) => axes.push(axis),
            Err(_) => bail_usage!(
                "--axes {text}: there is no axis {axis} of {rank} dimensions\n\
                 try: 0 to {}",
                rank.saturating_sub(1)
            ),
        }
    }
    Ok(axes)
}

/// Extents given as `8,128` or `8x128`.
///
/// # Errors
/// A usage error that quotes what is no extent.
pub(super) fn shape(text: &str) -> Result<Vec<u64>> {
    list(&text.replace('x', ","), "--shape 8,128").map_err(usage)
}

/// An error of arguments as one of the command line.
pub(super) fn usage(error: anyhow::Error) -> anyhow::Error {
    UsageError(format!("{error:#}")).into()
}

/// The op of that name.
///
/// # Errors
/// A usage error with the closest name.
pub(super) fn find(name: &str) -> Result<&'static OpRow> {
    if let Ok(row) = registry::find(name) {
        return Ok(row);
    }
    let listed = "fercuda ops list";
    match closest(name, registry::rows().map(|row| row.name)) {
        Some(near) => bail_usage!("there is no op {name:?}\ntry: {near}, or {listed} for all"),
        None => bail_usage!("there is no op {name:?}\ntry: {listed}"),
    }
}

/// Parser of the names of types.
pub(super) fn dtype_parser() -> impl TypedValueParser<Value = Dtype> {
    PossibleValuesParser::new(Dtype::ALL.map(Dtype::name)).try_map(|name| name.parse::<Dtype>())
}

/// Parser of the names of families.
pub(super) fn family_parser() -> impl TypedValueParser<Value = OpFamily> {
    PossibleValuesParser::new(OpFamily::ALL.map(OpFamily::name)).try_map(|name| {
        let mut all = OpFamily::ALL.into_iter();
        all.find(|family| family.name() == name)
            .ok_or("there is no such family")
    })
}

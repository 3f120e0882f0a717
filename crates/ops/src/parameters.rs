//! Values of an op's parameters, as rules of results and references read them.
//!
//! Elsewhere: setting them, and comparing them with the op's row (`descriptor`).

use fercuda_tensor::Dtype;

/// Shape or parameters that do not go together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// The problem.
    pub what: String,
    /// What to try.
    pub hint: String,
}

impl Misfit {
    /// A problem, and what to try.
    pub fn new(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: hint.into(),
        }
    }
}

/// Axes of an op for which none were set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DefaultAxes {
    All,
    Last,
    Reversed,
}

/// Values of an op's parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OpParameters {
    pub(crate) name: &'static str,
    /// Bits of the numbers, in the order of the row.
    pub(crate) numbers: Vec<(&'static str, u64)>,
    pub(crate) lists: Vec<(&'static str, Vec<i64>)>,
    pub(crate) choices: Vec<(&'static str, &'static str)>,
    pub(crate) axes: Option<Vec<usize>>,
    pub(crate) default_axes: DefaultAxes,
    pub(crate) keep: bool,
    pub(crate) to: Option<Dtype>,
    pub(crate) shape: Option<Vec<u64>>,
}

impl OpParameters {
    /// The op's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The values of its numbers, in the order of the row.
    pub fn numbers(&self) -> Vec<f64> {
        let bits = self.numbers.iter();
        bits.map(|(_, bits)| f64::from_bits(*bits)).collect()
    }

    /// The value of one of its numbers, or 0.
    pub fn number_of(&self, name: &str) -> f64 {
        let found = self.numbers.iter().find(|(known, _)| *known == name);
        found.map_or(0.0, |(_, bits)| f64::from_bits(*bits))
    }

    /// The values of one of its lists, or none.
    pub fn list_of(&self, name: &str) -> &[i64] {
        let found = self.lists.iter().find(|(known, _)| *known == name);
        found.map_or(&[], |(_, list)| list)
    }

    /// Whether it has a list of that name.
    pub fn has_list(&self, name: &str) -> bool {
        self.lists.iter().any(|(known, _)| *known == name)
    }

    /// The value of one of its choices, or nothing.
    pub fn choice_of(&self, name: &str) -> &'static str {
        let found = self.choices.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    }

    /// The axis that it goes along, of operands of that rank.
    ///
    /// # Errors
    /// A rank that does not have it.
    pub fn axis_of(&self, rank: usize) -> Result<usize, Misfit> {
        let axis = self.axes_of(rank).first().copied().unwrap_or_default();
        match axis < rank {
            true => Ok(axis),
            false => Err(Misfit::new(
                format!("there is no axis {axis} in {rank} dimensions"),
                match rank {
                    0 => "an operand of at least one dimension".to_owned(),
                    rank => format!("an axis below {rank}"),
                },
            )),
        }
    }

    /// The type that it converts to, or that it gives.
    pub fn target(&self) -> Option<Dtype> {
        self.to
    }

    /// The shape that it broadcasts to, or that it gives.
    pub fn target_shape(&self) -> Option<&[u64]> {
        self.shape.as_deref()
    }

    /// The axes that it reduces or goes along, of operands of that rank; the order of dimensions
    /// for `permute`.
    pub fn axes_of(&self, rank: usize) -> Vec<usize> {
        match (&self.axes, self.default_axes) {
            (Some(axes), _) => axes.clone(),
            (None, DefaultAxes::Last) => vec![rank.saturating_sub(1)],
            (None, DefaultAxes::Reversed) => (0..rank).rev().collect(),
            (None, DefaultAxes::All) => (0..rank).collect(),
        }
    }
}

/// The shape that both can be broadcast to, by NumPy's rule.
pub(crate) fn joined(a: &[u64], b: &[u64]) -> Option<Vec<u64>> {
    let rank = a.len().max(b.len());
    let extent = |shape: &[u64], at: usize| match (at + shape.len()).checked_sub(rank) {
        Some(own) => shape[own],
        None => 1,
    };
    (0..rank)
        .map(|at| match (extent(a, at), extent(b, at)) {
            (a, b) if a == b => Some(a),
            (1, other) | (other, 1) => Some(other),
            _ => None,
        })
        .collect()
}

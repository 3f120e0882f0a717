//! Comparison of a device's results with expected values and their error bounds.

use fercuda_jit::reference::{self, ExactValue, Near};
use fercuda_tensor::Layout;
use serde::Serialize;

use crate::out::say;
use crate::terminal::Paint;

/// How far an output's elements are from what is expected of them.
#[derive(Debug, Serialize)]
pub(crate) struct OutputComparison {
    name: String,
    layout: String,
    elements: u64,
    /// Elements that the reference cannot judge, such as next to a discontinuity.
    unknown: u64,
    /// Elements outside their error bound.
    pub wrong: u64,
    largest_error: f64,
    /// The error bound at the element with the largest error; of several, the largest.
    bound_there: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_wrong: Option<String>,
    #[serde(skip)]
    is_float: bool,
}

/// Compares the bits of an output's elements with the values expected of them, in order.
pub(crate) fn compared(
    name: &str,
    layout: &Layout,
    got: &[u64],
    wanted: &[Near],
) -> OutputComparison {
    let dtype = layout.dtype();
    let mut compared = OutputComparison {
        name: name.to_owned(),
        layout: layout.to_string(),
        elements: layout.len(),
        unknown: 0,
        wrong: 0,
        largest_error: 0.0,
        bound_there: 0.0,
        first_wrong: None,
        is_float: dtype.is_float(),
    };
    for (at, (&bits, near)) in got.iter().zip(wanted).enumerate() {
        if near.error == f64::INFINITY {
            compared.unknown += 1;
            continue;
        }
        let got = reference::decode(dtype, bits);
        if let (ExactValue::Float(got), ExactValue::Float(wanted)) = (got, near.value) {
            let error = (got - wanted).abs();
            let is_looser = error == compared.largest_error && near.error > compared.bound_there;
            if error > compared.largest_error || is_looser {
                compared.largest_error = error;
                compared.bound_there = near.error;
            }
        }
        if !near.allows(dtype, bits) {
            compared.wrong += 1;
            compared.first_wrong.get_or_insert_with(|| {
                let Near { value, error } = near;
                format!("element {at} is {got:?}, should be {value:?} within {error:.2e}")
            });
        }
    }
    compared
}

impl OutputComparison {
    /// Prints the verdict and the largest error, and the first wrong element.
    pub(crate) fn print(&self, paint: Paint) {
        let verdict = match self.wrong {
            0 => paint.good("ok"),
            _ => paint.bad("WRONG"),
        };
        let Self {
            name,
            layout,
            elements,
            unknown,
            wrong,
            largest_error,
            bound_there,
            first_wrong,
            is_float,
        } = self;
        let mut line = format!("{verdict} {name}: {layout}, {elements} elements");
        if *wrong > 0 {
            line += &format!(", {wrong} outside their error bound");
        }
        match *wrong + *unknown < *elements {
            true if *is_float => {
                line +=
                    &format!(", largest error {largest_error:.2e} (bound there {bound_there:.2e})");
            }
            true if *wrong + *unknown == 0 => line += ", exact",
            _ => {}
        }
        if *unknown > 0 {
            line += &format!(", {unknown} not comparable");
        }
        say!("{line}");
        if let Some(first) = first_wrong {
            say!("  {first}");
        }
    }
}

#[cfg(test)]
mod tests {
    use fercuda_tensor::Dtype;

    use super::*;

    #[test]
    fn elements_beyond_their_bound_are_wrong_and_those_without_one_are_not_judged() {
        let near = |value: f64, error: f64| Near {
            value: ExactValue::Float(value),
            error,
        };
        let wanted = [
            near(1.0, 0.25),
            near(2.0, 0.25),
            near(3.0, f64::INFINITY),
            near(4.0, 0.0),
        ];
        let got = [1.125, 2.5, 9.0, 4.0].map(|value| Dtype::F32.encode(value));
        let layout = Layout::contiguous(Dtype::F32, &[4]).unwrap();
        let compared = compared("y", &layout, &got, &wanted);
        assert_eq!((compared.wrong, compared.unknown), (1, 1));
        assert_eq!((compared.largest_error, compared.bound_there), (0.5, 0.25));
        let first = compared.first_wrong.unwrap();
        assert!(first.starts_with("element 1 is Float(2.5)"), "{first}");
    }

    #[test]
    fn the_bound_of_a_largest_error_of_0_is_that_of_an_element() {
        let wanted = [ExactValue::Float(1.0)].map(|value| Near { value, error: 0.25 });
        let layout = Layout::contiguous(Dtype::F32, &[]).unwrap();
        let compared = compared("y", &layout, &[Dtype::F32.encode(1.0)], &wanted);
        assert_eq!((compared.largest_error, compared.bound_there), (0.0, 0.25));
    }
}

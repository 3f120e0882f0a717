//! Elements of results by their indices, and rows of elements along one axis.

use fercuda_tensor::Layout;

use crate::arrays::{HostArray, indices};
use crate::parameters::OpParameters;
use crate::row::ExpectedElement;

/// The axis of an op whose rule of results has accepted it.
pub(super) fn first_axis(op: &OpParameters, rank: usize) -> usize {
    op.axes_of(rank).first().copied().unwrap_or_default()
}

/// The elements of one result, by their indices.
pub(super) fn by_index(
    result: &Layout,
    f: impl FnMut(&Vec<u64>) -> ExpectedElement,
) -> Vec<Vec<ExpectedElement>> {
    vec![indices(result.shape()).iter().map(f).collect()]
}

/// Elements of an array with another extent of one axis, from each row along that axis.
pub(super) fn by_rows(
    x: &HostArray,
    axis: usize,
    extent: usize,
    mut f: impl FnMut(&[f64]) -> Vec<ExpectedElement>,
) -> Vec<ExpectedElement> {
    let product = |shape: &[u64]| shape.iter().product::<u64>() as usize;
    let (outer, inner) = (product(&x.shape[..axis]), product(&x.shape[axis + 1..]));
    let len = x.shape[axis] as usize;
    let mut all = vec![(f64::NAN, 0.0); outer * extent * inner];
    for (a, b) in (0..outer).flat_map(|a| (0..inner).map(move |b| (a, b))) {
        let row = (0..len).map(|n| x.values[(a * len + n) * inner + b]);
        let result = f(&row.collect::<Vec<f64>>());
        for (n, element) in result.into_iter().enumerate() {
            all[(a * extent + n) * inner + b] = element;
        }
    }
    all
}

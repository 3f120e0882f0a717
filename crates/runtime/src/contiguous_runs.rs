//! Contiguous runs: how a copy between two layouts splits into runs that are contiguous in both.

use fercuda_tensor::Layout;

/// The contiguous runs of two layouts of one shape and type: their length, and where each begins
/// in either layout, in bytes from the first element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContiguousRuns {
    pub(crate) bytes: u64,
    left: Layout,
    right: Layout,
    /// Number of leading dimensions that are iterated; the rest are one run.
    outer: usize,
}

impl ContiguousRuns {
    /// Computes the runs of two layouts that have one shape and type.
    pub(crate) fn of(left: Layout, right: Layout) -> Self {
        debug_assert_eq!(left.shape(), right.shape());
        let mut outer = left.shape().len();
        let mut elements: u64 = 1;
        let is_beside = |layout: &Layout, dimension: usize, elements: u64| {
            layout.shape()[dimension] == 1 || layout.strides()[dimension] == elements as i64
        };
        while outer > 0 {
            let dimension = outer - 1;
            if !is_beside(&left, dimension, elements) || !is_beside(&right, dimension, elements) {
                break;
            }
            elements *= left.shape()[dimension];
            outer = dimension;
        }
        Self {
            bytes: elements * left.dtype().bytes(),
            left,
            right,
            outer,
        }
    }

    /// Number of runs.
    pub(crate) fn count(&self) -> u64 {
        if self.left.is_empty() {
            return 0;
        }
        self.left.shape()[..self.outer].iter().product()
    }

    /// Offsets in bytes at which each run begins, in either layout.
    pub(crate) fn begins(&self) -> impl Iterator<Item = (i64, i64)> {
        let shape = &self.left.shape()[..self.outer];
        let size = self.left.dtype().bytes() as i64;
        (0..self.count()).map(move |number| {
            let mut rest = number;
            let mut at = (0, 0);
            for (dimension, len) in shape.iter().enumerate().rev() {
                let index = (rest % len) as i64 * size;
                rest /= len;
                at.0 += index * self.left.strides()[dimension];
                at.1 += index * self.right.strides()[dimension];
            }
            at
        })
    }
}

#[cfg(test)]
mod tests {
    use fercuda_tensor::Dtype;

    use super::*;

    /// Offset of each element, in bytes.
    fn places(layout: &Layout) -> Vec<i64> {
        let size = layout.dtype().bytes() as i64;
        let mut places = vec![0];
        for (len, stride) in layout.shape().iter().zip(layout.strides()) {
            let along = |at: i64| (0..*len as i64).map(move |index| at + index * stride * size);
            places = places.into_iter().flat_map(along).collect();
        }
        places
    }

    #[test]
    fn pieces_are_all_elements_in_their_order() {
        let mut seed = fastrand::Rng::new();
        let first = seed.get_seed();
        for _ in 0..2000 {
            let rank = seed.usize(0..4);
            let shape: Vec<u64> = (0..rank).map(|_| seed.u64(0..4)).collect();
            let mut random = |shape: &[u64]| {
                let whole = Layout::contiguous(Dtype::F32, shape).unwrap();
                let mut order: Vec<usize> = (0..shape.len()).collect();
                seed.shuffle(&mut order);
                let mut inverse = vec![0; order.len()];
                order
                    .iter()
                    .enumerate()
                    .for_each(|(to, from)| inverse[*from] = to);
                let turned: Vec<u64> = order.iter().map(|from| shape[*from]).collect();
                match seed.bool() {
                    true => whole,
                    false => {
                        let other = Layout::contiguous(Dtype::F32, &turned).unwrap();
                        other.permute(&inverse).unwrap()
                    }
                }
            };
            let (left, right) = (random(&shape), random(&shape));
            let runs = ContiguousRuns::of(left, right);
            let size = 4;
            let each = |begin: i64| (0..runs.bytes as i64 / size).map(move |at| begin + at * size);
            let walked: Vec<(i64, i64)> = runs
                .begins()
                .flat_map(|(a, b)| each(a).zip(each(b)))
                .collect();
            let all: Vec<(i64, i64)> = places(&left).into_iter().zip(places(&right)).collect();
            assert_eq!(walked, all, "seed {first}: {left:?} {right:?}");
        }
    }
}

//! Layouts against a naive model: the list of all elements' offsets.
#![expect(clippy::unwrap_used, reason = "a test reports by panicking")]

use fercuda_tensor::{Dtype, Layout, LayoutError, MAX_RANK};
use proptest::prelude::*;

/// Offset of each element, in bytes, in the order of the indices.
fn places(layout: &Layout) -> Vec<i64> {
    let mut all = vec![0_i64];
    for (len, stride) in layout.shape().iter().zip(layout.strides()) {
        let apart = stride * layout.dtype().bytes() as i64;
        let along = |first: i64| (0..*len as i64).map(move |n| first + n * apart);
        all = all.into_iter().flat_map(along).collect();
    }
    all
}

/// The range of bytes of all elements.
fn reached(layout: &Layout) -> std::ops::Range<i64> {
    let all = places(layout);
    let (Some(first), Some(last)) = (all.iter().min(), all.iter().max()) else {
        return 0..0;
    };
    *first..last + layout.dtype().bytes() as i64
}

fn overlaps(layout: &Layout) -> bool {
    let mut all = places(layout);
    all.sort_unstable();
    all.windows(2).any(|pair| pair[0] == pair[1])
}

fn dtypes() -> impl Strategy<Value = Dtype> {
    prop::sample::select(Dtype::ALL.to_vec())
}

fn shapes() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0_u64..5, 0..5)
}

/// Random strides mostly overlap; so most layouts are contiguous ones, permuted and broadcast.
fn layouts() -> impl Strategy<Value = Layout> {
    let wild = (dtypes(), shapes(), prop::collection::vec(-9_i64..10, 5));
    let wild = wild.prop_map(|(dtype, shape, strides)| {
        Layout::strided(dtype, &shape, &strides[..shape.len()]).unwrap()
    });
    let turned = (
        dtypes(),
        shapes(),
        any::<u64>(),
        prop::collection::vec(1_u64..4, 5),
    );
    let turned = turned.prop_map(|(dtype, shape, seed, steps)| {
        let stretched: Vec<u64> = shape.iter().zip(&steps).map(|(a, b)| a * b).collect();
        let mut layout = Layout::contiguous(dtype, &stretched).unwrap();
        for (at, step) in steps.iter().enumerate().take(shape.len()) {
            layout = layout.slice(at, 0..stretched[at], *step).unwrap().0;
        }
        let mut order: Vec<usize> = (0..shape.len()).collect();
        if seed % 2 == 0 {
            order.sort_by_key(|at| {
                seed.rotate_left(7 * *at as u32)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
        }
        layout.permute(&order).unwrap()
    });
    prop_oneof![1 => wild, 3 => turned]
}

/// A shape with that many elements.
fn factored(elements: u64, seed: u64) -> Vec<u64> {
    let (mut left, mut seed, mut shape) = (elements, seed, Vec::new());
    while left > 1 && shape.len() + 1 < MAX_RANK {
        let divisors: Vec<u64> = (1..=left).filter(|n| left % n == 0).collect();
        let factor = divisors[(seed % divisors.len() as u64) as usize];
        seed /= divisors.len() as u64 + 1;
        shape.push(factor);
        left /= factor;
    }
    shape.push(left);
    shape
}

proptest! {
    #[test]
    fn reach_covers_exactly_the_elements(layout in layouts()) {
        let all = places(&layout);
        prop_assert_eq!(layout.len(), all.len() as u64);
        prop_assert_eq!(layout.is_empty(), all.is_empty());
        prop_assert_eq!(layout.bytes(), all.len() as u64 * layout.dtype().bytes());
        prop_assert_eq!(layout.reach_bytes(), reached(&layout));
        let apart = layout.dtype().bytes() as i64;
        let side_by_side = (0..).map(|n| n * apart).zip(&all).all(|(n, at)| n == *at);
        prop_assert_eq!(layout.is_contiguous(), side_by_side);
        // It is conservative: if it returns false there is no overlap.
        prop_assert!(layout.may_overlap() || !overlaps(&layout));
    }

    #[test]
    fn permuted_slices_of_contiguous_memory_are_known_not_to_overlap(
        dtype in dtypes(), shape in shapes(), step in 1_u64..4,
    ) {
        let layout = Layout::contiguous(dtype, &shape).unwrap();
        prop_assert!(layout.is_contiguous() && !layout.may_overlap());
        for (at, len) in shape.iter().enumerate() {
            let (cut, _) = layout.slice(at, 0..*len, step).unwrap();
            let mut order: Vec<usize> = (0..shape.len()).collect();
            order.swap(0, at);
            prop_assert!(!cut.permute(&order).unwrap().may_overlap());
        }
    }

    #[test]
    fn slice_has_the_elements_of_its_range(
        layout in layouts(), at in 0_usize..6, from in 0_u64..6, until in 0_u64..6, step in 0_u64..4,
    ) {
        let sliced = layout.slice(at, from..until, step);
        let rank = layout.shape().len();
        let Some(len) = layout.shape().get(at).copied() else {
            prop_assert_eq!(sliced, Err(LayoutError::NoDimension { dimension: at, rank }));
            return Ok(());
        };
        if from > until || until > len {
            prop_assert_eq!(sliced, Err(LayoutError::Range { dimension: at, from, until, len }));
            return Ok(());
        }
        if step == 0 {
            prop_assert_eq!(sliced, Err(LayoutError::Step { dimension: at }));
            return Ok(());
        }
        let (sliced, first) = sliced.unwrap();
        // The index in that dimension of an element, by its number.
        let below: u64 = layout.shape()[at + 1..].iter().product();
        let is_in = |number: &u64| {
            let index = number / below.max(1) % len.max(1);
            (from..until).contains(&index) && (index - from).is_multiple_of(step)
        };
        let expected: Vec<i64> = (0..).zip(places(&layout)).filter(|(n, _)| is_in(n)).map(|(_, at)| at).collect();
        let got: Vec<i64> = places(&sliced).into_iter().map(|at| at + first).collect();
        prop_assert_eq!(got, expected);
        let (within, of) = (sliced.reach_bytes(), layout.reach_bytes());
        prop_assert!(sliced.is_empty() || (within.start + first >= of.start && within.end + first <= of.end));
    }

    #[test]
    fn reshape_keeps_the_elements_and_their_order(layout in layouts(), seed in any::<u64>()) {
        let shape = match layout.is_empty() {
            true => vec![3, 0],
            false => factored(layout.len(), seed),
        };
        match layout.reshape(&shape) {
            Ok(view) => {
                prop_assert_eq!(view.shape(), &shape[..]);
                prop_assert_eq!(places(&view), places(&layout));
            }
            Err(error) => {
                let is_refused = matches!(error, LayoutError::NotAView { .. });
                prop_assert!(is_refused, "{}", error);
                prop_assert!(!layout.is_contiguous());
                // No strides express it: each dimension's would have to be this one.
                let all = places(&layout);
                let element = layout.dtype().bytes() as i64;
                let mut strides = vec![0; shape.len()];
                let mut below = 1;
                for at in (0..shape.len()).rev() {
                    if shape[at] > 1 {
                        strides[at] = (all[below] - all[0]) / element;
                    }
                    below *= shape[at] as usize;
                }
                let only = Layout::strided(layout.dtype(), &shape, &strides).unwrap();
                prop_assert_ne!(places(&only), all);
            }
        }
        let more: Vec<u64> = [shape.as_slice(), &[2]].concat();
        let other = layout.reshape(&more);
        let is_refused = matches!(other, Err(LayoutError::Elements { .. } | LayoutError::Rank { .. }));
        prop_assert!(layout.is_empty() || is_refused);
    }

    #[test]
    fn broadcast_repeats_elements(layout in layouts(), more in prop::collection::vec(1_u64..4, 0..3), seed in any::<u8>()) {
        let mut shape = more.clone();
        shape.extend(layout.shape().iter().enumerate().map(|(at, len)| {
            let stretches = *len == 1 && seed >> at & 1 == 1;
            if stretches { 3 } else { *len }
        }));
        let wide = layout.broadcast(&shape).unwrap();
        prop_assert_eq!(wide.shape(), &shape[..]);
        // The corresponding element has the same indices, or 0 where the extent is 1.
        let own = places(&layout);
        for (number, at) in places(&wide).into_iter().enumerate() {
            let (mut left, mut from, mut below) = (number as u64, 0, 1);
            for (dimension, len) in shape.iter().enumerate().rev() {
                let index = left % len;
                left /= len;
                if let Some(own) = dimension.checked_sub(more.len()) {
                    let own = layout.shape()[own];
                    from += if own == 1 { 0 } else { index } * below;
                    below *= own;
                }
            }
            prop_assert_eq!(at, own[from as usize]);
        }
        if let Some(wrong) = shape.iter().position(|len| *len > 1).filter(|at| *at >= more.len()) {
            shape[wrong] += 1;
            let own = layout.shape()[wrong - more.len()];
            let refused = matches!(layout.broadcast(&shape), Err(LayoutError::Broadcast { .. }));
            prop_assert_eq!(refused, own != 1);
        }
    }

    #[test]
    fn no_shape_overflows(
        dtype in dtypes(), shape in prop::collection::vec(any::<u64>(), 0..10), strides in prop::collection::vec(any::<i64>(), 0..10),
        small in prop::collection::vec(0_u64..1 << 20, 0..9),
    ) {
        for shape in [&shape, &small] {
            for layout in [Layout::contiguous(dtype, shape), Layout::strided(dtype, shape, &strides)].into_iter().flatten() {
                let reach = layout.reach_bytes();
                prop_assert!(reach.start <= 0 && reach.end >= 0);
                let _no_panic = (layout.len(), layout.bytes(), layout.is_contiguous(), layout.may_overlap());
                for (at, len) in shape.iter().enumerate() {
                    let (last, first) = layout.slice(at, len.saturating_sub(1)..*len, u64::MAX >> 1).unwrap();
                    prop_assert!(last.is_empty() || reach.contains(&first));
                }
            }
        }
    }
}

#[test]
fn invalid_views_are_refused_with_their_arguments() {
    let of = |shape: &[u64]| Layout::contiguous(Dtype::F32, shape);
    assert_eq!(of(&[1; 9]), Err(LayoutError::Rank { rank: 9 }));
    assert_eq!(
        Layout::strided(Dtype::F32, &[2, 3], &[1]),
        Err(LayoutError::Strides {
            shape: 2,
            strides: 1
        })
    );
    assert!(matches!(
        of(&[1 << 31, 1 << 31]),
        Err(LayoutError::TooLarge { .. })
    ));
    assert!(matches!(
        of(&[u64::MAX, 0]),
        Err(LayoutError::TooLarge { .. })
    ));
    let matrix = of(&[3, 4]).unwrap();
    assert!(matches!(
        matrix.permute(&[0, 0]),
        Err(LayoutError::Order { .. })
    ));
    assert!(matches!(
        matrix.permute(&[0]),
        Err(LayoutError::Order { .. })
    ));
    assert!(matches!(
        matrix.permute(&[0, 2]),
        Err(LayoutError::Order { .. })
    ));
    let turned = matrix.permute(&[1, 0]).unwrap();
    assert_eq!(turned.to_string(), "f32[4, 3] by [1, 4]");
    let said = turned.reshape(&[12]).unwrap_err().to_string();
    assert_eq!(
        said,
        "[4, 3] with strides [1, 4] has no view as [12]\ntry: a contiguous copy first"
    );
    assert_eq!(of(&[]).unwrap().to_string(), "f32[]");
    assert_eq!(
        (of(&[]).unwrap().len(), of(&[]).unwrap().reach_bytes()),
        (1, 0..4)
    );
}

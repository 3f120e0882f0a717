//! Description of a transform and its checks.
//!
//! Invariant: every number of a [`CheckedTransform`] is positive or a batch's distance, and the
//! reach of both sides fits 63 bits in bytes.

use std::fmt;

use crate::error::{Error, Result};

/// Which of the two sides of a transform are complex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformKind {
    /// Complex to complex, forward or inverse.
    ComplexToComplex,
    /// Real to the first half of its spectrum, forward: `n / 2 + 1` complex values along the last
    /// dimension, where the real side has `n`.
    RealToComplex,
    /// The first half of a spectrum to real, inverse.
    ComplexToReal,
}

/// The type of real and imaginary parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformPrecision {
    /// f32.
    F32,
    /// f64.
    F64,
}

impl TransformPrecision {
    /// Bytes of a real value.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }
}

/// The sign of the exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformDirection {
    /// exp(-2 pi i j k / n).
    Forward,
    /// exp(+2 pi i j k / n).
    Inverse,
}

/// Where the elements of one side lie. Element `(x, y, z)` of signal `b` is at
/// `b * distance + ((x * extents[1] + y) * extents[2] + z) * stride`, in elements of that side
/// (real or complex values).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SignalLayout {
    /// The extents of the array that the signal lies in, one for each dimension. The first has no
    /// influence.
    pub extents: Vec<u64>,
    /// Elements from one to the next along the last dimension.
    pub stride: u64,
    /// Elements from one signal to the next.
    pub distance: u64,
}

impl SignalLayout {
    /// Signals of these extents, without gaps.
    pub fn dense(extents: &[u64]) -> Self {
        let product = extents
            .iter()
            .fold(1, |all: u64, it| all.saturating_mul(*it));
        Self {
            extents: extents.to_vec(),
            stride: 1,
            distance: product,
        }
    }
}

/// A transform of one to three dimensions, of one signal or many.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TransformSpec {
    /// Which sides are complex.
    pub kind: TransformKind,
    /// The type of parts.
    pub precision: TransformPrecision,
    /// Lengths of the transform, of its real side if it has one; the last is contiguous.
    pub lengths: Vec<u64>,
    /// Number of signals.
    pub batch: u64,
    /// Where the input lies.
    pub input: SignalLayout,
    /// Where the output lies.
    pub output: SignalLayout,
}

/// The extents of the complex side of a transform of real values.
fn half(lengths: &[u64]) -> Vec<u64> {
    let mut extents = lengths.to_vec();
    if let Some(last) = extents.last_mut() {
        *last = *last / 2 + 1;
    }
    extents
}

impl TransformSpec {
    /// A transform of dense signals, out of place; a complex one may be done in place too.
    pub fn new(kind: TransformKind, precision: TransformPrecision, lengths: &[u64]) -> Self {
        let (input, output) = Self::extents(kind, lengths);
        Self {
            kind,
            precision,
            lengths: lengths.to_vec(),
            batch: 1,
            input: SignalLayout::dense(&input),
            output: SignalLayout::dense(&output),
        }
    }

    /// The extents of the signals of input and output.
    fn extents(kind: TransformKind, lengths: &[u64]) -> (Vec<u64>, Vec<u64>) {
        match kind {
            TransformKind::ComplexToComplex => (lengths.to_vec(), lengths.to_vec()),
            TransformKind::RealToComplex => (lengths.to_vec(), half(lengths)),
            TransformKind::ComplexToReal => (half(lengths), lengths.to_vec()),
        }
    }

    /// `count` signals.
    pub fn batch(self, count: u64) -> Self {
        Self {
            batch: count,
            ..self
        }
    }

    /// With the real side padded along the last dimension to the size of the complex side, as a
    /// transform in place needs it: rows of `2 * (n / 2 + 1)` real values.
    pub fn padded(mut self) -> Self {
        let mut extents = half(&self.lengths);
        if let Some(last) = extents.last_mut() {
            *last *= 2;
        }
        match self.kind {
            TransformKind::ComplexToComplex => {}
            TransformKind::RealToComplex => self.input = SignalLayout::dense(&extents),
            TransformKind::ComplexToReal => self.output = SignalLayout::dense(&extents),
        }
        self
    }

    /// Checks it all.
    pub(super) fn check(&self) -> Result<CheckedTransform> {
        let rank = self.lengths.len();
        if rank == 0 || rank > 3 {
            return Err(refused(format!("{self} has {rank} dimensions, not 1 to 3")));
        }
        if self.batch == 0 || self.lengths.contains(&0) {
            return Err(refused(format!("{self} has no elements")));
        }
        let (input, output) = Self::extents(self.kind, &self.lengths);
        let (real, complex) = (self.precision.bytes(), 2 * self.precision.bytes());
        let bytes = match self.kind {
            TransformKind::ComplexToComplex => (complex, complex),
            TransformKind::RealToComplex => (real, complex),
            TransformKind::ComplexToReal => (complex, real),
        };
        let too_large =
            |value: u64| i64::try_from(value).map_err(|_| refused(format!("{self} is too large")));
        let lengths = self.lengths.iter().map(|it| too_large(*it));
        Ok(CheckedTransform {
            lengths: lengths.collect::<Result<_>>()?,
            batch: too_large(self.batch)?,
            // What is only read may be shared, as by windows that overlap.
            input: self.check_side(
                ("input", self.kind == TransformKind::ComplexToReal),
                &self.input,
                &input,
                bytes.0,
            )?,
            output: self.check_side(("output", true), &self.output, &output, bytes.1)?,
            complex_bytes: complex,
            is_in_place_layout: self.is_in_place_layout(),
        })
    }

    fn check_side(
        &self,
        (name, is_written): (&str, bool),
        layout: &SignalLayout,
        signal: &[u64],
        element_bytes: u64,
    ) -> Result<CheckedSide> {
        if layout.extents.len() != signal.len() {
            return Err(refused(format!(
                "the {name} of {self} is laid out in {} dimensions",
                layout.extents.len()
            )));
        }
        let is_too_small = layout
            .extents
            .iter()
            .zip(signal)
            .skip(1)
            .any(|(has, is)| has < is);
        if is_too_small || layout.stride == 0 {
            return Err(refused(format!(
                "signals of {signal:?} elements do not fit the {name}'s extents {:?}, stride {}",
                layout.extents, layout.stride
            )));
        }
        let reach = reach(layout, signal, self.batch).and_then(|it| it.checked_mul(element_bytes));
        let reach_bytes = reach
            .filter(|bytes| i64::try_from(*bytes).is_ok())
            .ok_or_else(|| refused(format!("the {name} of {self} is too large")))?;
        let apart = self.batch == 1 || are_signals_apart(layout, signal, self.batch);
        if is_written && !apart {
            return Err(refused(format!(
                "signals of {self} share memory in the {name}: they are {} elements apart\n\
                 try: a distance of at least {}",
                layout.distance,
                reach_of_one(layout, signal).unwrap_or(u64::MAX)
            )));
        }
        // Each is at most the reach, or was compared with a length.
        let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        Ok(CheckedSide {
            extents: layout.extents.iter().map(|it| number(*it)).collect(),
            stride: number(layout.stride),
            distance: number(layout.distance),
            reach_bytes,
        })
    }

    /// Whether each signal of the output lies where that of the input does.
    fn is_in_place_layout(&self) -> bool {
        let (input, output) = (&self.input, &self.output);
        let (real, complex) = match self.kind {
            TransformKind::ComplexToComplex => {
                let is_same_array = input
                    .extents
                    .iter()
                    .skip(1)
                    .eq(output.extents.iter().skip(1));
                let is_same = (input.stride, input.distance) == (output.stride, output.distance);
                return is_same_array && is_same;
            }
            TransformKind::RealToComplex => (input, output),
            TransformKind::ComplexToReal => (output, input),
        };
        let last = self.lengths.len() - 1;
        let is_middle_same = real.extents[..last]
            .iter()
            .skip(1)
            .eq(complex.extents[..last].iter().skip(1));
        // A single row has no next one, whatever its extent.
        let is_padded =
            last == 0 || Some(real.extents[last]) == complex.extents[last].checked_mul(2);
        let is_distance_double =
            self.batch == 1 || Some(real.distance) == complex.distance.checked_mul(2);
        (real.stride, complex.stride) == (1, 1) && is_middle_same && is_padded && is_distance_double
    }
}

/// Elements from the first of a signal to behind its last.
fn reach_of_one(layout: &SignalLayout, signal: &[u64]) -> Option<u64> {
    let mut last: u64 = 0;
    for (index, extent) in signal.iter().enumerate() {
        let scale = if index == 0 { 1 } else { layout.extents[index] };
        last = last.checked_mul(scale)?.checked_add(extent - 1)?;
    }
    last.checked_mul(layout.stride)?.checked_add(1)
}

/// Elements from the first to behind the last of all signals.
fn reach(layout: &SignalLayout, signal: &[u64], batch: u64) -> Option<u64> {
    let one = reach_of_one(layout, signal)?;
    layout.distance.checked_mul(batch - 1)?.checked_add(one)
}

/// Whether no two signals share an element: they follow each other, or are interleaved within one
/// stride.
fn are_signals_apart(layout: &SignalLayout, signal: &[u64], batch: u64) -> bool {
    let follow = reach_of_one(layout, signal).is_some_and(|one| layout.distance >= one);
    let span = layout.distance.checked_mul(batch - 1);
    let interleaved = layout.distance > 0 && span.is_some_and(|span| span < layout.stride);
    follow || interleaved
}

fn refused(reason: String) -> Error {
    Error::refused("describe a transform", reason)
}

impl fmt::Display for TransformSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} {:?} {:?} batch {}",
            self.kind, self.precision, self.lengths, self.batch
        )
    }
}

/// One side of a transform as the library gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedSide {
    pub(super) extents: Vec<i64>,
    pub(super) stride: i64,
    pub(super) distance: i64,
    /// Bytes from the first to behind the last element of all signals.
    pub(super) reach_bytes: u64,
}

/// A transform as the library gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CheckedTransform {
    pub(super) lengths: Vec<i64>,
    pub(super) batch: i64,
    pub(super) input: CheckedSide,
    pub(super) output: CheckedSide,
    pub(super) complex_bytes: u64,
    /// Whether it can be done in place.
    pub(super) is_in_place_layout: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of different elements that signals touch, and the highest index, one by one.
    fn touched(layout: &SignalLayout, signal: &[u64], batch: u64) -> (usize, u64) {
        let mut seen = std::collections::HashSet::new();
        let count: u64 = signal.iter().product();
        for number in 0..batch * count {
            let (b, mut rest) = (number / count, number % count);
            let mut index = vec![0; signal.len()];
            for (at, extent) in index.iter_mut().zip(signal).rev() {
                (*at, rest) = (rest % extent, rest / extent);
            }
            let place = index.iter().enumerate().fold(0, |place, (at, it)| {
                place * if at == 0 { 1 } else { layout.extents[at] } + it
            });
            seen.insert(b * layout.distance + place * layout.stride);
        }
        (seen.len(), seen.into_iter().max().unwrap())
    }

    #[test]
    fn reach_and_overlap_are_those_of_every_element() {
        let mut random = fercuda_trials::rng();
        let mut refused = 0;
        for _ in 0..3000 {
            let rank = random.usize(1..=3);
            let signal: Vec<u64> = (0..rank).map(|_| random.u64(1..=4)).collect();
            let layout = SignalLayout {
                extents: signal.iter().map(|it| it + random.u64(0..=2)).collect(),
                stride: random.u64(1..=6),
                distance: random.u64(0..=90),
            };
            let batch = random.u64(1..=4);
            let (count, highest) = touched(&layout, &signal, batch);
            assert_eq!(
                reach(&layout, &signal, batch),
                Some(highest + 1),
                "{layout:?}"
            );
            let all = (batch * signal.iter().product::<u64>()) as usize;
            // Conservative: it may refuse signals that are apart, never the other way round.
            match batch == 1 || are_signals_apart(&layout, &signal, batch) {
                true => assert_eq!(count, all, "{layout:?} {signal:?} {batch}"),
                false => refused += 1,
            }
        }
        assert!((500..2900).contains(&refused), "{refused} of 3000 refused");
    }

    #[test]
    fn transforms_without_sense_are_refused() {
        use TransformKind::{ComplexToComplex, RealToComplex};
        let new = |lengths: &[u64]| {
            TransformSpec::new(ComplexToComplex, TransformPrecision::F32, lengths)
        };
        let text = |spec: TransformSpec| spec.check().unwrap_err().to_string();
        assert!(text(new(&[])).contains("0 dimensions"));
        assert!(text(new(&[2, 2, 2, 2])).contains("4 dimensions"));
        assert!(text(new(&[4, 0])).contains("no elements"));
        assert!(text(new(&[4]).batch(0)).contains("no elements"));
        assert!(text(new(&[1 << 40, 1 << 30])).contains("too large"));
        let mut narrow = new(&[4, 4]);
        narrow.output.extents[1] = 3;
        assert!(text(narrow).contains("do not fit the output's extents [4, 3]"));
        let mut shared = new(&[4]).batch(2);
        shared.output.distance = 3;
        assert!(text(shared).contains("3 elements apart"));
        let real = TransformSpec::new(RealToComplex, TransformPrecision::F64, &[3, 7]);
        assert_eq!(real.output.extents, [3, 4]);
        assert!(!real.check().unwrap().is_in_place_layout);
        let padded = real.padded().check().unwrap();
        assert!(padded.is_in_place_layout);
        assert_eq!(padded.input.extents, [3, 8]);
        assert_eq!(padded.input.reach_bytes, (2 * 8 + 7) * 8);
        assert_eq!(padded.output.reach_bytes, 3 * 4 * 16);
    }
}

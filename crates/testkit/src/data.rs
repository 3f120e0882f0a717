//! Typed buffers: a launch's inputs, outputs and expected outputs.
//!
//! Invariant: a [`Buffer`]'s length is its element count times its element's size.
//! Elsewhere: reading a header (`filetest`), expectations (`reference`), launching (`runner`).

use std::collections::BTreeMap;
use std::fmt;

use fercuda_tensor::Dtype;

use crate::rng::RecordedRng;

/// Distance from `v` to the next representable magnitude, subnormals included.
fn ulp(elem: Dtype, v: f64) -> f64 {
    let Some((exponent_bits, fraction_bits)) = elem.float_format() else {
        return 1.0;
    };
    let lowest = 2 - (1i32 << (exponent_bits - 1));
    let exponent = if v == 0.0 {
        lowest
    } else {
        exponent_of(v).max(lowest)
    };
    exp2i(exponent - fraction_bits as i32)
}

/// floor(log2(|v|)) of a finite value other than zero.
fn exponent_of(v: f64) -> i32 {
    let raw = (v.to_bits() >> 52 & 0x7ff) as i32;
    if raw != 0 {
        raw - 1023
    } else {
        -1011 - (v.to_bits() << 12).leading_zeros() as i32 - 12
    }
}

/// 2 to the power `e`, exact down to the subnormals.
fn exp2i(e: i32) -> f64 {
    if e < -1022 {
        f64::from_bits(1u64 << (e + 1074).max(0))
    } else {
        f64::from_bits(((e + 1023) as u64) << 52)
    }
}

/// Elements of one type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Their type.
    pub elem: Dtype,
    /// Their bytes, little endian.
    pub bytes: Vec<u8>,
    /// Whether they are the bytes of a structure, which may be read as any type.
    pub is_struct: bool,
}

impl Buffer {
    /// `len` elements of zero.
    pub fn zeroed(elem: Dtype, len: usize) -> Buffer {
        Buffer {
            elem,
            bytes: vec![0; len * elem.bytes() as usize],
            is_struct: false,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.elem.bytes() as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bits of element `i`, the upper ones zero.
    pub fn bits(&self, i: usize) -> u64 {
        let size = self.elem.bytes() as usize;
        let mut word = [0; 8];
        word[..size].copy_from_slice(&self.bytes[i * size..][..size]);
        u64::from_le_bytes(word)
    }

    /// Sets element `i` to the low bits of `bits`.
    pub fn set_bits(&mut self, i: usize, bits: u64) {
        let size = self.elem.bytes() as usize;
        self.bytes[i * size..][..size].copy_from_slice(&bits.to_le_bytes()[..size]);
    }

    /// Value of element `i`.
    pub fn value(&self, i: usize) -> f64 {
        self.elem.value(self.bits(i))
    }

    /// Element `i`, for a person.
    pub fn show(&self, i: usize) -> String {
        let bits = self.bits(i);
        match self.elem {
            Dtype::U64 | Dtype::U32 | Dtype::U16 | Dtype::U8 => {
                format!("{bits} ({bits:#x})")
            }
            Dtype::I64 => format!("{} ({bits:#x})", bits as i64),
            _ => format!("{:?} ({bits:#x})", self.value(i)),
        }
    }
}

/// How a buffer starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fill {
    /// Every byte zero.
    Zero,
    /// 0, 1, 2...
    Iota,
    /// Every element this.
    Const(f64),
    /// Evenly between two values.
    Uniform(f64, f64),
    /// Whole numbers between two, both included.
    Int(i64, i64),
    /// Any bits.
    Bits,
    /// Any bits, ordinary values and the edges of the format, mixed.
    Mix,
    /// By the reference's `make`.
    Made,
}

impl Fill {
    /// Fills `buffer` from `rng`; [`Fill::Made`] leaves zeros.
    pub fn apply(self, buffer: &mut Buffer, rng: &mut RecordedRng) {
        let elem = buffer.elem;
        for i in 0..buffer.len() {
            let bits = match self {
                Fill::Zero | Fill::Made => 0,
                Fill::Iota => elem.encode(i as f64),
                Fill::Const(v) => elem.encode(v),
                Fill::Uniform(low, high) => elem.encode(low + (high - low) * rng.unit()),
                Fill::Int(low, high) => {
                    let v = low.wrapping_add(rng.below((high - low) as u64 + 1) as i64);
                    if elem.float_format().is_some() {
                        elem.encode(v as f64)
                    } else {
                        v as u64
                    }
                }
                Fill::Bits => rng.next(),
                Fill::Mix => mixed(elem, rng),
            };
            buffer.set_bits(i, bits);
        }
    }
}

/// Edge cases of arithmetic, mixed with ordinary values.
fn mixed(elem: Dtype, rng: &mut RecordedRng) -> u64 {
    let Some((exponent_bits, fraction_bits)) = elem.float_format() else {
        let width = 8 * elem.bytes() as u32;
        return match rng.below(6) {
            0 => rng.next(),
            1 => rng.below(16),
            2 => 0u64.wrapping_sub(rng.below(16)),
            3 => (1u64 << rng.below(u64::from(width))).wrapping_sub(rng.below(2)),
            4 => rng.next() >> (64 - width) >> rng.below(u64::from(width)),
            _ => 0u64.wrapping_sub(rng.next() >> (64 - width) >> rng.below(u64::from(width))),
        };
    };
    let sign = rng.below(2) << (exponent_bits + fraction_bits);
    let top = (1u64 << exponent_bits) - 1;
    let fraction = rng.next() & ((1 << fraction_bits) - 1);
    match rng.below(10) {
        0 => rng.next(),
        1 => sign | [0, 1, 2, (1 << fraction_bits) - 1, 1 << fraction_bits][rng.below(5) as usize],
        2 => sign | top << fraction_bits | if rng.below(3) == 0 { fraction } else { 0 },
        3 => sign | fraction,
        4 => sign | (top - 1 - rng.below(3)) << fraction_bits | fraction,
        5 => elem.encode(rng.below(2000) as f64 * 0.25 - 250.0),
        6 => elem.encode((rng.below(1 << 20) as f64 + 0.5) * if sign == 0 { 1.0 } else { -1.0 }),
        7 => {
            // Few fraction bits, so that ties and exact results happen.
            let kept =
                fraction & !(((1 << fraction_bits) - 1) >> rng.below(u64::from(fraction_bits)));
            sign | (top / 2 - 8 + rng.below(16).min(top / 2)) << fraction_bits | kept
        }
        // Around the borders of the narrower formats and of the integers.
        8 => elem.encode(
            (1.0 + rng.unit())
                * exp2i(
                    [-150, -25, -14, -9, -6, 7, 8, 15, 16, 31, 32, 63, 64][rng.below(13) as usize],
                )
                * if sign == 0 { 1.0 } else { -1.0 },
        ),
        _ => sign | (top / 2 - 4 + rng.below(8)) << fraction_bits | fraction,
    }
}

/// The role of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Read by the kernel.
    In,
    /// Written by the kernel; not initialised before it.
    Out,
    /// Both.
    InOut,
    /// Passed by value.
    Value,
    /// A variable of the module, set before the launch; no argument.
    Set,
    /// A variable of the module, read back after the launch; no argument.
    Get,
}

/// How an output is compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Judge {
    /// Bit for bit; any NaN equals any NaN.
    Exact,
    /// Within so many units in the last place of the true value.
    Ulp(f64),
    /// Within the reference's own bound, element by element.
    Bound,
    /// As a set: sorted, then bit for bit.
    Sorted,
    /// Not at all: the order of atomics decides it.
    Raw,
}

/// One line of a header: an argument or a module variable.
#[derive(Debug, Clone, PartialEq)]
pub struct ArgumentSpec {
    /// As the reference calls it.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Element type.
    pub elem: Dtype,
    /// Whether its elements are the bytes of a structure: `bytes` in the header.
    pub is_struct: bool,
    /// Elements.
    pub len: usize,
    /// How it starts.
    pub fill: Fill,
    /// How it is judged, if it is an output.
    pub judge: Judge,
    /// Two devices may differ within the judge's bound rather than not at all.
    pub loose: bool,
}

impl ArgumentSpec {
    /// Whether it is compared after the launch.
    pub fn is_output(&self) -> bool {
        matches!(self.role, Role::Out | Role::InOut | Role::Get)
    }
}

/// The inputs of one launch.
#[derive(Debug, Clone)]
pub struct LaunchInputs {
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// By name.
    pub buffers: BTreeMap<String, Buffer>,
}

impl LaunchInputs {
    /// The buffer or scalar called `name`.
    ///
    /// # Panics
    /// When the header has none of that name: the reference and the file disagree.
    pub fn buffer(&self, name: &str) -> &Buffer {
        self.buffers
            .get(name)
            .unwrap_or_else(|| panic!("the header declares no `{name}`"))
    }

    /// Elements as `T`, which must have their size.
    pub fn get<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&self, name: &str) -> Vec<T> {
        let buffer = self.buffer(name);
        assert!(
            buffer.is_struct || buffer.elem.bytes() as usize == size_of::<T>(),
            "`{name}` is {:?}",
            buffer.elem
        );
        buffer
            .bytes
            .chunks_exact(size_of::<T>())
            .map(bytemuck::pod_read_unaligned)
            .collect()
    }

    /// Values of floating-point elements, or of integers below 2^53.
    pub fn values(&self, name: &str) -> Vec<f64> {
        let buffer = self.buffer(name);
        (0..buffer.len()).map(|i| buffer.value(i)).collect()
    }

    /// A scalar that counts something.
    pub fn size(&self, name: &str) -> usize {
        self.buffer(name).value(0) as usize
    }

    /// Number of threads in the launch.
    pub fn threads(&self) -> usize {
        self.grid
            .iter()
            .chain(&self.block)
            .map(|&n| n as usize)
            .product()
    }

    /// Replaces the contents of `name`.
    pub fn put<T: bytemuck::NoUninit>(&mut self, name: &str, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let buffer = self
            .buffers
            .get_mut(name)
            .unwrap_or_else(|| panic!("the header declares no `{name}`"));
        assert_eq!(
            bytes.len(),
            buffer.bytes.len(),
            "`{name}` has another size in the header"
        );
        buffer.bytes.copy_from_slice(bytes);
    }
}

/// The expected value of one output.
#[derive(Debug, Clone)]
pub enum ExpectedOutput {
    /// These bits.
    Bits(Vec<u8>),
    /// These values, each within its bound (zero where the judge counts ulps).
    Near(Vec<(f64, f64)>),
}

/// The expected values of all outputs.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// By name.
    pub outputs: BTreeMap<String, ExpectedOutput>,
}

impl Expected {
    /// `name` holds exactly `values`.
    pub fn exact<T: bytemuck::NoUninit>(&mut self, name: &str, values: &[T]) {
        self.outputs.insert(
            name.to_string(),
            ExpectedOutput::Bits(bytemuck::cast_slice(values).to_vec()),
        );
    }

    /// `name` holds values, each within its bound.
    pub fn near(&mut self, name: &str, values: impl IntoIterator<Item = (f64, f64)>) {
        self.outputs.insert(
            name.to_string(),
            ExpectedOutput::Near(values.into_iter().collect()),
        );
    }

    /// `name` holds values, judged in ulps.
    pub fn truth(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        self.near(name, values.into_iter().map(|v| (v, 0.0)));
    }
}

/// The position and values of a wrong element.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// The output.
    pub name: String,
    /// How many elements are wrong.
    pub wrong: usize,
    /// Of how many.
    pub of: usize,
    /// The first few, for a person.
    pub examples: Vec<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}`: {} of {} elements are wrong",
            self.name, self.wrong, self.of
        )?;
        self.examples
            .iter()
            .try_for_each(|e| write!(f, "\n    {e}"))
    }
}

/// The allowed and the actual distance of an output from the expected value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Closeness {
    /// Largest distance, in units of what was allowed: at most 1 when all is well. Zero for exact
    /// judges.
    pub worst: f64,
}

/// Compares `got` with the expected output of `arg`.
///
/// # Errors
/// The elements that differ by more than allowed.
pub fn judge(
    arg: &ArgumentSpec,
    got: &Buffer,
    wanted: &ExpectedOutput,
) -> Result<Closeness, Mismatch> {
    let mut wrong = 0;
    let mut examples = Vec::new();
    let mut worst = 0.0f64;
    let mut fail = |i: usize, text: String| {
        wrong += 1;
        if examples.len() < 4 {
            examples.push(format!("[{i}] {text}"));
        }
    };
    let sorted = |b: &Buffer| {
        let mut v: Vec<u64> = (0..b.len()).map(|i| b.bits(i)).collect();
        v.sort_unstable();
        v
    };
    match (arg.judge, wanted) {
        (Judge::Raw, _) => {}
        (Judge::Sorted, ExpectedOutput::Bits(bytes)) => {
            let want = Buffer {
                elem: got.elem,
                bytes: bytes.clone(),
                is_struct: got.is_struct,
            };
            for (i, (g, w)) in sorted(got).into_iter().zip(sorted(&want)).enumerate() {
                if g != w {
                    fail(i, format!("sorted: {g}, expected {w}"));
                }
            }
        }
        (Judge::Exact | Judge::Bound | Judge::Ulp(_), ExpectedOutput::Bits(bytes)) => {
            let want = Buffer {
                elem: got.elem,
                bytes: bytes.clone(),
                is_struct: got.is_struct,
            };
            if want.len() != got.len() {
                fail(0, format!("the reference made {} elements", want.len()));
            } else {
                for i in 0..got.len() {
                    let both_nan = got.elem.float_format().is_some()
                        && got.value(i).is_nan()
                        && want.value(i).is_nan();
                    if got.bits(i) != want.bits(i) && !both_nan {
                        fail(i, format!("{}, expected {}", got.show(i), want.show(i)));
                    }
                }
            }
        }
        (kind, ExpectedOutput::Near(values)) => {
            if values.len() != got.len() {
                fail(0, format!("the reference made {} elements", values.len()));
            } else {
                for (i, &(want, bound)) in values.iter().enumerate() {
                    let allowed = if let Judge::Ulp(n) = kind {
                        n * ulp(got.elem, want)
                    } else {
                        bound
                    };
                    let g = got.value(i);
                    if (g.is_nan() && want.is_nan()) || g == want {
                        continue;
                    }
                    let distance = (g - want).abs();
                    worst = worst.max(distance / allowed);
                    if distance.is_nan() || distance > allowed {
                        fail(
                            i,
                            format!(
                                "{}, expected {want:e} within {allowed:.3e} (off by {distance:.3e})",
                                got.show(i)
                            ),
                        );
                    }
                }
            }
        }
    }
    if wrong == 0 {
        Ok(Closeness { worst })
    } else {
        Err(Mismatch {
            name: arg.name.clone(),
            wrong,
            of: got.len(),
            examples,
        })
    }
}

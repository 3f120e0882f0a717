//! Memory of one run of a product, and its checks.
//!
//! Invariant: of [`CheckedOperands`], every address begins at least as many bytes of device memory
//! as the product's layout reaches, is aligned as the algorithm requires, and what is written
//! shares no byte with what is read, unless C is the output.

use bytemuck::Pod;
use fercuda_cuda::{DeviceSlice, DeviceSliceMut, KernelArg};
use fercuda_tensor::Dtype;

use super::form::{ColumnMajorProduct, ScaleFormat};
use super::spec::{Addend, ProductSpec};
use crate::error::{Error, Result};
use crate::operand::{FULL_ALIGNMENT_BYTES, OperandRange};

const OPERATION: &str = "run a product";

/// Scale factors of a product of 8-bit floats: one f32 each.
#[derive(Debug, Default)]
pub struct ProductScaleFactors<'a> {
    /// Of A.
    pub a: Option<DeviceSlice<'a, f32>>,
    /// Of B.
    pub b: Option<DeviceSlice<'a, f32>>,
    /// Of D.
    pub d: Option<DeviceSlice<'a, f32>>,
}

/// Memory that a run writes.
#[derive(Debug)]
enum WrittenMemory<'a> {
    Exclusive(DeviceSliceMut<'a, u8>),
    Shared(DeviceSlice<'a, u8>),
}

impl WrittenMemory<'_> {
    fn as_slice(&self) -> DeviceSlice<'_, u8> {
        match self {
            Self::Exclusive(memory) => memory.as_slice(),
            Self::Shared(memory) => *memory,
        }
    }
}

/// The memory of one run of a product.
#[derive(Debug)]
pub struct ProductOperands<'a> {
    alpha: f64,
    beta: f64,
    a: DeviceSlice<'a, u8>,
    b: DeviceSlice<'a, u8>,
    c: Option<DeviceSlice<'a, u8>>,
    d: WrittenMemory<'a>,
    bias: Option<DeviceSlice<'a, u8>>,
    scales: ProductScaleFactors<'a>,
    workspace: Option<WrittenMemory<'a>>,
    /// Bytes of an element of A, B, C, D and the bias, as the caller has them.
    elements: [usize; 5],
}

impl<'a> ProductOperands<'a> {
    /// Factors and output; alpha is 1 and beta 0. Elements have the size of their type in the
    /// product's description, or are bytes.
    pub fn new<A: Pod, B: Pod, D: Pod>(
        a: DeviceSlice<'a, A>,
        b: DeviceSlice<'a, B>,
        d: DeviceSliceMut<'a, D>,
    ) -> Self {
        Self {
            alpha: 1.0,
            beta: 0.0,
            a: a.as_bytes(),
            b: b.as_bytes(),
            c: None,
            d: WrittenMemory::Exclusive(d.into_bytes()),
            bias: None,
            scales: ProductScaleFactors::default(),
            workspace: None,
            elements: [size_of::<A>(), size_of::<B>(), 1, size_of::<D>(), 1],
        }
    }

    /// Factors, output and workspace as bytes, the last two through shared references: device
    /// memory is not visible to Rust's aliasing rules, and a run compares the ranges. For callers
    /// that keep such references for several kernels.
    pub fn of_bytes(
        [a, b, d]: [DeviceSlice<'a, u8>; 3],
        workspace: Option<DeviceSlice<'a, u8>>,
    ) -> Self {
        Self {
            alpha: 1.0,
            beta: 0.0,
            a,
            b,
            c: None,
            d: WrittenMemory::Shared(d),
            bias: None,
            scales: ProductScaleFactors::default(),
            workspace: workspace.map(WrittenMemory::Shared),
            elements: [1; 5],
        }
    }

    /// The factor of the product. It is rounded to f32 unless the product is of f64; a product of
    /// integers takes an integer.
    pub fn alpha(self, alpha: f64) -> Self {
        Self { alpha, ..self }
    }

    /// The factor of what is added; as [`ProductOperands::alpha`].
    pub fn beta(self, beta: f64) -> Self {
        Self { beta, ..self }
    }

    /// The matrix that is added.
    pub fn addend<C: Pod>(mut self, c: DeviceSlice<'a, C>) -> Self {
        self.c = Some(c.as_bytes());
        self.elements[2] = size_of::<C>();
        self
    }

    /// The bias of the epilogue.
    pub fn bias<T: Pod>(mut self, bias: DeviceSlice<'a, T>) -> Self {
        self.bias = Some(bias.as_bytes());
        self.elements[4] = size_of::<T>();
        self
    }

    /// Scale factors of 8-bit floats.
    pub fn scales(self, scales: ProductScaleFactors<'a>) -> Self {
        Self { scales, ..self }
    }

    /// Memory for the algorithm, at an address that is a multiple of 256. Work that may run at the
    /// same time needs a workspace of its own.
    pub fn workspace(self, workspace: DeviceSliceMut<'a, u8>) -> Self {
        Self {
            workspace: Some(WrittenMemory::Exclusive(workspace)),
            ..self
        }
    }

    /// The largest powers of two up to 256 of which the addresses of A, B, C and D are multiples;
    /// for D also the bias's.
    pub(super) fn alignments(&self) -> [u32; 4] {
        let of = |address: u64| 1u32 << address.trailing_zeros().min(8);
        let d = of(self.d.as_slice().address().0);
        let bias = self.bias.map_or(256, |bias| of(bias.address().0));
        let c = self.c.map_or(d, |c| of(c.address().0));
        [
            of(self.a.address().0),
            of(self.b.address().0),
            c,
            d.min(bias),
        ]
    }

    /// Checks everything against the product and what its algorithm needs.
    pub(super) fn check(
        &self,
        spec: &ProductSpec,
        form: &ColumnMajorProduct,
        need: &AlgorithmNeed,
    ) -> Result<CheckedOperands> {
        self.check_presence(spec)?;
        self.check_elements(spec)?;
        let (a_form, b_form) = match form.swapped {
            false => (&form.left, &form.right),
            true => (&form.right, &form.left),
        };
        let [align_a, align_b, align_c, align_d] = need.alignments.map(u64::from);
        let part = |range: OperandRange, bytes: u64, dtype: Dtype, alignment: u64| {
            let range = range.prefix(OPERATION, bytes)?;
            // No kernel reads half an element, whatever the algorithm was chosen for.
            range.check_alignment(OPERATION, alignment.max(dtype.bytes()))?;
            Ok::<_, Error>(range)
        };
        let a = part(
            OperandRange::of("A", &self.a),
            a_form.reach_bytes,
            a_form.dtype,
            align_a,
        )?;
        let b = part(
            OperandRange::of("B", &self.b),
            b_form.reach_bytes,
            b_form.dtype,
            align_b,
        )?;
        let output = OperandRange::of("D", &self.d.as_slice());
        let d = part(output, form.d.reach_bytes, form.d.dtype, align_d)?;
        let mut read = vec![a, b];
        let c = match &self.c {
            Some(c) => {
                let c = part(
                    OperandRange::of("C", c),
                    form.c.reach_bytes,
                    form.c.dtype,
                    align_c,
                )?;
                read.push(c);
                c.address
            }
            // What beta of 0 multiplies is not read; C has the output's layout, except where that
            // is of 8-bit floats.
            None if form.c.dtype == form.d.dtype => d.address,
            None => 0,
        };
        let bias = match &self.bias {
            Some(bias) => {
                let bytes = form.bias_len() * form.bias_dtype.bytes();
                let bias = part(
                    OperandRange::of("the bias", bias),
                    bytes,
                    form.bias_dtype,
                    align_d,
                )?;
                read.push(bias);
                bias.address
            }
            None => 0,
        };
        let mut scale = |name, slice: &Option<DeviceSlice<'_, f32>>| match slice {
            Some(slice) => {
                let range = OperandRange::of(name, &slice.as_bytes());
                let range = part(range, Dtype::F32.bytes(), Dtype::F32, 1)?;
                read.push(range);
                Ok::<_, Error>(range.address)
            }
            None => Ok(0),
        };
        let scale_a = scale("the scale factor of A", &self.scales.a)?;
        let scale_b = scale("the scale factor of B", &self.scales.b)?;
        let scale_d = scale("the scale factor of D", &self.scales.d)?;
        let workspace = self.check_workspace(need)?;
        for other in &read {
            d.check_apart(OPERATION, *other)?;
            workspace.check_apart(OPERATION, *other)?;
        }
        workspace.check_apart(OPERATION, d)?;
        let (left, right, scales) = match form.swapped {
            false => (a.address, b.address, [scale_a, scale_b, scale_d]),
            true => (b.address, a.address, [scale_b, scale_a, scale_d]),
        };
        Ok(CheckedOperands {
            alpha: ScaleValue::new("alpha", self.alpha, form.scale)?,
            beta: ScaleValue::new("beta", self.beta, form.scale)?,
            left,
            right,
            c,
            d: d.address,
            bias,
            scales,
            workspace: workspace.address,
            workspace_bytes: usize::try_from(workspace.bytes).unwrap_or(usize::MAX),
        })
    }

    fn check_workspace(&self, need: &AlgorithmNeed) -> Result<OperandRange> {
        let Some(workspace) = &self.workspace else {
            if need.workspace_bytes > 0 {
                return Err(Error::refused(
                    OPERATION,
                    format!(
                        "the algorithm needs {} bytes of workspace, and none was given",
                        need.workspace_bytes
                    ),
                ));
            }
            return Ok(OperandRange {
                name: "the workspace",
                address: 0,
                bytes: 0,
            });
        };
        let range = OperandRange::of("the workspace", &workspace.as_slice());
        if range.bytes < need.workspace_bytes {
            return Err(Error::refused(
                OPERATION,
                format!(
                    "the algorithm needs {} bytes of workspace, and it has {}",
                    need.workspace_bytes, range.bytes
                ),
            ));
        }
        range.check_alignment(OPERATION, FULL_ALIGNMENT_BYTES)?;
        Ok(range)
    }

    /// Whether what the description names is given, and nothing else.
    fn check_presence(&self, spec: &ProductSpec) -> Result<()> {
        let has_matrix = matches!(spec.c, Addend::Matrix(_));
        for (name, described, given) in [
            ("an added matrix", has_matrix, self.c.is_some()),
            ("a bias", spec.epilogue.bias, self.bias.is_some()),
            (
                "a scale factor of A",
                spec.scaled.a,
                self.scales.a.is_some(),
            ),
            (
                "a scale factor of B",
                spec.scaled.b,
                self.scales.b.is_some(),
            ),
            (
                "a scale factor of D",
                spec.scaled.d,
                self.scales.d.is_some(),
            ),
        ] {
            if described != given {
                let reason = match described {
                    true => format!("the product has {name}, and none was given"),
                    false => format!("{name} was given, and the product has none"),
                };
                return Err(Error::refused(OPERATION, reason));
            }
        }
        if spec.c == Addend::None && self.beta != 0.0 {
            let reason = format!(
                "beta is {} and nothing is added\ntry: Addend::Output or Addend::Matrix",
                self.beta
            );
            return Err(Error::refused(OPERATION, reason));
        }
        Ok(())
    }

    /// Whether elements have the sizes of their types, or are bytes.
    fn check_elements(&self, spec: &ProductSpec) -> Result<()> {
        let dtypes = [
            spec.a.dtype,
            spec.b.dtype,
            spec.addend_dtype(),
            spec.d.dtype,
            spec.bias_dtype(),
        ];
        let names = ["A", "B", "C", "D", "the bias"];
        for ((name, dtype), bytes) in names.iter().zip(dtypes).zip(self.elements) {
            if bytes != 1 && bytes as u64 != dtype.bytes() {
                return Err(Error::refused(
                    OPERATION,
                    format!("elements of {name} have {bytes} bytes, and {dtype} has others"),
                ));
            }
        }
        Ok(())
    }

    /// Calls `work` with all memory, to be noted and kept.
    pub(super) fn with_memory<R>(&self, work: impl FnOnce(&[KernelArg<'_>]) -> R) -> R {
        let scales = [&self.scales.a, &self.scales.b, &self.scales.d];
        let scales = scales.into_iter().flatten().map(|it| it.as_bytes());
        let workspace = self.workspace.as_ref().map(WrittenMemory::as_slice);
        let mut memory = vec![
            KernelArg::slice(self.a),
            KernelArg::slice(self.b),
            KernelArg::slice(self.d.as_slice()),
        ];
        let others = [self.c, self.bias, workspace].into_iter().flatten();
        memory.extend(others.chain(scales).map(KernelArg::slice));
        work(&memory)
    }
}

/// What an algorithm needs of the memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct AlgorithmNeed {
    pub(super) workspace_bytes: u64,
    /// Of A, B, C and D.
    pub(super) alignments: [u32; 4],
}

/// Alpha or beta in the product's scale type: its bytes, then zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct ScaleValue([u8; 8]);

impl ScaleValue {
    fn new(name: &str, value: f64, format: ScaleFormat) -> Result<Self> {
        let mut bytes = [0; 8];
        match format {
            ScaleFormat::F64 => bytes = value.to_ne_bytes(),
            ScaleFormat::F32 => bytes[..4].copy_from_slice(&(value as f32).to_ne_bytes()),
            ScaleFormat::I32 => {
                let integer = value as i32;
                if f64::from(integer) != value {
                    let reason = format!("{name} of a product of integers is {value}");
                    return Err(Error::refused(OPERATION, reason));
                }
                bytes[..4].copy_from_slice(&integer.to_ne_bytes());
            }
        }
        Ok(Self(bytes))
    }
}

/// Operands that were checked, in the order of the library's call.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedOperands {
    pub(super) alpha: ScaleValue,
    pub(super) beta: ScaleValue,
    pub(super) left: u64,
    pub(super) right: u64,
    pub(super) c: u64,
    pub(super) d: u64,
    pub(super) bias: u64,
    pub(super) scales: [u64; 3],
    pub(super) workspace: u64,
    pub(super) workspace_bytes: usize,
}

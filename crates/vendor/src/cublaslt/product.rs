//! Products with their descriptors made, and algorithms to compute them.

use std::sync::atomic::{AtomicU64, Ordering};

use fercuda_cuda::{QueuedResource, Stream};

use super::ffi::{LtAlgorithm, LtPreference, LtProduct, REDUCTION_IN_COMPUTE_TYPE};
use super::form::ColumnMajorProduct;
use super::handle::CublasLt;
use super::operands::{AlgorithmNeed, ProductOperands};
use super::spec::ProductSpec;
use crate::error::{Error, Result};
use crate::operand::FULL_ALIGNMENT_BYTES;

/// A product that can be run any number of times, in any stream of its context.
///
/// ```no_run
/// use fercuda_cuda::{Context, Cuda, DeviceBuffer, Stream};
/// use fercuda_tensor::Dtype::F32;
/// use fercuda_vendor::cublaslt::{
///     AlgorithmRequest, CublasLt, CublasLtLibrary, MatrixLayout, MatrixProduct, ProductMath,
///     ProductOperands, ProductSpec,
/// };
///
/// let context = Context::primary(Cuda::from_env()?.device(0)?)?;
/// let stream = Stream::new(&context)?;
/// let lt = CublasLt::new(&CublasLtLibrary::find()?, &context)?;
/// let layout = MatrixLayout::row_major(F32, 64, 64);
/// let spec = ProductSpec::new(ProductMath::F32, layout, layout, layout);
/// let product = MatrixProduct::new(&lt, &spec)?;
/// let algorithm = product.algorithms(&AlgorithmRequest::new())?[0];
/// let a = DeviceBuffer::from_host(&[1.0f32; 64 * 64], &stream)?;
/// let mut d = DeviceBuffer::<f32>::alloc(&context, 64 * 64)?;
/// let operands = ProductOperands::new(a.as_slice(), a.as_slice(), d.as_slice_mut());
/// product.run(&stream, &algorithm, operands)?;
/// assert_eq!(d.to_vec(&stream)?[0], 64.0);
/// # Ok::<(), fercuda_vendor::Error>(())
/// ```
#[derive(Debug)]
pub struct MatrixProduct {
    /// A number that no other product of this process has, by which an algorithm knows its own.
    id: u64,
    lt: CublasLt,
    spec: ProductSpec,
    form: ColumnMajorProduct,
    objects: QueuedResource<LtProduct>,
}

/// How an algorithm that divides the sums among blocks adds their parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitSums {
    /// In the output's type or the compute type, whichever the library finds faster.
    #[default]
    Any,
    /// In the compute type.
    ComputeType,
}

/// What algorithms are wanted.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmRequest {
    count: usize,
    workspace_bytes: u64,
    /// Of A, B, C and D.
    alignments: [u32; 4],
    sums: SplitSums,
}

impl Default for AlgorithmRequest {
    fn default() -> Self {
        Self::new()
    }
}

impl AlgorithmRequest {
    /// One algorithm without workspace, for operands at addresses that are multiples of 256, as
    /// allocations are.
    pub const fn new() -> Self {
        Self {
            count: 1,
            workspace_bytes: 0,
            alignments: [FULL_ALIGNMENT_BYTES as u32; 4],
            sums: SplitSums::Any,
        }
    }

    /// Up to `count` algorithms, the fastest first by the library's estimate; at most 1000.
    pub const fn count(self, count: usize) -> Self {
        Self { count, ..self }
    }

    /// Algorithms that need up to this workspace.
    pub const fn workspace_bytes(self, bytes: u64) -> Self {
        Self {
            workspace_bytes: bytes,
            ..self
        }
    }

    /// Algorithms for operands as aligned as these.
    pub fn aligned_as(self, operands: &ProductOperands<'_>) -> Self {
        Self {
            alignments: operands.alignments(),
            ..self
        }
    }

    /// Algorithms for operands at addresses that are multiples of that power of two, up to 256.
    pub const fn alignment(self, bytes: u32) -> Self {
        let bytes = match bytes > FULL_ALIGNMENT_BYTES as u32 {
            true => FULL_ALIGNMENT_BYTES as u32,
            false => bytes,
        };
        Self {
            alignments: [bytes; 4],
            ..self
        }
    }

    /// Algorithms that add the parts of a sum so.
    pub const fn sums(self, sums: SplitSums) -> Self {
        Self { sums, ..self }
    }
}

/// One way to compute a [`MatrixProduct`]; of no use to another product.
#[derive(Clone, Copy, Debug)]
pub struct ProductAlgorithm {
    product: u64,
    bits: LtAlgorithm,
    need: AlgorithmNeed,
    waves: f32,
}

impl ProductAlgorithm {
    /// The workspace that it needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.need.workspace_bytes
    }

    /// How often its blocks fill the device, by the library's estimate.
    pub fn waves(&self) -> f32 {
        self.waves
    }
}

impl MatrixProduct {
    /// Checks `spec` and makes its descriptors.
    ///
    /// # Errors
    /// [`Error::Refused`] with what does not go together; [`Error::Call`].
    pub fn new(lt: &CublasLt, spec: &ProductSpec) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let form = spec.column_major()?;
        let objects = LtProduct::new(lt.handle(), &form)?;
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            lt: lt.clone(),
            spec: *spec,
            form,
            objects: QueuedResource::new(lt.context(), objects),
        })
    }

    /// Its description.
    pub fn spec(&self) -> &ProductSpec {
        &self.spec
    }

    /// Algorithms for it, the fastest first by the library's estimate; at least one.
    ///
    /// # Errors
    /// [`Error::NoAlgorithm`]; [`Error::Refused`] for a count of 0 or over 1000; [`Error::Call`].
    pub fn algorithms(&self, request: &AlgorithmRequest) -> Result<Vec<ProductAlgorithm>> {
        if request.count == 0 || request.count > 1000 {
            let reason = format!("{} are not between 1 and 1000", request.count);
            return Err(Error::refused("search for algorithms", reason));
        }
        self.lt.context().bind()?;
        let [a, b, c, d] = request.alignments;
        let alignments = match self.form.swapped {
            false => [a, b, c, d],
            true => [b, a, c, d],
        };
        let found = self.objects.object().heuristics(&LtPreference {
            count: request.count,
            max_workspace_bytes: request.workspace_bytes,
            alignments,
            reduction_mask: match request.sums {
                SplitSums::Any => None,
                SplitSums::ComputeType => Some(REDUCTION_IN_COMPUTE_TYPE),
            },
        })?;
        // A library that returns one with more workspace than allowed has not found one.
        let fitting = found.into_iter().map(|result| ProductAlgorithm {
            product: self.id,
            bits: result.algorithm,
            need: AlgorithmNeed {
                workspace_bytes: result.workspace_bytes as u64,
                alignments: request.alignments,
            },
            waves: result.waves,
        });
        let fitting: Vec<ProductAlgorithm> = fitting
            .filter(|it| it.need.workspace_bytes <= request.workspace_bytes)
            .collect();
        if fitting.is_empty() {
            return Err(Error::NoAlgorithm {
                library: self.lt.described(),
                product: self.spec.to_string(),
                workspace_bytes: request.workspace_bytes,
            });
        }
        Ok(fitting)
    }

    /// Queues the product in `stream`, by `algorithm`. Allocates no device memory and waits for
    /// nothing, so it can be captured; the memory is kept until the work, or its graph, is done.
    ///
    /// # Errors
    /// [`Error::Refused`] for memory that is too short, misaligned or overlaps, or an algorithm of
    /// another product; [`Error::Call`]; [`Error::Cuda`]. Nothing is queued then.
    pub fn run(
        &self,
        stream: &Stream,
        algorithm: &ProductAlgorithm,
        operands: ProductOperands<'_>,
    ) -> Result<()> {
        if algorithm.product != self.id {
            let reason =
                "the algorithm is of another product\ntry: MatrixProduct::algorithms of this one";
            return Err(Error::refused("run a product", reason));
        }
        let checked = operands.check(&self.spec, &self.form, &algorithm.need)?;
        operands.with_memory(|memory| {
            stream.queue_with(&self.objects, &memory, |raw| {
                self.objects.object().run(raw, &algorithm.bits, &checked)
            })
        })?
    }
}

//! Description of a product: types, layouts, transposes, epilogue.
//!
//! Elsewhere: its checks, and the form in which the library gets it (`form`).

use std::fmt;

use fercuda_tensor::Dtype;

/// Which dimension of a matrix is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixOrder {
    /// Elements of a row are adjacent, as in C.
    Row,
    /// Elements of a column are adjacent, as in Fortran.
    Column,
}

/// A matrix in memory, or a batch of equal ones at a fixed stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixLayout {
    /// The type of its elements.
    pub dtype: Dtype,
    /// Number of rows.
    pub rows: u64,
    /// Number of columns.
    pub cols: u64,
    /// The contiguous dimension.
    pub order: MatrixOrder,
    /// Elements from one row (or column) to the next.
    pub leading: u64,
    /// Number of matrices.
    pub batch: u64,
    /// Elements from one matrix to the next; 0 for an input that all products share.
    pub batch_stride: u64,
}

impl MatrixLayout {
    /// A dense row-major matrix.
    pub const fn row_major(dtype: Dtype, rows: u64, cols: u64) -> Self {
        Self {
            dtype,
            rows,
            cols,
            order: MatrixOrder::Row,
            leading: cols,
            batch: 1,
            batch_stride: 0,
        }
    }

    /// A dense column-major matrix.
    pub const fn column_major(dtype: Dtype, rows: u64, cols: u64) -> Self {
        Self {
            dtype,
            rows,
            cols,
            order: MatrixOrder::Column,
            leading: rows,
            batch: 1,
            batch_stride: 0,
        }
    }

    /// With another leading dimension, in elements.
    pub const fn leading(self, elements: u64) -> Self {
        Self {
            leading: elements,
            ..self
        }
    }

    /// `count` such matrices, `stride` elements apart.
    pub const fn batch(self, count: u64, stride: u64) -> Self {
        Self {
            batch: count,
            batch_stride: stride,
            ..self
        }
    }
}

impl fmt::Display for MatrixLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            MatrixOrder::Row => "row-major",
            MatrixOrder::Column => "column-major",
        };
        let Self {
            dtype,
            rows,
            cols,
            leading,
            ..
        } = self;
        write!(f, "{dtype} {rows}x{cols} {order} ld {leading}")?;
        match self.batch {
            1 => Ok(()),
            count => write!(f, " batch {count} stride {}", self.batch_stride),
        }
    }
}

/// Types and precision of a product's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductMath {
    /// f64 in f64.
    F64,
    /// f32 in f32.
    F32,
    /// f32, with the factors rounded to TF32 (10 bits of fraction), summed in f32.
    Tf32,
    /// f16 factors summed in f32; the output is f16 or f32.
    F16,
    /// bf16 factors summed in f32; the output is bf16 or f32.
    Bf16,
    /// i8 factors summed exactly in i32, which is the output.
    I8,
    /// 8-bit floats, of which at least one is f8e4m3, summed in f32; the output is f32, f16, bf16,
    /// or an 8-bit float.
    F8,
}

/// Function applied to each element of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProductActivation {
    /// None.
    #[default]
    None,
    /// max(x, 0).
    Relu,
    /// GELU, in its form by tanh.
    Gelu,
}

/// What is done with the output before it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epilogue {
    /// Adds a vector first, with one value for each element along the output's contiguous
    /// dimension: a row-major output gets a value for each column, a column-major one for each row.
    /// Its type is [`ProductSpec::bias_dtype`].
    pub bias: bool,
    /// The function applied then.
    pub activation: ProductActivation,
}

/// What is added to the product, times beta.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Addend {
    /// Nothing; beta is 0.
    #[default]
    None,
    /// What the output's memory holds.
    Output,
    /// Another matrix, of the output's extents and order.
    Matrix(MatrixLayout),
}

/// Which parts of a product of 8-bit floats have a scale factor, an f32 in device memory. A factor
/// multiplies the values of A and B as they are read, and those of D before they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ScaledParts {
    /// The left factor.
    pub a: bool,
    /// The right factor.
    pub b: bool,
    /// The output, which is of 8-bit floats.
    pub d: bool,
}

/// The product D = epilogue(alpha A B + beta C), where A and B may be transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductSpec {
    /// Types and precision.
    pub math: ProductMath,
    /// The left factor.
    pub a: MatrixLayout,
    /// Whether A is transposed.
    pub transpose_a: bool,
    /// The right factor.
    pub b: MatrixLayout,
    /// Whether B is transposed.
    pub transpose_b: bool,
    /// What is added.
    pub c: Addend,
    /// The output.
    pub d: MatrixLayout,
    /// What is done before the output is stored.
    pub epilogue: Epilogue,
    /// Scale factors of 8-bit floats.
    pub scaled: ScaledParts,
    /// Allows sums of 8-bit floats with fewer bits, which is faster.
    pub fast_accumulation: bool,
}

impl ProductSpec {
    /// The plain product D = alpha A B.
    pub const fn new(math: ProductMath, a: MatrixLayout, b: MatrixLayout, d: MatrixLayout) -> Self {
        Self {
            math,
            a,
            transpose_a: false,
            b,
            transpose_b: false,
            c: Addend::None,
            d,
            epilogue: Epilogue {
                bias: false,
                activation: ProductActivation::None,
            },
            scaled: ScaledParts {
                a: false,
                b: false,
                d: false,
            },
            fast_accumulation: false,
        }
    }

    /// The type of the bias: D's; with 8-bit floats f16 or bf16, as D (or C, if D is of 8 bits) is.
    pub fn bias_dtype(&self) -> Dtype {
        if self.math != ProductMath::F8 {
            return self.d.dtype;
        }
        match self.addend_dtype() {
            Dtype::F16 => Dtype::F16,
            _ => Dtype::Bf16,
        }
    }

    /// The type of C: D's, or what the library takes for C where there is none and D is of 8 bits.
    pub(super) fn addend_dtype(&self) -> Dtype {
        match (self.c, self.d.dtype) {
            (Addend::Matrix(c), _) => c.dtype,
            (_, Dtype::F8E4m3 | Dtype::F8E5m2) => Dtype::Bf16,
            (_, of_output) => of_output,
        }
    }
}

impl fmt::Display for ProductSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transposed = |is: bool| if is { "^T" } else { "" };
        write!(
            f,
            "{:?} ({}){} * ({}){} -> {}",
            self.math,
            self.a,
            transposed(self.transpose_a),
            self.b,
            transposed(self.transpose_b),
            self.d
        )
    }
}

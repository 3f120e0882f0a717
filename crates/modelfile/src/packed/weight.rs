//! Weights as f32, with the format that a checkpoint had them in.

/// A weight as f32.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightValues {
    /// The outermost dimension first: outputs, then inputs, of a matrix.
    pub shape: Vec<u64>,
    /// The elements in that order.
    pub values: Vec<f32>,
    /// The format that it had.
    pub format: WeightFormat,
}

/// How a checkpoint has a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// One tensor.
    Plain,
    /// Floats of 8 bits or integers of 8 bits, with a scale for all, for a row or for a block.
    Scaled,
    /// Integers of 4 bits, packed along outputs.
    Awq,
    /// Integers of 2 to 8 bits, packed along inputs.
    Gptq,
    /// Integers in words, packed along inputs (compressed-tensors).
    Packed,
    /// E2M1 with E4M3 scales of 16 elements, and one for all.
    Nvfp4,
    /// E2M1 with powers of two as scales of 32 elements.
    Mxfp4,
    /// Codes of a table of 16 levels, with scales that may be codes themselves (bitsandbytes).
    Table,
}

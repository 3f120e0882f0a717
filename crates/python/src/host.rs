//! Host values: names of types, and the bytes of Python buffers.

use fercuda_runtime::{Dtype, Layout};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::errors;

/// Type names of other libraries.
const NAMES: [(&str, Dtype); 15] = [
    ("float64", Dtype::F64),
    ("float32", Dtype::F32),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::Bf16),
    ("float8_e4m3fn", Dtype::F8E4m3),
    ("float8_e5m2", Dtype::F8E5m2),
    ("int8", Dtype::I8),
    ("int16", Dtype::I16),
    ("int32", Dtype::I32),
    ("int64", Dtype::I64),
    ("uint8", Dtype::U8),
    ("uint16", Dtype::U16),
    ("uint32", Dtype::U32),
    ("uint64", Dtype::U64),
    ("bool", Dtype::Bool),
];

/// The type of a name, or of an object with a name.
///
/// # Errors
/// `DtypeError`.
pub(crate) fn dtype_of(given: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let name = match given.extract::<String>() {
        Ok(name) => name,
        Err(_) => {
            let named = given.getattr("name").or_else(|_| given.getattr("__name__"));
            match named.and_then(|name| name.extract::<String>()) {
                Ok(name) => name,
                // As PyTorch prints its types: torch.float32.
                Err(_) => given.str()?.to_string(),
            }
        }
    };
    let name = name.rsplit('.').next().unwrap_or(&name);
    let other = NAMES.iter().find(|(other, _)| *other == name);
    match other {
        Some((_, dtype)) => Ok(*dtype),
        None => name
            .parse()
            .map_err(|error: fercuda_runtime::UnknownDtype| errors::dtype(given.py(), error)),
    }
}

/// The type code in `__array_interface__` and related protocols.
pub(crate) fn typestr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::F64 => "<f8",
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::I8 => "|i1",
        Dtype::I16 => "<i2",
        Dtype::I32 => "<i4",
        Dtype::I64 => "<i8",
        Dtype::U8 => "|u1",
        Dtype::U16 => "<u2",
        Dtype::U32 => "<u4",
        Dtype::U64 => "<u8",
        Dtype::Bool => "|b1",
        Dtype::Bf16 | Dtype::F8E4m3 | Dtype::F8E5m2 => return None,
    })
}

/// The kind of element of a format of Python's module `struct`.
fn kind_of(format: &[u8]) -> Option<char> {
    let code = match format {
        [code] | [b'@' | b'=' | b'<', code] => *code,
        _ => return None,
    };
    Some(match code {
        b'e' | b'f' | b'd' => 'f',
        b'b' | b'h' | b'i' | b'l' | b'q' => 'i',
        b'B' | b'H' | b'I' | b'L' | b'Q' => 'u',
        b'?' => 'b',
        _ => return None,
    })
}

/// Copies the bytes of an object with Python's buffer interface, in element order, for a buffer
/// of this layout. Untyped bytes (`bytes`) fit any type.
///
/// # Errors
/// `DtypeError` if it has no buffer, or elements of another type; `LayoutError` for another
/// shape.
pub(crate) fn bytes_for(data: &Bound<'_, PyAny>, layout: &Layout) -> PyResult<Vec<u8>> {
    let py = data.py();
    let memory = PyMemoryView::from(data).map_err(|_| {
        let class = data.get_type();
        errors::dtype(
            py,
            format!(
                "{class} does not support the buffer interface\n\
                 try: bytes, array.array, or a NumPy array"
            ),
        )
    })?;
    let size: u64 = memory.getattr("itemsize")?.extract()?;
    let format: String = memory.getattr("format")?.extract()?;
    let shape: Vec<u64> = memory.getattr("shape")?.extract()?;
    let is_raw = size == 1 && matches!(&*format, "B" | "c" | "b") && shape.len() == 1;
    let given = kind_of(format.as_bytes()).and_then(|kind| of_kind(kind, size));
    // Types that NumPy does not have are passed as integers of the same size.
    let stands_for = |given: Dtype| {
        given == layout.dtype()
            || typestr(layout.dtype()).is_none()
                && given.bytes() == layout.dtype().bytes()
                && matches!(given, Dtype::U8 | Dtype::U16)
    };
    if !is_raw {
        if !given.is_some_and(stands_for) {
            let given = given.map_or_else(
                || format!("elements of {size} bytes ({format})"),
                |given| given.to_string(),
            );
            return Err(errors::dtype(
                py,
                format!(
                    "values of {given} for a buffer of {}\ntry: a cast, or their bytes",
                    layout.dtype()
                ),
            ));
        }
        if shape != layout.shape() {
            return Err(errors::layout(
                py,
                format!(
                    "values of shape {shape:?} for a buffer of {:?}\ntry: reshape one of them",
                    layout.shape()
                ),
            ));
        }
    }
    let bytes = memory.call_method0("tobytes")?;
    Ok(bytes.cast::<PyBytes>()?.as_bytes().to_vec())
}

/// The type with this element size and one of NumPy's kinds.
pub(crate) fn of_kind(kind: char, bytes: u64) -> Option<Dtype> {
    Some(match (kind, bytes) {
        ('f', 8) => Dtype::F64,
        ('f', 4) => Dtype::F32,
        ('f', 2) => Dtype::F16,
        ('i', 1) => Dtype::I8,
        ('i', 2) => Dtype::I16,
        ('i', 4) => Dtype::I32,
        ('i', 8) => Dtype::I64,
        ('u', 1) => Dtype::U8,
        ('u', 2) => Dtype::U16,
        ('u', 4) => Dtype::U32,
        ('u', 8) => Dtype::U64,
        ('b', 1) => Dtype::Bool,
        _ => return None,
    })
}

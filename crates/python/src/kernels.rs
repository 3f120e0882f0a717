//! Kernels, and what they are given.
//!
//! Invariant: an argument has the size that the kernel declares, or nothing is
//! launched: a number of Python's takes it from there, and one that does not fit is
//! refused.

use fercuda_cuda::{Dim, Function, KernelArg, Launch, Module};
use fercuda_runtime::{Argument, Dtype, Job, PreparedLaunch, Result, Session};
use half::{bf16, f16};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::alive::Kept;
use crate::buffer::PyBuffer;
use crate::errors;
use crate::host;

/// Code on a device. See the stubs.
#[pyclass(frozen, name = "Module", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyModule {
    module: Kept<Module>,
}

impl PyModule {
    pub(crate) fn new(module: Module) -> Self {
        Self {
            module: Kept::new(module),
        }
    }
}

#[pymethods]
impl PyModule {
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<PyFunction> {
        let function = errors::run(py, || Ok(self.module.function(name)?))?;
        Ok(PyFunction {
            function: Kept::new(function),
        })
    }
}

/// A kernel. See the stubs.
#[pyclass(frozen, name = "Function", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyFunction {
    function: Kept<Function>,
}

/// A launch with all it needs.
pub(crate) struct Call {
    function: Function,
    launch: Launch,
    arguments: Vec<Argument>,
}

impl Call {
    pub(crate) fn launch(self, session: &Session) -> Result<()> {
        // SAFETY: what a kernel touches is for who launches it to know, as the stubs say.
        unsafe { session.launch(&self.function, self.launch, &self.arguments) }
    }

    /// The same with its arguments looked up and held, for a capture.
    pub(crate) fn capture(self, session: &Session) -> Result<PreparedLaunch> {
        session.prepare_launch(&self.function, self.launch, &self.arguments)
    }

    pub(crate) fn submit(self, session: &Session) -> Result<Job<()>> {
        // SAFETY: as for `launch`.
        unsafe { session.launch_async(&self.function, self.launch, &self.arguments) }
    }
}

pub(crate) fn dim(extents: &Bound<'_, PyAny>) -> PyResult<Dim> {
    if let Ok(x) = extents.extract::<u32>() {
        return Ok(x.into());
    }
    let extents: Vec<u32> = extents.extract()?;
    let at = |dimension: usize| extents.get(dimension).copied().unwrap_or(1);
    Ok((at(0), at(1), at(2)).into())
}

/// A number whose type is said.
#[pyclass(frozen, name = "Scalar", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyScalar {
    dtype: Dtype,
    number: KernelArg<'static>,
    shown: String,
}

#[pymethods]
impl PyScalar {
    #[new]
    fn new(dtype: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let dtype = host::dtype_of(dtype)?;
        Ok(Self {
            dtype,
            number: typed(dtype, value)?,
            shown: value.repr()?.to_string(),
        })
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    fn __repr__(&self) -> String {
        format!("Scalar({}, {})", self.dtype, self.shown)
    }
}

fn typed(dtype: Dtype, value: &Bound<'_, PyAny>) -> PyResult<KernelArg<'static>> {
    Ok(match dtype {
        Dtype::F64 => KernelArg::number(value.extract::<f64>()?),
        Dtype::F32 => KernelArg::number(value.extract::<f64>()? as f32),
        Dtype::F16 => KernelArg::number(f16::from_f64(value.extract()?).to_bits()),
        Dtype::Bf16 => KernelArg::number(bf16::from_f64(value.extract()?).to_bits()),
        Dtype::I8 => KernelArg::number(value.extract::<i8>()?),
        Dtype::I16 => KernelArg::number(value.extract::<i16>()?),
        Dtype::I32 => KernelArg::number(value.extract::<i32>()?),
        Dtype::I64 => KernelArg::number(value.extract::<i64>()?),
        Dtype::U8 => KernelArg::number(value.extract::<u8>()?),
        Dtype::U16 => KernelArg::number(value.extract::<u16>()?),
        Dtype::U32 => KernelArg::number(value.extract::<u32>()?),
        Dtype::U64 => KernelArg::number(value.extract::<u64>()?),
        Dtype::Bool => KernelArg::number(u8::from(value.extract::<bool>()?)),
        Dtype::F8E4m3 | Dtype::F8E5m2 => {
            return Err(errors::dtype(
                value.py(),
                format!("a number of {dtype} is no argument\ntry: its bits as u8"),
            ));
        }
    })
}

impl PyFunction {
    pub(crate) fn call(
        &self,
        session: &Session,
        grid: &Bound<'_, PyAny>,
        block: &Bound<'_, PyAny>,
        arguments: Option<&Bound<'_, PyAny>>,
        shared_bytes: u32,
    ) -> PyResult<Call> {
        let parameters = Parameters {
            name: self.function.name(),
            sizes: self.function.parameter_bytes(),
        };
        let arguments = parameters.read(grid.py(), session, arguments)?;
        Ok(Call {
            function: (*self.function).clone(),
            launch: Launch::new(dim(grid)?, dim(block)?).shared_bytes(shared_bytes),
            arguments,
        })
    }
}

/// The parameters that a kernel's caller gives arguments for.
pub(crate) struct Parameters<'k> {
    /// The kernel's name.
    pub(crate) name: &'k str,
    /// Bytes of each, if the driver says.
    pub(crate) sizes: Option<&'k [usize]>,
}

impl Parameters<'_> {
    /// Arguments for them, buffers being the session's.
    ///
    /// # Errors
    /// `ArgumentsError`, also of another number of them.
    pub(crate) fn read(
        &self,
        py: Python<'_>,
        session: &Session,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Argument>> {
        let given: Vec<Bound<'_, PyAny>> = match arguments {
            Some(arguments) => arguments.try_iter()?.collect::<PyResult<_>>()?,
            None => Vec::new(),
        };
        let sizes = self.sizes;
        if let Some(sizes) = sizes
            && sizes.len() != given.len()
        {
            return Err(errors::plain(
                py,
                "ArgumentsError",
                format!(
                    "`{}` has {} parameters, and was given {} arguments\ntry: one for each, of {sizes:?} bytes",
                    self.name,
                    sizes.len(),
                    given.len()
                ),
            ));
        }
        let mut made = Vec::with_capacity(given.len());
        for (at, argument) in given.iter().enumerate() {
            let size = sizes.map(|sizes| sizes[at]);
            let (argument, bytes) = self.one(session, at, size, argument)?;
            if let Some(size) = size.filter(|size| *size as u64 != bytes) {
                return Err(errors::plain(
                    py,
                    "ArgumentsError",
                    format!(
                        "argument {at} of `{}` has {bytes} bytes, and the parameter {size}\n\
                         try: a Scalar of the parameter's type",
                        self.name
                    ),
                ));
            }
            made.push(argument);
        }
        Ok(made)
    }

    /// An argument, and its size in bytes.
    fn one(
        &self,
        session: &Session,
        at: usize,
        size: Option<usize>,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<(Argument, u64)> {
        let py = given.py();
        let name = self.name;
        let refused = |what: String| {
            Err(errors::plain(
                py,
                "ArgumentsError",
                format!("argument {at} of `{name}`: {what}"),
            ))
        };
        if let Ok(buffer) = given.cast::<PyBuffer>() {
            if buffer.get().session().name() != session.name() {
                return refused(format!(
                    "a buffer of session {:?}, and {:?} launches\ntry: a copy of it, or to lend it by DLPack",
                    buffer.get().session().name(),
                    session.name()
                ));
            }
            return Ok((Argument::Buffer(buffer.get().id()), 8));
        }
        if let Ok(scalar) = given.cast::<PyScalar>() {
            let scalar = scalar.get();
            return Ok((Argument::Number(scalar.number), scalar.dtype.bytes()));
        }
        // NumPy's numbers have a type.
        if let (Ok(dtype), true) = (given.getattr("dtype"), given.hasattr("item")?) {
            let dtype = host::dtype_of(&dtype)?;
            let number = typed(dtype, &given.call_method0("item")?)?;
            return Ok((Argument::Number(number), dtype.bytes()));
        }
        let Some(size) = size else {
            return refused(
                "this driver does not say how large it is\ntry: Scalar(dtype, value)".to_owned(),
            );
        };
        let dtype = if given.is_instance_of::<PyFloat>() {
            match size {
                4 => Dtype::F32,
                8 => Dtype::F64,
                _ => {
                    return refused(format!(
                        "a float, and the parameter has {size} bytes\ntry: Scalar(\"f16\", value), or another value"
                    ));
                }
            }
        } else if given.is_instance_of::<PyBool>() || given.is_instance_of::<PyInt>() {
            let is_negative = given.lt(0)?;
            match (size, is_negative) {
                (1, true) => Dtype::I8,
                (1, false) => Dtype::U8,
                (2, true) => Dtype::I16,
                (2, false) => Dtype::U16,
                (4, true) => Dtype::I32,
                (4, false) => Dtype::U32,
                (8, true) => Dtype::I64,
                (8, false) => Dtype::U64,
                _ => return refused(format!("an int, and the parameter has {size} bytes")),
            }
        } else {
            let class = given.get_type();
            return refused(format!(
                "{class} is no argument\ntry: a Buffer, an int, a float or a Scalar"
            ));
        };
        match typed(dtype, given) {
            Ok(number) => Ok((Argument::Number(number), dtype.bytes())),
            Err(_) => refused(format!(
                "{given} does not fit the {size} bytes of the parameter"
            )),
        }
    }
}

#[pymethods]
impl PyFunction {
    #[getter]
    fn name(&self) -> &str {
        self.function.name()
    }

    #[getter]
    fn parameter_bytes(&self) -> Option<Vec<usize>> {
        self.function.parameter_bytes().map(<[usize]>::to_vec)
    }

    #[getter]
    fn max_threads_per_block(&self) -> u32 {
        self.function.max_threads_per_block()
    }

    fn __repr__(&self) -> String {
        format!("<Function {}>", self.function.name())
    }
}

//! Kernels and their arguments.
//!
//! Invariant: every argument has the size that the kernel declares, or nothing is launched: a
//! Python number is converted to that size, and one that does not fit is rejected.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::thread::Builder;

use fercuda_cuda::{Dim, Function, KernelArg, Launch, Module, Stream};
use fercuda_runtime::{Dtype, Job, LaunchArgument, PreparedLaunch, Result, Session};
use half::{bf16, f16};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use crate::alive::{self, DetachedDrop};
use crate::buffer::PyBuffer;
use crate::extents;
use crate::host;
use crate::signature::{ModuleSignatures, ParameterDeclaration, ParameterKind};
use crate::{errors, exceptions};

/// Code that may be running in a session's stream. Unloading waits for that, so a thread of its own
/// does it then: collecting an object never waits for a kernel.
struct StreamCode<T: Send + 'static> {
    code: Option<T>,
    stream: Stream,
}

impl<T: Send + 'static> StreamCode<T> {
    fn new(code: T, stream: &Stream) -> DetachedDrop<Self> {
        DetachedDrop::new(Self {
            code: Some(code),
            stream: stream.clone(),
        })
    }
}

impl<T: Send + 'static> Deref for StreamCode<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.code {
            Some(code) => code,
            None => unreachable!("only `drop` takes it"),
        }
    }
}

impl<T: Send + 'static> Drop for StreamCode<T> {
    fn drop(&mut self) {
        // A stream that cannot be queried has failed, or this is a host callback: no wait either.
        if let Some(code) = self.code.take()
            && !self.stream.is_idle().unwrap_or(true)
        {
            let thread = Builder::new().name("fercuda unload".to_owned());
            // Without a thread, the closure is dropped here.
            drop(thread.spawn(move || alive::end_without_python(code)));
        }
    }
}

/// Code on a device. See the stubs.
#[pyclass(frozen, name = "Module", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyModule {
    module: DetachedDrop<StreamCode<Module>>,
    /// Its source, if that is PTX.
    ptx: Option<String>,
    /// Read from the source when first asked for.
    signatures: OnceLock<ModuleSignatures>,
}

impl PyModule {
    /// Machine code.
    pub(crate) fn new(module: Module, stream: &Stream) -> Self {
        Self {
            module: StreamCode::new(module, stream),
            ptx: None,
            signatures: OnceLock::new(),
        }
    }

    pub(crate) fn of_ptx(module: Module, stream: &Stream, ptx: String) -> Self {
        Self {
            ptx: Some(ptx),
            ..Self::new(module, stream)
        }
    }

    fn signatures(&self) -> &ModuleSignatures {
        let read = || self.ptx.as_deref().map(ModuleSignatures::read);
        self.signatures.get_or_init(|| read().unwrap_or_default())
    }
}

#[pymethods]
impl PyModule {
    fn function(&self, py: Python<'_>, name: &str) -> PyResult<PyFunction> {
        let (function, signature) = errors::run(py, || {
            Ok((self.module.function(name)?, self.signatures().of(name)))
        })?;
        Ok(PyFunction {
            function: StreamCode::new(function, &self.module.stream),
            signature,
        })
    }
}

/// A kernel. See the stubs.
#[pyclass(frozen, name = "Function", module = "fercuda_runtime._fercuda")]
pub(crate) struct PyFunction {
    function: DetachedDrop<StreamCode<Function>>,
    /// Its parameters, if its code is PTX that we can parse.
    signature: Option<Arc<[ParameterDeclaration]>>,
}

/// A launch with all its arguments.
pub(crate) struct KernelCall {
    function: Function,
    launch: Launch,
    arguments: Vec<LaunchArgument>,
}

impl KernelCall {
    pub(crate) fn launch(self, session: &Session) -> Result<()> {
        // SAFETY: the caller vouches for the kernel's accesses, as the stubs say.
        unsafe { session.launch(&self.function, self.launch, &self.arguments) }
    }

    /// Like `launch`, with validated and held arguments, for a capture.
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

/// A typed number.
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
                format!("a number of {dtype} cannot be an argument\ntry: its bits as u8"),
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
        shared_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<KernelCall> {
        let shared_bytes = extents::u32_bytes_of("shared_bytes", shared_bytes)?;
        let parameters = KernelParameters {
            name: self.function.name(),
            sizes: self.function.parameter_bytes(),
            declared: self.signature.as_deref(),
        };
        let arguments = parameters.read(grid.py(), session, arguments)?;
        Ok(KernelCall {
            function: Function::clone(&self.function),
            launch: Launch::new(dim(grid)?, dim(block)?).shared_bytes(shared_bytes),
            arguments,
        })
    }
}

/// The parameters for which a caller passes arguments.
pub(crate) struct KernelParameters<'k> {
    /// The kernel's name.
    pub(crate) name: &'k str,
    /// Size of each in bytes, if the driver reports it.
    pub(crate) sizes: Option<&'k [usize]>,
    /// Their declarations, if they are known.
    pub(crate) declared: Option<&'k [ParameterDeclaration]>,
}

/// What kind of value an argument is; `None` if it is of no particular kind.
fn kind_of(given: &Bound<'_, PyAny>) -> PyResult<Option<ParameterKind>> {
    let of_dtype = |dtype| match dtype {
        Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16 => ParameterKind::Float,
        Dtype::F8E4m3 | Dtype::F8E5m2 => ParameterKind::Untyped,
        _ => ParameterKind::Integer,
    };
    Ok(if given.is_instance_of::<PyBuffer>() {
        Some(ParameterKind::Integer)
    } else if let Ok(scalar) = given.cast::<PyScalar>() {
        Some(of_dtype(scalar.get().dtype))
    } else if given.is_instance_of::<PyFloat>() {
        Some(ParameterKind::Float)
    } else if given.is_instance_of::<PyInt>() {
        Some(ParameterKind::Integer)
    } else if let (Ok(dtype), true) = (given.getattr("dtype"), given.hasattr("item")?) {
        Some(of_dtype(host::dtype_of(&dtype)?))
    } else {
        None
    })
}

/// Whether an argument is an int without a type, which stands for a float too.
fn is_plain_int(given: &Bound<'_, PyAny>) -> bool {
    given.is_instance_of::<PyInt>()
}

impl KernelParameters<'_> {
    /// Converts arguments; buffers must be the session's.
    ///
    /// # Errors
    /// `ArgumentsError`, also for a wrong number of them.
    pub(crate) fn read(
        &self,
        py: Python<'_>,
        session: &Session,
        arguments: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<LaunchArgument>> {
        let given: Vec<Bound<'_, PyAny>> = match arguments {
            Some(arguments) => arguments.try_iter()?.collect::<PyResult<_>>()?,
            None => Vec::new(),
        };
        let sizes = self.sizes;
        if let Some(sizes) = sizes
            && sizes.len() != given.len()
        {
            return Err(exceptions::plain(
                py,
                "ArgumentsError",
                format!(
                    "`{}` has {} parameters, but was given {} arguments\ntry: one for each, of {sizes:?} bytes",
                    self.name,
                    sizes.len(),
                    given.len()
                ),
            ));
        }
        let mut made = Vec::with_capacity(given.len());
        for (at, argument) in given.iter().enumerate() {
            let size = sizes.map(|sizes| sizes[at]);
            let declared = self.declared.and_then(|declared| declared.get(at));
            let converted = match declared {
                Some(declared) => self.checked(at, declared, argument)?,
                None => None,
            };
            let argument = converted.as_ref().unwrap_or(argument);
            let (argument, bytes) = self.one(session, at, size, argument)?;
            if let Some(size) = size.filter(|size| *size as u64 != bytes) {
                return Err(exceptions::plain(
                    py,
                    "ArgumentsError",
                    format!(
                        "argument {at} of `{}` has {bytes} bytes, but the parameter has {size}\n\
                         try: a Scalar of the parameter's type",
                        self.name
                    ),
                ));
            }
            made.push(argument);
        }
        Ok(made)
    }

    /// Refuses an argument of another kind than the parameter's; returns the float for which an int
    /// stands.
    fn checked<'py>(
        &self,
        at: usize,
        declared: &ParameterDeclaration,
        given: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = given.py();
        if declared.kind == ParameterKind::Float && is_plain_int(given) {
            let number = given.extract().map_err(|_| {
                let what = format!(
                    "argument {at} of `{}`, {declared}, is {given}\ntry: a number that a float can hold",
                    self.name
                );
                exceptions::plain(py, "ArgumentsError", what)
            })?;
            return Ok(Some(PyFloat::new(py, number).into_any()));
        }
        let fits = match kind_of(given)? {
            Some(ParameterKind::Untyped) => true,
            Some(kind) => declared.kind == ParameterKind::Untyped || kind == declared.kind,
            // Refused with the accepted types.
            None => return Ok(None),
        };
        if fits {
            return Ok(None);
        }
        let (class, name) = (given.get_type().name()?, self.name);
        let advice = match declared.kind {
            ParameterKind::Float => "a float, or a Scalar of a float type",
            _ => "a Buffer of the session, an int, or a Scalar of an integer type",
        };
        Err(exceptions::plain(
            py,
            "ArgumentsError",
            format!(
                "argument {at} of `{name}`, {declared}, is {given} of type {class}\ntry: {advice}"
            ),
        ))
    }

    /// Converts one argument; returns it and its size in bytes.
    fn one(
        &self,
        session: &Session,
        at: usize,
        size: Option<usize>,
        given: &Bound<'_, PyAny>,
    ) -> PyResult<(LaunchArgument, u64)> {
        let py = given.py();
        let name = self.name;
        let refused = |what: String| {
            Err(exceptions::plain(
                py,
                "ArgumentsError",
                format!("argument {at} of `{name}`: {what}"),
            ))
        };
        if let Ok(buffer) = given.cast::<PyBuffer>() {
            if buffer.get().session().name() != session.name() {
                return refused(format!(
                    "a buffer of session {:?}, but {:?} launches\ntry: a copy of it, or import it by DLPack",
                    buffer.get().session().name(),
                    session.name()
                ));
            }
            return Ok((LaunchArgument::Buffer(buffer.get().id()), 8));
        }
        if let Ok(scalar) = given.cast::<PyScalar>() {
            let scalar = scalar.get();
            return Ok((LaunchArgument::Number(scalar.number), scalar.dtype.bytes()));
        }
        // NumPy's numbers have a type.
        if let (Ok(dtype), true) = (given.getattr("dtype"), given.hasattr("item")?) {
            let dtype = host::dtype_of(&dtype)?;
            let number = typed(dtype, &given.call_method0("item")?)?;
            return Ok((LaunchArgument::Number(number), dtype.bytes()));
        }
        let Some(size) = size else {
            return refused(
                "this driver does not report the parameter's size\ntry: Scalar(dtype, value)"
                    .to_owned(),
            );
        };
        let dtype = if given.is_instance_of::<PyFloat>() {
            match size {
                4 => Dtype::F32,
                8 => Dtype::F64,
                _ => {
                    return refused(format!(
                        "a float, but the parameter has {size} bytes\ntry: Scalar(\"f16\", value), or another value"
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
                _ => return refused(format!("an int, but the parameter has {size} bytes")),
            }
        } else {
            let class = given.get_type();
            return refused(format!(
                "{class} cannot be an argument\ntry: a Buffer, an int, a float or a Scalar"
            ));
        };
        match typed(dtype, given) {
            Ok(number) => Ok((LaunchArgument::Number(number), dtype.bytes())),
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

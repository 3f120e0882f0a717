//! Argument blocks: named fields in device memory with values that change between graph replays.
//!
//! Invariant: values that are set together all fit their fields, or none is set.
//! Elsewhere: the block and its pushes (`fercuda_runtime`).

use fercuda_runtime::{BlockLayout, Dtype, Field, Result, Session, SessionArguments};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::alive::DetachedDrop;
use crate::buffer::PyBuffer;
use crate::host;
use crate::{errors, exceptions};

/// Most values per field: what changes between replays is small.
const MOST_VALUES: usize = 1 << 16;

/// A block of arguments. See the stubs.
#[pyclass(
    frozen,
    weakref,
    name = "ArgumentBlock",
    module = "fercuda_runtime._fercuda"
)]
pub(crate) struct PyArgumentBlock {
    session: DetachedDrop<Session>,
    block: DetachedDrop<SessionArguments>,
    fields: Vec<(String, TypedField)>,
    bytes: usize,
}

/// Sets a field to values that were validated.
type FieldSetter = Box<dyn FnOnce(&SessionArguments) -> Result<()> + Send>;

macro_rules! typed {
    ($($dtype:ident $type:ident),*) => {
        #[derive(Clone, Copy)]
        enum TypedField { $($dtype(Field<$type>)),* }

        impl TypedField {
            fn declare(layout: &mut BlockLayout, name: &str, dtype: Dtype, len: usize) -> Option<Self> {
                match dtype {
                    $(Dtype::$dtype => Some(Self::$dtype(layout.array(name, len))),)*
                    _ => None,
                }
            }

            fn dtype(self) -> Dtype {
                match self { $(Self::$dtype(_) => Dtype::$dtype),* }
            }

            fn len(self) -> usize {
                match self { $(Self::$dtype(field) => field.len()),* }
            }

            fn offset_bytes(self) -> usize {
                match self { $(Self::$dtype(field) => field.offset_bytes()),* }
            }

            fn buffer(self, block: &SessionArguments) -> Result<fercuda_runtime::BufferId> {
                match self { $(Self::$dtype(field) => block.field(field)),* }
            }

            fn read(self, value: &Bound<'_, PyAny>) -> PyResult<FieldSetter> {
                match self {
                    $(Self::$dtype(field) => {
                        let values: Vec<$type> = match self.len() {
                            1 => vec![value.extract()?],
                            _ => value.extract()?,
                        };
                        self.check(value, values.len())?;
                        Ok(Box::new(move |block: &SessionArguments| {
                            let mut all = values.into_iter().enumerate();
                            all.try_for_each(|(at, value)| block.set_at(field, at, value))
                        }))
                    })*
                }
            }
        }
    };
}

typed!(U32 u32, I32 i32, U64 u64, I64 i64, F32 f32, F64 f64);

impl TypedField {
    fn check(self, value: &Bound<'_, PyAny>, given: usize) -> PyResult<()> {
        if given == self.len() {
            return Ok(());
        }
        let what = format!(
            "{given} values for a field of {}\ntry: as many values as the field has",
            self.len()
        );
        Err(errors::layout(value.py(), what))
    }
}

impl PyArgumentBlock {
    pub(crate) fn new(
        py: Python<'_>,
        session: &Session,
        pushes: usize,
        fields: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let refused = |what: String| Err(exceptions::plain(py, "ConfigError", what));
        if !(1..=MOST_VALUES).contains(&pushes) {
            return refused(format!(
                "pushes={pushes} is out of range\ntry: 1 to {MOST_VALUES}"
            ));
        }
        let mut layout = BlockLayout::new();
        let mut declared = Vec::new();
        for (name, given) in fields.into_iter().flatten() {
            let name: String = name.extract()?;
            let (dtype, len) = match given.cast::<PyTuple>() {
                Ok(given) => {
                    let (dtype, len): (Bound<'_, PyAny>, usize) = given.extract()?;
                    (host::dtype_of(&dtype)?, len)
                }
                Err(_) => (host::dtype_of(&given)?, 1),
            };
            if !(1..=MOST_VALUES).contains(&len) {
                return refused(format!(
                    "field {name:?} has {len} values\ntry: 1 to {MOST_VALUES}"
                ));
            }
            let Some(field) = TypedField::declare(&mut layout, &name, dtype, len) else {
                let what = format!(
                    "field {name:?} has the unsupported type {dtype}\ntry: u32, i32, u64, i64, f32 or f64"
                );
                return Err(errors::dtype(py, what));
            };
            declared.push((name, field));
        }
        let bytes = layout.bytes();
        let block = errors::run(py, || session.arguments(layout, pushes))?;
        Ok(Self {
            session: DetachedDrop::new(session.clone()),
            block: DetachedDrop::new(block),
            fields: declared,
            bytes,
        })
    }

    fn find(&self, py: Python<'_>, name: &str) -> PyResult<TypedField> {
        let found = self.fields.iter().find(|(it, _)| it == name);
        found.map(|(_, field)| *field).ok_or_else(|| {
            let all: Vec<&str> = self.fields.iter().map(|(name, _)| &**name).collect();
            let there = all.join(" ");
            let what = format!("the block has no field {name:?}\ntry: one of: {there}");
            exceptions::plain(py, "ConfigError", what)
        })
    }
}

#[pymethods]
impl PyArgumentBlock {
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fields = PyDict::new(py);
        for (name, field) in &self.fields {
            let shown = (field.dtype().name(), field.len(), field.offset_bytes());
            fields.set_item(name, shown)?;
        }
        Ok(fields)
    }

    fn field(&self, py: Python<'_>, name: &str) -> PyResult<PyBuffer> {
        let field = self.find(py, name)?;
        errors::run(py, || {
            PyBuffer::new(&self.session, field.buffer(&self.block)?, None)
        })
    }

    #[getter]
    fn buffer(&self, py: Python<'_>) -> PyResult<PyBuffer> {
        errors::run(py, || {
            let view = |layout: &fercuda_runtime::Layout| Ok((*layout, 0));
            let id = self.session.view(self.block.whole(), view)?;
            PyBuffer::new(&self.session, id, None)
        })
    }

    #[pyo3(signature = (**values))]
    fn set(&self, py: Python<'_>, values: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let mut sets = Vec::new();
        for (name, value) in values.into_iter().flatten() {
            let name: String = name.extract()?;
            sets.push(self.find(py, &name)?.read(&value)?);
        }
        errors::run(py, || sets.into_iter().try_for_each(|set| set(&self.block)))
    }

    fn push(&self, py: Python<'_>) -> PyResult<()> {
        errors::run(py, || self.block.push())
    }

    fn __repr__(&self) -> String {
        let fields = self.fields.iter().map(|(name, field)| match field.len() {
            1 => format!("{name}: {}", field.dtype()),
            len => format!("{name}: {}[{len}]", field.dtype()),
        });
        let fields: Vec<String> = fields.collect();
        format!("<ArgumentBlock {}>", fields.join(", "))
    }
}

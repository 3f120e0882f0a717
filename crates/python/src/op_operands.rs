//! Operands and outputs of ops: buffers, and device memory of other libraries.
//!
//! Invariants: memory of another library is borrowed behind the work that the library, or the
//! caller's stream, has queued with it, and is held until the op is done. The work of
//! another session with its buffers comes before the op, and behind it.
//!
//! Elsewhere: DLPack (`dlpack`), plans (`op_devices`).

use fercuda_cuda::DeviceBuffer;
use fercuda_jit::BoundArg;
use fercuda_runtime::{BoundBuffer, BufferId, Layout, Result, Session};
use pyo3::prelude::*;

use crate::buffer::PyBuffer;
use crate::dlpack::{self, BorrowedTensor, TensorDevice};
use crate::{errors, exceptions, session, stream};

/// Stream number by which a lender orders nothing.
const UNORDERED: i64 = -1;

/// An operand or output, read but not bound yet.
pub(crate) enum GivenArray {
    Buffer {
        session: Session,
        id: BufferId,
        layout: Layout,
    },
    Tensor(BorrowedTensor),
}

/// Whether an array is read or written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArrayUse {
    Read,
    Written,
}

/// The session of the first buffer among some arrays, or else the device of the first tensor.
pub(crate) fn session_of<'a, 'py: 'a>(
    mut arrays: impl Iterator<Item = &'a Bound<'py, PyAny>> + Clone,
) -> PyResult<std::result::Result<Session, u32>> {
    let mut all = arrays.clone();
    if let Some(buffer) = all.find_map(|it| it.cast::<PyBuffer>().ok()) {
        return Ok(Ok(buffer.get().session().clone()));
    }
    match arrays.next() {
        Some(first) if first.hasattr("__dlpack_device__")? => {
            let (place, device) = dlpack::place_of(first)?;
            let device = u32::try_from(device).unwrap_or(0);
            Ok(Err(if place.is_of_device() { device } else { 0 }))
        }
        _ => Ok(Err(0)),
    }
}

impl GivenArray {
    /// Reads one, for `session`. `what` names it in errors. If the caller has ordered the work,
    /// lenders do not.
    ///
    /// # Errors
    /// `ArgumentsError` for what is no array; `LayoutError` for host memory, memory of another
    /// device, and an output that is read-only; exceptions of the lender.
    pub(crate) fn read(
        session: &Session,
        what: &dyn Fn() -> String,
        given: &Bound<'_, PyAny>,
        used: ArrayUse,
        is_ordered: bool,
    ) -> PyResult<Self> {
        let py = given.py();
        let own = session.stream().context();
        let elsewhere = |device: u32| {
            errors::layout(
                py,
                format!(
                    "{} is on device {device}, but session {:?} is on device {}\ntry: a copy there, or session= of its device",
                    what(),
                    session.name(),
                    own.device().ordinal()
                ),
            )
        };
        if let Ok(buffer) = given.cast::<PyBuffer>() {
            let buffer = buffer.get();
            let other = buffer.session().stream().context();
            if other != own {
                return Err(elsewhere(other.device().ordinal()));
            }
            return Ok(Self::Buffer {
                session: buffer.session().clone(),
                id: buffer.id(),
                layout: *buffer.layout(),
            });
        }
        if !given.hasattr("__dlpack__")? || !given.hasattr("__dlpack_device__")? {
            let class = given.get_type();
            let hint = match given.hasattr("__cuda_array_interface__")? {
                true => "session.from_cuda_array_interface(array)",
                false => {
                    "a Buffer, or an array with DLPack; for a number, ops.full(shape=(), value=..., to=...) or a parameter"
                }
            };
            let what = format!("{} is {class}, no array\ntry: {hint}", what());
            return Err(exceptions::plain(py, "ArgumentsError", what));
        }
        let (place, device) = dlpack::place_of(given)?;
        if place == TensorDevice::Cpu {
            return Err(errors::layout(
                py,
                format!(
                    "{} is in host memory, which kernels cannot use\n\
                     try: an array on the device, as by tensor.cuda(); or session.from_dlpack(array), a copy",
                    what()
                ),
            ));
        }
        if place.is_of_device() && device != i64::from(own.device().ordinal()) {
            return Err(elsewhere(u32::try_from(device).unwrap_or(u32::MAX)));
        }
        let ready = match is_ordered {
            true => UNORDERED,
            false => stream::number(session),
        };
        let tensor = dlpack::borrow(given, ready)?;
        if tensor.is_read_only && used == ArrayUse::Written {
            return Err(errors::layout(
                py,
                format!("{} is read-only\ntry: another output", what()),
            ));
        }
        if tensor.is_copy && used == ArrayUse::Written {
            return Err(errors::layout(
                py,
                format!(
                    "{} is lent as a copy, so a result would be lost\ntry: another output",
                    what()
                ),
            ));
        }
        Ok(Self::Tensor(tensor))
    }

    pub(crate) fn layout(&self) -> &Layout {
        match self {
            Self::Buffer { layout, .. } => layout,
            Self::Tensor(tensor) => &tensor.layout,
        }
    }

    /// Binds the memory of a buffer of that session; nothing for other arrays.
    ///
    /// # Errors
    /// A freed buffer; a session that has ended.
    pub(crate) fn bind_own(self, session: &Session) -> Result<Option<BoundBuffer>> {
        match self {
            Self::Buffer {
                session: owner, id, ..
            } if owner.name() == session.name() => session.bind(id).map(Some),
            _ => Ok(None),
        }
    }

    /// Binds its memory, behind the work of its session so far.
    ///
    /// # Errors
    /// A freed buffer; a session that has ended; an address that the driver does not know.
    pub(crate) fn bind(self, session: &Session) -> Result<BoundArray> {
        match self {
            Self::Buffer {
                session: owner, id, ..
            } => {
                let memory = owner.bind(id)?;
                let is_own = owner.name() == session.name();
                if !is_own {
                    session.wait_for(owner.record()?)?;
                }
                let owner = (!is_own).then_some(owner);
                Ok(BoundArray(ArrayMemory::Buffer { memory, owner }))
            }
            Self::Tensor(tensor) if tensor.layout.is_empty() => {
                let (address, layout, place) = (tensor.address, tensor.layout, tensor.place);
                let buffer = session::import(session, address, layout, place, tensor)?;
                Ok(BoundArray::of(session.bind(buffer.id())?))
            }
            Self::Tensor(tensor) => {
                let context = session.stream().context();
                stream::check_address(context, tensor.address)?;
                // SAFETY: the lender guarantees that its memory covers the layout while the tensor
                // is held: until the op is done (`dlpack::return_behind`).
                let memory = unsafe { dlpack::memory_of(context, tensor.address, &tensor.layout) };
                let (memory, first) = memory?;
                Ok(BoundArray(ArrayMemory::Lent {
                    memory,
                    first,
                    tensor,
                }))
            }
        }
    }
}

/// Memory of an operand or output.
enum ArrayMemory {
    Buffer {
        memory: BoundBuffer,
        /// The session of the buffer, if it is another one.
        owner: Option<Session>,
    },
    Lent {
        memory: DeviceBuffer<u8>,
        /// Offset of the first element.
        first: u64,
        tensor: BorrowedTensor,
    },
}

/// An operand or output with its memory.
pub(crate) struct BoundArray(ArrayMemory);

impl BoundArray {
    /// A buffer of the session that runs the op.
    pub(crate) fn of(memory: BoundBuffer) -> Self {
        Self(ArrayMemory::Buffer {
            memory,
            owner: None,
        })
    }

    /// Its memory, from the first element on.
    pub(crate) fn arg(&self) -> BoundArg<'_> {
        match &self.0 {
            ArrayMemory::Buffer { memory, .. } => memory.arg(),
            ArrayMemory::Lent { memory, first, .. } => BoundArg::of(memory).first_at(*first),
        }
    }

    /// The session of its buffer, if it is another one, or the tensor of another library.
    pub(crate) fn into_owner(self) -> (Option<Session>, Option<BorrowedTensor>) {
        match self.0 {
            ArrayMemory::Buffer { owner, .. } => (owner, None),
            ArrayMemory::Lent { tensor, .. } => (None, Some(tensor)),
        }
    }
}

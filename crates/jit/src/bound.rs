//! Memory bound to inputs and outputs, and its check.
//!
//! Invariant: bindings that pass `check` and `check_scratch` cover every element of their layouts,
//! are aligned to its size, and no output overlaps anything but an input that it may overwrite.
//! Elsewhere: launching over them (`compiler`; `fercuda-kernels`).

use bytemuck::Pod;
use fercuda_cuda::{DeviceBuffer, DeviceSlice, KernelArg, Stream};
use fercuda_tensor::Layout;

use crate::error::Error;

/// Alignment of a vector access, and of memory between kernels.
pub const ALIGN: u64 = 16;

type Result<T> = std::result::Result<T, Error>;

/// Memory bound to an input or output.
#[derive(Clone, Copy, Debug)]
pub struct BoundArg<'a> {
    memory: DeviceSlice<'a, u8>,
    first: u64,
}

impl<'a> BoundArg<'a> {
    /// Binds a whole buffer; its beginning is the first element. If it is bound to an output, it
    /// is written through a shared reference: device memory is not visible to Rust's aliasing
    /// rules.
    pub fn of<T: Pod>(buffer: &'a DeviceBuffer<T>) -> Self {
        Self::slice(buffer.as_slice())
    }

    /// Binds a part of a buffer.
    pub fn slice<T: Pod>(slice: DeviceSlice<'a, T>) -> Self {
        Self {
            memory: slice.as_bytes(),
            first: 0,
        }
    }

    /// Sets the offset of the first element in the memory, in bytes: for layouts with negative
    /// strides, and for parts.
    pub fn first_at(self, bytes: u64) -> Self {
        Self {
            first: bytes,
            ..self
        }
    }

    /// Address of the first element.
    pub fn address(&self) -> u64 {
        self.memory.address().0.wrapping_add(self.first)
    }

    /// The same memory, with its first element so many bytes farther.
    pub fn skip(self, bytes: u64) -> Self {
        Self {
            first: self.first.saturating_add(bytes),
            ..self
        }
    }

    /// The memory from the first element on.
    ///
    /// # Errors
    /// [`Error::Cuda`] if that is outside of it.
    pub fn memory(&self) -> Result<DeviceSlice<'a, u8>> {
        let first = usize::try_from(self.first).unwrap_or(usize::MAX);
        Ok(self.memory.slice(first..)?)
    }

    /// Reads bytes behind the first element, after waiting for the stream.
    ///
    /// # Errors
    /// [`Error::Cuda`] if they are outside of the memory, or the driver refuses.
    pub fn read(&self, from: u64, bytes: u64, stream: &Stream) -> Result<Vec<u8>> {
        let place = |at: u64| {
            let at = self.first.checked_add(at);
            at.and_then(|at| usize::try_from(at).ok())
                .unwrap_or(usize::MAX)
        };
        let memory = self
            .memory
            .slice(place(from)..place(from.saturating_add(bytes)))?;
        Ok(memory.to_vec(stream)?)
    }

    /// Offset of the first element in the memory, in bytes.
    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The address of the byte at an offset from the first element, as an argument of a launch
    /// that retains the memory.
    ///
    /// # Errors
    /// [`Error::Cuda`] if it is outside of the memory.
    pub fn argument(&self, offset: i64) -> Result<KernelArg<'a>> {
        Ok(KernelArg::slice(self.part(offset)?))
    }

    /// The memory from the byte at an offset from the first element on.
    ///
    /// # Errors
    /// [`Error::Cuda`] if that is outside of it.
    pub fn part(&self, offset: i64) -> Result<DeviceSlice<'a, u8>> {
        let at = self.first.checked_add_signed(offset);
        let at = at.and_then(|at| usize::try_from(at).ok());
        Ok(self.memory.slice(at.unwrap_or(usize::MAX)..)?)
    }
}

/// Names of inputs and outputs, for errors.
pub trait BoundNames {
    /// Name of the input of that number.
    fn input(&self, at: usize) -> String;
    /// Name of the output of that number.
    fn output(&self, at: usize) -> String;
}

/// The layouts that memory is bound to.
#[derive(Clone, Copy)]
pub struct Bindings<'a> {
    /// Layouts of the inputs.
    pub inputs: &'a [Layout],
    /// Layouts of the outputs.
    pub outputs: &'a [Layout],
    /// For each output whether it may be the memory of each input, exactly.
    pub in_place: &'a [Vec<bool>],
    /// Their names.
    pub names: &'a dyn BoundNames,
}

fn range(arg: &BoundArg<'_>, layout: &Layout) -> (u64, u64) {
    let reach = layout.reach_bytes();
    let first = arg.address();
    (
        first.wrapping_add_signed(reach.start),
        first.wrapping_add_signed(reach.end),
    )
}

fn meet((a, a_end): (u64, u64), (b, b_end): (u64, u64)) -> bool {
    a < b_end && b < a_end && a < a_end && b < b_end
}

impl Bindings<'_> {
    /// Checks number, reach, alignment and overlap of bound memory. The result is the bitwise or
    /// of the addresses of all that have elements: a multiple of 16 if each of them is one.
    ///
    /// # Errors
    /// [`Error::Count`], [`Error::Reach`], [`Error::Misaligned`], [`Error::Overlap`].
    pub fn check(&self, inputs: &[BoundArg<'_>], outputs: &[BoundArg<'_>]) -> Result<u64> {
        for (what, wanted, given) in [
            ("input", self.inputs.len(), inputs.len()),
            ("output", self.outputs.len(), outputs.len()),
        ] {
            if wanted != given {
                return Err(Error::Count {
                    what,
                    wanted,
                    given,
                });
            }
        }
        let mut bits = 0;
        let layouts = self.inputs.iter().chain(self.outputs);
        for (at, (arg, layout)) in inputs.iter().chain(outputs).zip(layouts).enumerate() {
            let reach = layout.reach_bytes();
            if reach.is_empty() {
                continue;
            }
            let bytes = arg.memory.len() as u64;
            let first = i128::from(arg.first());
            let (from, until) = (
                first + i128::from(reach.start),
                first + i128::from(reach.end),
            );
            if from < 0 || until > i128::from(bytes) {
                return Err(self.out_of_reach(at, layout, from, until, bytes));
            }
            let address = arg.address();
            if !address.is_multiple_of(layout.dtype().bytes()) {
                let (what, name) = self.called(at);
                return Err(Error::Misaligned {
                    what,
                    name,
                    address,
                    align: layout.dtype().bytes(),
                });
            }
            bits |= address;
        }
        for (at, output) in outputs.iter().enumerate() {
            let own = range(output, &self.outputs[at]);
            for (input, layout) in self.inputs.iter().enumerate() {
                let same = output.address() == inputs[input].address();
                let allowed = same && self.in_place[at][input];
                if !allowed && meet(own, range(&inputs[input], layout)) {
                    return Err(self.overlap(at, input));
                }
            }
            for (other, layout) in self.outputs.iter().enumerate().skip(at + 1) {
                if meet(own, range(&outputs[other], layout)) {
                    return Err(self.overlap(at, self.inputs.len() + other));
                }
            }
        }
        Ok(bits)
    }

    /// Checks the memory between kernels against its size and against bindings that passed
    /// [`Bindings::check`].
    ///
    /// # Errors
    /// [`Error::Reach`], [`Error::Misaligned`], [`Error::Overlap`].
    pub fn check_scratch(
        &self,
        inputs: &[BoundArg<'_>],
        outputs: &[BoundArg<'_>],
        scratch: BoundArg<'_>,
        wanted: u64,
    ) -> Result<()> {
        let given = (scratch.memory.len() as u64).saturating_sub(scratch.first());
        if given < wanted {
            return Err(Error::Reach {
                what: "scratch",
                name: "memory between kernels".to_owned(),
                layout: format!("{wanted} bytes"),
                from: scratch.first().cast_signed(),
                until: scratch.first().saturating_add(wanted).cast_signed(),
                bytes: scratch.memory.len() as u64,
            });
        }
        let address = scratch.address();
        if !address.is_multiple_of(ALIGN) {
            return Err(Error::Misaligned {
                what: "scratch",
                name: "memory between kernels".to_owned(),
                address,
                align: ALIGN,
            });
        }
        let scratch_range = (address, address + wanted);
        let layouts = self.inputs.iter().chain(self.outputs);
        for (at, (arg, layout)) in inputs.iter().chain(outputs).zip(layouts).enumerate() {
            if meet(scratch_range, range(arg, layout)) {
                let (what, other) = self.called(at);
                return Err(Error::Overlap {
                    output: "memory between kernels".to_owned(),
                    what,
                    other,
                });
            }
        }
        Ok(())
    }

    /// Kind and name of an input or, behind them, an output, by its number.
    fn called(&self, at: usize) -> (&'static str, String) {
        match at.checked_sub(self.inputs.len()) {
            None => ("input", self.names.input(at)),
            Some(at) => ("output", self.names.output(at)),
        }
    }

    #[cold]
    fn out_of_reach(
        &self,
        at: usize,
        layout: &Layout,
        from: i128,
        until: i128,
        bytes: u64,
    ) -> Error {
        let (what, name) = self.called(at);
        let shown = |at: i128| at.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        Error::Reach {
            what,
            name,
            layout: layout.to_string(),
            from: shown(from),
            until: shown(until),
            bytes,
        }
    }

    #[cold]
    fn overlap(&self, output: usize, other: usize) -> Error {
        let (what, other) = self.called(other);
        Error::Overlap {
            output: self.names.output(output),
            what,
            other,
        }
    }
}

impl std::fmt::Debug for Bindings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bindings({:?} to {:?})", self.inputs, self.outputs)
    }
}

//! Arguments of a launch: numbers, memory, structures, and lists only known at run time.
//!
//! Elsewhere: comparing them with the kernel's parameters (`launch`).

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::{NoUninit, Pod};

use crate::address::DeviceAddr;
use crate::allocation::DeviceAllocation;
use crate::buffer::DeviceBuffer;
use crate::error::Result;
use crate::parameters::pack;
use crate::slice::{DeviceSlice, DeviceSliceMut};
use crate::stream::Stream;
use crate::tensor_map::BoundTensorMap;

/// Something a kernel can be passed: a number, a buffer or slice (as its
/// address), [`ByValue`] for a structure, [`DeviceAddr`] for a bare address.
///
/// Only the size of a kernel parameter is known here, not its meaning; that the types match is part
/// of the contract of [`Launch::run`](crate::Launch::run).
pub trait Argument: sealed::SealedArgument {}

impl<A: sealed::SealedArgument> Argument for A {}

/// A structure passed by value, as C lays it out.
#[derive(Clone, Copy, Debug)]
pub struct ByValue<T>(pub T);

mod sealed {
    use super::{Arc, DeviceAllocation, Result, Stream, c_void};

    pub trait SealedArgument {
        /// The value that is copied to the kernel.
        type Passed: Copy;

        fn passed(&self) -> &Self::Passed;

        /// The memory it refers to, which must not be freed until the kernel is done.
        #[inline]
        fn memory(&self) -> Option<&Arc<DeviceAllocation>> {
            None
        }
    }

    pub trait SealedArguments {
        /// Their sizes by `pack`, where the type determines them.
        const PACKED: Option<[u64; 2]>;

        /// Calls `launch` with the address and size of each argument.
        fn with<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R;

        /// Notes the memory they refer to, before `stream` is entered.
        fn note(&self, stream: &Stream) -> Result<()>;

        /// Whether `holds` is true of each memory they refer to.
        fn all(&self, holds: impl FnMut(&DeviceAllocation) -> bool) -> bool;

        /// Calls `body` with each memory they refer to.
        fn for_each(&self, body: impl FnMut(&Arc<DeviceAllocation>));
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl sealed::SealedArgument for $number {
            type Passed = Self;

            #[inline]
            fn passed(&self) -> &Self {
                self
            }
        }
    )*};
}

numbers! { u8 i8 u16 i16 u32 i32 u64 i64 usize isize f32 f64 }

impl<T: NoUninit> sealed::SealedArgument for ByValue<T> {
    type Passed = T;

    #[inline]
    fn passed(&self) -> &T {
        &self.0
    }
}

impl sealed::SealedArgument for DeviceAddr {
    type Passed = u64;

    #[inline]
    fn passed(&self) -> &u64 {
        &self.0
    }
}

macro_rules! memory {
    ($(($($generics:tt)*) $memory:ty, |$this:ident| $place:expr;)*) => {$(
        impl<$($generics)*> sealed::SealedArgument for $memory {
            type Passed = u64;

            #[inline]
            fn passed(&self) -> &u64 {
                let $this = self;
                &$place.address
            }

            #[inline]
            fn memory(&self) -> Option<&Arc<DeviceAllocation>> {
                Some(self.allocation())
            }
        }
    )*};
}

memory! {
    (T) &DeviceBuffer<T>, |this| this.allocation();
    (T) &mut DeviceBuffer<T>, |this| this.allocation();
    (T: Pod) DeviceSlice<'_, T>, |this| this;
    (T: Pod) &DeviceSlice<'_, T>, |this| this;
    (T: Pod) DeviceSliceMut<'_, T>, |this| this;
    (T: Pod) &mut DeviceSliceMut<'_, T>, |this| this;
}

/// The arguments of a launch: a tuple of up to sixteen [`Argument`]s, or a
/// slice of [`KernelArg`]s when they are only known at run time.
pub trait Arguments: sealed::SealedArguments {}

impl<A: sealed::SealedArguments + ?Sized> Arguments for A {}

macro_rules! tuples {
    ($(($($name:ident)*))*) => {$(
        #[allow(non_snake_case, reason = "a variable for each type parameter, of which () has none")]
        impl<$($name: Argument),*> sealed::SealedArguments for ($($name,)*) {
            const PACKED: Option<[u64; 2]> = pack(&[$(size_of::<$name::Passed>()),*]);

            #[inline]
            fn with<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
                let ($($name,)*) = self;
                // Their own addresses: the driver only reads what the pointers point to.
                launch(
                    &mut [$(std::ptr::from_ref($name.passed()).cast_mut().cast::<c_void>()),*],
                    const { &[$(size_of::<$name::Passed>()),*] },
                )
            }

            fn note(&self, _stream: &Stream) -> Result<()> {
                let ($($name,)*) = self;
                $(if let Some(memory) = $name.memory() {
                    memory.note(_stream)?;
                })*
                Ok(())
            }

            #[inline]
            fn all(&self, mut _holds: impl FnMut(&DeviceAllocation) -> bool) -> bool {
                let ($($name,)*) = self;
                true $(&& $name.memory().is_none_or(|memory| _holds(memory)))*
            }

            fn for_each(&self, mut _body: impl FnMut(&Arc<DeviceAllocation>)) {
                let ($($name,)*) = self;
                $(if let Some(memory) = $name.memory() {
                    _body(memory);
                })*
            }
        }
    )*};
}

tuples! {
    () (A) (A B) (A B C) (A B C D) (A B C D E) (A B C D E F) (A B C D E F G) (A B C D E F G H)
    (A B C D E F G H I) (A B C D E F G H I J) (A B C D E F G H I J K)
    (A B C D E F G H I J K L) (A B C D E F G H I J K L M) (A B C D E F G H I J K L M N)
    (A B C D E F G H I J K L M N O) (A B C D E F G H I J K L M N O P)
}

/// An argument with a type that is only known at run time.
#[derive(Clone, Copy, Debug)]
pub struct KernelArg<'a> {
    bytes: [u8; 8],
    len: usize,
    memory: Option<&'a Arc<DeviceAllocation>>,
    structure: Option<&'a [u8]>,
}

impl<'a> KernelArg<'a> {
    /// A number of 1, 2, 4 or 8 bytes.
    pub fn number<T: Pod + Argument>(number: T) -> Self {
        let from = bytemuck::bytes_of(&number);
        let mut bytes = [0; 8];
        // The numbers above have at most eight bytes; a longer value is truncated but its length
        // stored, so that the launch refuses it.
        let len = from.len().min(8);
        bytes[..len].copy_from_slice(&from[..len]);
        Self {
            bytes,
            len: from.len(),
            memory: None,
            structure: None,
        }
    }

    /// The address of a buffer.
    pub fn buffer<T>(buffer: &'a DeviceBuffer<T>) -> Self {
        Self::address(buffer.address(), buffer.allocation())
    }

    /// The address of a part of a buffer.
    pub fn slice<T: Pod>(slice: DeviceSlice<'a, T>) -> Self {
        Self::address(slice.address(), slice.allocation())
    }

    fn address(address: DeviceAddr, memory: &'a Arc<DeviceAllocation>) -> Self {
        Self {
            bytes: address.0.to_ne_bytes(),
            len: 8,
            memory: Some(memory),
            structure: None,
        }
    }

    /// A tensor map, and the memory that it describes.
    pub fn map(map: &'a BoundTensorMap) -> Self {
        Self {
            memory: Some(map.memory()),
            ..Self::bytes(map.bytes())
        }
    }

    /// A structure passed by value, as C lays it out.
    pub fn bytes(bytes: &'a [u8]) -> Self {
        Self {
            bytes: [0; 8],
            len: bytes.len(),
            memory: None,
            structure: Some(bytes),
        }
    }
}

/// Number of arguments that need no memory but the stack's.
const FEW: usize = 24;

/// Writes where the driver finds the values, which is in `words` or in a structure of the caller's,
/// and their sizes. The driver only reads what the pointers point to.
fn lay_out(
    values: &[KernelArg<'_>],
    words: &mut [u64],
    pointers: &mut [*mut c_void],
    sizes: &mut [usize],
) {
    for (at, value) in values.iter().enumerate() {
        words[at] = u64::from_ne_bytes(value.bytes);
        sizes[at] = value.len;
        pointers[at] = match value.structure {
            Some(structure) => structure.as_ptr().cast_mut().cast(),
            None => (&raw mut words[at]).cast(),
        };
    }
}

impl sealed::SealedArguments for &[KernelArg<'_>] {
    const PACKED: Option<[u64; 2]> = None;

    fn with<R>(&self, launch: impl FnOnce(&mut [*mut c_void], &[usize]) -> R) -> R {
        let (count, null) = (self.len(), std::ptr::null_mut());
        if count <= FEW {
            let (mut words, mut pointers, mut sizes) = ([0; FEW], [null; FEW], [0; FEW]);
            lay_out(self, &mut words, &mut pointers, &mut sizes);
            return launch(&mut pointers[..count], &sizes[..count]);
        }
        let (mut words, mut pointers, mut sizes) =
            (vec![0; count], vec![null; count], vec![0; count]);
        lay_out(self, &mut words, &mut pointers, &mut sizes);
        launch(&mut pointers, &sizes)
    }

    fn note(&self, stream: &Stream) -> Result<()> {
        self.iter()
            .filter_map(|value| value.memory)
            .try_for_each(|memory| memory.note(stream))
    }

    fn all(&self, mut holds: impl FnMut(&DeviceAllocation) -> bool) -> bool {
        self.iter()
            .filter_map(|value| value.memory)
            .all(|memory| holds(memory))
    }

    fn for_each(&self, body: impl FnMut(&Arc<DeviceAllocation>)) {
        self.iter().filter_map(|value| value.memory).for_each(body);
    }
}
